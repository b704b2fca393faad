"""Settings of sinks and stores: the models of their adapters, and what else is a sink or a store in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, SkipValidation, Tag
from pydantic.json_schema import SkipJsonSchema

from replicator.domain.events import EVENT_STORE
from replicator.ports.adapter_options import SinkOptions, StoreOptions, given
from replicator.ports.options import Duration

from .adapter_models import SINKS, FreeForm, get_store_model, join_models

if TYPE_CHECKING:
    DeadLetterSettings = StoreOptions
    EventStoreSettings = StoreOptions
else:
    DeadLetterSettings, EventStoreSettings = get_store_model("dead_letters"), get_store_model(EVENT_STORE)


class EventStoreSinkSettings(SinkOptions):
    """The event store as the target of an outbox's events. It is not written in a config: tables name `event_store`."""

    has_table_options: ClassVar[bool] = False

    kind: Literal["event_store"] = "event_store"

    store: SkipValidation[StoreOptions] = given()
    """The section of the config."""

    @property
    def path(self) -> str | None:
        """The folder of a store in a lake."""
        return getattr(self.store, "path", None)


class PluginSinkSettings(SinkOptions, FreeForm):
    """A sink of an installed package without a model. Its adapter checks its own keys."""

    kind: str
    # As in `PluginSourceSettings`.
    session: SkipJsonSchema[Any] = None
    stores: SkipJsonSchema[Any] = None


if TYPE_CHECKING:
    Sink = SinkOptions
else:
    Sink = join_models("kind", SINKS, PluginSinkSettings)


def get_sink_model(kind: str | None) -> type[SinkOptions]:
    """The facts of a kind of sink. A sink without a model has those of most sinks."""
    return EventStoreSinkSettings if kind == EVENT_STORE else SINKS.get(kind or "", SinkOptions)


class PluginStoreSettings(StoreOptions, FreeForm):
    """A store of an installed package. Its adapter checks its own keys."""

    kind: str
    """The name of its adapter."""
    session: SkipJsonSchema[Any] = None
    stores: SkipJsonSchema[Any] = None

    @property
    def adapter(self) -> str:
        return self.kind


class PluginDeadLetterSettings(PluginStoreSettings):
    """A dead-letter store of an installed package: an entry point in the group `replicator.dead_letters`."""

    patience: Duration = "60 seconds"
    """How long the store may be away before the program stops. Nothing moves past a reject meanwhile."""


def _get_kind_tag(value: Any) -> str:
    return "plugin" if (isinstance(value, dict) and "kind" in value) or hasattr(value, "kind") else "own"


if TYPE_CHECKING:
    DeadLetters = StoreOptions
    EventStore = StoreOptions
else:
    DeadLetters = Annotated[
        Annotated[DeadLetterSettings, Tag("own")] | Annotated[PluginDeadLetterSettings, Tag("plugin")],
        Discriminator(_get_kind_tag),
    ]
    EventStore = Annotated[
        Annotated[EventStoreSettings, Tag("own")] | Annotated[PluginStoreSettings, Tag("plugin")],
        Discriminator(_get_kind_tag),
    ]
