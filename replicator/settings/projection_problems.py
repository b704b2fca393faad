"""Checks projections against the rest of the config. `queries` checks their SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import is_exact
from replicator.domain.suggestions import suggest_name
from replicator.domain.table import get_unqualified_name

from .config_view import ConfigView, get_text, to_mapping
from .findings import Path, PathProblem, describe_path, quote_name

Target = tuple[str, str]
"""A sink, and the name of a table in it."""


def check_projections(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong between projections and what they name."""
    targets = list_targets(config.projections)
    for name, said in config.projections.items():
        at: Path = ("projections", name)
        yield from _check_sink(config, at, said)
        yield from _check_target(config, at, targets)
        for table, value in to_mapping(said.get("inputs")).items():
            if isinstance(value, str):
                yield from _check_input(config, (*at, "inputs", table), value, targets)
    yield from _check_circles(config, targets)


def list_targets(projections: Mapping[str, Any]) -> dict[str, Target]:
    """By projection its table."""
    return {name: (get_text(said, "sink") or "", get_text(said, "into") or name) for name, said in projections.items()}


def sort_projections(inputs: Mapping[str, Mapping[str, str]], targets: Mapping[str, Target]) -> list[str]:
    """The projections, each after those whose tables it reads; those that read each other in a circle are left out.
    `inputs`: by projection what its tables are."""
    made = {".".join(target): name for name, target in targets.items()}
    waits = {name: {made[value] for value in said.values() if value in made} for name, said in inputs.items()}
    order: list[str] = []
    while ready := [name for name, others in waits.items() if name not in order and others <= {*order}]:
        order += ready
    return order


def _check_sink(config: ConfigView, at: Path, said: Mapping[str, Any]) -> Iterator[PathProblem]:
    name = get_text(dict(said), "sink")
    if name is None or config.sinks is None:
        return
    if name not in config.sinks:
        hint = suggest_name(name, config.sinks) or f"known: {', '.join(config.sinks) or 'none'}"
        yield PathProblem((*at, "sink"), "unknown_sink", f"unknown sink {quote_name(name)} in {describe_path(at)}", hint)
    elif config.get_kind(name) not in ("delta", "postgres"):
        sentence = (
            f"{describe_path((*at, 'sink'))}: {quote_name(name)} is of kind {config.get_kind(name)}, "
            f"which does not support projections yet"
        )
        yield PathProblem((*at, "sink"), "not_yet_supported", sentence, "name a sink of kind delta or postgres")


def _check_target(config: ConfigView, at: Path, targets: Mapping[str, Target]) -> Iterator[PathProblem]:
    mine = targets[str(at[1])]
    into = ".".join(mine)
    if any(
        entry.sink == mine[0] and _resolve_target(entry.into or table.into, table.match) == mine[1]
        for table, entry in config.list_entries()
    ):
        yield PathProblem(
            at, "same_target", f"{describe_path(at)}: a lane writes {quote_name(into)}", "give the projection another 'into'"
        )
    earlier = [*targets][: [*targets].index(str(at[1]))]
    for other in earlier:
        if targets[other] == mine:
            sentence = f"{describe_path(at)}: projection {quote_name(other)} has the table {quote_name(into)}"
            yield PathProblem(at, "same_target", sentence, "give one of them another 'into'")


def _resolve_target(said: str | None, match: str | None) -> str | None:
    """The single target of an entry; None if it may have several."""
    if match is None or not is_exact(match):
        return None
    return said or get_unqualified_name(match)


def _check_input(config: ConfigView, at: Path, value: str, targets: Mapping[str, Target]) -> Iterator[PathProblem]:
    sink, dot, table = value.partition(".")
    kinds = {"delta": bool(dot), "postgres": bool(dot), "event_log": not dot}
    if value == EVENT_STORE and not dot:
        yield from _check_event_store(config, at)
    elif config.sinks is not None and sink not in config.sinks:
        hint = suggest_name(sink, config.sinks) or f"known: {', '.join(config.sinks) or 'none'}"
        yield PathProblem(at, "unknown_sink", f"{describe_path(at)} names the unknown sink {quote_name(sink)}", hint)
    elif config.sinks is not None and not kinds.get(config.get_kind(sink) or "", True):
        step = "write SINK.TABLE" if not dot else "write the sink's name alone: an event log is one table"
        yield PathProblem(at, "input", f"{describe_path(at)}: {quote_name(value)} names no table", step)
    elif dot and not _is_known(config, (sink, table), targets):
        near = suggest_name(table, [name for of, name in _list_known_targets(config, targets) if of == sink])
        sentence = f"{describe_path(at)}: no lane and no projection writes {quote_name(value)}"
        yield PathProblem(at, "unknown_table", sentence, near or "name the target of a lane (its 'into') or of a projection")
    elif dot and (sink, table) == targets[str(at[1])]:
        yield PathProblem(at, "circle", f"{describe_path(at)}: a projection cannot read its own table", "name another table")


def _check_event_store(config: ConfigView, at: Path) -> Iterator[PathProblem]:
    if not config.event_store:
        yield PathProblem(
            at, "unknown_table", f"{describe_path(at)}: the store of events is not there", "say event_store: {path: ...}"
        )


def _list_known_targets(config: ConfigView, targets: Mapping[str, Target]) -> set[Target]:
    found = set(targets.values())
    for table, entry in config.list_entries():
        into = _resolve_target(entry.into or table.into, table.match)
        if entry.sink and into:
            found.add((entry.sink, into))
    return found


def _is_known(config: ConfigView, wanted: Target, targets: Mapping[str, Target]) -> bool:
    """Also where an entry may write tables that only the source knows."""
    opened = any(e.sink == wanted[0] and t.match and not is_exact(t.match) for t, e in config.list_entries())
    return opened or wanted in _list_known_targets(config, targets)


def _check_circles(config: ConfigView, targets: Mapping[str, Target]) -> Iterator[PathProblem]:
    inputs = {
        name: {k: v for k, v in to_mapping(said.get("inputs")).items() if isinstance(v, str)}
        for name, said in config.projections.items()
    }
    ordered = sort_projections(inputs, targets)
    for name, tables in inputs.items():
        if name not in ordered and ".".join(targets[name]) not in tables.values():
            sentence = f"{describe_path(('projections', name))} reads tables that are computed from its own"
            yield PathProblem(("projections", name), "circle", sentence, "take one of them out of the circle")
