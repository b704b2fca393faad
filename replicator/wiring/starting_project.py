"""`replicator init`: looks at sources and targets, and makes the files of a project that is ready to run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replicator.domain.errors import ConfigProblem
from replicator.ports.discovery import DiscoveredSource, PasswordNeeded
from replicator.settings import check_document
from replicator.settings.document import parse_document
from replicator.settings.env_file import ENV_FILE, render_env_file
from replicator.settings.findings import Origin
from replicator.settings.json_schema import render_file
from replicator.settings.starting_config import build_starting_config

from .config_checks import refuse_unusable
from .configuration import DEFAULT, list_plugins
from .plugins import load_adapter

GROUP = "replicator.discovery"
FOLDERS = "folder"
DATABASES = ("postgresql", "postgres")
SECRET_MODE = 0o600
ENV_COMMENT = "Secrets of config/replicator.yaml: keep this file out of version control."

AskPassword = Callable[[PasswordNeeded], str]
"""Returns the password, or raises the error."""


@dataclass(frozen=True)
class StartingProject:
    """The sources that were found, and the texts of all files by their paths in the project."""

    sources: Sequence[DiscoveredSource]
    files: Mapping[str, str]


def make_project(folder: Path, source: str, targets: Sequence[str], ask_password: AskPassword) -> StartingProject:
    """The project in `folder` that replicates all tables of `source` into all `targets`. Writes nothing.

    Raises ConfigProblem for a URL of an unknown kind, a source without tables, and a target that is the source or in it; the
    error of `ask_password`; and errors of `ports.discovery.Discover`.
    """
    sources = [_use_project_path(one, folder.absolute()) for one in _discover(source, ask_password)]
    if not any(one.tables for one in sources):
        raise ConfigProblem(f"{sources[0].title} has no tables that can be read", next_step="Name another source.")
    variables = {name: value for one in sources for name, value in one.variables.items()}
    paths = [one.settings["path"] for one in sources if "path" in one.settings]
    sinks: dict[str, Any] = {}
    for target in targets:
        kind = "target" if target.startswith(tuple(f"{scheme}://" for scheme in DATABASES)) else "lake"
        count = sum(re.fullmatch(rf"{kind}(_\d+)?", name) is not None for name in sinks)
        name = f"{kind}_{count + 1}" if count else kind
        if kind == "lake":
            if any((folder / target).absolute().is_relative_to(folder.absolute() / path) for path in paths):
                raise ConfigProblem(f"{target} is in the folder that is read", next_step="Name another folder with --to.")
            sinks[name] = {"kind": "delta", "path": target}
            continue
        database = _discover(target, ask_password)[0]
        if database.identity in (one.identity for one in sources):
            raise ConfigProblem(f"{database.title} is the source", next_step="Name another database with --to.")
        variables[f"{name.upper()}_DSN"] = database.dsn
        sinks[name] = {"kind": "postgres", "dsn": f"${{{name.upper()}_DSN}}", "schema": "public"}
    text = build_starting_config(sources, sinks)
    _refuse_config(folder, text, variables)
    files = {str(DEFAULT): text, str(DEFAULT.with_name("schema.json")): render_file(overlay=False)}
    files |= {path: text for one in sources for path, text in one.files.items()}
    return StartingProject(sources, files | ({ENV_FILE: render_env_file(variables, ENV_COMMENT)} if variables else {}))


def write_project(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that do not exist, `.env` for its owner only. Returns their paths.

    Raises ConfigProblem, before anything is written, if a file exists with another text.
    """
    existing = [path for path, text in files.items() if _is_other(folder / path, text)]
    if existing:
        step = "Name another folder, or remove them."
        raise ConfigProblem(f"{', '.join(str(folder / path) for path in existing)} exist already", next_step=step)
    return list(_write_files(folder, files))


def _write_files(folder: Path, files: Mapping[str, str]) -> Iterator[str]:
    for path, text in files.items():
        file = folder / path
        if file.exists():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            mode = SECRET_MODE if path == ENV_FILE else 0o666
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as opened:
                opened.write(text)
        except OSError as error:
            sentence = f"{file} cannot be written: {error.strerror}"
            raise ConfigProblem(sentence, next_step="Name a folder in which you may write.") from None
        yield path


def _is_other(file: Path, text: str) -> bool:
    try:
        return file.exists() and file.read_text(encoding="utf-8") != text
    except (OSError, UnicodeDecodeError):
        return True


def _discover(url: str, ask_password: AskPassword) -> Sequence[DiscoveredSource]:
    scheme = url.partition("://")[0].lower() if "://" in url else FOLDERS
    scheme = DATABASES[0] if scheme in DATABASES else scheme
    discover = load_adapter(GROUP, scheme)
    try:
        return discover(url, None)  # type: ignore[no-any-return]
    except PasswordNeeded as needed:
        return discover(url, ask_password(needed))  # type: ignore[no-any-return]


def _use_project_path(source: DiscoveredSource, folder: Path) -> DiscoveredSource:
    """The source, with a relative `path` if that is in the project."""
    path = Path(source.settings.get("path", "/"))
    if not path.is_relative_to(folder):
        return source
    return replace(source, settings={**source.settings, "path": f"./{path.relative_to(folder)}"})


def _refuse_config(folder: Path, text: str, variables: Mapping[str, str]) -> None:
    """Raise ConfigError if `replicator check` would refuse the config in the folder."""
    document = parse_document(text, lambda line, _: Origin(str(DEFAULT), line + 1))
    root = folder.absolute()
    refuse_unusable(check_document(document, root, environ={**os.environ, **variables}, plugins=list_plugins()))
