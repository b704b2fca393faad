"""The options models of installed adapters, and the choice between them in the config."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import ConfigDict, Discriminator, Field, SkipValidation, Tag, create_model
from pydantic.json_schema import SkipJsonSchema

from replicator.domain.errors import EnvironmentProblem
from replicator.domain.events import EVENT_STORE
from replicator.ports.adapter_options import AdapterOptions, DecoderOptions, SinkOptions, SourceOptions, StoreOptions, given
from replicator.ports.options import Duration

from .plugins import list_names, load_adapter

DEBEZIUM_JSON, OUTBOX, DMS_CSV, DMS_PARQUET = "debezium_json", "debezium_outbox", "dms_csv", "dms_parquet"
"""Formats that checks name."""
PLUGIN = "plugin"
"""The tag of an adapter without a model."""


class FreeForm(AdapterOptions):
    """A section of the config for an adapter without a model. The adapter gets a mapping."""

    model_config = ConfigDict(extra="allow")


M = TypeVar("M", bound=AdapterOptions)


def load_models(group: str, base: type[M]) -> tuple[Mapping[str, type[M]], Mapping[str, EnvironmentProblem]]:
    """The models in an entry point group, by the names of their adapters, built-in adapters first. And the errors of those
    that cannot be used, so that they stop only the pipelines that name them.

    EnvironmentProblem if there is none, or none of the built-in adapters.
    """
    models: dict[str, type[M]] = {}
    broken: dict[str, EnvironmentProblem] = {}
    for name in list_names(group):
        step = "Install another version of its package, or remove it."
        try:
            model = load_adapter(group, name)
        except EnvironmentProblem as problem:
            broken[name] = problem
            continue
        except Exception as error:
            why = f"{type(error).__name__} was raised"
            broken[name] = EnvironmentProblem(f"The options of {name!r} ({group}) cannot be loaded: {why}", next_step=step)
            continue
        if isinstance(model, type) and issubclass(model, base):
            models[name] = model
        else:
            sentence = f"The entry point {name!r} in the group {group!r} is not a subclass of"
            broken[name] = EnvironmentProblem(f"{sentence} {base.__module__}.{base.__name__}", next_step=step)
    built_in = [model for model in models.values() if model.__module__.partition(".")[0] == "adapters"]
    if broken and not built_in:
        raise next(iter(broken.values()))
    if not built_in:
        raise EnvironmentProblem(
            f"Replicator's adapters in the group {group!r} are missing: it is not installed, or is an older version",
            next_step="Install it again: pip install replicator; for a checkout: pip install -e .",
        )
    return dict(sorted(models.items(), key=lambda item: (item[1].rank, item[0]))), broken


def join_models(key: str, models: Mapping[str, type[M]], plugin: type[M]) -> Any:
    """The type of a section of the config: the model of the adapter that its `key` names, or else `plugin`."""

    def find_tag(value: Any) -> str:
        name = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return name if isinstance(name, str) and name in models else PLUGIN

    tagged = [Annotated[model, Tag(name)] for name, model in {**models, PLUGIN: plugin}.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(find_tag)]  # noqa: UP007 - Their number is not known.


def add_format_keys(model: type[SourceOptions], formats: Collection[type[DecoderOptions]]) -> type[SourceOptions]:
    """The model of a transport, with keys of formats that no transport has. The first format that has a key defines it."""
    more: dict[str, Any] = {}
    for name, info in chain.from_iterable(one.model_fields.items() for one in formats):
        if not info.exclude and name not in {*model.model_fields, *more}:
            value = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
            more[name] = (value | None, Field(None, alias=info.alias, description=info.description))  # type: ignore[operator]
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **more) if more else model


FORMATS, BROKEN_FORMATS = load_models("replicator.decoder_options", DecoderOptions)
"""The options models of formats; and the errors of those that cannot be loaded."""
FORMAT_KEYS = frozenset(key for model in FORMATS.values() for key in model.list_source_keys())
"""Keys of a source that mean something with some formats only."""
TRANSPORTS, BROKEN_SOURCES = load_models("replicator.source_options", SourceOptions)
"""The options models that sources publish, by transport; and the errors of those that cannot be loaded."""
SOURCES = {name: add_format_keys(model, FORMATS.values()) for name, model in TRANSPORTS.items()}
"""The same with the keys of all formats: the models of the config."""
SINKS, BROKEN_SINKS = load_models("replicator.sink_options", SinkOptions)
"""The same for sinks, by kind."""
STORES, BROKEN_STORES = load_models("replicator.store_options", StoreOptions)
"""The same for stores, by the section of the config."""


def get_format(name: str | None) -> type[DecoderOptions]:
    """The facts of the format `name`."""
    return FORMATS.get(name or "", DecoderOptions)


def list_format_keys(name: str) -> frozenset[str]:
    """The keys of a source that may mean something with the format `name`. Without a model, the decoder checks them."""
    return FORMATS[name].list_source_keys() if name in FORMATS else FORMAT_KEYS


def list_formats_of(transport: str) -> list[str]:
    """The formats that a built-in transport reads."""
    return [name for name, model in FORMATS.items() if transport in model.transports]


def get_store_model(section: str) -> type[StoreOptions]:
    """The model of a store. EnvironmentProblem if it cannot be used: every config has the section."""
    if section in BROKEN_STORES:
        raise BROKEN_STORES[section]
    return STORES[section]


# Sections of the config: the models of their adapters, and those of adapters without a model.

if TYPE_CHECKING:
    DeadLetterSettings = StoreOptions
    EventStoreSettings = StoreOptions
else:
    DeadLetterSettings, EventStoreSettings = get_store_model("dead_letters"), get_store_model(EVENT_STORE)

# Settings of sources: the models of their adapters, by transport.

EVENT_COLUMNS = {
    **dict.fromkeys(("id", "aggregatetype", "aggregateid", "type", "payload"), "string"),
    "event_offset": "int64",
}
"""The columns of an outbox's events, and their types."""


class PluginSourceSettings(SourceOptions, FreeForm):
    """A transport of an installed package without a model. Its adapter checks its own keys."""

    transport: str
    # The pipeline adds its values to the mapping of the adapter, not to this model: here they are keys of the adapter.
    session: SkipJsonSchema[Any] = None
    stores: SkipJsonSchema[Any] = None
    batch_bytes: SkipJsonSchema[Any] = None
    batch_records: SkipJsonSchema[Any] = None


# Settings of sinks and stores: the models of their adapters, and what else is a sink or a store in the config.


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
    Source = SourceOptions
    Sink = SinkOptions
    DeadLetters = StoreOptions
    EventStore = StoreOptions
else:
    Source = join_models("transport", SOURCES, PluginSourceSettings)
    Sink = join_models("kind", SINKS, PluginSinkSettings)
    DeadLetters = Annotated[
        Annotated[DeadLetterSettings, Tag("own")] | Annotated[PluginDeadLetterSettings, Tag("plugin")],
        Discriminator(_get_kind_tag),
    ]
    EventStore = Annotated[
        Annotated[EventStoreSettings, Tag("own")] | Annotated[PluginStoreSettings, Tag("plugin")],
        Discriminator(_get_kind_tag),
    ]
