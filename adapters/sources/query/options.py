"""Options of the query source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from replicator.domain.errors import ConfigProblem
from replicator.ports.adapter_options import ROWS, ColumnName, given
from replicator.ports.options import DatabaseUrl, Duration, Into, PositiveDuration, unset

from ..delta_options import JournalOptions

EVERY = "1 minute"


class QuerySettings(JournalOptions):
    """A table or query of a database that SQLAlchemy supports. It is queried again and again for rows with a higher
    cursor value."""

    what: ClassVar[str] = "a source of a query"
    rank: ClassVar[int] = 6
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "query", "format": ROWS}

    transport: Literal["query"]
    dsn: DatabaseUrl
    """The database as SQLAlchemy writes it: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, `mariadb://...` or
    `mysql://...`."""
    table: Into
    """The table, as TABLE or SCHEMA.TABLE. It also names the stream."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """The SELECT to run. Declare its columns in `schema` of the table. By default all columns of the table."""
    cursor_column: ColumnName
    """The column that shows new rows: a time of change, or an increasing number."""
    start_after: int | str | None = None
    """Rows with this value of `cursor_column` or a lower one are never read, such as `2019-11-20 00:00:00`. By default
    all are."""
    overlap: Annotated[int, Field(ge=0)] | Duration | None = None
    """How far below the highest value each reading starts, for transactions that commit late. Default: 5 minutes for
    times, 1000 for numbers."""
    every: PositiveDuration | None = unset(EVERY)
    """The time between two readings."""
    ranges: Annotated[int, Field(ge=1, le=64)] = 1
    """How many connections do the first reading, each for a range of `cursor_column`."""

    chunk_records: int = given(50_000, ge=1)
    """The most rows in memory."""
    chunk_bytes: int = given(32 * 1024 * 1024, ge=1)
    """The most bytes of rows in memory."""

    @property
    def name(self) -> str:
        return self.table

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem for a missing key, and for columns that do not fit."""
        settings = super().read(options)
        if (settings.query is None) == bool(settings.columns):
            raise cls.refuse("columns are declared in 'schema' where there is a 'query', and only there")
        if settings.cursor_column in settings.private:
            raise cls.refuse("the cursor_column cannot be masked: it shows which rows are new")
        if not settings.keys:
            raise ConfigProblem(
                f"The key of {settings.name} is unknown. It is needed to recognise rows that were read before.",
                next_step=f"Write a table with `match: {settings.name}` and `keys`.",
            )
        return settings
