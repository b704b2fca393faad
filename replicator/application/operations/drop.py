"""`drop_lane`: removes a target and everything stored for its lane, while nothing writes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from replicator.application.lane_registry import list_lanes, make_refused_id, make_target_taken_error
from replicator.application.state_folder import InstanceLock
from replicator.domain.errors import ConfigProblem, Fenced, suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.table import get_unqualified_name
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact, LaneRemoval
from replicator.ports.stores import Register

from .diff_runs import remove_runs
from .rebuild import get_rebuild_folder


@dataclass(frozen=True)
class DropScope:
    """The lane of a name, and its artifacts."""

    lane: Lane
    artifacts: Sequence[LaneArtifact]

    @property
    def config_line(self) -> str:
        """The config line that names the lane. Empty if none does, so that the target stays dropped."""
        return self.lane.config_line


def find_lane_to_drop(components: Components, name: str) -> DropScope:
    """The lane of `name`: a target, `SINK.TARGET`, or a table by its source name. It need not be in the config any
    more.

    ConfigProblem for an unknown or ambiguous name, an event log, or a target that its sink cannot drop on this
    engine. Fenced if the running daemon writes it.
    """
    logs = {log for log, rules in components.sinks.items() if rules.is_event_log}
    if name in logs or name.partition(".")[0] in logs:
        raise ConfigProblem(
            f"{name} is an event log and cannot be dropped: it has records of many tables, and rebuilds read it",
            next_step="To stop recording, remove the sink from the config. Its records stay.",
        )
    sink = name.partition(".")[0]
    if sink in components.sinks and components.sinks[sink].kind == EVENT_STORE:
        raise ConfigProblem(
            f"{name} is in the event store and cannot be dropped: it has events of many tables and programs",
            next_step="To stop storing events of this table, remove the entry from the config. Stored events stay.",
        )
    lanes, refused = _list_candidates(components, name)
    with ExitStack() as stack:
        removals = _open_removals(components, {lane.sink for lane in lanes}, stack)
        scopes = [
            DropScope(lane, list_artifacts(removals[lane.sink], components.register, components.sources, lane))
            for lane in lanes
            if lane.sink in removals
        ]
    with_artifacts = [one for one in scopes if one.artifacts]
    existing = [one for one in with_artifacts if one.lane.id == name] or with_artifacts
    if len(existing) > 1:
        names = ", ".join(sorted(one.lane.id for one in existing))
        raise ConfigProblem(f"{name!r} matches several targets", next_step=f"Name one of them: {names}.")
    if not existing and refused:
        raise make_target_taken_error(refused[0])
    if not existing:
        unable = sorted({lane.sink for lane in lanes if lane.sink not in removals})
        if unable:
            raise ConfigProblem(
                f"sink {unable[0]!r} cannot drop targets",
                next_step="Remove the target with the tools of the sink's own system.",
            )
        raise _make_not_found_error(components, name)
    _refuse_out_of_reach(components, existing[0].lane)
    with _hold_lane(components, existing[0].lane):
        return existing[0]


def drop_lane(components: Components, lane: Lane) -> None:
    """Remove the lane and its target. Fenced, without any removal, if an instance writes it. ConfigProblem as
    `find_lane_to_drop`."""
    _refuse_out_of_reach(components, lane)
    with _hold_lane(components, lane), ExitStack() as stack:
        removal = _open_removals(components, {lane.sink}, stack)[lane.sink]
        remove_lane(removal, components.register, components.sources, lane)
    # The state of a rebuild would stop the retention of its event log.
    shutil.rmtree(get_rebuild_folder(components, lane.id), ignore_errors=True)
    remove_runs(components.folder, lane.id)


def list_artifacts(removal: LaneRemoval, register: Register, sources: Iterable[str], lane: Lane) -> Sequence[LaneArtifact]:
    """Everything that the sink and the register store for the lane; empty if nothing. Changes nothing."""
    entries = [
        LaneArtifact("register entry", f"where {lane.id} began in source {name}")
        for name in _list_registered_sources(register, sources, lane)
    ]
    return [*removal.list_artifacts(lane), *entries]


def remove_lane(removal: LaneRemoval, register: Register, sources: Iterable[str], lane: Lane) -> None:
    """Remove everything of the lane. Safe to repeat, also after a kill at any point.

    The register is last. Without its target, but with its start position, a lane starts there again, and nothing is
    skipped. In the other order, a lane could have a position but no start. It would begin unread partitions at
    `start_from`, and skip records that arrived meanwhile.

    The topics of the table stay in the register. A lane that is configured again is loaded from all of them, not
    from the next record on.
    """
    removal.drop(lane)
    for name in _list_registered_sources(register, sources, lane):
        entry = register.load(name)
        others = {other: begun for other, begun in entry.beginnings.items() if other != lane.id}
        register.save(name, replace(entry, beginnings=others))


def _list_registered_sources(register: Register, sources: Iterable[str], lane: Lane) -> list[str]:
    """The sources whose register entry contains the lane."""
    return [name for name in sources if lane.id in register.load(name).beginnings]


def _open_removals(components: Components, names: set[str], stack: ExitStack) -> dict[str, LaneRemoval]:
    """By sink, its removal of lanes, if it has one. The sinks are closed with `stack`."""
    sinks = {name: stack.enter_context(closing(components.open_sink(name, "drop"))) for name in sorted(names)}
    return {name: removal for name, sink in sinks.items() if (removal := sink.features.removal) is not None}


def _refuse_out_of_reach(components: Components, lane: Lane) -> None:
    """Otherwise a catalog entry without a table would stay."""
    rules = components.sinks[lane.sink]
    if rules.catalog_of not in (None, components.engine):
        raise ConfigProblem(
            f"{lane.id} is registered in the catalog of the engine {rules.catalog_of!r}, which {components.engine!r} cannot "
            "reach",
            next_step=f"Repeat with `--set engine={rules.catalog_of}`. If it is not registered yet, remove `schema` from "
            f"the sink ({rules.config_line}).",
        )


def _list_candidates(components: Components, name: str) -> tuple[list[Lane], list[Lane]]:
    """The lanes that the name may mean, in sinks that are not event logs, and those whose target another table's
    lane has."""
    lanes = {lane.id: lane for lane in list_lanes(components)}
    candidates: dict[str, Lane] = {}
    refused: list[Lane] = []
    sink, dot, rest = name.partition(".")
    if dot and rest and sink in components.sinks:
        sinks = {sink: rest}
    else:
        all_rules = components.sinks.items()
        sinks = {sink: name for sink, rules in all_rules if not rules.is_event_log and rules.kind != EVENT_STORE}
    for sink, text in sinks.items():
        for lane in lanes.values():
            if lane.sink == sink and text in (lane.into, lane.table, get_unqualified_name(lane.table)):
                if lane.id == make_refused_id(lane):
                    refused.append(lane)
                else:
                    candidates[lane.id] = lane
        without_state = [lane for lane in components.resolve_lanes(text) if lane.sink == sink]
        # Lanes that the config may have named in the past: their ids are enough to find their artifacts.
        former_targets = filter(None, dict.fromkeys((text, get_unqualified_name(text))))
        former = [Lane(f"{sink}.{into}", components.pipeline, "", "", sink, into, "") for into in former_targets]
        for lane in (*without_state, *former):
            # A target that a known table writes belongs to that table, even if another lane has the same name.
            if lane.id not in lanes:
                candidates.setdefault(lane.id, lane)
    return list(candidates.values()), refused


def _make_not_found_error(components: Components, name: str) -> ConfigProblem:
    lanes = [lane for lane in list_lanes(components) if lane.table]
    hint = suggest_name(name, {text for lane in lanes for text in (lane.id, lane.into, lane.table)})
    hint = hint and f"{hint[:1].upper()}{hint[1:]}"
    listing = "`replicator lanes list` names the targets of the config."
    return ConfigProblem(f"no sink has a target {name!r}", next_step=f"{hint} {listing}".strip())


@contextmanager
def _hold_lane(components: Components, lane: Lane) -> Iterator[None]:
    """No daemon of this pipeline and state folder writes the lane or starts meanwhile.

    A running daemon may continue if neither it nor the config has the lane. Other writers are fenced by the sink.
    """
    running = components.ask_daemon()
    if running is not None:
        if lane.config_line or any(one["id"] == lane.id for one in running["lanes"]):
            raise Fenced(
                f"the daemon is running and writes {lane.id}",
                next_step="Stop the daemon, then drop the target. To drop it for good, also remove the table from the "
                "config.",
            )
        yield
        return
    with InstanceLock(components.folder, components.pipeline):
        yield
