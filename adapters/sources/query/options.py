"""Options of the query source."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated

import sqlalchemy as sa
from pydantic import AfterValidator, Field, SecretStr, model_validator

from replicator.domain.errors import ConfigProblem

from ..journal.options import JournalOptions

DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgres": "postgresql+psycopg"}
"""Drivers for schemes without one, for which SQLAlchemy would choose a driver that is not installed."""


def normalize_url(dsn: SecretStr) -> SecretStr:
    """The URL with an installed driver. Raises ValueError, without the text, for an invalid URL."""
    scheme, found, rest = dsn.get_secret_value().partition("://")
    text = f"{DRIVERS.get(scheme, scheme)}{found}{rest}"
    try:
        sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise ValueError("is not a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    return SecretStr(text)


class QueryOptions(JournalOptions):
    """`sources.<name>` in the configuration with `transport: query`.

    - `dsn`: the URL of the database. `table`: the table's name.
    - `query`: the query, by default the whole table. With a query, `schema` has its columns and types.
    - `cursor_column`: integers, dates or times that identify new rows. Rows at or below `start_after` are never read.
    - `overlap`: the part below the highest read value that is read again: a duration for times, a number for numbers.
    - `every`: seconds between two reads. `ranges`: the number of connections for the first read.
    - `chunk_records`, `chunk_bytes`: limits of rows in memory.
    - Others: see `JournalOptions`.
    """

    dsn: Annotated[SecretStr, AfterValidator(normalize_url)]
    table: str = Field(min_length=1)
    query: str | None = None
    cursor_column: str = Field(min_length=1)
    start_after: int | datetime | date | str | None = Field(None, union_mode="left_to_right")
    overlap: int | timedelta | None = None
    every: float = Field(60, gt=0)
    ranges: int = Field(1, ge=1, le=64)
    chunk_records: int = Field(50_000, ge=1)
    chunk_bytes: int = Field(32 * 1024 * 1024, ge=1)

    @model_validator(mode="after")
    def _check_types(self) -> QueryOptions:
        if (self.query is None) == bool(self.columns):
            raise ValueError("columns are declared in 'schema' where there is a 'query', and only there")
        if self.cursor_column in self.private:
            raise ValueError("the cursor_column cannot be masked: it shows which rows are new")
        return self

    @property
    def name(self) -> str:
        """The name of the table and of the stream."""
        return self.table

    @classmethod
    def read(cls, options: Mapping[str, object]) -> QueryOptions:
        """The validated options. Raises ConfigProblem that names each wrong key, and for a missing key."""
        found = cls.from_options(options, "a query")
        if not found.keys:
            raise ConfigProblem(
                f"The key of {found.name} is unknown. It is needed to recognise rows that were read before.",
                next_step=f"Write a table with `match: {found.name}` and `keys`.",
            )
        return found
