"""Options of the snapshots source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from replicator.ports.adapter_options import ROWS, given
from replicator.ports.options import ConfigPath, Dsn, Into, PositiveDuration, unset

from ..delta_options import JournalOptions

EVERY = "5 minutes"


class SnapshotsSettings(JournalOptions):
    """Full copies of one table, which are compared with each other. They are files at `path`, or answers of a database
    at `dsn`."""

    what: ClassVar[str] = "a source of snapshots"
    rank: ClassVar[int] = 5
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "snapshots", "format": ROWS}

    transport: Literal["snapshots"]
    path: ConfigPath | None = None
    """The folder of the copies. Its name is the table's name. File names end in their versions, such as
    `2024-01-05.parquet`."""
    files: Literal["parquet", "csv", "jsonl"] | None = unset("parquet")
    """With `path`: the kind of files. For `csv` and `jsonl`, declare the columns in `schema` of the table."""
    dsn: Dsn | None = None
    """Instead of `path`: the database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    table: Into | None = None
    """With `dsn`: the table, as TABLE or SCHEMA.TABLE. It also names the stream."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """With `dsn`: the SELECT whose rows are one copy. By default all rows of the table."""
    every: PositiveDuration | None = unset(EVERY)
    """With `dsn`: the time between two copies."""
    allow_empty: bool = False
    """True accepts a copy without rows, which deletes every row. Otherwise the program stops."""

    memory: int = given(1 << 30, ge=1)
    """The most bytes of an unpacked snapshot."""

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem unless the copies are at one place."""
        settings = super().read(options)
        in_database = settings.dsn is not None and settings.table is not None and settings.path is None
        if not in_database and (settings.path is None or settings.dsn or settings.table or settings.query):
            raise cls.refuse("set either path, or dsn and table")
        return settings

    @property
    def name(self) -> str:
        return self.table or Path(self.path or "").name

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without `csv`, which only the reader of the files needs."""
        return super().for_decoder({key: value for key, value in section.items() if key != "csv"})
