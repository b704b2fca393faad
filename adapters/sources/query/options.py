"""Options of the source that asks a database for what is new."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated

import sqlalchemy as sa
from pydantic import AfterValidator, Field, SecretStr, model_validator

from replicator.domain.errors import ConfigProblem

from ..journal.options import JournalOptions

DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgres": "postgresql+psycopg"}
"""Schemes that name no driver, where SQLAlchemy would take one that is not installed here."""


def normalize_url(dsn: SecretStr) -> SecretStr:
    """The URL with the driver that is here. ValueError, without its text, for what is no URL."""
    scheme, found, rest = dsn.get_secret_value().partition("://")
    text = f"{DRIVERS.get(scheme, scheme)}{found}{rest}"
    try:
        sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise ValueError("is not a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    return SecretStr(text)


class QueryOptions(JournalOptions):
    """`sources.<name>` of the configuration with `transport: query`.

    `dsn` is the URL of the database, `table` the table's name, and `query` what is asked, by default all of the table; then
    `schema` are its columns and their types. `cursor_column` says what is new: whole numbers, dates or times. Rows at or
    below `start_after` are never read. `overlap`: how far below the highest value that was read it is read again, a time for
    times and a number for numbers. `every`: seconds from one reading to the next. `ranges`: how many connections read side
    by side at first. `chunk_records` and `chunk_bytes` bound what is held of a reading. Others: see `JournalOptions`.
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
            raise ValueError("the cursor_column cannot be masked: by it is known what is new")
        return self

    @property
    def name(self) -> str:
        """The table's name, and the stream's."""
        return self.table

    @classmethod
    def read(cls, options: Mapping[str, object]) -> QueryOptions:
        """The options checked. Raises ConfigProblem that names each wrong key, and one where no key is known."""
        found = cls.from_options(options, "a query")
        if not found.keys:
            raise ConfigProblem(
                f"Nothing says what the key of {found.name} is, by which rows that were read before are known.",
                next_step=f"Write a table with `match: {found.name}` and `keys`.",
            )
        return found
