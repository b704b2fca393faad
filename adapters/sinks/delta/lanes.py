"""The lanes that one sink writes in a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position
from replicator.ports.frames import ApplyOutcome, FoldedChanges, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import CompactionResult, CutoverDecision, ErasureResult, StoredLane, VacuumResult

from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.maintenance import EVERY_COMMITS, TableMaintenance, VacuumSchedule, compact_table, vacuum_table
from ...delta.options import TableOptions, config_location
from ...delta.table_writer import DeltaRsTableWriter, TableWriter
from ...delta.tables import has_table, open_table
from .bulk_load import BulkLoad
from .lane import DeltaLane, Snapshots, WriteStages, open_lane_log
from .lane_removal import DeltaLaneRemains, refuse_half_dropped, remove_rows
from .table_swap import finish_swap, restore_lane, swap_tables

T = TypeVar("T")


class DeltaLanes:
    """The lanes of a Delta sink, and the methods that all Delta sinks share.

    - `path_of`: the folder of a lane's table.
    - `at_once`: how many tables are written in parallel.
    - `compact_every`, `vacuum`, `writer`: see `TableMaintenance`.
    """

    def __init__(
        self,
        lake: Lake,
        path_of: Callable[[Lane], Folder],
        stages: WriteStages,
        *,
        at_once: int = 1,
        compact_every: int = EVERY_COMMITS,
        vacuum: VacuumSchedule | None = None,
        writer: TableWriter | None = None,
    ) -> None:
        self._lake = lake
        self._path_of = path_of
        self._stages = stages
        self._held: dict[str, DeltaLane] = {}
        self._snapshots: Snapshots = {}
        self._versions: dict[Folder, int | None] = {}
        self._at_once = at_once
        self._compact_every = compact_every
        self._vacuum = vacuum or VacuumSchedule()
        self._writer = writer

    def hold(self, lane: Lane) -> DeltaLane:
        """The lane, locked from now to `close`.

        Raises `Fenced` when another instance holds it, and DataLoss when it is half dropped.
        """
        key = _lane_key(lane)
        if key not in self._held:
            upkeep = self._upkeep(TableOptions.from_lane(lane))
            held = DeltaLane(self._lake, self._path_of(lane), lane, self._stages, self._snapshots, upkeep=upkeep)
            try:
                with translate_errors(lane.into):
                    refuse_half_dropped(self._lake, lane)
                    finish_swap(self._lake, held)
            except ReplicatorError:
                held.close()
                raise
            self._held[key] = held
        return self._held[key]

    def _upkeep(self, said: TableOptions) -> TableMaintenance:
        every = self._vacuum.every if said.vacuum_every is None else said.vacuum_every
        retain = self._vacuum.retain if said.vacuum_retain is None else said.vacuum_retain
        compact_every = self._compact_every if said.compact_every is None else said.compact_every
        return TableMaintenance(compact_every, self._writer, VacuumSchedule(every, retain))

    def compact(self, lane: Lane) -> CompactionResult | None:
        return compact_table(self._path_of(lane), lane.into, self._writer)

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        return vacuum_table(self._path_of(lane), lane.into, retain, dry_run=dry_run, writer=self._writer)

    def state(self, lane: Lane) -> LaneState | None:
        path = self._path_of(lane)
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            if not has_table(path):
                return None
            log = open_lane_log(self._lake, path, lane)
            return log.state(log.open())

    def read_version_positions(self, lane: Lane) -> Iterator[tuple[int, Position]]:
        path = self._path_of(lane)
        with translate_errors(lane.into):
            if has_table(path):
                log = open_lane_log(self._lake, path, lane)
                yield from log.read_version_positions(log.open())

    def version(self, lane: Lane) -> int | None:
        """The version of the lane's table; None while there is no table.

        It is cached until this instance writes the table, because no other instance writes the lane.
        """
        path = self._path_of(lane)
        if path in self._snapshots:
            return self._snapshots[path].version()
        if path not in self._versions or _lane_key(lane) in self._held:
            with translate_errors(lane.into):
                self._versions[path] = open_table(path).version() if has_table(path) else None
        return self._versions[path]

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        """Each lane alone. An error has a note that names the lanes applied before it."""
        applied: dict[str, LaneOutcome] = {}

        def apply(mine: Sequence[Write[Any]]) -> None:
            for write in mine:
                applied[write.lane.id] = self._get_prepared(write.lane).apply(write, reject)

        try:
            if self._at_once == 1:
                apply(writes)
            else:
                run_in_parallel(apply, self._group_by_table(writes), self._at_once)
        except ReplicatorError as error:
            if applied:
                error.add_note(f"lanes applied before it: {', '.join(applied)}")
            raise
        return applied

    def loads(self, lane: Lane, plan: ApplyPlan) -> bool:
        return self._get_prepared(lane).can_load(plan)

    def load(
        self, write: Write[pa.Table], parts: Iterable[FoldedChanges[pa.Table]], reject: RejectRows[pa.Table], folder: Path
    ) -> LaneOutcome:
        return self._get_prepared(write.lane).load(write, BulkLoad(self._stages, parts, folder), reject)

    def _group_by_table(self, writes: Sequence[Write[Any]]) -> list[list[Write[Any]]]:
        found: dict[Folder, list[Write[Any]]] = {}
        for write in writes:
            found.setdefault(self._path_of(write.lane), []).append(write)
        return list(found.values())

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Raises Fatal when the lane has no table yet."""
        with translate_errors(lane.into):
            if not has_table(self._path_of(lane)):
                raise Fatal(
                    f"lane {lane.id} has no table yet, so there is nothing to skip",
                    next_step="Start it once; `start_from` of its source says where it begins.",
                )
        self._run_briefly(lane, lambda held: held.record_state(state))

    def reset(self, lane: Lane) -> None:
        """The table stays, with its history."""
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            there = has_table(self._path_of(lane))
        if there:
            self._run_briefly(lane, DeltaLane.clear)

    def read_remains(self, lane: Lane) -> DeltaLaneRemains:
        """The artifacts of a lane that has its own table."""
        return DeltaLaneRemains(self._lake, lane, open_lane_log(self._lake, self._path_of(lane), lane))

    def drop(self, lane: Lane, forget_deletes: Callable[[], None]) -> None:
        """See `ports.sink.LaneRemoval.drop`, for a lane with its own table."""
        with translate_errors(lane.into):
            remains = self.read_remains(lane)
            if not remains.list_artifacts():
                return
            remains.refuse_others()
            if remains.find_kind() == "found":
                self._run_briefly(lane, lambda held: held.record_state(None, remove_rows))
                remains.remove_side_files(forget_deletes)
                return
            self._release(lane)
            hold = self._lake.hold(lane)
            try:
                remains.remove(remains.find_kind(), forget_deletes)
            finally:
                hold.release()

    def _release(self, lane: Lane) -> None:
        self._snapshots.pop(self._path_of(lane), None)
        self._versions.pop(self._path_of(lane), None)
        held = self._held.pop(_lane_key(lane), None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Releases the locks; may be called twice."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _get_prepared(self, lane: Lane) -> DeltaLane:
        held = self._held.get(_lane_key(lane))
        if held is None:
            raise Fatal(f"lane {lane.id} was not prepared")
        return held

    def erase(self, lane: Lane, key: Mapping[str, str], side_table: Folder) -> ErasureResult:
        """See `ports.sink.KeyErasure.erase`, for a lane with its own table. `beside`: the side table."""
        path = self._path_of(lane)
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            if not has_table(path):
                return ErasureResult()
        found: list[ErasureResult] = []
        self._run_briefly(lane, lambda held: found.append(held.erase(key, side_table)))
        return found[0]

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision, forget: Callable[[], None]) -> LaneState:
        """See `ports.sink.SinkFeatures.swap`, for lanes with their own tables. `forget`: see `table_swap.swap_tables`."""
        with translate_errors(lane.into):
            if not has_table(self._path_of(lane)):
                raise Fatal(f"lane {lane.id} has no table yet", next_step="Start the program, which makes it.")
            self.read_remains(lane).refuse_others()
        states: list[LaneState] = []

        writer = self._writer or DeltaRsTableWriter()

        def act(held: DeltaLane) -> None:
            with translate_errors(lane.into):
                self._run_briefly(
                    rebuilt, lambda other: states.append(swap_tables(self._lake, (held, other), judge, writer, forget))
                )

        self._run_briefly(lane, act)
        return states[0]

    def restore_state(self, lane: Lane, stored: StoredLane) -> None:
        """See `ports.sink.SinkFeatures.restore_state`, of a lane whose table is its own."""
        with translate_errors(lane.into):
            self.read_remains(lane).refuse_others()
        writer = self._writer or DeltaRsTableWriter()
        self._run_briefly(lane, lambda held: restore_lane(self._lake, held, stored, writer))

    def run_exclusive(self, lane: Lane, act: Callable[[DeltaLane], None]) -> None:
        """Calls `act` with a lane that has a table, as its writer."""
        self._run_briefly(lane, act)

    def _run_briefly(self, lane: Lane, act: Callable[[DeltaLane], None]) -> None:
        """Calls `act` with the lane under its lock. The lock stays only if the lane was already held."""
        was_held = _lane_key(lane) in self._held
        self._versions.pop(self._path_of(lane), None)
        held = self.hold(lane)
        try:
            act(held)
        finally:
            if not was_held:
                self._held.pop(_lane_key(lane)).close()


def refuse_policy(lane: Lane, plan: ApplyPlan, policies: frozenset[str]) -> None:
    """Raises ConfigProblem for a policy that a sink does not apply."""
    if plan.policy not in policies:
        raise ConfigProblem(
            f"the sink of lane {lane.id} does not apply policy {plan.policy!r}",
            next_step=f"Use one of {', '.join(sorted(policies))} in {config_location(lane)}.",
        )


def refuse_options(lane: Lane) -> None:
    """Raises ConfigProblem for a lane with options, for sinks whose lanes share a table."""
    if lane.options:
        raise ConfigProblem(
            f"an event log has no option {sorted(lane.options)[0]!r} for a lane",
            next_step=f"Remove it from {config_location(lane)}.",
        )


def run_in_parallel(act: Callable[[T], None], items: Sequence[T], at_once: int) -> None:
    """Calls `act` for every item, `at_once` in parallel. All calls have ended when the first error is raised."""
    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(act, item) for item in items]
    for done in running:
        done.result()


def _lane_key(lane: Lane) -> str:
    return f"{lane.pipeline}/{lane.id}"
