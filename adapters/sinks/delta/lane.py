"""One lane of a lake: its lock, its table and its commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from replicator.domain.erasures import to_key_texts
from replicator.domain.errors import DataLoss, Fatal, Retryable
from replicator.domain.policy.late_changes import advance_purge
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, find_highest, merge_facts
from replicator.domain.position import Span
from replicator.domain.sequence import is_text
from replicator.ports.frames import FoldedChanges, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import ErasureResult

from ...apply.column_versions import COLUMN_VERSIONS
from ...apply.conform import cast_column
from ...apply.lane_progress import advance_position, advance_state, is_applied, refuse_gap
from ...arrow.key_change import rename_plainly
from ...arrow.masks import make_text_mask
from ...delta.commits import WRITER, Attempt, LaneLog, LostRace, Operation, PositionFiles, append_nothing
from ...delta.errors import FileGone, translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.merge import Merge, can_insert_as_is, is_empty, remove_key, stored_rows
from ...delta.table_reader import lookup_rows
from ...delta.table_writer import TableMaintenance, TableWriter, TargetColumn, describe_old_versions, end_versions
from ...delta.tables import FILE_BYTES, has_table, open_table, read_schema, refuse_newer, stored_name
from ...delta.types import restore_type

ATTEMPTS = 8
"""How often a write is repeated after commits of others, before Retryable is raised."""

Snapshots = dict[Folder, DeltaTable]
"""The snapshots after this process's own commits, by table. Lanes with a common table share them."""


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A write to commit: `write` (None: only the position), the new state, and the counts and rejects of its
    rows."""

    write: Operation | None
    state: LaneState
    counts: Counts
    rejects: Any


class CommitPreparer(Protocol):
    """Stages 2 to 4 before the commit, for one kind of target and frame."""

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[Any]) -> PreparedCommit:
        """Reads from `snapshot`, and returns the write to commit on it."""

    def clear(self, lane: Lane, read_state: Callable[[], LaneState | None], /) -> Operation | None:
        """Deletes the rows of the lane; None when it has none.

        `read_state` raises DataLoss for a state that cannot be read, which matters only if it identifies the rows.
        """


def open_lane_log(lake: Lake, path: Folder, lane: Lane, nothing: Operation = append_nothing) -> LaneLog:
    """The transactions of `lane` in the table at `path`. `nothing` commits no rows."""
    positions = PositionFiles(lake.positions(lane.pipeline, lane.id), lane.id)
    return LaneLog(path, lane.pipeline, lane.id, positions, nothing)


class DeltaLane:
    """Writes one lane, and holds its lock from construction to `close`. Raises `Fenced` when another instance
    holds it."""

    def __init__(
        self,
        lake: Lake,
        path: Folder,
        lane: Lane,
        preparer: CommitPreparer,
        snapshots: Snapshots,
        *,
        upkeep: TableMaintenance,
    ) -> None:
        self.lane = lane
        self._writer = upkeep.writer
        with translate_errors(lane.into):
            self._lock = lake.lock(lane)
        self._log = open_lane_log(lake, path, lane, self._writer.commit_nothing)
        self._preparer = preparer
        self._upkeep = upkeep
        self._path = path
        self._snapshots = snapshots

    def apply(self, write: Write[pa.Table], reject: RejectRows[pa.Table]) -> LaneOutcome:
        """After a commit of another writer, stages 2 to 4 are repeated on the new snapshot."""
        with translate_errors(self.lane.into):
            for _ in range(ATTEMPTS):
                snapshot = self._take_snapshot()
                try:
                    before = self._log.read_commit_number(snapshot)
                    # Translated inside the loop, so that a missing file is `FileGone` here.
                    with translate_errors(self.lane.into):
                        outcome = self._attempt(snapshot, write, reject)
                except LostRace:
                    continue
                except FileGone:
                    # Another process may have rewritten the files and removed the old ones.
                    if not self._log.is_behind(snapshot):
                        raise
                    continue
                if (commits := self._log.read_commit_number(snapshot)) > before:
                    self._upkeep.after_commit(snapshot, commits)
                self._snapshots[self._path] = snapshot
                return outcome
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def load(self, write: Write[Any], load: BulkLoad, reject: RejectRows[Any]) -> LaneOutcome:
        with translate_errors(self.lane.into):
            for _ in range(ATTEMPTS):
                snapshot = self.newest()
                prepared = load.prepare_commit(snapshot, write, reject)
                identity = tuple(sorted(write.identity.items()))
                after = replace(prepared.state, position=write.span.end, identity=identity, rule=write.plan.rule)
                try:
                    self._commit(snapshot, after, write.span, prepared.write)
                except LostRace:
                    continue
                self._snapshots[self._path] = snapshot
                return LaneOutcome(after.position, prepared.counts, after.purged_up_to)
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def can_load(self, plan: ApplyPlan) -> bool:
        return can_bulk_load(plan) and self.state() is None and is_empty(self.newest())

    def record_state(self, state: LaneState | None, write: Operation | None = None) -> None:
        """Commits `write` (nothing by default) with `state` as the lane's new state."""
        with translate_errors(self.lane.into):
            for _ in range(ATTEMPTS):
                try:
                    self._commit(self.newest(), state, None, write)
                except LostRace:
                    continue
                self.drop_snapshot()
                return
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def clear(self) -> None:
        """Deletes the lane's rows and its state in one commit.

        It also works when the state cannot be read, because this is how the operator repairs it.
        """
        with translate_errors(self.lane.into):
            snapshot = self.newest()
            write = self._preparer.clear(self.lane, lambda: self._log.state(snapshot))
        self.record_state(None, write)

    def state(self) -> LaneState | None:
        """The lane's state."""
        with translate_errors(self.lane.into):
            return self._log.state(self.newest())

    def erase(self, key: Mapping[str, str], types: Mapping[str, pa.DataType], side_table: Folder) -> ErasureResult:
        """Erases in the side table first: a repeated call then still finds the rows. See `find_key_rows`."""
        with translate_errors(self.lane.into):
            state, freed, versions = self.state(), 0, []
            if has_table(side_table):
                other = open_table(side_table)
                if state is not None and state.side_table_version not in (None, other.version()):
                    other.restore(state.side_table_version)  # Later versions are from a failed attempt.
                keys, freed = find_key_rows(self.lane, other, key, types)
                if freed:
                    remove_key(keys)(other, None)
                if state is not None and state.side_table_version is not None:
                    state = replace(state, side_table_version=other.version())
                versions.append(describe_old_versions(side_table, other))
            snapshot = self.newest()
            keys, rows = find_key_rows(self.lane, snapshot, key, types)
            versions.append(describe_old_versions(self._path, snapshot))
        if rows or freed:
            self.record_state(state, self._writer.remove_key(keys) if rows else None)
        return ErasureResult(rows, freed, "; ".join(versions))

    def rewrite(self, table: DeltaTable, columns: Sequence[TargetColumn], side_table: Folder) -> None:
        """`TableWriter.rewrite`, and in the same commit the version of the side table whose texts have the new names."""
        state, renamed = self.state(), next((column.renamed for column in columns if column.renamed), None)
        if state is None or state.side_table_version is None or renamed is None:
            self._writer.rewrite(table, columns)
            return
        other = open_table(side_table)
        if other.version() != state.side_table_version:
            other.restore(state.side_table_version)  # Later versions are from a failed attempt.
        renames = {COLUMN_VERSIONS: renamed}
        side_columns = [TargetColumn(f.name, f, renamed=renames.get(f.name, {})) for f in read_schema(other)]
        TableWriter().rewrite(other, side_columns)
        self.record_state(
            replace(state, side_table_version=other.version()),
            lambda snapshot, attempt: self._writer.replace_with(snapshot, columns)(snapshot, attempt),
        )
        table.update_incremental()

    def end_side_versions(self, side_table: Folder) -> str:
        """Ends the old versions of the side table, except the one of the lane's state; see
        `table_writer.end_versions`."""
        with translate_errors(self.lane.into):
            table, state = open_table(side_table), self.state()
            if state is None or state.side_table_version is None:
                return end_versions(side_table, table)
            if state.side_table_version != table.version():
                table.restore(state.side_table_version)  # Later versions are from a failed attempt.
            return end_versions(
                side_table, table, lambda: self.record_state(replace(state, side_table_version=table.version()))
            )

    def newest(self) -> DeltaTable:
        """The newest snapshot of the lane's table.

        Raises Fatal when this program cannot write to it, and Fenced when another instance has written it.
        """
        snapshot = self._log.open()
        refuse_newer(snapshot, self.lane.into, self._writer.features)
        self._lock.expect(self._log.read_commit_number(snapshot))
        return snapshot

    def set_properties(self, wanted: Mapping[str, str]) -> None:
        """Sets the properties that the table does not have yet."""
        table = self.newest()
        properties = table.metadata().configuration
        missing = {name: value for name, value in wanted.items() if value is not None and properties.get(name) != value}
        if missing:
            self._writer.set_properties(table, missing)
            self.drop_snapshot()

    def drop_snapshot(self) -> None:
        """Reads the table again at the next use, because its schema has changed."""
        self._snapshots.pop(self._path, None)

    def close(self) -> None:
        """Releases the lane; may be called twice."""
        self._lock.release()

    def _take_snapshot(self) -> DeltaTable:
        """The snapshot after the last commit, or the newest one. It is removed here, because a failure makes it
        invalid."""
        snapshot = self._snapshots.pop(self._path, None)
        if snapshot is None:
            return self.newest()
        # Another lane of this table may have left it, with commits of another instance.
        self._lock.expect(self._log.read_commit_number(snapshot))
        return snapshot

    def _attempt(self, snapshot: DeltaTable, write: Write[pa.Table], reject: RejectRows[pa.Table]) -> LaneOutcome:
        state = self._log.state(snapshot) or LaneState()
        refuse_gap(write, state)
        if is_applied(write, state):
            return LaneOutcome(state.position, Counts(duplicate=write.folded.rows), state.purged_up_to)
        purged = advance_purge(write.plan, state, write.at)
        if purged != state:
            # A purge is first committed on its own, together with the deletion of marked rows. Only then may
            # tombstones be removed, and this must happen before the write stores its own.
            state = replace(purged, purge_pending=True)
            horizon = state.purged_up_to if write.plan.soft_deletes else None
            self._commit(snapshot, state, None, self._writer.remove_purged(write.plan, horizon) if horizon else None)
        prepared = self._preparer.prepare_commit(snapshot, state, write)
        if prepared.counts.rejected:
            # The newest snapshot may be able to complete these rows.
            if self._log.is_behind(snapshot):
                raise LostRace
            reject(self.lane, prepared.rejects)
        after = advance_position(prepared.state, write)
        self._commit(snapshot, after, write.span, prepared.write)
        return LaneOutcome(after.position, prepared.counts, after.purged_up_to)

    def _commit(self, snapshot: DeltaTable, state: LaneState | None, span: Span | None, write: Operation | None) -> None:
        try:
            number = self._log.commit(snapshot, state, span, write)
        except Exception:
            if self._log.announced is not None:
                # Perhaps only the answer was lost.
                self._lock.doubt(self._log.announced)
            raise
        self._lock.note_commit(number)
        self._log.prune(number)


# The bulk load: the first rows of a table, in slices and one commit.

ROWS_FILE = "rows.arrow"
AT_ONCE = 2
"""Slices that are prepared in parallel. DuckDB and Arrow use one thread for each."""
Part = TypeVar("Part")
Result = TypeVar("Result")
IPC_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def can_bulk_load(plan: ApplyPlan) -> bool:
    """True when rows of the plan are inserted unchanged, keys are independent of each other, and the order of
    slices does not matter."""
    return bool(plan.merge_keys) and can_insert_as_is(plan) and not plan.has_column_versions and plan.watermark is None


@dataclass(frozen=True)
class BulkLoad:
    """The bulk load of a lane without rows. `parts` are prepared one after the other; their rows are in `folder`
    until the commit."""

    preparer: CommitPreparer
    parts: Iterable[FoldedChanges[Any]]
    folder: Path

    def prepare_commit(self, snapshot: DeltaTable, write: Write[Any], reject: RejectRows[Any]) -> PreparedCommit:
        """See `sinks.delta.lane.CommitPreparer.prepare_commit`, for all slices. Rejects are durable on return.

        Raises DataLoss when the table has rows.
        """
        if not is_empty(snapshot):
            raise DataLoss(
                f"the target of lane {write.lane.id} is not empty, so a bulk load is not possible",
                next_step=f"Start from scratch: `replicator drop {write.lane.id}`, then repeat the command.",
            )
        nothing, schema, facts = LaneState(), read_schema(snapshot), []
        counts, max_side_table_sequence = Counts(), None

        def prepare_part(part: FoldedChanges[Any]) -> PreparedCommit:
            return self.preparer.prepare_commit(snapshot, nothing, replace(write, folded=part))

        with pa.OSFile(str(self.folder / ROWS_FILE), "wb") as file, pa.ipc.new_file(file, schema, options=IPC_LZ4) as rows:
            for part, prepared in prepare_in_parallel(prepare_part, self.parts):
                if prepared.counts.rejected:
                    reject(write.lane, prepared.rejects)
                if isinstance(prepared.write, Merge):
                    rows.write_table(stored_rows(prepared.write.inserted_rows, schema))
                facts.append(part.facts)
                counts += prepared.counts
                max_side_table_sequence = find_highest(max_side_table_sequence, prepared.state.max_side_table_sequence)
        state = advance_state(write.plan, nothing, merge_facts(facts), max_side_table_sequence, write.at)

        def append(snapshot: DeltaTable, attempt: Attempt) -> None:
            with pa.memory_map(str(self.folder / ROWS_FILE)) as file:
                rows = pa.ipc.open_file(file)
                batches = (rows.get_batch(number) for number in range(rows.num_record_batches))
                reader = pa.RecordBatchReader.from_batches(rows.schema, batches)
                write_deltalake(
                    snapshot,
                    reader,
                    mode="append",
                    target_file_size=FILE_BYTES,
                    writer_properties=WRITER,
                    commit_properties=attempt.properties,
                )

        return PreparedCommit(append, state, counts, None)


def prepare_in_parallel(prepare: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[tuple[Part, Result]]:
    """`prepare` of every slice, in their order, with up to `AT_ONCE` at a time."""
    futures: deque[tuple[Part, Future[Result]]] = deque()
    with ThreadPoolExecutor(AT_ONCE, "prepare") as pool:
        for part in parts:
            futures.append((part, pool.submit(prepare, part)))
            if len(futures) > AT_ONCE:
                finished_part, result = futures.popleft()
                yield finished_part, result.result()
        while futures:
            finished_part, result = futures.popleft()
            yield finished_part, result.result()


# The rows of one key. Conditions and commit texts stay in the table's log, so they must not contain a value.


def find_key_rows(
    lane: Lane, snapshot: DeltaTable, key: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, int]:
    """The stored keys of the rows with that key, and the number of these rows.

    `key`: the names and texts (`domain.erasures.to_key_texts`) of its columns at the source. `types`: the types of
    columns at the source.
    """
    schema, transforms = read_schema(snapshot), lane.row_transforms.column_transforms
    wanted: dict[str, pa.Array] = {}
    for name, text in key.items():
        rule, target_name = transforms.get_rule(name), transforms.get_new_name(name)
        column = target_name if target_name in schema.names else stored_name(target_name)
        if column not in schema.names:
            raise Fatal(
                f"table {lane.into} has no column {target_name!r}, which is needed to find the rows of a key",
                next_step=f"Load it again with `replicator lanes resync {lane.id}`, or remove it with `replicator drop`.",
            )
        stored_text, sent_type = text, rule.cast or types.get(name, pa.string())
        if rule.mask is not None:
            stored_text, sent_type = make_text_mask(rule.mask)(text), pa.string()
        wanted[column] = find_stored_values(snapshot, schema.field(column), stored_text, sent_type, wanted)
    rows = lookup_rows(snapshot, [*wanted], wanted)
    plain = rename_plainly(rows)
    return plain.group_by(plain.column_names).aggregate([]).rename_columns(rows.column_names), rows.num_rows


def find_stored_values(
    snapshot: DeltaTable, field: pa.Field, text: str, sent_type: pa.DataType, others: Mapping[str, pa.Array]
) -> pa.Array:
    """The forms in which a column stores the value of `sent_type` with this text, in rows with values of `others`."""
    kind = field.type
    if pa.types.is_string(kind) and not is_text(sent_type):
        # Such a value may be stored with more digits than its text has.
        values = pc.unique(lookup_rows(snapshot, [field.name, *others], others)[field.name])
        sent, _ = cast_column(restore_type(pa.chunked_array([values]), sent_type), sent_type)
        return values.filter(pc.equal(to_key_texts(sent), text).combine_chunks())
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.array([bytes.fromhex(text)], kind)
        value = pa.array([text], pa.string())
        return (value.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else value).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return pa.array([], kind)
