"""The event log as one Delta table: append-only, partitioned by topic and day."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction, WriterProperties

from replicator.domain.change import RAW, RAW_RECORD_POSITION
from replicator.domain.erasures import ERASED_RECORD
from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.event_log import ERASED_COLUMNS, CutSides, LogCut, is_time_ordered, make_duplicate_error
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.domain.table import Column
from replicator.ports.frames import F, Lane, Write
from replicator.ports.sink import RecordErasure, SinkFeatures

from ...apply.conform import number_rows, to_rejects
from ...apply.lane_progress import drop_applied
from ...delta.commits import WRITER, Attempt, Operation, removal_app_id
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.merge import delete_where, make_append_operation
from ...delta.options import LakeOptions
from ...delta.table_reader import read_table
from ...delta.table_writer import TableWriter, describe_old_versions, end_versions, vacuum_files
from ...delta.tables import STATISTICS, create_table, find_missing_columns, has_table, open_table, read_schema, refuse_unsafe
from ...delta.types import conform_to_table
from ...event_log import merge_batches, to_raw
from ...sql.dialect import DELTA_RS, text_literal
from ...stores import EventLogSettings
from .lane import CommitPreparer, DeltaLane, PreparedCommit
from .lanes import LaneSink, refuse_options, refuse_policy

DAY = "date"
PARTITIONED_BY = ["topic", DAY]
APPEND_ONLY = "delta.appendOnly"
IN_BATCHES = WriterProperties(compression="SNAPPY", max_row_group_size=4_096)
"""Small row groups for compacted files.

A compacted file contains batches in any order. A reader that needs order can skip row groups, but cannot read
part of one.
"""
AT_ONCE = 2_000
"""Records that one commit empties."""
POLICIES = frozenset({EVENT_LOG_POLICY})
SETTINGS = {APPEND_ONLY: "true", STATISTICS: "partition,offset,timestamp,table,op,seq_1,seq_2,seq_3,seq_4,ts,ingested_at"}
"""Statistics only of columns by which queries find records, not of whole documents."""


class LogTable(LaneSink[F]):
    """`ports.sink.Sink` for lanes of policy `event_log` over the table in `lake`'s
    folder. `preparer` appends the rows.

    The columns are those of `domain.event_log.EVENT_LOG` and `date`: the UTC day of `timestamp`, or of
    `ingested_at` for a record without a timestamp. All lanes share the table. A lane's rows are those of its
    topics, and `reset` removes these. Positions and locks are in the table's folder under `_replicator`, which
    Delta readers and vacuum ignore.
    """

    policies = POLICIES

    def __init__(self, lake: Lake, options: LakeOptions, preparer: CommitPreparer) -> None:
        writer = TableWriter()
        writer.compacted = IN_BATCHES
        super().__init__(lake, options, preparer, writer)
        self._name = lake.root.name

    @property
    def features(self) -> SinkFeatures:
        return replace(
            super().features,
            reader=self,
            record_erasure=RecordErasure(self.records, self.empty, self.end_versions),
            find_cut=self.find_cut,
            find_newest_time=self.find_newest_time,
            truncate_log=self.truncate_log,
        )

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        refuse_policy(lane, plan, POLICIES)
        refuse_options(lane)
        columns = (*plan.target, Column(DAY, pa.date32()))
        with translate_errors(self._name):
            delta_lane = self.acquire_lane(lane)
            if not has_table(self._lake.root):
                create_table(self._lake.root, self._name, columns, settings=SETTINGS, partition_by=PARTITIONED_BY)
                delta_lane.drop_snapshot()
            table = delta_lane.newest()
            refuse_unsafe(table, self._name, columns)
            if missing := find_missing_columns(table, self._name, columns):
                TableWriter().add_columns(table, missing)
                delta_lane.drop_snapshot()
            if table.metadata().configuration.get(APPEND_ONLY) != "true":
                table.alter.set_table_properties({APPEND_ONLY: "true"})
                delta_lane.drop_snapshot()

    def records(self, lane: Lane) -> Iterator[pa.Table]:
        with translate_errors(self._name):
            topics = list_topics(self.state(lane)) if has_table(self._lake.root) else []
            if not topics:
                return
            table = open_table(self._lake.root)
            rows = pa.RecordBatchReader.from_stream(table.scan(columns=RAW.names, predicate=_topics_condition(topics)))
            for batch in merge_batches(rows):
                yield to_raw(batch)

    def empty(self, lane: Lane, places: Sequence[tuple[str, int, int]]) -> str:
        """Empties up to `AT_ONCE` records per commit."""
        ids = [f"{topic}-{partition}-{offset}" for topic, partition, offset in places]
        for start in range(0, len(ids), AT_ONCE):
            operation = allow_deletes(blank_records(ids[start : start + AT_ONCE], ERASED_RECORD, ERASED_COLUMNS))
            self.run_exclusive(lane, partial(_commit_operation, operation=operation))
        with translate_errors(self._name):
            return describe_old_versions(self._lake.root, open_table(self._lake.root)) if has_table(self._lake.root) else ""

    def truncate_log(self, lane: Lane, below: Position, came_before: datetime) -> Mapping[TopicPartition, int]:
        """Files without other records are deleted once they are a week old."""
        with translate_errors(self._name):
            if not has_table(self._lake.root):
                return {}
            mine = set(list_topics(self.state(lane)))
            wanted = Position({place: end for place, end in below.items() if place.topic in mine})
            cuts = find_cuts(open_table(self._lake.root), wanted, came_before)
        if cuts:
            self.run_exclusive(lane, partial(_commit_operation, operation=allow_deletes(LogTruncation(cuts))))
        with translate_errors(self._name):
            vacuum_files(open_table(self._lake.root), None)
        return cuts

    def end_versions(self, lane: Lane) -> str:  # noqa: ARG002  (the table is of all lanes)
        with translate_errors(self._name):
            return end_versions(self._lake.root, open_table(self._lake.root)) if has_table(self._lake.root) else ""

    def find_newest_time(self, since: Position, below: Position) -> datetime | None:
        with translate_errors(self._name):
            return read_newest_time(open_table(self._lake.root), since, below) if has_table(self._lake.root) else None

    def find_cut(self, topics: Collection[str], at: datetime | Position, covered: Position) -> LogCut | None:
        with translate_errors(self._name):
            if not has_table(self._lake.root):
                return LogCut()
            table = open_table(self._lake.root)
            if isinstance(at, datetime):
                return cut_at_time(table, topics, at, covered)
            return cut_at_positions(table, topics, at, covered)

    def tables(self) -> Sequence[str]:
        """See `ports.reads.Reader.tables`. There is one table, named after its folder."""
        with translate_errors(self._name):
            return [self._name] if has_table(self._lake.root) else []

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        if name != self._name:
            raise Fatal(f"there is no table {name!r} in this event log", next_step=f"Its table is {self._name!r}.")
        with translate_errors(name):
            return read_table(self._lake.root, name, version=version, as_of=as_of, where=where, limit=limit)


class DeltaEventLog(LogTable[pa.Table]):
    """The event log, written in process. Options: `path`, the table's own folder, and the other `LakeOptions`."""

    frame = pa.Table

    def __init__(self, options: EventLogSettings | Mapping[str, Any]) -> None:
        lake_options = LakeOptions.from_settings(EventLogSettings.read(options))
        lake = lake_options.lake
        super().__init__(lake, lake_options, _LogAppend(lake.root))


class LogClearing:
    """The methods of `lane.CommitPreparer` that delete records of the event log in the folder `root`."""

    def __init__(self, root: Folder) -> None:
        self._root = root

    def clear(self, lane: Lane, read_state: Callable[[], LaneState | None]) -> Operation | None:
        """Deletes the records of the lane's topics, which only its position shows."""
        try:
            topics = list_topics(read_state())
        except DataLoss as lost:
            raise DataLoss(
                f"{lost.sentence}, so it is unknown which records belong to lane {lane.id}",
                next_step=f"Restore the file. Or stop the daemon and remove the folder {self._root}: every lane of that "
                "event log then starts from scratch.",
            ) from lost
        return allow_deletes(delete_where(_topics_condition(topics))) if topics else None


class _LogAppend(LogClearing):
    """`lane.CommitPreparer` for the event log, in process."""

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> PreparedCommit:
        """Appends every row above the position, in order. Only the position identifies redelivered records."""
        refuse_stored_records(snapshot, write, state.position)
        frame, trimmed = drop_applied(write.folded.frame, write, state.position, RAW_RECORD_POSITION)
        moment = pc.coalesce(frame["timestamp"], frame["ingested_at"])
        dated = frame.append_column(DAY, pc.cast(pc.floor_temporal(moment, unit="day"), pa.date32()))
        rows, unfit = conform_to_table(number_rows(dated), read_schema(snapshot))
        counts = Counts(applied=rows.num_rows, duplicate=trimmed, rejected=unfit.num_rows)
        operation = make_append_operation(rows) if rows.num_rows else None
        return PreparedCommit(operation, replace(state), counts, to_rejects(frame, unfit))


def _commit_operation(delta_lane: DeltaLane, operation: Operation) -> None:
    delta_lane.record_state(delta_lane.state(), operation)


def blank_records(event_ids: Sequence[str], error: str, columns: Iterable[str]) -> Operation:
    """An `Operation` that empties these columns of the given records of an event log, and sets their `error`."""
    ids = ", ".join(map(text_literal, event_ids))
    values = {DELTA_RS.quote_name(name): "NULL" for name in columns} | {'"error"': text_literal(error)}

    def empty(snapshot: DeltaTable, attempt: Attempt) -> None:
        snapshot.update(
            updates=values,
            predicate=f'"event_id" IN ({ids})',
            writer_properties=WRITER,
            commit_properties=attempt.properties,
        )

    return empty


def list_topics(state: LaneState | None) -> list[str]:
    """The topics from which a lane has written records."""
    return sorted({p.topic for p in state.position}) if state is not None else []


def allow_deletes(operation: Operation) -> Operation:
    """The operation on an append-only table."""

    def act(snapshot: DeltaTable, attempt: Attempt) -> None:
        # An append-only table refuses every delete. After a kill in between, `prepare` makes it append-only again.
        snapshot.alter.set_table_properties({APPEND_ONLY: "false"})
        operation(snapshot, attempt)
        snapshot.alter.set_table_properties({APPEND_ONLY: "true"})

    return act


def _topics_condition(topics: Sequence[str]) -> str:
    return f'"topic" IN ({", ".join(text_literal(t) for t in topics)})'


def refuse_stored_records(snapshot: DeltaTable, write: Write[Any], applied: Position) -> None:
    """Raises DataLoss when the log already contains records of the write, or later ones.

    This is checked for partitions that the lane starts to read with this write.
    """
    for place, start in write.span.start.items():
        if place in applied:
            continue
        where = f'"topic" = {text_literal(place.topic)} AND "partition" = {place.partition} AND "offset" >= {start}'
        reader = pa.RecordBatchReader.from_stream(snapshot.scan(columns=["offset"], predicate=where))
        if not any(batch.num_rows for batch in reader):
            continue
        ends: dict[TopicPartition, int] = {}
        for batch in pa.RecordBatchReader.from_stream(snapshot.scan(columns=list(RAW_RECORD_POSITION))):
            last_offsets = pa.table(batch).group_by(["topic", "partition"]).aggregate([("offset", "max")])
            for row in last_offsets.to_pylist():
                partition = TopicPartition(row["topic"], row["partition"])
                ends[partition] = max(ends.get(partition, 0), row["offset_max"] + 1)
        raise make_duplicate_error(write.lane.id, place, Position(ends))


# The log cut of a time, found with two scans of positions and times.

Offsets = dict[TopicPartition, int]
EVERY = 2**63 - 1


def cut_at_time(table: DeltaTable, topics: Collection[str], at: datetime, covered: Position) -> LogCut | None:
    """See `ports.sink.SinkFeatures.find_cut`. A record without a time has the time of the record before
    it."""
    early, late = Offsets(), Offsets()
    for place, piece in _read_partitions(table, topics, "ts"):
        of_then = piece.filter(pc.fill_null(pc.less_equal(piece["ts"], at), False))
        of_later = piece.filter(pc.fill_null(pc.greater(piece["ts"], at), False))
        if of_then.num_rows:
            early[place] = max(early.get(place, -1), pc.max(of_then["offset"]).as_py())
        if of_later.num_rows:
            late[place] = min(late.get(place, EVERY), pc.min(of_later["offset"]).as_py())
    if not is_time_ordered(early, late):
        return None
    return replace(cut_at_positions(table, topics, late, covered), at=at)


def cut_at_positions(
    table: DeltaTable, topics: Collection[str], splits: Mapping[TopicPartition, int], covered: Position
) -> LogCut:
    """See `domain.event_log.CutSides.to_cut`."""
    firsts, lasts, nexts = Offsets(), Offsets(), Offsets()
    for place, piece in _read_partitions(table, topics):
        split, offsets = splits.get(place, EVERY), piece["offset"]
        firsts[place] = min(firsts.get(place, EVERY), pc.min(offsets).as_py())
        below = pc.filter(offsets, pc.less(offsets, split))
        if len(below):
            lasts[place] = max(lasts.get(place, -1), pc.max(below).as_py())
        if len(below) < len(offsets):
            nexts[place] = min(nexts.get(place, EVERY), pc.min(pc.filter(offsets, pc.greater_equal(offsets, split))).as_py())
    return CutSides(firsts, lasts, nexts).to_cut(splits, covered)


def _read_partitions(table: DeltaTable, topics: Collection[str], *more: str) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """The offsets of the records of some topics, and the columns `more`, in Arrow batches of one partition each."""
    for topic in sorted(topics):
        scan = table.scan(columns=["partition", "offset", *more], predicate=f'"topic" = {text_literal(topic)}')
        for batch in pa.RecordBatchReader.from_stream(scan):
            rows = pa.table(batch)
            for number in pc.unique(rows["partition"]).to_pylist():
                yield TopicPartition(topic, number), rows.filter(pc.equal(rows["partition"], number))


# The times of records, and the deletion of old records.


def read_newest_time(table: DeltaTable, since: Position, below: Position) -> datetime | None:
    """See `ports.sink.SinkFeatures.find_newest_time`."""
    times: list[datetime] = []
    for partition, end in below.items():
        where = f'{_partition_condition(partition)} AND "offset" >= {since.get(partition, 0)} AND "offset" < {end}'
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=["ts"], predicate=where)):
            latest = pc.max(batch["ts"]).as_py()
            times += [] if latest is None else [latest]
    return max(times, default=None)


@dataclass(frozen=True)
class LogTruncation:
    """Deletes the records below `cuts`.

    The same commit stores the cuts as transactions of their own applications. They stay in the table's log, and
    in every copy of it.
    """

    cuts: Mapping[TopicPartition, int]

    def __call__(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        parts = (f'({_partition_condition(partition)} AND "offset" < {cut})' for partition, cut in sorted(self.cuts.items()))
        marks = [Transaction(removal_app_id(partition), cut) for partition, cut in self.cuts.items()]
        snapshot.delete(" OR ".join(parts), commit_properties=attempt.with_transactions(marks))


def find_cuts(table: DeltaTable, below: Position, came_before: datetime) -> dict[TopicPartition, int]:
    """The offsets below which records may be deleted: all arrived before `came_before`, and are below `below`.

    The last record of a partition stays. Partitions without deletions are left out.
    """
    cuts = {}
    for partition, end in below.items():
        firsts, lasts, bounds = [], [], [end]
        scan = table.scan(columns=["offset", "ingested_at"], predicate=_partition_condition(partition))
        for batch in pa.RecordBatchReader.from_stream(scan):
            if batch.num_rows:
                ends = pc.min_max(batch["offset"]).as_py()
                firsts.append(ends["min"])
                lasts.append(ends["max"])
                stays = pc.fill_null(pc.greater_equal(batch["ingested_at"], came_before), True)
                first = pc.min(pc.filter(batch["offset"], stays)).as_py()
                bounds += [] if first is None else [first]
        cut = min([*bounds, max(lasts)]) if lasts else 0
        if firsts and min(firsts) < cut:
            cuts[partition] = cut
    return cuts


def _partition_condition(partition: TopicPartition) -> str:
    return f'"topic" = {text_literal(partition.topic)} AND "partition" = {partition.partition}'
