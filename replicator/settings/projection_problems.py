"""What must hold between projections and the rest of the config; what their queries say is judged elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replicator.domain.patterns import is_exact

from .findings import Path, Problem, place, quoted
from .lanes import own_name
from .nearest import did_you_mean
from .projections import EVENT_STORE
from .views import View, mapping, text

Target = tuple[str, str]
"""A sink, and the name of a table in it."""


def projection_problems(config: View) -> Iterator[Problem]:
    """Everything wrong between projections and what they name."""
    targets = projected(config.projections)
    for name, said in config.projections.items():
        at: Path = ("projections", name)
        yield from _sink(config, at, said)
        yield from _target(config, at, targets)
        for table, value in mapping(said.get("inputs")).items():
            if isinstance(value, str):
                yield from _input(config, (*at, "inputs", table), value, targets)
    yield from _circles(config, targets)


def projected(projections: Mapping[str, Any]) -> dict[str, Target]:
    """By projection its table."""
    return {name: (text(said, "sink") or "", text(said, "into") or name) for name, said in projections.items()}


def in_order(inputs: Mapping[str, Mapping[str, str]], targets: Mapping[str, Target]) -> list[str]:
    """The projections, each after those whose tables it reads; those that read each other in a circle are left out.
    `inputs`: by projection what its tables are."""
    made = {".".join(target): name for name, target in targets.items()}
    waits = {name: {made[value] for value in said.values() if value in made} for name, said in inputs.items()}
    order: list[str] = []
    while ready := [name for name, others in waits.items() if name not in order and others <= {*order}]:
        order += ready
    return order


def _sink(config: View, at: Path, said: Mapping[str, Any]) -> Iterator[Problem]:
    name = text(dict(said), "sink")
    if name is None or config.sinks is None:
        return
    if name not in config.sinks:
        hint = did_you_mean(name, config.sinks) or f"known: {', '.join(config.sinks) or 'none'}"
        yield Problem((*at, "sink"), "unknown_sink", f"unknown sink {quoted(name)} in {place(at)}", hint)
    elif config.kind(name) not in ("delta", "postgres"):
        sentence = f"{place((*at, 'sink'))}: {quoted(name)} is of kind {config.kind(name)}, which keeps no projections yet"
        yield Problem((*at, "sink"), "not_yet_supported", sentence, "name a sink of kind delta or postgres")


def _target(config: View, at: Path, targets: Mapping[str, Target]) -> Iterator[Problem]:
    mine = targets[str(at[1])]
    into = ".".join(mine)
    if any(
        entry.sink == mine[0] and _into(entry.into or table.into, table.match) == mine[1]
        for table, entry in config.entries()
    ):
        yield Problem(at, "same_target", f"{place(at)}: a lane writes {quoted(into)}", "give the projection another 'into'")
    earlier = [*targets][: [*targets].index(str(at[1]))]
    for other in earlier:
        if targets[other] == mine:
            sentence = f"{place(at)}: projection {quoted(other)} has the table {quoted(into)}"
            yield Problem(at, "same_target", sentence, "give one of them another 'into'")


def _into(said: str | None, match: str | None) -> str | None:
    """The one target of an entry; None where it is not one."""
    if match is None or not is_exact(match):
        return None
    return said or own_name(match)


def _input(config: View, at: Path, value: str, targets: Mapping[str, Target]) -> Iterator[Problem]:
    sink, dot, table = value.partition(".")
    kinds = {"delta": bool(dot), "postgres": bool(dot), "event_log": not dot}
    if value == EVENT_STORE and not dot:
        yield from _store(config, at)
    elif config.sinks is not None and sink not in config.sinks:
        hint = did_you_mean(sink, config.sinks) or f"known: {', '.join(config.sinks) or 'none'}"
        yield Problem(at, "unknown_sink", f"{place(at)} names the unknown sink {quoted(sink)}", hint)
    elif config.sinks is not None and not kinds.get(config.kind(sink) or "", True):
        step = "write SINK.TABLE" if not dot else "write the sink's name alone: an event log is one table"
        yield Problem(at, "input", f"{place(at)}: {quoted(value)} names no table", step)
    elif dot and not _is_known(config, (sink, table), targets):
        near = did_you_mean(table, [name for of, name in _known(config, targets) if of == sink])
        sentence = f"{place(at)}: no lane and no projection writes {quoted(value)}"
        yield Problem(at, "unknown_table", sentence, near or "name the target of a lane (its 'into') or of a projection")
    elif dot and (sink, table) == targets[str(at[1])]:
        yield Problem(at, "circle", f"{place(at)}: a projection cannot read its own table", "name another table")


def _store(config: View, at: Path) -> Iterator[Problem]:
    if not config.event_store:
        yield Problem(at, "unknown_table", f"{place(at)}: the store of events is not there", "say event_store: {path: ...}")


def _known(config: View, targets: Mapping[str, Target]) -> set[Target]:
    found = set(targets.values())
    for table, entry in config.entries():
        into = _into(entry.into or table.into, table.match)
        if entry.sink and into:
            found.add((entry.sink, into))
    return found


def _is_known(config: View, wanted: Target, targets: Mapping[str, Target]) -> bool:
    """Also where an entry may write tables that only the source knows."""
    opened = any(e.sink == wanted[0] and t.match and not is_exact(t.match) for t, e in config.entries())
    return opened or wanted in _known(config, targets)


def _circles(config: View, targets: Mapping[str, Target]) -> Iterator[Problem]:
    inputs = {
        name: {k: v for k, v in mapping(said.get("inputs")).items() if isinstance(v, str)}
        for name, said in config.projections.items()
    }
    ordered = in_order(inputs, targets)
    for name, tables in inputs.items():
        if name not in ordered and ".".join(targets[name]) not in tables.values():
            sentence = f"{place(('projections', name))} reads tables that are computed from its own"
            yield Problem(("projections", name), "circle", sentence, "take one of them out of the circle")
