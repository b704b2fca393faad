"""Names before values: every key that is unknown or out of place, and every value of a closed set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from replicator.domain.errors import EnvironmentProblem, find_nearest, suggest_name
from replicator.ports.options import StorageSettings

from .adapter_models import BROKEN_FORMATS, BROKEN_SINKS, BROKEN_SOURCES, FORMATS, SINKS, SOURCES
from .columns import ColumnSettings
from .event_store import ServeSettings
from .findings import Path, PathProblem, describe_parent, describe_path, quote_name
from .plugins import Plugins
from .projections import LineageSettings, ProjectionSettings
from .schema import HttpSettings, LimitSettings, Settings
from .sinks import (
    DeadLetterSettings,
    EventStoreSettings,
    PluginDeadLetterSettings,
    PluginSinkSettings,
    PluginStoreSettings,
)
from .sources import PluginSourceSettings
from .tables import EntrySettings, PolicyKeys, SchemaChangeModes, TableSettings

Models = tuple[type[BaseModel], ...]
"""The models a mapping may be; several while its kind is missing or unknown."""

OTHER_PLACES: tuple[tuple[str, Models], ...] = (
    ("the top level", (Settings,)),
    ("a source", tuple(SOURCES.values())),
    ("a sink", tuple(SINKS.values())),
    ("a table or one of its 'to' entries", (TableSettings, EntrySettings)),
    ("limits", (LimitSettings,)),
    ("http", (HttpSettings,)),
    ("event_store", (EventStoreSettings,)),
    ("a projection", (ProjectionSettings,)),
)


@dataclass
class KeyCheck:
    """The problems found, and `judged`: the paths whose values are already checked."""

    plugins: Plugins
    problems: list[PathProblem] = field(default_factory=list)
    judged: set[Path] = field(default_factory=set)

    def add_problem(self, problem: PathProblem, meant: str | None) -> bool:
        """Record the problem; False, as its value is to be left out. `meant` is then not missing."""
        self.problems.append(problem)
        self.judged.add(problem.path)
        if meant is not None:
            self.judged.add((*problem.path[:-1], meant))
        return False


def prune_keys(data: dict[str, Any], names: KeyCheck) -> dict[str, Any]:
    """`data` without the keys and values that are refused by name; what was refused is added to `names`."""
    return dict(_prune_mapping(data, (), (Settings,), names))


def list_fields(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """The keys of the models as the config file spells them, and their annotations."""
    return {
        info.alias or name: info.annotation
        for model in models
        for name, info in model.model_fields.items()
        if not info.exclude
    }


def _prune_mapping(value: Any, path: Path, models: Models, names: KeyCheck) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: _prune_value(key, item, (*path, key), models, names)
        for key, item in value.items()
        if (*path, key) not in names.judged
        if (problem := _check_key((*path, key), item, models, names.plugins)) is None
        or names.add_problem(problem, _guess_key(key, value, models))
    }


def _guess_key(key: str, value: dict[str, Any], models: Models) -> str | None:
    """The key that an unknown key was most likely meant to be, unless that one is there too."""
    known = list_fields(models)
    near = None if key in known else find_nearest(key, known)
    return None if near in value else near


def _check_key(path: Path, value: Any, models: Models, plugins: Plugins) -> PathProblem | None:
    """The problem of a key or its value by name alone."""
    key, known = str(path[-1]), list_fields(models)
    if key not in known:
        if any(model.model_config.get("extra") == "allow" for model in models):
            return None
        sentence = f"unknown key {quote_name(key)} {describe_parent(path[:-1])}"
        return PathProblem(path, "unknown_key", sentence, _make_hint(key, models, known))
    if value is None:
        return PathProblem(path, "no_value", f"{describe_path(path)} has no value", "give it one, or remove the key")
    if isinstance(value, str) and (broken := BROKEN.get((path[0], key), {}).get(value)):
        return PathProblem(path, "broken_adapter", f"{describe_path(path)}: {broken.sentence}", broken.next_step)
    choices = _list_choices(path, known[key], plugins)
    if choices and isinstance(value, str) and value not in choices:
        hint = suggest_name(value, choices) or f"one of {', '.join(choices)}"
        return PathProblem(path, "unknown_value", f"{describe_path(path)} has an unknown value", hint)
    return None


def _make_hint(key: str, models: Models, known: dict[str, Any]) -> str:
    """The nearest key here, or else the place where the key belongs, or else the list of keys."""
    near = suggest_name(key, known)
    if near:
        return near
    for family in (SINKS, SOURCES):
        kinds = [kind for kind, model in family.items() if key in list_fields((model,))]
        if kinds and set(models) <= set(family.values()):
            return f"'{key}' is a key of {' and '.join(kinds)}"
    for where, others in OTHER_PLACES:
        if key in list_fields(others) and not set(others) & set(models):
            return f"'{key}' is a key of {where}"
    return f"known here: {', '.join(sorted(known))}"


STORE_KINDS: Mapping[Path, Callable[[Plugins], frozenset[str]]] = {
    ("dead_letters", "kind"): lambda plugins: plugins.dead_letters,
    ("event_store", "kind"): lambda plugins: plugins.event_stores,
}


BROKEN: Mapping[tuple[str | int, str], Mapping[str, EnvironmentProblem]] = {
    ("sinks", "kind"): BROKEN_SINKS,
    ("sources", "transport"): BROKEN_SOURCES,
    ("sources", "format"): BROKEN_FORMATS,
}
"""By section and key, the adapters whose models cannot be loaded. Only a config that names one of them is wrong."""


def _list_choices(path: Path, annotation: Any, plugins: Plugins) -> tuple[str, ...]:
    """The closed set of text values of a key; empty when it is not one. Plugins open some."""
    key = path[-1]
    if path in STORE_KINDS:
        return tuple(sorted(STORE_KINDS[path](plugins)))
    if key == "format":
        return tuple(dict.fromkeys((*FORMATS, *sorted(plugins.formats))))
    if key == "transport":
        return tuple(dict.fromkeys((*SOURCES, *sorted(plugins.transports))))
    if key == "kind":
        return tuple(dict.fromkeys((*SINKS, *sorted(plugins.sinks))))
    options = [annotation, *get_args(annotation)]
    if any(get_origin(option) is Annotated and get_args(option)[0] is str for option in options):
        return ()  # Any other text is possible, too.
    return tuple(v for option in options if get_origin(option) is Literal for v in get_args(option) if isinstance(v, str))


def _list_source_models(value: Any, plugins: Plugins) -> Models:
    transport = value.get("transport") if isinstance(value, dict) else None
    if isinstance(transport, str) and transport in (plugins.transports | BROKEN_SOURCES.keys()) - SOURCES.keys():
        return (PluginSourceSettings,)
    return _select_models(SOURCES, transport)


def _list_sink_models(value: Any, plugins: Plugins) -> Models:
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in (plugins.sinks | BROKEN_SINKS.keys()) - SINKS.keys():
        return (PluginSinkSettings,)
    return _select_models(SINKS, kind)


def _list_dead_letter_models(value: Any, _: Plugins) -> Models:
    return (PluginDeadLetterSettings,) if isinstance(value, dict) and "kind" in value else (DeadLetterSettings,)


def _list_event_store_models(value: Any, plugins: Plugins) -> Models:
    is_of_package = isinstance(value, dict) and "kind" in value and plugins.event_stores
    return (PluginStoreSettings,) if is_of_package else (EventStoreSettings,)


def list_sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The keys of an adapter's model whose values are mappings with keys of their own, and the models of these."""
    found = {}
    for key, annotation in list_fields((model,)).items():
        for option in (annotation, *get_args(annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel):
                found[key] = option
    return found


def _select_models(kinds: Mapping[str, Any], kind: Any) -> Models:
    return (kinds[kind],) if isinstance(kind, str) and kind in kinds else tuple(kinds.values())


def _make_constant(model: type[BaseModel]) -> Callable[[Any, Plugins], Models]:
    return lambda _value, _plugins: (model,)


NESTED: dict[tuple[type[BaseModel], str], Callable[[Any, Plugins], Models]] = {
    (Settings, "dead_letters"): _list_dead_letter_models,
    (Settings, "defaults"): _make_constant(PolicyKeys),
    **{(model, "schema_changes"): _make_constant(SchemaChangeModes) for model in (PolicyKeys, TableSettings, EntrySettings)},
    (Settings, "limits"): _make_constant(LimitSettings),
    (Settings, "http"): _make_constant(HttpSettings),
    (Settings, "event_store"): _list_event_store_models,
    (Settings, "serve"): _make_constant(ServeSettings),
    (Settings, "lineage"): _make_constant(LineageSettings),
    (EventStoreSettings, "storage"): _make_constant(StorageSettings),
    **{
        (model, key): _make_constant(inner)
        for model in (*SOURCES.values(), *SINKS.values())
        for key, inner in list_sections(model).items()
    },
}
COLLECTIONS: dict[tuple[type[BaseModel], str], Callable[[Any, Plugins], Models]] = {
    (Settings, "sources"): _list_source_models,
    (Settings, "sinks"): _list_sink_models,
    (Settings, "tables"): _make_constant(TableSettings),
    (Settings, "projections"): _make_constant(ProjectionSettings),
    (TableSettings, "to"): _make_constant(EntrySettings),
    **{(model, "columns"): _make_constant(ColumnSettings) for model in (PolicyKeys, TableSettings, EntrySettings)},
}


def _prune_value(key: str, value: Any, path: Path, models: Models, names: KeyCheck) -> Any:
    """The value with its own mappings pruned: `NESTED` holds one model, `COLLECTIONS` a model per entry."""
    for model in models:
        if inner := NESTED.get((model, key)):
            return _prune_mapping(value, path, inner(value, names.plugins), names)
        if inner := COLLECTIONS.get((model, key)):
            return _prune_entries(value, path, inner, names)
    return value


def _prune_entries(value: Any, path: Path, inner: Callable[[Any, Plugins], Models], names: KeyCheck) -> Any:
    if isinstance(value, dict):
        return {k: _prune_mapping(v, (*path, k), inner(v, names.plugins), names) for k, v in value.items()}
    if isinstance(value, list):
        return [_prune_mapping(v, (*path, i), inner(v, names.plugins), names) for i, v in enumerate(value)]
    return value
