"""From a config file to settings: layers, references to the environment, and every check, all findings at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import SecretStr

from .checks import check_config
from .config_view import build_view
from .defaults import fill_defaults
from .document import Document
from .engine_options import check_engine_options
from .env_file import add_env_file
from .fields import is_secret
from .findings import ConfigError, Finding, Origin, Path, PathProblem
from .interpolation import interpolate
from .keys import KeyCheck, prune_keys
from .layers import load_layers
from .plugins import NO_PLUGINS, Plugins
from .schema import Settings, add_event_store, remove_event_store
from .values import validate


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
