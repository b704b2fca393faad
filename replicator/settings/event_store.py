"""Settings of the store of events that programs emit, and of what takes them over HTTP."""

from __future__ import annotations

from pydantic import Field, model_validator

from .fields import Address, Count, Dsn, Duration, FromZero, Glob, LakePath, Secret, Strict, make_value_error
from .storage import StorageSettings, refuse_idle_storage


class EventStoreSettings(Strict):
    """Where events that programs emit are kept: a Delta table at `path`, or a table at `dsn`."""

    path: LakePath | None = None
    """The Delta table's own folder, or its s3://BUCKET/FOLDER."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    compact_every: FromZero | None = None
    """With `path`: small files are compacted after every so many commits, 50 by default; 0 is never."""
    dsn: Dsn | None = None
    """The PostgreSQL database."""
    schema_name: str | None = Field(None, alias="schema", min_length=1, max_length=63)
    """With `dsn`: the schema of the table, `events` by default."""
    table: str | None = Field(None, min_length=1, max_length=50)
    """With `dsn`: the table, `events` by default."""

    @model_validator(mode="after")
    def _check_location(self) -> EventStoreSettings:
        if (self.path is None) == (self.dsn is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'dsn'")
        of_other = {"compact_every": self.path, "schema": self.dsn, "table": self.dsn}
        said = {"compact_every": self.compact_every, "schema": self.schema_name, "table": self.table}
        for key, place in of_other.items():
            if place is None and said[key] is not None:
                needed = "path" if key == "compact_every" else "dsn"
                raise make_value_error("inapplicable", f"has '{key}', which means nothing without '{needed}'; remove it")
        refuse_idle_storage(self.path, self.storage)
        return self


class ServeSettings(Strict):
    """What `replicator serve` listens on."""

    address: Address = "127.0.0.1:8091"
    """HOST:PORT to listen on; port 0 takes a free one."""
    token: Secret | None = None
    """Asked of every caller. Needed where events are taken, and on any address but this machine's own."""
    tables: list[Glob] | None = Field(default=None, min_length=1)
    """The targets that may be read, as SINK.TABLE, globs allowed; by default those of the lanes."""
    max_rows: Count = 10_000
    """The most rows in one answer."""
    query_timeout: Duration = "30 seconds"
    """How long an answer may take."""
