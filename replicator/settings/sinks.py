"""Settings of sinks: the models of their adapters, by kind. And those of the dead-letter store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, SecretStr, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from replicator.ports.adapter_options import SinkOptions
from replicator.ports.options import (
    ConfigPath,
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
)

from .adapter_models import BROKEN_SINKS, SINKS, FreeForm, join_models
from .event_store import EventStoreSettings

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


class EventStoreSinkSettings(SinkOptions):
    """The event store as the target of an outbox's events. It is not written in a config: tables name `event_store`."""

    has_table_options: ClassVar[bool] = False

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


class PluginSinkSettings(SinkOptions, FreeForm):
    """A sink of an installed package without a model. Its adapter checks its own keys."""

    kind: str
    # As in `PluginSourceSettings`.
    session: SkipJsonSchema[Any] = None
    stores: SkipJsonSchema[Any] = None


if TYPE_CHECKING:
    Sink = SinkOptions
else:
    Sink = join_models("kind", SINKS, BROKEN_SINKS, PluginSinkSettings)


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
