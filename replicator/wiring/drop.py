"""`drop_lane`: finds the lane of a name and its artifacts, and makes sure that nothing writes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from replicator.application.instance_lock import InstanceLock
from replicator.application.lane_registry import make_refused_id, make_target_taken_error
from replicator.application.operations import drop as dropping
from replicator.application.operations.lanes import list_lanes
from replicator.application.stream.file_register import FileRegister
from replicator.domain.errors import ConfigProblem, Fenced
from replicator.domain.suggestions import suggest_name
from replicator.domain.table import get_unqualified_name
from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact
from replicator.settings import Loaded
from replicator.settings.config_view import NON_MIRROR_KINDS
from replicator.settings.sinks import EventStoreSinkSettings

from . import adapters, build, rebuild
from .components import ConfiguredComponents
from .daemon import ask_status


@dataclass(frozen=True)
class DropScope:
    """The lane of a name, and its artifacts."""

    lane: Lane
    artifacts: Sequence[LaneArtifact]

    @property
    def config_line(self) -> str:
        """The config line that names the lane. Empty if none does, so that the target stays dropped."""
        return self.lane.config_line


def find_lane_to_drop(loaded: Loaded, name: str) -> DropScope:
    """The lane of `name`: a target, `SINK.TARGET`, or a table by its source name. It need not be in the config any
    more.

    ConfigProblem for an unknown or ambiguous name, an event log, or a target that its sink cannot drop on this
    engine. Fenced if the running daemon writes it.
    """
    _refuse_event_logs(loaded, name)
    _refuse_stored_events(loaded, name)
    lanes, refused = _list_candidates(loaded, name)
    with ExitStack() as opened:
        sinks = _open_dropping_sinks(loaded, {lane.sink for lane in lanes}, opened)
        known = [DropScope(lane, _list_artifacts(loaded, sinks[lane.sink], lane)) for lane in lanes if lane.sink in sinks]
    found = [one for one in known if one.artifacts]
    found = [one for one in found if one.lane.id == name] or found
    if len(found) > 1:
        names = ", ".join(sorted(one.lane.id for one in found))
        raise ConfigProblem(f"{name!r} fits several targets", next_step=f"Name one of them: {names}.")
    if not found and refused:
        raise make_target_taken_error(refused[0])
    if found:
        _refuse_out_of_reach(loaded, found[0].lane)
    else:
        raise _make_not_found_error(loaded, name, sorted({lane.sink for lane in lanes if lane.sink not in sinks}))
    with _hold_lane(loaded, found[0].lane):
        return found[0]


def drop_lane(loaded: Loaded, lane: Lane) -> None:
    """Remove the lane and its target. Fenced, without any removal, if an instance writes it. ConfigProblem as
    `find_lane_to_drop`."""
    _refuse_out_of_reach(loaded, lane)
    with _hold_lane(loaded, lane), ExitStack() as opened:
        sink = _open_dropping_sinks(loaded, {lane.sink}, opened)[lane.sink]
        dropping.drop_lane(sink, _open_register(loaded), loaded.settings.sources, lane)
    # The state of a rebuild would stop the retention of its event log.
    shutil.rmtree(rebuild.get_lane_folder(loaded, lane.id), ignore_errors=True)


def _open_register(loaded: Loaded) -> FileRegister:
    return FileRegister(build.get_register_folder(loaded))


def _list_artifacts(loaded: Loaded, sink: Any, lane: Lane) -> Sequence[LaneArtifact]:
    return dropping.list_artifacts(sink, _open_register(loaded), loaded.settings.sources, lane)


def _open_dropping_sinks(loaded: Loaded, names: set[str], opened: ExitStack) -> dict[str, Any]:
    """The sinks that can drop lanes; closed with `opened`."""
    sinks: dict[str, Any] = {}
    for name in sorted(names):
        sink: Any = ConfiguredComponents(loaded).open_sink(name, "drop")
        opened.callback(sink.close)
        if hasattr(sink, "drop"):
            sinks[name] = sink
    return sinks


def _refuse_out_of_reach(loaded: Loaded, lane: Lane) -> None:
    """Otherwise a catalog entry without a table would stay."""
    engine = loaded.settings.sinks[lane.sink].catalog_of
    if engine not in (None, loaded.settings.engine):
        line = loaded.describe_origin("sinks", lane.sink)
        raise ConfigProblem(
            f"{lane.id} has its name in the catalog of the engine {engine!r}, and {loaded.settings.engine!r} reaches none",
            next_step=f"Repeat with `--set engine={engine}`. If it has none yet, take `schema` out of the sink ({line}).",
        )


def _refuse_event_logs(loaded: Loaded, name: str) -> None:
    logs = {sink for sink, settings in loaded.settings.sinks.items() if settings.kind == "event_log"}
    if name in logs or name.partition(".")[0] in logs:
        raise ConfigProblem(
            f"{name} is an event log, which is not dropped: its records are of many tables, and targets are rebuilt from it",
            next_step="To record no more, take the sink out of the config; what it has recorded stays where it is.",
        )


def _refuse_stored_events(loaded: Loaded, name: str) -> None:
    sink = name.partition(".")[0]
    if sink in loaded.settings.sinks and isinstance(loaded.settings.sinks[sink], EventStoreSinkSettings):
        raise ConfigProblem(
            f"{name} is in the store of events, which is not dropped: its events are of many tables and programs, and stay",
            next_step="To store no more of them, take the entry out of the config; what is stored stays where it is.",
        )


def _list_candidates(loaded: Loaded, name: str) -> tuple[list[Lane], list[Lane]]:
    """The lanes that the name may mean, in sinks that are not event logs, and those whose target another table's
    lane has."""
    known = {lane.id: lane for lane in list_lanes(ConfiguredComponents(loaded))}
    found: dict[str, Lane] = {}
    refused: list[Lane] = []
    for sink, text in _split_name(loaded, name):
        for lane in known.values():
            if lane.sink == sink and text in (lane.into, lane.table, get_unqualified_name(lane.table)):
                if lane.id == make_refused_id(lane):
                    refused.append(lane)
                else:
                    found[lane.id] = lane
        for lane in (*_list_configured(loaded, sink, text), *_list_former_lanes(loaded, sink, text)):
            # A target that a known table writes belongs to that table, even if another lane has the same name.
            if lane.id not in known:
                found.setdefault(lane.id, lane)
    return list(found.values()), refused


def _split_name(loaded: Loaded, name: str) -> list[tuple[str, str]]:
    """The possible sinks, with the name in each."""
    sinks = loaded.settings.sinks
    sink, dot, rest = name.partition(".")
    if dot and rest and sink in sinks:
        return [(sink, rest)]
    return [(sink, name) for sink, settings in sinks.items() if settings.kind not in NON_MIRROR_KINDS]


def _list_configured(loaded: Loaded, sink: str, table: str) -> Iterator[Lane]:
    """Lanes of a configured source table without any record or state."""
    for settings in loaded.settings.resolve_lanes(table):
        if settings.sink == sink:
            yield adapters.build_lane(loaded, settings)


def _list_former_lanes(loaded: Loaded, sink: str, text: str) -> Iterator[Lane]:
    """Lanes that the config may have named in the past. Their ids are enough to find their artifacts."""
    for into in filter(None, dict.fromkeys((text, get_unqualified_name(text)))):
        yield Lane(f"{sink}.{into}", loaded.settings.pipeline, "", "", sink, into, "")


def _make_not_found_error(loaded: Loaded, name: str, unable: Sequence[str]) -> ConfigProblem:
    if unable:
        return ConfigProblem(
            f"sink {unable[0]!r} cannot drop targets",
            next_step="Remove the target with what the sink's own system has for that.",
        )
    lanes = [lane for lane in list_lanes(ConfiguredComponents(loaded)) if lane.table]
    near = suggest_name(name, {text for lane in lanes for text in (lane.id, lane.into, lane.table)})
    near = near and f"{near[:1].upper()}{near[1:]}"
    listing = "`replicator lanes list` names the targets of the config."
    return ConfigProblem(f"no sink keeps anything of a target {name!r}", next_step=f"{near} {listing}".strip())


@contextmanager
def _hold_lane(loaded: Loaded, lane: Lane) -> Iterator[None]:
    """No daemon of this pipeline and state folder writes the lane or starts meanwhile.

    A running daemon may continue if neither it nor the config has the lane. Other writers are fenced by the sink.
    """
    running = ask_status(loaded)
    if running is not None:
        if lane.config_line or any(one["id"] == lane.id for one in running["lanes"]):
            raise Fenced(
                f"the daemon runs, and writes {lane.id}",
                next_step="Stop it, and drop the target then. Take the table out of the config if it is to stay away.",
            )
        yield
        return
    lock = InstanceLock(adapters.get_state_folder(loaded), loaded.settings.pipeline)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
