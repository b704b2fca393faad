"""Settings of sinks: one model per kind, and the dead-letter store."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from .event_store import EventStoreSettings
from .fields import (
    CatalogSchema,
    ConfigPath,
    Count,
    Dsn,
    Duration,
    FromZero,
    LakePath,
    Servers,
    Strict,
    make_value_error,
    to_timedelta,
)
from .source_models import SecretText, Text, check_dead_letter_options, check_security_options
from .storage import StorageSettings, refuse_idle_storage
from .tables import NO_RETENTION, VACUUM, Retain, Retention

Engine = Literal["local", "spark"]


class SinkSettings(Strict):
    """What every sink has."""

    engines: list[Engine] = Field(["local", "spark"], min_length=1)
    """The engines that may write it. Another one is refused before anything starts."""

    @property
    def catalog_of(self) -> Engine | None:
        """The engine in whose catalog the targets have names; only that one can take them away. None: they have none."""
        return None


class DeltaSettings(SinkSettings):
    """Delta Lake tables, one folder per table."""

    kind: Literal["delta"]
    path: LakePath
    """The lake's folder, or s3://BUCKET/FOLDER; tables are folders in it."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    compact_every: FromZero | None = None
    """Small files of a table are compacted after every so many commits, 50 by default; 0 is never."""
    vacuum_every: Duration | None = None
    """Files that no version of a table needs any more are deleted so often, after a commit; by default never."""
    vacuum_retain: Retain | None = None
    """How long they are left, in whole hours, rounded up; by default what the table's properties say, 7 days. Readers of
    older versions need them."""
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)
    schema_name: CatalogSchema | None = Field(None, alias="schema")
    """On Spark: the schema of the session's catalog in which the tables have names, with views of the rows that hold now."""

    @property
    def catalog_of(self) -> Engine | None:
        return None if self.schema_name is None else "spark"

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class SnapshotSettings(Strict):
    """When snapshots of the states of lanes are taken, from which replays of their event log go on."""

    every: Duration | None = None
    """A snapshot of each lane so long after its last one, where something has come since."""
    after_records: Count | None = None
    """Or once so many records have come behind its last one."""
    keep: Count = 2
    """So many snapshots of each lane stay; the oldest go."""

    @model_validator(mode="after")
    def _check_schedule(self) -> SnapshotSettings:
        if self.every is None and self.after_records is None:
            raise make_value_error("schedule", "needs 'every' or 'after_records', or both")
        if self.every is not None and not to_timedelta(self.every):
            raise make_value_error("schedule", "has an 'every' that must be longer than none")
        return self


class EventLogSettings(SinkSettings):
    """Every record as it came, append-only: a Delta table at `path`, or cdc_raw.cdc_events at `dsn`."""

    kind: Literal["event_log"]
    path: LakePath | None = None
    """The Delta table's own folder, or its s3://BUCKET/FOLDER."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    dsn: Dsn | None = None
    """The PostgreSQL database."""
    compact_every: FromZero | None = None
    """With `path`: small files are compacted after every so many commits, 50 by default; 0 is never."""
    vacuum_every: Duration | None = None
    """With `path`: files that no version needs any more are deleted so often, after a commit; by default never."""
    vacuum_retain: Retain | None = None
    """With `path`: how long they are left; as in a sink of kind delta."""
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)
    snapshots: SnapshotSettings | None = None
    """With a `path` in a folder: snapshots of the states of the lanes whose tables it records, beside it."""
    retention: Retention | None = None
    """With `snapshots`: records that came so long ago are removed, once a snapshot of every lane holds what they made and
    nobody is yet to read them. By default, and with off, all stay."""

    @model_validator(mode="after")
    def _check_retention(self) -> EventLogSettings:
        if self.retention is not None and self.retention != NO_RETENTION and self.snapshots is None:
            raise make_value_error("retention", "has a 'retention' and needs 'snapshots', with which replays then begin")
        if self.snapshots is not None and (self.path is None or "://" in self.path):
            raise make_value_error(
                "inapplicable", "has 'snapshots', which are supported with a 'path' in a folder alone yet"
            )
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


class PostgresSettings(SinkSettings):
    """Tables in one schema of a PostgreSQL database."""

    kind: Literal["postgres"]
    dsn: Dsn
    """The database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    schema_name: str = Field("public", alias="schema", min_length=1, max_length=63)
    """The schema of the target tables."""
    answer_timeout: Duration = "5 minutes"
    """How long a server that cannot be asked by another connection either may stay silent. A statement may take longer."""
    in_seconds: ClassVar[frozenset[str]] = frozenset({"answer_timeout"})


class EventStoreSinkSettings(SinkSettings):
    """The store of events as the target of an outbox's events. Nobody writes it: tables name `event_store`."""

    kind: Literal["event_store"] = "event_store"
    path: LakePath | None = None
    storage: StorageSettings | None = None
    compact_every: FromZero | None = None
    dsn: Dsn | None = None
    schema_name: str | None = Field(None, alias="schema")
    table: str | None = None

    @classmethod
    def from_store(cls, store: EventStoreSettings) -> EventStoreSinkSettings:
        """The store of the config, as it was checked there."""
        return cls.model_construct(**{name: getattr(store, name) for name in EventStoreSettings.model_fields})

    @property
    def place(self) -> Literal["delta", "postgres"]:
        """What it is kept in."""
        return "delta" if self.path is not None else "postgres"


class PluginSinkSettings(SinkSettings):
    """A sink of an installed package; its own keys are checked by its adapter."""

    model_config = ConfigDict(extra="allow")
    kind: str


SINKS: dict[str, type[SinkSettings]] = {
    "delta": DeltaSettings,
    "event_log": EventLogSettings,
    "postgres": PostgresSettings,
}


def _get_kind(value: Any) -> str:
    name = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return name if isinstance(name, str) and name in SINKS else "plugin"


Sink = Annotated[
    Annotated[DeltaSettings, Tag("delta")]
    | Annotated[EventLogSettings, Tag("event_log")]
    | Annotated[PostgresSettings, Tag("postgres")]
    | Annotated[PluginSinkSettings, Tag("plugin")],
    Discriminator(_get_kind),
]


class PluginDeadLetterSettings(Strict):
    """A store of dead letters of an installed package; its own keys are checked by its adapter."""

    model_config = ConfigDict(extra="allow")
    kind: str
    """The entry point in the group `replicator.dead_letters`."""
    patience: Duration = "60 seconds"
    """How long the place may be away before the program stops; meanwhile nothing moves past a reject."""


class DeadLetterSettings(Strict):
    """Where rejected records are kept."""

    path: ConfigPath | None = None
    """A Delta table's folder, of this pipeline alone."""
    dsn: Dsn | None = None
    """A PostgreSQL database, which has the table `dead_letters`."""
    schema_name: str | None = Field(None, alias="schema", min_length=1, max_length=63)
    """With `dsn`: the schema of the table, `_replicator` by default."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """A Kafka topic, with `bootstrap_servers`; several pipelines may share it. Made when the first record is rejected."""
    bootstrap_servers: Servers | None = None
    """With `topic`: HOST:PORT of one or more brokers, with commas between them."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security_options)] | None = None
    """With `topic`: librdkafka's security.*, sasl.* and ssl.* settings."""
    options: Annotated[dict[str, Text], AfterValidator(check_dead_letter_options)] | None = None
    """With `topic`: any other librdkafka setting."""
    patience: Duration = "60 seconds"
    """How long the place may be away before the program stops; meanwhile nothing moves past a reject."""

    @model_validator(mode="after")
    def _check_location(self) -> DeadLetterSettings:
        if sum(place is not None for place in (self.path, self.dsn, self.topic)) != 1:
            raise make_value_error("place", "needs exactly one of 'path', 'dsn' and 'topic'")
        if self.dsn is None and self.schema_name is not None:
            raise make_value_error("inapplicable", "has a 'schema', which means nothing without 'dsn'; remove it")
        if self.topic is not None and self.bootstrap_servers is None:
            raise make_value_error("place", "has a 'topic' and needs 'bootstrap_servers', the brokers that it is on")
        for key in ("bootstrap_servers", "security", "options"):
            if self.topic is None and getattr(self, key) is not None:
                raise make_value_error("inapplicable", f"has '{key}', which means nothing without 'topic'; remove it")
        return self


def _get_kind_tag(value: Any) -> str:
    return "plugin" if (isinstance(value, dict) and "kind" in value) or hasattr(value, "kind") else "own"


DeadLetters = Annotated[
    Annotated[DeadLetterSettings, Tag("own")] | Annotated[PluginDeadLetterSettings, Tag("plugin")],
    Discriminator(_get_kind_tag),
]
