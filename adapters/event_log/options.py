"""Options of event logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from replicator.ports.adapter_options import LogSinkOptions, SnapshotSettings, given
from replicator.ports.options import (
    NO_RETENTION,
    VACUUM,
    Dsn,
    Duration,
    FromZero,
    LakePath,
    PositiveDuration,
    Retention,
    StorageSettings,
    make_value_error,
    refuse_idle_storage,
    unset,
)


class EventLogSettings(LogSinkOptions):
    """An event log: every record as it came, append-only. It is a Delta table at `path`, or `cdc_raw.cdc_events` at
    `dsn`."""

    what: ClassVar[str] = "an event log"
    rank: ClassVar[int] = 2
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "event_log"}
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)

    kind: Literal["event_log"]
    path: LakePath | None = None
    """The folder of the Delta table itself, or its `s3://BUCKET/FOLDER`. Set `path` or `dsn`."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    dsn: Dsn | None = None
    """The PostgreSQL database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    compact_every: FromZero | None = unset(50)
    """With `path`: compact the small files after this number of commits. 0: never."""
    vacuum_every: Duration | None = None
    """With `path`: the time between two vacuums. By default never."""
    vacuum_retain: PositiveDuration | None = None
    """With `path`: how long a vacuum leaves old files, as in a sink of kind `delta`."""
    snapshots: SnapshotSettings | None = None
    """With a `path` on a disk: store checkpoints of the lanes next to the log."""
    retention: Retention | None = None
    """With `snapshots`: delete records that are older. Each is kept until checkpoints of all lanes cover it, and until
    all readers have read it. By default, and with `off`, all records are kept."""

    schema_name: str = given("cdc_raw", alias="schema")
    """With `dsn`: the schema of the table."""
    table: str = given("cdc_events")
    """With `dsn`: the name of the table."""

    @model_validator(mode="after")
    def _check_retention(self) -> EventLogSettings:
        if self.retention is not None and self.retention != NO_RETENTION and self.snapshots is None:
            raise make_value_error("retention", "has a 'retention' and needs 'snapshots', from which replays then start")
        if self.snapshots is not None and (self.path is None or "://" in self.path):
            raise make_value_error("inapplicable", "has 'snapshots', which are supported only if 'path' is a local folder")
        return self

    @model_validator(mode="after")
    def _check_location(self) -> EventLogSettings:
        if (self.path is None) == (self.dsn is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'dsn'")
        for key in ("compact_every", *VACUUM):
            if self.path is None and getattr(self, key) is not None:
                raise make_value_error("inapplicable", f"has a '{key}', which means nothing without 'path'; remove it")
        refuse_idle_storage(self.path, self.storage)
        return self
