"""Names before values: every key that is unknown, out of place or not yet supported, and every value of a closed set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from .columns import ColumnSettings
from .event_store import EventStoreSettings, ServeSettings
from .findings import Path, Problem, inside, place, quoted
from .lineage import LineageSettings
from .nearest import did_you_mean, nearest
from .plugins import Plugins
from .projections import ProjectionSettings
from .schema import HttpSettings, LimitSettings, Settings
from .sinks import (
    SINKS,
    DeadLetterSettings,
    DeltaSettings,
    EventLogSettings,
    PluginDeadLetterSettings,
    PluginSinkSettings,
)
from .source_parts import ConnectSettings, DatabaseSettings
from .sources import (
    FORMATS,
    SOURCES,
    ArchiveSettings,
    FilesSettings,
    KafkaSettings,
    PluginSourceSettings,
)
from .storage import StorageSettings
from .supported import is_later, later_keys
from .tables import EntrySettings, PolicyKeys, SchemaChangeModes, TableSettings

Models = tuple[type[BaseModel], ...]
"""The models a mapping may be; several while its kind is missing or unknown."""

ELSEWHERE: tuple[tuple[str, Models], ...] = (
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
class Names:
    """The problems found, and `settled`: the paths whose values have been judged, so nobody need judge them again."""

    plugins: Plugins
    problems: list[Problem] = field(default_factory=list)
    settled: set[Path] = field(default_factory=set)

    def settle(self, problem: Problem, meant: str | None) -> bool:
        """Record the problem; False, as its value is to be left out. `meant` is then not missing."""
        self.problems.append(problem)
        self.settled.add(problem.path)
        if meant is not None:
            self.settled.add((*problem.path[:-1], meant))
        return False


def pruned(data: dict[str, Any], names: Names) -> dict[str, Any]:
    """`data` without the keys and values that are refused by name; what was refused is added to `names`."""
    return dict(_mapping(data, (), (Settings,), names))


def fields(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """The keys of the models as the config file spells them, and their annotations."""
    return {info.alias or name: info.annotation for model in models for name, info in model.model_fields.items()}


def _mapping(value: Any, path: Path, models: Models, names: Names) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: _descend(key, item, (*path, key), models, names)
        for key, item in value.items()
        if (*path, key) not in names.settled
        if (problem := _judged((*path, key), item, models, names.plugins)) is None
        or names.settle(problem, _meant(key, value, models))
    }


def _meant(key: str, value: dict[str, Any], models: Models) -> str | None:
    """The key that an unknown key was most likely meant to be, unless that one is there too."""
    known = fields(models)
    near = None if key in known else nearest(key, known)
    return None if near in value else near


def _judged(path: Path, value: Any, models: Models, plugins: Plugins) -> Problem | None:
    """What is wrong with a key or its value by name alone."""
    key, known = str(path[-1]), fields(models)
    later = frozenset().union(*(later_keys(model) for model in models))
    if key not in known:
        if any(model.model_config.get("extra") == "allow" for model in models):
            return None
        sentence = f"unknown key {quoted(key)} {inside(path[:-1])}"
        return Problem(path, "unknown_key", sentence, _hint(key, models, known))
    if key in later or is_later(key, value):
        sentence = f"{_what(key, value, key in later)} {inside(path[:-1])} is not yet supported"
        return Problem(path, "not_yet_supported", sentence, "remove it for now")
    if value is None:
        return Problem(path, "no_value", f"{place(path)} has no value", "give it one, or remove the key")
    choices = _choices(path, known[key], plugins)
    if choices and isinstance(value, str) and value not in choices:
        hint = did_you_mean(value, choices) or f"one of {', '.join(choices)}"
        return Problem(path, "unknown_value", f"{place(path)} has an unknown value", hint)
    return None


def _what(key: str, value: Any, whole_key: bool) -> str:
    return f"key '{key}'" if whole_key or isinstance(value, dict) else f"'{key}: {value}'"


def _hint(key: str, models: Models, known: dict[str, Any]) -> str:
    """The nearest key here; else where the key belongs; else the list of keys."""
    near = did_you_mean(key, known)
    if near:
        return near
    for family in (SINKS, SOURCES):
        kinds = [kind for kind, model in family.items() if key in fields((model,))]
        if kinds and set(models) <= set(family.values()):
            return f"'{key}' is a key of {' and '.join(kinds)}"
    for where, others in ELSEWHERE:
        if key in fields(others) and not set(others) & set(models):
            return f"'{key}' is a key of {where}"
    return f"known here: {', '.join(sorted(set(known) - frozenset().union(*(later_keys(m) for m in models))))}"


def _choices(path: Path, annotation: Any, plugins: Plugins) -> tuple[str, ...]:
    """The closed set of text values of a key; empty when it is not one. Plugins open some."""
    key = path[-1]
    if path == ("dead_letters", "kind"):
        return tuple(sorted(plugins.dead_letters))
    if key == "format":
        return tuple(dict.fromkeys((*FORMATS, *sorted(plugins.formats))))
    if key == "transport":
        return tuple(dict.fromkeys((*SOURCES, *sorted(plugins.transports))))
    if key == "kind":
        return tuple(dict.fromkeys((*SINKS, *sorted(plugins.sinks))))
    options = [annotation, *get_args(annotation)]
    return tuple(v for option in options if get_origin(option) is Literal for v in get_args(option) if isinstance(v, str))


def _source(value: Any, plugins: Plugins) -> Models:
    transport = value.get("transport") if isinstance(value, dict) else None
    if isinstance(transport, str) and transport in plugins.transports - SOURCES.keys():
        return (PluginSourceSettings,)
    return _one_of(SOURCES, transport)


def _sink(value: Any, plugins: Plugins) -> Models:
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in plugins.sinks - SINKS.keys():
        return (PluginSinkSettings,)
    return _one_of(SINKS, kind)


def _dead_letters(value: Any, _: Plugins) -> Models:
    return (PluginDeadLetterSettings,) if isinstance(value, dict) and "kind" in value else (DeadLetterSettings,)


def _one_of(kinds: dict[str, Any], kind: Any) -> Models:
    return (kinds[kind],) if isinstance(kind, str) and kind in kinds else tuple(kinds.values())


def _always(model: type[BaseModel]) -> Callable[[Any, Plugins], Models]:
    return lambda _value, _plugins: (model,)


NESTED: dict[tuple[type[BaseModel], str], Callable[[Any, Plugins], Models]] = {
    (Settings, "dead_letters"): _dead_letters,
    (Settings, "defaults"): _always(PolicyKeys),
    **{(model, "schema_changes"): _always(SchemaChangeModes) for model in (PolicyKeys, TableSettings, EntrySettings)},
    (Settings, "limits"): _always(LimitSettings),
    (Settings, "http"): _always(HttpSettings),
    (Settings, "event_store"): _always(EventStoreSettings),
    (Settings, "serve"): _always(ServeSettings),
    (Settings, "lineage"): _always(LineageSettings),
    (KafkaSettings, "database"): _always(DatabaseSettings),
    (KafkaSettings, "connect"): _always(ConnectSettings),
    (DeltaSettings, "storage"): _always(StorageSettings),
    (EventLogSettings, "storage"): _always(StorageSettings),
    (EventStoreSettings, "storage"): _always(StorageSettings),
    (ArchiveSettings, "storage"): _always(StorageSettings),
    (FilesSettings, "storage"): _always(StorageSettings),
}
COLLECTIONS: dict[tuple[type[BaseModel], str], Callable[[Any, Plugins], Models]] = {
    (Settings, "sources"): _source,
    (Settings, "sinks"): _sink,
    (Settings, "tables"): _always(TableSettings),
    (Settings, "projections"): _always(ProjectionSettings),
    (TableSettings, "to"): _always(EntrySettings),
    **{(model, "columns"): _always(ColumnSettings) for model in (PolicyKeys, TableSettings, EntrySettings)},
}


def _descend(key: str, value: Any, path: Path, models: Models, names: Names) -> Any:
    """The value with its own mappings pruned: `NESTED` holds one model, `COLLECTIONS` a model per entry."""
    for model in models:
        if inner := NESTED.get((model, key)):
            return _mapping(value, path, inner(value, names.plugins), names)
        if inner := COLLECTIONS.get((model, key)):
            return _each(value, path, inner, names)
    return value


def _each(value: Any, path: Path, inner: Callable[[Any, Plugins], Models], names: Names) -> Any:
    if isinstance(value, dict):
        return {k: _mapping(v, (*path, k), inner(v, names.plugins), names) for k, v in value.items()}
    if isinstance(value, list):
        return [_mapping(v, (*path, i), inner(v, names.plugins), names) for i, v in enumerate(value)]
    return value
