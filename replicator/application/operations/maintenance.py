"""`compact_targets` and `vacuum_targets`: select targets by name, and run the operation in their sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from replicator.application.lane_registry import list_lanes, make_refused_id
from replicator.domain.errors import ConfigProblem, Fenced, ReplicatorError, suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.table import get_unqualified_name
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.sink import CompactionResult, VacuumResult

DEAD_LETTERS = "dead_letters"
SHORTEST_RETENTION = timedelta(hours=1)
"""A batch in progress has files that no version refers to yet."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The outcome for one target: the `result`, or why it was `skipped`, or the `error`."""

    target: str
    result: CompactionResult | VacuumResult | None = None
    skipped: str = ""
    error: ReplicatorError | None = None


def compact_targets(components: Components, names: Sequence[str]) -> Iterator[MaintenanceResult]:
    """Compact the named targets (default: all) one after the other. A failure does not stop the others.

    ConfigProblem, before anything is done, for an unknown name.
    """
    return _run_each(components, names, "compact")


def vacuum_targets(
    components: Components, names: Sequence[str], retain: timedelta | None, *, dry_run: bool
) -> Iterator[MaintenanceResult]:
    """Vacuum the targets. Fenced if the daemon may be writing files that would be deleted."""
    if retain is not None and retain < SHORTEST_RETENTION and not dry_run and components.ask_daemon() is not None:
        raise Fenced(
            "the daemon is running, and a vacuum that retains less than an hour would delete files that it is writing",
            next_step="Retain at least 1 hour, or stop the daemon.",
        )
    return _run_each(components, names, "vacuum", retain, dry_run=dry_run)


def _run_each(
    components: Components, names: Sequence[str], verb: str, *options: object, **more: object
) -> Iterator[MaintenanceResult]:
    """Run the feature `verb` of the sinks and of the dead-letter store."""
    targets = _list_targets(components)
    for name in names:
        if not any(_is_named(label, lane, [name]) for label, lane in targets.items()):
            hint = suggest_name(name, targets)
            raise ConfigProblem(
                f"there is no target {name!r}",
                next_step=f"{hint[:1].upper()}{hint[1:]} The targets are: {', '.join(targets)}.".strip(),
            )
    selection = {label: lane for label, lane in targets.items() if not names or _is_named(label, lane, names)}
    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for label, lane in selection.items():
            name = lane.sink if lane is not None else DEAD_LETTERS
            if name not in owners:
                adapter: Any = components.open_sink(name, "rewrite") if lane is not None else components.open_dead_letters()
                stack.callback(adapter.close)
                owners[name] = adapter.features
            act = getattr(owners[name], verb)
            if act is None:
                if label in names or lane is not None:
                    yield MaintenanceResult(label, skipped="its server does this itself")
                continue
            try:
                result = act(*([] if lane is None else [lane]), *options, **more)
                outcome = MaintenanceResult(label, result, skipped="" if result is not None else "there is no table yet")
            except ReplicatorError as error:
                outcome = MaintenanceResult(label, error=error)
            yield outcome


def _list_targets(components: Components) -> dict[str, Lane | None]:
    """The targets by name, each once, because several lanes may share an event log. None stands for the dead letters."""
    targets: dict[str, Lane | None] = {}
    for lane in list_lanes(components):
        if lane.refused or lane.id == make_refused_id(lane) or lane.sink == EVENT_STORE:
            continue
        targets.setdefault(lane.id if lane.table else lane.sink, lane)
    return {**targets, DEAD_LETTERS: None}


def _is_named(label: str, lane: Lane | None, names: Sequence[str]) -> bool:
    return bool(
        {label, *((lane.table, get_unqualified_name(lane.table)) if lane is not None and lane.table else ())} & {*names}
    )
