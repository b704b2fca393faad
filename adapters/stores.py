"""Options of what is in a lake or in a database: event logs, dead letters (also in a topic) and the event store.

Each is one section of the config, with the keys of all places. The adapters of the places take the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from replicator.domain.events import EventLimits
from replicator.ports.adapter_options import LogSinkOptions, SnapshotSettings, StoreOptions, given
from replicator.ports.options import (
    NO_RETENTION,
    VACUUM,
    ConfigPath,
    Dsn,
    Duration,
    FromZero,
    LakePath,
    PositiveDuration,
    Retention,
    SecretText,
    Servers,
    StorageSettings,
    Text,
    make_value_error,
    refuse_idle_storage,
    unset,
)

from .kafka import options as client_options
from .kafka.options import ClientOptions, check_security, refuse_owned
from .postgres import EVENTS_TABLE, LOG_TABLE, OWN_SCHEMA


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

    schema_name: str = given(LOG_TABLE[0], alias="schema")
    """With `dsn`: the schema of the table."""
    table: str = given(LOG_TABLE[1])
    """With `dsn`: the name of the table."""

    @property
    def reader(self) -> str:
        return "postgres_log" if self.is_in_database else "delta"

    def for_reader(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: section[key] for key in ("path", "storage", "dsn") if key in section}

    @property
    def checkpoints(self) -> SnapshotSettings | None:
        return self.snapshots

    @property
    def log_retention(self) -> str | None:
        return self.retention

    @property
    def folder(self) -> str | None:
        return None if self.path is None or "://" in self.path else self.path

    @property
    def is_in_database(self) -> bool:
        return self.path is None

    def for_projector(self, section: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return locate_lake(section)

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


OWNED: Mapping[str, str] = {
    **client_options.OWNED,
    **dict.fromkeys(("acks", "request.required.acks", "enable.idempotence", "transactional.id"), ""),
    **dict.fromkeys(("message.timeout.ms", "delivery.timeout.ms", "group.id", "auto.offset.reset"), ""),
    **dict.fromkeys(("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "isolation.level"), ""),
}
"""Settings of librdkafka that correctness depends on: rejected records are durable, or the write fails."""


class DeadLetterSettings(ClientOptions, StoreOptions):
    """The store for rejected records: a Delta table at `path`, a PostgreSQL table at `dsn` or a Kafka `topic`."""

    what: ClassVar[str] = "dead_letters"
    owner: ClassVar[str] = "dead_letters"
    adapters: ClassVar[frozenset[str]] = frozenset({"delta", "postgres", "kafka"})

    path: ConfigPath | None = None
    """The folder of a Delta table. No other pipeline may use it."""
    dsn: Dsn | None = None
    """A PostgreSQL database. The table is called `dead_letters`."""
    schema_name: str | None = Field(
        None, alias="schema", min_length=1, max_length=63, json_schema_extra={"default": OWN_SCHEMA}
    )
    """With `dsn`: the schema of the table."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """A Kafka topic, together with `bootstrap_servers`. Several pipelines may share it. The first reject creates it."""
    bootstrap_servers: Servers | None = None
    """With `topic`: HOST:PORT of one or more brokers, with commas between them."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security)] | None = None
    """With `topic`: librdkafka's `security.*`, `sasl.*` and `ssl.*` settings."""
    options: Annotated[dict[str, Text], AfterValidator(refuse_owned(OWNED, ""))] | None = None
    """With `topic`: any other librdkafka setting."""
    patience: Duration = "60 seconds"
    """How long the store may be away before the program stops. Nothing moves past a reject meanwhile."""

    pipeline: str = given("")
    """The owner of the dead letters in a table or a topic, which several pipelines may share."""
    copies: int = given(-1, ge=-1)
    """Replicas of a topic that is created here; -1 is the broker's default."""

    @property
    def adapter(self) -> str:
        if self.path is not None:
            return "delta"
        return "postgres" if self.dsn is not None else "kafka"

    @model_validator(mode="after")
    def _check_location(self) -> DeadLetterSettings:
        if sum(location is not None for location in (self.path, self.dsn, self.topic)) != 1:
            raise make_value_error("place", "needs exactly one of 'path', 'dsn' and 'topic'")
        if self.dsn is None and self.schema_name is not None:
            raise make_value_error("inapplicable", "has a 'schema', which means nothing without 'dsn'; remove it")
        if self.topic is not None and self.bootstrap_servers is None:
            raise make_value_error("place", "has a 'topic' and needs 'bootstrap_servers', the brokers of the topic")
        for key in ("bootstrap_servers", "security", "options"):
            if self.topic is None and getattr(self, key) is not None:
                raise make_value_error("inapplicable", f"has '{key}', which means nothing without 'topic'; remove it")
        return self


class EventStoreSettings(StoreOptions):
    """The store for events that programs emit: a Delta table at `path`, or a PostgreSQL table at `dsn`."""

    what: ClassVar[str] = "the event store"
    adapters: ClassVar[frozenset[str]] = frozenset({"delta", "postgres"})

    path: LakePath | None = None
    """The folder of the Delta table itself, or its `s3://BUCKET/FOLDER`. Set `path` or `dsn`."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    compact_every: FromZero | None = unset(50)
    """With `path`: compact the small files after this number of commits. 0: never."""
    dsn: Dsn | None = None
    """The PostgreSQL database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    schema_name: str | None = Field(
        None, alias="schema", min_length=1, max_length=63, json_schema_extra={"default": EVENTS_TABLE[0]}
    )
    """With `dsn`: the schema of the table."""
    table: str | None = Field(None, min_length=1, max_length=50, json_schema_extra={"default": EVENTS_TABLE[1]})
    """With `dsn`: the name of the table."""

    limits: EventLimits = given(EventLimits())
    """The limits of an event from an outbox."""

    @property
    def adapter(self) -> str:
        return "delta" if self.path is not None else "postgres"

    def for_projector(self, section: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return locate_lake(section)

    @model_validator(mode="after")
    def _check_location(self) -> EventStoreSettings:
        if (self.path is None) == (self.dsn is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'dsn'")
        of_other = {"compact_every": self.path, "schema": self.dsn, "table": self.dsn}
        settings = {"compact_every": self.compact_every, "schema": self.schema_name, "table": self.table}
        for key, location in of_other.items():
            if location is None and settings[key] is not None:
                needed = "path" if key == "compact_every" else "dsn"
                raise make_value_error("inapplicable", f"has '{key}', which means nothing without '{needed}'; remove it")
        refuse_idle_storage(self.path, self.storage)
        return self


def locate_lake(section: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """See `SinkOptions.for_projector`, for tables in a lake or in a database."""
    if "path" not in section:
        return None
    return {key: section[key] for key in ("path", "storage", "compact_every", *VACUUM) if key in section}
