"""The lanes that one sink writes in a lake, and the common methods of all sinks in a lake."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced, ReplicatorError
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import ApplyOutcome, F, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import CompactionResult, LaneArtifact, SinkFeatures, VacuumResult

from ...apply.projections import is_owned, ownership_remark
from ...delta.commits import Attempt, LaneLog
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import HOME, Lake, decode_name
from ...delta.options import LakeOptions, TableOptions, config_location
from ...delta.table_writer import TableMaintenance, TableWriter, VacuumSchedule, compact_table, vacuum_table
from ...delta.tables import has_table, read_schema
from .lane import CommitPreparer, DeltaLane, Snapshots, open_lane_log
from .table_swap import finish_swap

T = TypeVar("T")


class LaneSink(Generic[F]):
    """`ports.sink.Sink` over the lanes that one instance writes in a lake, without `prepare`.

    Every lane commits alone. When one fails, the lanes before it in the same call stay applied. The error has a
    note that names them, and applying them again changes nothing. Only `state` is safe for use from several
    threads.
    """

    policies: frozenset[str]
    at_once = 1
    """How many tables are written in parallel."""

    def __init__(
        self, lake: Lake, options: LakeOptions, preparer: CommitPreparer, writer: TableWriter | None = None
    ) -> None:
        self._lake = lake
        self._options = options
        self._preparer = preparer
        self._writer = writer or TableWriter()
        self._acquired: dict[str, DeltaLane] = {}
        self._snapshots: Snapshots = {}
        self._versions: dict[Folder, int | None] = {}

    @property
    def features(self) -> SinkFeatures:
        return SinkFeatures(policies=self.policies, compact=self.compact, vacuum=self.vacuum)

    def find_table(self, lane: Lane) -> Folder:  # noqa: ARG002  (a sink with a table for each lane uses it)
        """The folder of the lane's table. By default all lanes share the one in the lake's own folder."""
        return self._lake.root

    def acquire_lane(self, lane: Lane) -> DeltaLane:
        """The lane, locked from now to `close`.

        Raises `Fenced` when another instance holds it, and DataLoss when it is half dropped.
        """
        key = lane_key(lane)
        if key not in self._acquired:
            own, of_lake = TableOptions.from_lane(lane), self._options
            every = of_lake.vacuum_every if own.vacuum_every is None else own.vacuum_every
            retain = of_lake.vacuum_retain if own.vacuum_retain is None else own.vacuum_retain
            compact_every = of_lake.compact_every if own.compact_every is None else own.compact_every
            upkeep = TableMaintenance(compact_every, self._writer, VacuumSchedule(every, retain))
            delta_lane = DeltaLane(self._lake, self.find_table(lane), lane, self._preparer, self._snapshots, upkeep=upkeep)
            try:
                with translate_errors(lane.into):
                    refuse_half_dropped(self._lake, lane)
                    finish_swap(self._lake, delta_lane)
            except ReplicatorError:
                delta_lane.close()
                raise
            self._acquired[key] = delta_lane
        return self._acquired[key]

    def run_exclusive(self, lane: Lane, act: Callable[[DeltaLane], T]) -> T:
        """The result of `act` with the lane under its lock. The lock stays only if the lane was already held."""
        was_acquired = lane_key(lane) in self._acquired
        self._versions.pop(self.find_table(lane), None)
        delta_lane = self.acquire_lane(lane)
        try:
            return act(delta_lane)
        finally:
            if not was_acquired:
                self._acquired.pop(lane_key(lane)).close()

    def get_prepared(self, lane: Lane) -> DeltaLane:
        """The lane, which `prepare` holds."""
        delta_lane = self._acquired.get(lane_key(lane))
        if delta_lane is None:
            raise Fatal(f"lane {lane.id} was not prepared")
        return delta_lane

    def state(self, lane: Lane) -> LaneState | None:
        path = self.find_table(lane)
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            if not has_table(path):
                return None
            log = open_lane_log(self._lake, path, lane)
            return log.state(log.open())

    def apply(self, writes: Sequence[Write[F]], reject: RejectRows[F]) -> ApplyOutcome:
        """See `ports.sink.Sink.apply`. Each lane must be prepared."""
        applied: dict[str, LaneOutcome] = {}

        def apply(mine: Sequence[Write[Any]]) -> None:
            for write in mine:
                applied[write.lane.id] = self.get_prepared(write.lane).apply(write, reject)

        try:
            if self.at_once == 1:
                apply(writes)
            else:
                writes_by_table: dict[Folder, list[Write[Any]]] = {}
                for write in writes:
                    writes_by_table.setdefault(self.find_table(write.lane), []).append(write)
                run_in_parallel(apply, [*writes_by_table.values()], self.at_once)
        except ReplicatorError as error:
            if applied:
                error.add_note(f"lanes applied before it: {', '.join(applied)}")
            raise
        return applied

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Raises Fatal when the lane has no table yet."""
        with translate_errors(lane.into):
            if not has_table(self.find_table(lane)):
                raise Fatal(
                    f"lane {lane.id} has no table yet, so its position cannot be set",
                    next_step="Start it once; `start_from` of its source says where it begins.",
                )
        self.run_exclusive(lane, lambda delta_lane: delta_lane.record_state(state))

    def reset(self, lane: Lane) -> None:
        """The table stays, with its history."""
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            has_existing_table = has_table(self.find_table(lane))
        if has_existing_table:
            self.run_exclusive(lane, DeltaLane.clear)

    def compact(self, lane: Lane) -> CompactionResult | None:
        return compact_table(self.find_table(lane), lane.into, self._writer)

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        return vacuum_table(self.find_table(lane), lane.into, retain, dry_run=dry_run, writer=self._writer)

    def close(self) -> None:
        """Releases the locks; may be called twice."""
        for delta_lane in self._acquired.values():
            delta_lane.close()
        self._acquired.clear()


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
        futures = [pool.submit(act, item) for item in items]
    for future in futures:
        future.result()


def lane_key(lane: Lane) -> str:
    """The name of a lane among those of all pipelines."""
    return f"{lane.pipeline}/{lane.id}"


# Removes a lane from a lake: its table, tombstones, schemas and positions.
#
# A drop first writes a mark next to the positions, and removes it last. A lane with the mark is half dropped: its
# state is not read or written until the drop is repeated. So a drop can be killed at any point, and the order in
# which an object store deletes files does not matter.

DROP_MARK = "dropping.json"
TABLE_ID = "table"
SEQUENCE_COLUMN = "_cdc_seq_1"
"""Null only in rows from before replication started."""

LaneTableOrigin = Literal["none", "made", "found"]
"""The origin of the lane's table.

- `none`: it does not exist or belongs to others.
- `made`: this program created it.
- `found`: it existed before.
"""

STAYS = {
    "table": "it existed before the lane: the rows of the lane are removed, the table stays",
    "positions": "the last one stays, because the log of the table names it; the lane starts from scratch all the same",
}
"""The reasons why artifacts stay if the table existed before."""


def refuse_half_dropped(lake: Lake, lane: Lane) -> None:
    """Raises DataLoss for a lane with an unfinished drop."""
    if lake.positions(lane.pipeline, lane.id).has_file(DROP_MARK):
        raise DataLoss(
            f"lane {lane.id} is half dropped, so it cannot continue",
            next_step=f"`replicator drop {lane.id}` removes the rest. Then the lane can be loaded again.",
        )


def remove_rows(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that deletes the rows that a lane wrote."""
    if SEQUENCE_COLUMN in read_schema(snapshot).names:
        snapshot.delete(f'"{SEQUENCE_COLUMN}" IS NOT NULL', commit_properties=attempt.properties)


class DeltaLaneRemains:
    """The artifacts of one lane in a lake. `log`: the lane's transactions in its table."""

    def __init__(self, lake: Lake, lane: Lane, log: LaneLog) -> None:
        self._lake = lake
        self._lane = lane
        self._log = log
        self._table = lake.table(lane.into)
        self._positions = lake.positions(lane.pipeline, lane.id)
        self._schemas = lake.schemas(lane.into)
        self._remembered = {"remembered deletes": lake.tombstones(lane.into), "schemas": self._schemas}

    def find_origin(self) -> LaneTableOrigin:
        """The origin of the table. If its log cannot be read, it belongs to the lane when the lane has positions."""
        if not has_table(self._table):
            return "none"
        try:
            snapshot = self._log.open()
        except DataLoss:
            return "made" if self._positions.files() else "none"
        if self._positions.has_file(DROP_MARK):
            dropped_id = json.loads(self._positions.load(DROP_MARK))[TABLE_ID]
            return "made" if dropped_id in (None, str(snapshot.metadata().id)) else "none"
        remark = snapshot.metadata().description
        if remark != ownership_remark(self._lane) and not self._log.read_commit_number(snapshot):
            return "none"
        return "made" if is_owned(remark) else "found"

    def list_artifacts(self) -> list[LaneArtifact]:
        kind, positions = self.find_origin(), bool(self._positions.files())
        if kind == "none" and not positions:
            return []
        # The log of a table that existed before still names a dropped lane.
        has_lane = kind != "found"
        if not has_lane:
            try:
                has_lane = self._log.state(self._log.open()) is not None  # None for a lane that starts again.
            except DataLoss:
                has_lane = True
        folders = {"table": self._table} if has_lane and kind != "none" else {}
        folders |= {name: folder for name, folder in self._remembered.items() if _has_content(folder)}
        folders |= {"positions": self._positions} if has_lane and positions else {}
        return [
            LaneArtifact(name, str(folder), STAYS.get(name, "") if kind == "found" else "")
            for name, folder in folders.items()
        ]

    def refuse_others(self) -> None:
        """Raises Fatal, before anything is removed, when another lane also writes the table, or the table's
        folder is a link."""
        for home in self._lake.other_writers(self._lane):
            other = f"lane {decode_name(home.name)} of pipeline {decode_name(home.parent.name)}"
            raise Fatal(
                f"table {self._lane.into} is written by {other} too; nothing was removed",
                next_step=f"If that lane does not exist any more, remove {home}, and repeat.",
            )
        # No table is in HOME, so every link leads out of it.
        if self._table.is_link_outside(self._lake.root / HOME):
            raise Fatal(
                f"the folder of table {self._lane.into} is a link; nothing was removed",
                next_step=f"Remove {self._table} and the folder that it leads to, and repeat the command. It then removes "
                "the state of the lane.",
            )

    def remove(self, kind: LaneTableOrigin, drop_tombstones: Callable[[Lane], None]) -> None:
        """Removes everything, for a table that is not `found`. The caller holds the lane.

        Raises Fenced when another instance wrote the lane meanwhile, which is possible only without a lock.
        """
        if not self._positions.has_file(DROP_MARK):
            try:
                table_id = str(self._log.open().metadata().id) if has_table(self._table) else None
            except DataLoss:
                table_id = None
            # A later table in the same folder has another id.
            self._positions.put(DROP_MARK, {"format": 1, TABLE_ID: table_id})
        # First, because a writer of the lane checks the file of its last commit before each commit.
        for file in self._positions.files():
            if file != DROP_MARK:
                self._positions.drop(file)
        self.remove_side_files(drop_tombstones)
        if kind == "made":
            self._table.clear()
        if (kind == "made" and _has_content(self._table)) or set(self._positions.files()) != {DROP_MARK}:
            raise Fenced(
                f"another instance wrote lane {self._lane.id} while it was dropped",
                next_step=f"Stop that instance, and repeat `replicator drop {self._lane.id}`.",
            )
        self._positions.clear()

    def remove_side_files(self, drop_tombstones: Callable[[Lane], None]) -> None:
        """Removes the tombstones and the schemas."""
        drop_tombstones(self._lane)
        self._schemas.clear()


def _has_content(folder: Folder) -> bool:
    return bool(folder.files() or folder.folders())
