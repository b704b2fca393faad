"""From a config file to settings: names, references to the environment, and every check, all findings at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from replicator.domain.errors import EnvironmentProblem, find_nearest, suggest_name
from replicator.ports.options import NAME_PATTERN, is_secret

from .adapter_models import (
    BROKEN_FORMATS,
    BROKEN_SINKS,
    BROKEN_SOURCES,
    FORMATS,
    SINKS,
    SOURCES,
    EventStoreSettings,
    FreeForm,
)
from .checks import check_config
from .config_view import build_view, to_mapping
from .document import (
    ConfigError,
    Document,
    Finding,
    Origin,
    Path,
    PathProblem,
    describe_parent,
    describe_path,
    find_origin,
    load_layers,
    quote_name,
)
from .environment import add_env_file, interpolate
from .plugins import NO_PLUGINS, Plugins
from .projections import ProjectionSettings
from .schema import HttpSettings, LimitSettings, Settings, add_event_store, remove_event_store
from .tables import EntrySettings, TableSettings

# From a config file to settings: layers, references to the environment, and every check, all findings at once.


@dataclass(frozen=True)
class Loaded:
    """Settings that may be used, with what is known about where they come from."""

    settings: Settings
    root: FilePath
    """The folder that relative paths start from."""
    files: tuple[FilePath, ...]
    """The config file and the overlay, where there is one."""
    warnings: tuple[Finding, ...]
    origins: Mapping[Path, Origin]

    def describe_origin(self, *path: str | int) -> str:
        """The origin of the value at `path`: `config/replicator.yaml:14` or `--set a.b`. For a default value, the origin of
        the nearest value around it."""
        return str(find_origin(self.origins, path))

    def to_redacted(self) -> dict[str, Any]:
        """The resolved settings as plain JSON data, every secret as asterisks."""
        plain = remove_event_store(self.settings).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: _redact(value, (key,)) for key, value in plain.items()}

    def list_secrets(self) -> frozenset[str]:
        """Every secret of the settings, in clear."""
        return frozenset(_find_secrets(remove_event_store(self.settings).model_dump()))


# Options models have `SecretStr`. Options of Spark, and of an adapter without a model, are plain values: there the key
# decides.


def _redact(value: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(value, dict):
        return {key: _redact(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redact(inner, path) for inner in value]
    return "**********" if value is not None and _is_below_secret(path) else value


def _find_secrets(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_secrets(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_secrets(inner, path)
    elif value is not None and _is_below_secret(path):
        yield str(value)


def _is_below_secret(path: tuple[str, ...]) -> bool:
    return any(is_secret(path[:end]) for end in range(1, len(path) + 1))


def load_settings(
    path: str | FilePath,
    env: str | None = None,
    overrides: Iterable[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> Loaded:
    """The settings in the file `path`, with the overlay `environments/<env>.yaml` in its folder and `--set` overrides.

    Precedence: overrides, then overlay, then file, then defaults. `env` defaults to the variable REPLICATOR_ENV. The values
    of `${NAME}` are in `environ`, by default the process's environment, then `.env` in the folder above the file's.
    `plugins` names adapters of other packages. Nothing is connected to. Raises ConfigError with all findings, never only
    the first.
    """
    document, files, root = load_layers(path, env, overrides, environ=environ)
    return check_document(document, root, files, environ=environ, plugins=plugins)


def check_document(
    document: Document,
    root: FilePath,
    files: tuple[FilePath, ...] = (),
    *,
    environ: Mapping[str, str] | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> Loaded:
    """The settings that `document` says, wherever it is from; `document` is used up. Every rule, message and default of a
    config file holds; relative paths start from `root`. Raises ConfigError with all findings."""
    if not isinstance(document.data, dict):
        if not document.problems:
            document.problems.append(PathProblem((), "empty", "is empty, or not a mapping of keys to values"))
        raise ConfigError(_to_findings(document, document.problems))
    names = KeyCheck(plugins, judged=interpolate(document, add_env_file(os.environ, root) if environ is None else environ))
    plain = dict(_prune_mapping(document.data, (), (Settings,), names))
    fill_defaults(plain, root)
    settings, wrong = validate(plain, root, names.judged)
    across = check_config(build_view(document.data), lambda path: document.origins.get(path, document.origins[()]))
    engines = check_engine_options(document.data, plugins)
    findings = _to_findings(document, (*document.problems, *names.problems, *wrong, *across, *engines))
    errors = [finding for finding in findings if finding.severity == "error"]
    if settings is None or errors:
        # What is unused is not known while a reference is broken, so warnings wait.
        raise ConfigError(errors)
    return Loaded(add_event_store(settings), root, files, tuple(findings), dict(document.origins))


def _to_findings(document: Document, problems: Iterable[PathProblem]) -> list[Finding]:
    """Findings in the order of files and lines; the same one only once."""
    findings = dict.fromkeys(problem.to_finding(document.origins) for problem in problems)
    return sorted(findings, key=lambda finding: (finding.file, finding.line or 0))


# Values of missing keys that depend on other keys or on the location of the config.

DEFAULT_NAME = "pipeline"


def fill_defaults(data: dict[str, Any], root: FilePath) -> None:
    """Adds `pipeline`, `dead_letters` and the group of each Kafka source to the data of a config below the folder `root`."""
    # The folder's name, as far as a pipeline can be called so.
    bare = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name).strip("-")
    name = bare if bare[:1].isalpha() else f"{DEFAULT_NAME}-{bare}".rstrip("-")
    data.setdefault("pipeline", name[:63])
    # Dead letters are in a folder of the first sink that has one, otherwise in the first sink that holds dead letters.
    sinks = [sink for sink in to_mapping(data.get("sinks")).values() if isinstance(sink, dict)]
    models = [(SINKS.get(str(sink.get("kind"))), sink) for sink in sinks]
    locations = [dict(location) for model, sink in models if model and (location := model.place_dead_letters(sink))]
    in_state = {"path": f"{data.get('state') or './state'}/{data['pipeline']}/dead_letters"}
    data.setdefault("dead_letters", min(locations, key=lambda location: "path" not in location, default=in_state))
    for source in to_mapping(data.get("sources")).values():
        model = SOURCES.get(str(source.get("transport"))) if isinstance(source, dict) else None
        if model is not None:
            source.update({**model.find_defaults(data["pipeline"]), **source})


# Options of engines, judged by the engines' own packages.


def check_engine_options(config: Mapping[str, Any], plugins: Plugins) -> Iterator[PathProblem]:
    """Find problems of options of any engine, in use or not."""
    for engine, check in plugins.engine_options.items():
        options = config.get(engine)
        names = [name for name in options if isinstance(name, str)] if isinstance(options, Mapping) else []
        for wrong in check(names):
            sentence = f"{engine} option {quote_name(wrong.name)} {wrong.problem}"
            yield PathProblem((engine, wrong.name), "engine_option", sentence, wrong.next_step)


# Pydantic's verdict on values, in our words: one problem per error, never with the value in it.

EXPECTED = {
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "is too long",
    "string_pattern_mismatch": "must be letters, digits, - and _, starting with a letter, 63 at most",
}
BOUNDS = {"ge": "at least", "le": "at most", "expected": "one of"}
"""The limits in the context of an error, in words."""
EXAMPLES = {
    "format": "for example format: debezium_json",
    "transport": "for example transport: kafka",
    "kind": "for example kind: delta",
}
"""Example values for keys that a newcomer may not know."""


def validate(data: Any, root: FilePath, settled: set[Path]) -> tuple[Settings | None, list[PathProblem]]:
    """The settings, or all problems of values. Errors at paths in `settled`, or about values that were removed there, are
    left out. If there are no other errors, both results are empty, and only the caller's own problems count."""
    try:
        return Settings.model_validate(data, context={"root": root}), []
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        return None, [p for p in map(_make_problem, details) if not _is_reported(p, settled)]


def _is_reported(problem: PathProblem, settled: set[Path]) -> bool:
    """The path or one around it was judged already; or what is said to be missing inside it was removed."""
    path = problem.path
    removed = problem.code == "place" and any(one[: len(path)] == path for one in settled)
    return removed or any(path[: len(prefix)] == prefix for prefix in settled)


def _make_problem(error: ErrorDetails) -> PathProblem:
    # Pydantic adds the tag of a union (after a source's or sink's name, and in a store), and `[key]`.
    loc = error["loc"]
    tag = {"sources": 2, "sinks": 2, "dead_letters": 1, "event_store": 1}.get(str(loc[0])) if loc else None
    path = tuple(part for index, part in enumerate(loc) if index != tag and part != "[key]")
    kind = error["type"]
    if kind == "missing":
        sentence = f"missing key {quote_name(path[-1])} {describe_parent(path[:-1])}"
        return PathProblem(path, "missing", sentence, EXAMPLES.get(str(path[-1]), ""))
    if kind == "extra_forbidden":
        return PathProblem(path, "unknown_key", f"unknown key {quote_name(path[-1])} {describe_parent(path[:-1])}")
    if kind.startswith("replicator_"):
        return PathProblem(path, kind.removeprefix("replicator_"), f"{describe_path(path)} {error['msg']}")
    context = error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        is_name = context["pattern"] == NAME_PATTERN
        sentence = f": a name {EXPECTED[kind]}" if is_name else f" must be text that matches {context['pattern']}"
        return PathProblem(path, "name", f"{describe_path(path)}{sentence}")
    if kind in ("greater_than_equal", "less_than_equal", "literal_error"):
        bounds = [f"{words} {context[key]}" for key, words in BOUNDS.items() if key in context]
        return PathProblem(path, "value", f"{describe_path(path)} must be {bounds[0]}")
    sentence = f"{describe_path(path)} {EXPECTED.get(kind, 'does not have the right type')}"
    return PathProblem(path, "type", sentence, "put it in quotes" if kind == "string_type" else "")


# Names before values: every key that is unknown or out of place, and every value of a closed set.

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


BROKEN: Mapping[tuple[str | int, str], Mapping[str, EnvironmentProblem]] = {
    ("sinks", "kind"): BROKEN_SINKS,
    ("sources", "transport"): BROKEN_SOURCES,
    ("sources", "format"): BROKEN_FORMATS,
}
"""By section and key, the adapters whose models cannot be loaded. Only a config that names one of them is wrong."""
ADAPTERS: Mapping[tuple[str | int, str], Callable[[Plugins], Iterable[str]]] = {
    ("sources", "format"): lambda plugins: (*FORMATS, *sorted(plugins.formats)),
    ("sources", "transport"): lambda plugins: (*SOURCES, *sorted(plugins.transports)),
    ("sinks", "kind"): lambda plugins: (*SINKS, *sorted(plugins.sinks)),
    ("dead_letters", "kind"): lambda plugins: sorted(plugins.dead_letters),
    ("event_store", "kind"): lambda plugins: sorted(plugins.event_stores),
}
"""By section and key, the adapters that can be named there."""


@dataclass
class KeyCheck:
    """The problems found, and `judged`: the paths whose values are already checked."""

    plugins: Plugins
    problems: list[PathProblem] = field(default_factory=list)
    judged: set[Path] = field(default_factory=set)

    def choose_models(self, path: Path, value: Any, models: Models) -> Models:
        """The model of the adapter that a section names; without a name, or with an unknown one, those of all."""
        plugin = tuple(model for model in models if issubclass(model, FreeForm))
        own = tuple(model for model in models if model not in plugin)
        if not plugin or not isinstance(value, dict):
            return own
        if path[0] in ("dead_letters", "event_store"):
            return plugin if "kind" in value and (path[0] == "dead_letters" or self.plugins.event_stores) else own
        by_name, key = (SOURCES, "transport") if path[0] == "sources" else (SINKS, "kind")
        name = str(value.get(key))
        if name in by_name:
            return (by_name[name],)
        return plugin if name in {*ADAPTERS[path[0], key](self.plugins), *BROKEN[path[0], key]} else own


def list_fields(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """The keys of the models as the config file spells them, and their annotations."""
    return {
        info.alias or name: info.annotation
        for model in models
        for name, info in model.model_fields.items()
        if not info.exclude
    }


def _prune_mapping(value: Any, path: Path, models: Models, names: KeyCheck) -> Any:
    """`value` without the keys and values that are refused by name; what was refused is added to `names`."""
    if not isinstance(value, dict):
        return value
    pruned, fields = {}, list_fields(models)
    for key, item in value.items():
        below = (*path, key)
        if below in names.judged:
            continue
        problem = _check_key(below, item, models, names.plugins)
        if problem is None:
            pruned[key] = _prune_value(item, fields.get(key), below, names)
            continue
        names.problems.append(problem)
        names.judged.add(below)
        # The key that a misspelt one was meant to be is not missing.
        near = None if key in fields else find_nearest(key, fields)
        if near is not None and near not in value:
            names.judged.add((*path, near))
    return pruned


def _check_key(path: Path, value: Any, models: Models, plugins: Plugins) -> PathProblem | None:
    """The problem of a key or its value by name alone."""
    key, fields = str(path[-1]), list_fields(models)
    if key not in fields:
        if any(model.model_config.get("extra") == "allow" for model in models):
            return None
        sentence = f"unknown key {quote_name(key)} {describe_parent(path[:-1])}"
        return PathProblem(path, "unknown_key", sentence, _make_hint(key, models, fields))
    if value is None:
        return PathProblem(path, "no_value", f"{describe_path(path)} has no value", "give it one, or remove the key")
    if isinstance(value, str) and (broken := BROKEN.get((path[0], key), {}).get(value)):
        return PathProblem(path, "broken_adapter", f"{describe_path(path)}: {broken.sentence}", broken.next_step)
    choices = _list_choices(path, fields[key], plugins)
    if isinstance(value, str) and value not in choices and (choices or (path[0], key) in ADAPTERS):
        hint = suggest_name(value, choices)
        hint = hint or (f"one of {', '.join(choices)}" if choices else "no installed package has one")
        return PathProblem(path, "unknown_value", f"{describe_path(path)} has an unknown value", hint)
    return None


def _make_hint(key: str, models: Models, fields: dict[str, Any]) -> str:
    """The nearest key here, or else the place where the key belongs, or else the list of keys."""
    near = suggest_name(key, fields)
    if near:
        return near
    for family in (SINKS, SOURCES):
        kinds = [kind for kind, model in family.items() if key in list_fields((model,))]
        if kinds and set(models) <= set(family.values()):
            return f"'{key}' is a key of {' and '.join(kinds)}"
    for where, others in OTHER_PLACES:
        if key in list_fields(others) and not set(others) & set(models):
            return f"'{key}' is a key of {where}"
    return f"known here: {', '.join(sorted(fields))}"


def _list_choices(path: Path, annotation: Any, plugins: Plugins) -> tuple[str, ...]:
    """The closed set of text values of a key; empty when it is not one. Plugins open some."""
    if list_adapters := ADAPTERS.get((path[0], str(path[-1]))):
        return tuple(dict.fromkeys(list_adapters(plugins)))
    options = [annotation, *get_args(annotation)]
    if any(get_origin(option) is Annotated and get_args(option)[0] is str for option in options):
        return ()  # Any other text is possible, too.
    return tuple(v for option in options if get_origin(option) is Literal for v in get_args(option) if isinstance(v, str))


def _prune_value(value: Any, annotation: Any, path: Path, names: KeyCheck) -> Any:
    """The value of a key with this type, its own mappings pruned: it is one, or a mapping or list of several."""
    models = dict(_find_models(annotation))
    if not models:
        return value

    def prune(item: Any, at: Path) -> Any:
        return _prune_mapping(item, at, names.choose_models(at, item, tuple(models)), names)

    if not any(models.values()):
        return prune(value, path)
    if isinstance(value, dict):
        return {key: prune(item, (*path, key)) for key, item in value.items()}
    return [prune(item, (*path, index)) for index, item in enumerate(value)] if isinstance(value, list) else value


def _find_models(annotation: Any, *, in_collection: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    """The models in a type, and for each whether it is one of several in a mapping or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, in_collection
    for part in get_args(annotation):
        yield from _find_models(part, in_collection=in_collection or get_origin(annotation) in (dict, list))
