"""Settings of sinks: one model per kind, and the dead-letter store."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, SecretStr, Tag, model_validator

from replicator.ports.options import (
    CatalogSchema,
    ConfigPath,
    Count,
    Dsn,
    Duration,
    FromZero,
    LakePath,
    SecretText,
    Servers,
    StorageSettings,
    Strict,
    Text,
    make_value_error,
    refuse_idle_storage,
    to_timedelta,
    unset,
)

from .event_store import EventStoreSettings
from .tables import NO_RETENTION, VACUUM, Retain, Retention

Engine = Literal["local", "spark"]


SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")
OWNED_OPTIONS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "group.id": "group_id",
    "auto.offset.reset": "start_from",
    "enable.auto.commit": "",
    "enable.auto.offset.store": "",
    "enable.partition.eof": "",
    "isolation.level": "",
}
"""librdkafka settings that correctness depends on, and the key to use instead."""

SERVERS = frozenset({"bootstrap.servers", "metadata.broker.list"})
OWNED_BY_DEAD_LETTERS = frozenset(
    {
        *OWNED_OPTIONS,
        "acks",
        "request.required.acks",
        "enable.idempotence",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "transactional.id",
    }
)
"""The same where rejected records are written: they are durable, or the write fails."""


def check_dead_letter_options(options: dict[str, str]) -> dict[str, str]:
    """Refuse options of librdkafka that have keys of their own, and those on which correctness depends."""
    for name in options:
        if name.startswith(SECURITY_PREFIXES):
            raise make_value_error(
                "option", "holds a security setting; write security settings under 'security', where they are kept secret"
            )
        if name in OWNED_BY_DEAD_LETTERS:
            hint = "write 'bootstrap_servers' instead" if name in SERVERS else "correctness depends on it"
            raise make_value_error("option", f"sets {name}, but only replicator may set it: {hint}")
    return options


def check_security_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Refuse all that is not about security."""
    if any(not name.startswith(SECURITY_PREFIXES) for name in options):
        raise make_value_error(
            "option", "takes librdkafka's security.*, sasl.* and ssl.* settings only; others go under 'options'"
        )
    return options


class SinkSettings(Strict):
    """The keys of every sink."""

    engines: list[Engine] = Field(["local", "spark"], min_length=1)
    """The engines that may write the sink. Any other engine is refused at the start."""

    @property
    def catalog_of(self) -> Engine | None:
        """The engine in whose catalog the targets have names; only that one can take them away. None: they have none."""
        return None


class DeltaSettings(SinkSettings):
    """Delta Lake tables, one folder for each table."""

    kind: Literal["delta"]
    path: LakePath
    """The folder of the lake, or `s3://BUCKET/FOLDER`. Each table is a folder in it."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    compact_every: FromZero | None = unset(50)
    """Compact the small files of a table after this number of commits. 0: never."""
    vacuum_every: Duration | None = None
    """The time between two vacuums of a table. A vacuum deletes old files after a commit. By default never."""
    vacuum_retain: Retain | None = None
    """How long a vacuum leaves old files, rounded up to whole hours. Readers of older versions need them. By default
    as the table's properties say, usually 7 days."""
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)
    schema_name: CatalogSchema | None = Field(None, alias="schema")
    """Spark only: the schema of the session's catalog for the tables, and for views of their current rows."""

    @property
    def catalog_of(self) -> Engine | None:
        return None if self.schema_name is None else "spark"

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class SnapshotSettings(Strict):
    """When checkpoints of lanes are stored. A replay of the event log then starts at the last checkpoint. Set `every`,
    `after_records` or both."""

    every: Duration | None = None
    """The time between two checkpoints of a lane. No checkpoint is stored if nothing has changed."""
    after_records: Count | None = None
    """The number of records between two checkpoints of a lane."""
    keep: Count = 2
    """How many checkpoints of each lane are kept. The oldest are deleted."""

    @model_validator(mode="after")
    def _check_schedule(self) -> SnapshotSettings:
        if self.every is None and self.after_records is None:
            raise make_value_error("schedule", "needs 'every' or 'after_records', or both")
        if self.every is not None and not to_timedelta(self.every):
            raise make_value_error("schedule", "has an 'every' that must be longer than none")
        return self


class EventLogSettings(SinkSettings):
    """An event log: every record as it came, append-only. It is a Delta table at `path`, or `cdc_raw.cdc_events` at
    `dsn`."""

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
    vacuum_retain: Retain | None = None
    """With `path`: how long a vacuum leaves old files, as in a sink of kind `delta`."""
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)
    snapshots: SnapshotSettings | None = None
    """With a `path` on a disk: store checkpoints of the lanes next to the log."""
    retention: Retention | None = None
    """With `snapshots`: delete records that are older. Each is kept until checkpoints of all lanes cover it, and until
    all readers have read it. By default, and with `off`, all records are kept."""

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


class PostgresSettings(SinkSettings):
    """Tables in one schema of a PostgreSQL database."""

    kind: Literal["postgres"]
    dsn: Dsn
    """The database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    schema_name: str = Field("public", alias="schema", min_length=1, max_length=63)
    """The schema of the target tables."""
    answer_timeout: Duration = "5 minutes"
    """How long a server may stay silent if a second connection gets no answer either. Long statements are allowed."""
    in_seconds: ClassVar[frozenset[str]] = frozenset({"answer_timeout"})


class EventStoreSinkSettings(SinkSettings):
    """The event store as the target of an outbox's events. It is not written in a config: tables name `event_store`."""

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
        """The kind of its place."""
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
    """A dead-letter store of an installed package. Its adapter checks its own keys."""

    model_config = ConfigDict(extra="allow")
    kind: str
    """The entry point in the group `replicator.dead_letters`."""
    patience: Duration = "60 seconds"
    """How long the store may be away before the program stops. Nothing moves past a reject meanwhile."""


class DeadLetterSettings(Strict):
    """The store for rejected records: a Delta table at `path`, a PostgreSQL table at `dsn` or a Kafka `topic`."""

    path: ConfigPath | None = None
    """The folder of a Delta table. No other pipeline may use it."""
    dsn: Dsn | None = None
    """A PostgreSQL database. The table is called `dead_letters`."""
    schema_name: str | None = Field(
        None, alias="schema", min_length=1, max_length=63, json_schema_extra={"default": "_replicator"}
    )
    """With `dsn`: the schema of the table."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """A Kafka topic, together with `bootstrap_servers`. Several pipelines may share it. The first reject creates it."""
    bootstrap_servers: Servers | None = None
    """With `topic`: HOST:PORT of one or more brokers, with commas between them."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security_options)] | None = None
    """With `topic`: librdkafka's `security.*`, `sasl.*` and `ssl.*` settings."""
    options: Annotated[dict[str, Text], AfterValidator(check_dead_letter_options)] | None = None
    """With `topic`: any other librdkafka setting."""
    patience: Duration = "60 seconds"
    """How long the store may be away before the program stops. Nothing moves past a reject meanwhile."""

    @model_validator(mode="after")
    def _check_location(self) -> DeadLetterSettings:
        if sum(place is not None for place in (self.path, self.dsn, self.topic)) != 1:
            raise make_value_error("place", "needs exactly one of 'path', 'dsn' and 'topic'")
        if self.dsn is None and self.schema_name is not None:
            raise make_value_error("inapplicable", "has a 'schema', which means nothing without 'dsn'; remove it")
        if self.topic is not None and self.bootstrap_servers is None:
            raise make_value_error("place", "has a 'topic' and needs 'bootstrap_servers', the brokers of the topic")
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
