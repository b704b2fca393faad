"""Settings of the store of events that programs emit, and of what takes them over HTTP."""

from __future__ import annotations

from pydantic import Field, model_validator

from .fields import Address, Count, Dsn, Duration, FromZero, Glob, LakePath, Secret, Strict, make_value_error, unset
from .storage import StorageSettings, refuse_idle_storage


class EventStoreSettings(Strict):
    """The store for events that programs emit: a Delta table at `path`, or a PostgreSQL table at `dsn`."""

    path: LakePath | None = None
    """The folder of the Delta table itself, or its `s3://BUCKET/FOLDER`. Set `path` or `dsn`."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    compact_every: FromZero | None = unset(50)
    """With `path`: compact the small files after this number of commits. 0: never."""
    dsn: Dsn | None = None
    """The PostgreSQL database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    schema_name: str | None = Field(
        None, alias="schema", min_length=1, max_length=63, json_schema_extra={"default": "events"}
    )
    """With `dsn`: the schema of the table."""
    table: str | None = Field(None, min_length=1, max_length=50, json_schema_extra={"default": "events"})
    """With `dsn`: the name of the table."""

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
    """The HTTP server of `replicator serve`."""

    address: Address = "127.0.0.1:8091"
    """HOST:PORT to listen on. Port 0 takes a free port."""
    token: Secret | None = None
    """The token that callers must send. Required if there is an `event_store`, and for addresses that are not loopback
    addresses."""
    tables: list[Glob] | None = Field(default=None, min_length=1)
    """The targets that may be read, as SINK.TABLE or globs. By default the targets of all lanes."""
    max_rows: Count = 10_000
    """The most rows of one answer."""
    query_timeout: Duration = "30 seconds"
    """The longest time for one answer."""
