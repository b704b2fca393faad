"""`replicator init`: looks at sources and targets, and makes the files of a project that is ready to run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.local_files import create_file
from replicator.ports.options import ENCODE, has_unclear_user
from replicator.ports.source import DiscoveredSource, PasswordNeeded
from replicator.settings import check_document
from replicator.settings.document import Origin, parse_document
from replicator.settings.environment import ENV_FILE, read_env_file, render_env_file
from replicator.settings.json_schema import render_file
from replicator.settings.plugins import list_names, load_adapter
from replicator.settings.starting_config import build_starting_config

from .configuration import DEFAULT, list_plugins, refuse_unusable

GROUP = "replicator.discovery"
FOLDERS = "folder"
DATABASE, DATABASES = "postgresql", ("postgresql", "postgres")
CONNINFO = re.compile(r"(^|\s)(host|hostaddr|port|dbname|user|password|service)\s*=")
"""Parameters of libpq, among them secrets, which would be taken for the name of a folder."""
MARIADB = 'The page "MariaDB and MySQL through Debezium" has a config for them.'
OTHERS = dict.fromkeys(("mysql", "mariadb"), MARIADB)
"""Next steps for databases that `init` does not read."""
SECRET_MODE = 0o600
ENV_COMMENT = "Secrets of config/replicator.yaml: keep this file out of version control."

AskPassword = Callable[[PasswordNeeded], str]
"""Returns the password, or raises the error."""


@dataclass(frozen=True)
class StartingProject:
    """The texts of all files by their paths in the project, and the variables of `.env`."""

    files: Mapping[str, str]
    variables: Mapping[str, str]


def find_sources(folder: Path, source: str, ask_password: AskPassword) -> Sequence[DiscoveredSource]:
    """The sources behind a URL, for a project in `folder`.

    Raises ConfigProblem for a URL of an unknown kind and a source without tables. Also raises the error of
    `ask_password`, and errors of `ports.source.Discover`.
    """
    root, sources = _find_root(folder), []
    for one in _discover(source, "--from", ask_password):
        settings, path = one.settings, Path(one.settings.get("path", "/"))
        if path.is_relative_to(root):
            settings = {**settings, "path": f"./{path.relative_to(root)}"}
        sources.append(replace(one, settings=settings))
    if not any(one.tables for one in sources):
        raise ConfigProblem(f"{sources[0].title} has no tables that can be read", next_step="Name another source.")
    return sources


def make_project(
    folder: Path, sources: Sequence[DiscoveredSource], targets: Sequence[str], ask_password: AskPassword
) -> StartingProject:
    """The project in `folder` that replicates all tables of `sources` into all `targets`. Writes nothing.

    Raises as `find_sources` for a target, and ConfigProblem for one that is the source or in it.
    """
    variables = {name: value for one in sources for name, value in one.variables.items()}
    root = _find_root(folder)
    paths = [(root / one.settings["path"]).resolve() for one in sources if "path" in one.settings]
    roles = {one.identity: "the source" for one in sources if one.identity}
    sinks: dict[str, Any] = {}
    for target in targets:
        kind = "target" if _find_kind(target, "--to") == DATABASE else "lake"
        count = sum(re.fullmatch(rf"{kind}(_\d+)?", name) is not None for name in sinks)
        name = f"{kind}_{count + 1}" if count else kind
        if kind == "lake":
            title, identity = target, target.rstrip("/") if "://" in target else str((root / target).resolve())
            if any(Path(identity).is_relative_to(path) for path in paths):
                raise ConfigProblem(f"{target} is in the source folder", next_step="Name another folder with --to.")
            sinks[name] = {"kind": "delta", "path": identity if ".." in Path(target).parts else target}
        else:
            database = _discover(target, "--to", ask_password)[0]
            title, identity = database.title, database.identity
            variables[f"{name.upper()}_DSN"] = database.dsn
            sinks[name] = {"kind": "postgres", "dsn": f"${{{name.upper()}_DSN}}", "schema": "public"}
        if identity in roles:
            raise ConfigProblem(f"{title} is {roles[identity]}", next_step="Name another database or folder with --to.")
        roles[identity] = "a target already"
    other = [n for n, value in variables.items() if os.environ.get(n, value) != value or f"{n}_FILE" in os.environ]
    if other:
        sentence = f"the environment has another {', '.join(other)}, which would replace the value in {ENV_FILE}"
        raise ConfigProblem(sentence, next_step=f"unset {' '.join(other)}, also with _FILE, and repeat the command.")
    text = build_starting_config(sources, sinks)
    # Raises ConfigError if `replicator check` would refuse the config.
    document = parse_document(text, lambda *_: Origin("the config would not be valid"))
    environ = {**os.environ, **variables}
    refuse_unusable(check_document(document, folder.absolute(), environ=environ, plugins=list_plugins()))
    files = {str(DEFAULT): text, str(DEFAULT.with_name("schema.json")): render_file(overlay=False)}
    files |= {path: text for one in sources for path, text in one.files.items()}
    return StartingProject(files | ({ENV_FILE: render_env_file(variables, ENV_COMMENT)} if variables else {}), variables)


def write_project(folder: Path, project: StartingProject) -> list[str]:
    """Write the files that do not exist, `.env` for its owner only. Returns their paths.

    Raises ConfigProblem, before anything is written, if a file exists with another text. A `.env` may have more variables.
    """
    obstacles = {
        str(obstacle)
        for path, text in project.files.items()
        if (obstacle := _find_obstacle(folder / path, text))
        and not (path == ENV_FILE and _has_variables(folder / path, project.variables))
    }
    if obstacles:
        step = "Name another folder, or remove the existing files."
        sentence = f"{', '.join(sorted(obstacles))} exist{'s' * (len(obstacles) == 1)} with another text"
        raise ConfigProblem(sentence, next_step=step)
    written = []
    for path, text in project.files.items():
        file = folder / path
        if file.exists():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            create_file(file, text.encode(), SECRET_MODE if path == ENV_FILE else 0o666)
        except OSError as error:
            sentence = f"{file} cannot be written: {error.strerror}"
            raise ConfigProblem(sentence, next_step="Name a writable folder.") from None
        written.append(path)
    return written


def _find_obstacle(file: Path, text: str) -> Path | None:
    """Something else at the path of the file or of one of its folders; None if there is nothing else."""
    for folder in file.parents:
        if os.path.lexists(folder) and not folder.is_dir():
            return folder
    try:
        return file if os.path.lexists(file) and file.read_text(encoding="utf-8") != text else None
    except (OSError, UnicodeDecodeError):
        return file


def _has_variables(file: Path, variables: Mapping[str, str]) -> bool:
    try:
        return variables.items() <= read_env_file(file).items()
    except ConfigProblem:
        return False


def _find_kind(text: str, option: str) -> str:
    """The scheme of a URL, `folder` without one.

    Raises ConfigProblem, which quotes nothing, where a password may be taken for something else.
    """
    is_database = text.partition(":")[0].lower() in DATABASES
    if is_database and has_unclear_user(text):
        sentence = f"the URL of {option} has a user or password with characters that must be encoded"
        raise ConfigProblem(sentence, next_step=f"{ENCODE.capitalize()}.")
    if not is_database and CONNINFO.search(text):
        step = "Write postgresql://USER@HOST:PORT/DATABASE."
        raise ConfigProblem(f"{option} needs the URL of a database, not connection parameters", next_step=step)
    return DATABASE if is_database else text.partition("://")[0].lower() if "://" in text else FOLDERS


def _discover(url: str, option: str, ask_password: AskPassword) -> Sequence[DiscoveredSource]:
    scheme = _find_kind(url, option)
    schemes = list_names(GROUP)
    if scheme not in schemes:
        kinds = ", ".join(f"{name}://" for name in schemes if name != FOLDERS)
        step = OTHERS.get(scheme, f"Correct {option}.")
        raise ConfigProblem(f"init reads {kinds} and folders, not {scheme}://", next_step=step)
    discover = load_adapter(GROUP, scheme)
    try:
        try:
            return discover(url, None)  # type: ignore[no-any-return]
        except PasswordNeeded as needed:
            return discover(url, ask_password(needed))  # type: ignore[no-any-return]
    except ReplicatorError as error:
        error.next_step = (error.next_step or "").replace("`dsn`", option)
        raise


def _find_root(folder: Path) -> Path:
    return Path(os.path.normpath(folder.absolute()))
