"""Layers of configuration that are merged key by key: the file, an environment's overlay, `--set`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

from replicator.domain.errors import suggest_name
from replicator.domain.plain_values import format_count

from .document import Document, parse_document, read_document
from .findings import Origin, Path, PathProblem, describe_parent, describe_path, quote_name

ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SEGMENT = re.compile(r'"(?P<quoted>[^"]*)"|(?P<name>[^.\[\]"=]+)|\[(?P<index>\d+)\]')


def load_layers(
    path: str | FilePath, env: str | None = None, overrides: Iterable[str] = (), *, environ: Mapping[str, str] | None = None
) -> tuple[Document, tuple[FilePath, ...], FilePath]:
    """The merged document of the file `path`, its overlay and the overrides, not yet checked. Also the files, and the
    folder that relative paths start from. As `load_settings`, but an unreadable file is a problem in the document."""
    environ = os.environ if environ is None else environ
    file = FilePath(path)
    document = read_document(file)
    files = [file]
    overlay = env or environ.get("REPLICATOR_ENV")
    if overlay:
        files += _merge_environment(document, file.parent / "environments", overlay)
    apply_assignments(document, overrides)
    return document, tuple(files), file.absolute().parent.parent


def _merge_environment(document: Document, folder: FilePath, name: str) -> list[FilePath]:
    file = folder / f"{name}.yaml"
    if ENVIRONMENT_NAME.fullmatch(name) and file.is_file():
        merge_overlay(document, read_document(file))
        return [file]
    known = sorted(found.stem for found in folder.glob("*.yaml"))
    hint = suggest_name(name, known) or f"known: {', '.join(known) or 'none'}"
    document.origins[("\0env",)] = Origin(f"--env {name}" if ENVIRONMENT_NAME.fullmatch(name) else "--env")
    document.problems.append(PathProblem(("\0env",), "unknown_environment", f"there is no such file in {folder}", hint))
    return []


def merge_overlay(base: Document, overlay: Document) -> None:
    """Lay `overlay` over `base`, in place: mappings merge, everything else replaces, `null` removes the key.

    Removing a key that is not there is a problem, as it is most likely a typo.
    """
    for problem in overlay.problems:
        at = problem.to_finding(overlay.origins, overlay.origins[()])
        _add_problem(base, Origin(at.file, at.line), problem.code, problem.message, problem.suggestion)
    if overlay.data is None or not isinstance(base.data, dict):
        return
    if not isinstance(overlay.data, dict):
        _add_problem(base, overlay.origins[()], "not_a_mapping", "must be a mapping of keys to values")
        return
    _merge_mappings(base, overlay, base.data, overlay.data, ())


def _merge_mappings(base: Document, overlay: Document, under: dict[str, Any], over: dict[str, Any], path: Path) -> None:
    for key, value in over.items():
        below = (*path, key)
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            _merge_mappings(base, overlay, under[key], value, below)
        elif value is None:
            _remove_key(base, under, below, overlay.origins[below])
        else:
            under[key] = value
            _replace_origins(base, below, {p: at for p, at in overlay.origins.items() if p[: len(below)] == below})


def _remove_key(base: Document, parent: dict[str, Any], path: Path, origin: Origin) -> None:
    key = str(path[-1])
    if key not in parent:
        suggestion = suggest_name(key, parent) or "null removes a key that a lower layer has set"
        _add_problem(
            base, origin, "nothing_to_remove", f"there is no {quote_name(key)} {describe_parent(path[:-1])}", suggestion
        )
        return
    del parent[key]
    _replace_origins(base, path, {})


def _replace_origins(base: Document, path: Path, origins: dict[Path, Origin]) -> None:
    for old in [p for p in base.origins if p[: len(path)] == path]:
        del base.origins[old]
    base.origins |= origins


def _add_problem(base: Document, origin: Origin, code: str, message: str, suggestion: str = "") -> None:
    """Record a problem whose origin is not the one that the document has for its path."""
    marker = (f"\0{origin}",)
    base.origins[marker] = origin
    base.problems.append(PathProblem(marker, code, message, suggestion))


def apply_assignments(base: Document, assignments: Iterable[str]) -> None:
    """Apply `--set` assignments `a.b=value`, in place and in order. Values are YAML. A mapping or list replaces the
    whole value, and `null` removes it. Items of lists have an index (`tables[0].source` or `tables.0.source`). A name
    with dots is quoted (`sources.shop.options."linger.ms"=5`)."""
    for assignment in assignments if isinstance(base.data, dict) else ():
        _apply_assignment(base, assignment)


def _apply_assignment(base: Document, assignment: str) -> None:
    left, equals, right = assignment.partition("=")
    parts = _split_path(left.strip())
    if not equals or not parts:
        at = Origin(f"--set {left.strip()}" if equals else "--set")
        _add_problem(base, at, "set_syntax", "is not of the form NAME.NAME=VALUE", "for example --set engine=local")
        return
    origin = Origin(f"--set {left.strip()}")
    parent = _find_parent(base, parts, origin)
    if parent is None:
        return
    container, path = parent
    value = parse_document(right, lambda _line, _path: origin)
    for problem in value.problems:
        _add_problem(base, origin, problem.code, problem.message, problem.suggestion)
    if value.data is None and isinstance(container, dict):
        if not value.problems:
            _remove_key(base, container, path, origin)
        return
    container[path[-1]] = value.data
    _replace_origins(base, path, {(*path, *below): origin for below in value.origins})


def _split_path(text: str) -> tuple[str | int, ...]:
    """`a."b.c"[0].d` as ("a", "b.c", 0, "d"); empty when it is not such a path."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        at += text[at] == "." and bool(parts)
        found = SEGMENT.match(text, at)
        if found is None:
            return ()
        at = found.end()
        parts.append(int(found["index"]) if found["index"] else found["quoted"] or found["name"] or "")
    return tuple(parts)


def _find_parent(base: Document, parts: Path, origin: Origin) -> tuple[Any, Path] | None:
    """The container of the last part, made on the way where a mapping is missing, and the path with real indexes."""
    here = base.data
    path: Path = ()
    for depth, part in enumerate(parts):
        step = _find_step(base, here, part, path, origin)
        if step is None:
            return None
        path = (*path, step)
        if depth == len(parts) - 1:
            return here, path
        if isinstance(here, dict) and here.get(step) is None:
            here[step] = {}
            base.origins.setdefault(path, origin)
        here = here[step]
    return None


def _find_step(base: Document, here: Any, part: str | int, path: Path, origin: Origin) -> str | int | None:
    """The key or index that `part` means inside `here`; None, and a problem, when it means nothing there."""
    if isinstance(here, dict) and isinstance(part, str):
        return part
    if isinstance(here, list) and str(part).isdigit():
        if int(part) < len(here):
            return int(part)
        _add_problem(
            base, origin, "set_path", f"{describe_path(path)} has {format_count(len(here), 'entry')}, the first is 0"
        )
        return None
    kind = "a list: give an index" if isinstance(here, list) else "not a mapping or a list with such an entry"
    _add_problem(base, origin, "set_path", f"{describe_path(path)} is {kind}")
    return None
