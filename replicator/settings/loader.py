"""From a config file to settings: layers, references to the environment, and every check, all findings at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from replicator.ports.options import is_secret

from .adapter_models import SINKS, SOURCES
from .checks import check_config
from .config_view import build_view, to_mapping
from .document import Document
from .environment import add_env_file, interpolate
from .findings import ConfigError, Finding, Origin, Path, PathProblem, describe_parent, describe_path, quote_name
from .keys import KeyCheck, prune_keys
from .layers import load_layers
from .plugins import NO_PLUGINS, Plugins
from .schema import Settings, add_event_store, remove_event_store


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
        while path and path not in self.origins:
            path = path[:-1]
        return str(self.origins[path])

    def to_redacted(self) -> dict[str, Any]:
        """The resolved settings as plain JSON data, every secret as asterisks."""
        return remove_event_store(self.settings).model_dump(mode="json", by_alias=True, exclude_none=True)

    def list_secrets(self) -> frozenset[str]:
        """Every secret of the settings, in clear."""
        of_spark = (value for name, value in self.settings.spark.items() if is_secret(("spark", name)))
        return frozenset([*_find_secrets(remove_event_store(self.settings).model_dump()), *of_spark])


def _find_secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _find_secrets(inner)


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
    plain = prune_keys(document.data, names)
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


def _to_findings(document: Document, found: Iterable[PathProblem]) -> list[Finding]:
    """Findings in the order of files and lines; the same one only once."""
    findings = dict.fromkeys(problem.to_finding(document.origins, document.origins[()]) for problem in found)
    return sorted(findings, key=lambda finding: (finding.file, finding.line or 0))


# Values of missing keys that depend on other keys or on the location of the config.

DEFAULT_NAME = "pipeline"


def fill_defaults(data: dict[str, Any], root: FilePath) -> None:
    """Adds `pipeline`, `dead_letters` and the group of each Kafka source to the data of a config below the folder `root`."""
    data.setdefault("pipeline", _make_name(root))
    in_state = {"path": f"{data.get('state') or './state'}/{data['pipeline']}/dead_letters"}
    data.setdefault("dead_letters", _place_in_sink(to_mapping(data.get("sinks"))) or in_state)
    for source in to_mapping(data.get("sources")).values():
        model = SOURCES.get(str(source.get("transport"))) if isinstance(source, dict) else None
        if model is not None:
            source.update({**model.find_defaults(data["pipeline"]), **source})


def _make_name(root: FilePath) -> str:
    """The folder's name, as far as a pipeline can be called so."""
    bare = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name).strip("-")
    return (bare if bare[:1].isalpha() else f"{DEFAULT_NAME}-{bare}".rstrip("-"))[:63]


def _place_in_sink(sinks: dict[str, Any]) -> dict[str, Any] | None:
    """In a folder of the first sink that has one, otherwise in the first sink that holds dead letters; None without any."""
    known = [(SINKS.get(str(sink.get("kind"))), sink) for sink in sinks.values() if isinstance(sink, dict)]
    places = [dict(place) for model, sink in known if model and (place := model.place_dead_letters(sink))]
    return min(places, key=lambda place: "path" not in place, default=None)


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
    removed = problem.code == "place" and any(known[: len(path)] == path for known in settled)
    return removed or any(path[: len(known)] == known for known in settled)


def _make_problem(error: ErrorDetails) -> PathProblem:
    path = tuple(_to_data_path(error["loc"]))
    kind = error["type"]
    if kind == "missing":
        sentence = f"missing key {quote_name(path[-1])} {describe_parent(path[:-1])}"
        return PathProblem(path, "missing", sentence, EXAMPLES.get(str(path[-1]), ""))
    if kind == "extra_forbidden":
        return PathProblem(path, "unknown_key", f"unknown key {quote_name(path[-1])} {describe_parent(path[:-1])}")
    if kind.startswith("replicator_"):
        return PathProblem(path, kind.removeprefix("replicator_"), f"{describe_path(path)} {error['msg']}")
    if kind == "string_pattern_mismatch":
        return PathProblem(path, "name", f"{describe_path(path)}: a name {EXPECTED[kind]}")
    if kind in ("greater_than_equal", "less_than_equal", "literal_error"):
        return PathProblem(path, "value", f"{describe_path(path)} {_describe_bound(kind, error.get('ctx', {}))}")
    sentence = f"{describe_path(path)} {EXPECTED.get(kind, 'does not have the right type')}"
    return PathProblem(path, "type", sentence, "put it in quotes" if kind == "string_type" else "")


def _describe_bound(kind: str, context: dict[str, Any]) -> str:
    if kind == "literal_error":
        return f"must be one of {context['expected']}"
    return f"must be at least {context['ge']}" if "ge" in context else f"must be at most {context['le']}"


def _to_data_path(loc: tuple[int | str, ...]) -> Iterator[int | str]:
    """The path inside the document: pydantic adds the tag of a union (after a source's or sink's name, and in
    a store), and `[key]`."""
    tag = {"sources": 2, "sinks": 2, "dead_letters": 1, "event_store": 1}.get(str(loc[0])) if loc else None
    for index, part in enumerate(loc):
        if index != tag and part != "[key]":
            yield part
