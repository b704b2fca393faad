"""The port of targets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.event_log import LogCut
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.transactions import CompletenessWatermark

from .frames import ApplyOutcome, F, FoldedChanges, Lane, LaneOutcome, RejectRows, Write
from .projector import GoldTables, InputTables
from .reads import Reader, TargetSnapshot, TargetVersions


class Sink(Protocol[F]):
    """A target system; it owns the position of every lane it applies.

    One worker thread per sink calls it. Errors:

    - `Retryable`: "not applied, or applied and recorded". The caller reads `state` again and repeats the rest.
    - `Fenced`: another instance writes the lane.
    - Any other `Fatal` concerns the lane (or all writes of the call) and suspends it.

    The sink translates driver errors into these.
    """

    @property
    def features(self) -> SinkFeatures:
        """Everything that the sink can do besides these methods. The same for all its life; needs no connection."""

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Make the target ready for rows of `plan.target`: create it, or add missing columns (nullable). May be called
        again with a plan of more columns. An existing table is used as it is: its columns keep their types, and columns
        that are not in the plan stay. Locks the lane. If a second instance prepares the same lane, one of the two fails
        with `Fenced`, at the latest at its next commit (test_second_instance_is_fenced)."""

    def state(self, lane: Lane) -> LaneState | None:
        """The state committed last for this lane, read from the target; None if there is none. Needs no `prepare`.
        DataLoss if the state is damaged."""

    def apply(self, writes: Sequence[Write[F]], reject: RejectRows[F]) -> ApplyOutcome:
        """Stages 2 to 4, and the position, in one commit (per lane, or for all lanes: see `features`).

        MUST be all or nothing per commit, for any failure at any time (test_fail_after_apply_then_retry). Per partition:

        - A span that ends at or below the applied position is a no-op.
        - Rows below the applied position are dropped as duplicates (test_redelivery).
        - A span that starts above it raises `DataLoss` (test_gap_is_refused).

        Rows that do not fit the target, and rows that cannot be completed, go to `reject` before the commit and are not
        applied (test_rejects_are_stored_before_the_commit). Rows that the target refuses because of other rows (a
        foreign key, a unique value) are retried after all others of the call. Rows that are still refused are rejected,
        unless the write `may_wait`: then RowsWait is raised and nothing is committed.

        A write that changes no row still moves the position (test_empty_write_advances_position). The state is
        committed with the rows, and has the plan's rule (test_state_is_committed_with_the_rows).

        Watermark: late changes (`domain.policy.late_changes`) go to `reject` as LATE and have no other effect. The fold
        has kept all changes; of the rest, repeated changes count once (test_late_changes_are_rejected,
        test_histories_under_a_watermark_equal_the_model). `LaneState.max_event_time` is committed with the rows.

        Retention (`domain.policy.late_changes`): `Write.at` may raise `LaneState.purged_up_to`. Tombstones stored until
        then, at or below its sequence, are deleted before any change of the write is reconciled
        (test_tombstones_are_purged). A change that is late because of it goes to `reject` as LATE
        (test_histories_with_purged_tombstones_equal_the_model). For this a truncate counts from the beginning of its
        write (test_change_in_the_write_of_a_truncate_is_late). `purged_up_to` is stored in the state and never
        decreases, for any later writer and retention (test_the_purged_sequence_is_stored).

        Out-of-band write: the span is empty and the position stays. Only sequences decide about its rows, not the
        lane's position (test_left_out_changes_are_applied_out_of_band). It may be repeated
        (test_a_failed_out_of_band_write_is_repeated). No time passes with it.

        A sink that is `atomic_across_lanes` may receive several writes of one lane, in order; the counts are then their
        sum (test_several_writes_of_a_lane_are_one_commit). It publishes `Write.complete` in the same commit, where
        readers of its tables find it.
        """

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Set the lane's state without applying anything. Called for an operator who accepts a loss, and for a lane whose
        records were all ignored or rejected. The span in between is not applied later."""

    def reset(self, lane: Lane) -> None:
        """Remove the lane's rows and its state, also a damaged one, so that it starts from nothing. DataLoss, with
        nothing removed, if its rows cannot be identified without the state."""

    def close(self) -> None:
        """Release locks and connections; may be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFeatures:
    """Everything that a sink can do besides the methods of `Sink`. A field that is None is not supported.

    A field is a method of the sink, or a record of several methods:

        SinkFeatures(policies=frozenset({"scd1"}), compact=self.compact, removal=LaneRemoval(self.list_artifacts, self.drop))

    A sink that wraps another one changes the features of that one with `dataclasses.replace`.
    """

    policies: frozenset[str]
    """The names of the supported policies."""

    atomic_across_lanes: bool = False
    """All writes of one `Sink.apply` become visible together."""

    watermarks: bool = False
    """It rejects late changes of a plan with a watermark. Otherwise lanes with a watermark are refused."""

    retention: bool = False
    """It deletes tombstones by the retention of a plan. Otherwise it keeps them forever, and no change is late because
    of retention."""

    schemas: SchemaStore | None = None
    """The schemas of each lane, stored with its target."""

    bulk_load: BulkLoads | None = None
    """Writes the first rows of a target slice by slice, so that they need not all fit in memory."""

    publish: Callable[[Sequence[Lane], CompletenessWatermark], None] | None = None
    """`publish(lanes, complete)`: publish up to which transaction the tables are complete. For a sink that commits lane
    by lane. `lanes` are all lanes of the source; they have committed everything up to `complete`, and nothing since.

    If `complete` names no transaction, the one published last stays, with the new values of the other fields. It also
    stays true after a kill at any time: `skip`, `reset` and `drop` of a lane withdraw it first. Without news nothing is
    committed. Errors as in `Sink.apply`; after an error it may be published or not.
    """

    hurry: Callable[[], None] | None = None
    """The program is about to end. A call without an answer raises Retryable within seconds; other calls continue. From
    any thread; may be called again."""

    refuse_second_writer: Callable[[Lane], None] | None = None
    """Raise the ConfigProblem with which `Sink.prepare` refuses a target of another lane. Changes nothing. For a sink in
    which only one lane may write a target: two lanes, of one or of two pipelines, would write every row twice."""

    explain: Callable[[Lane, ApplyPlan], Mapping[str, str]] | None = None
    """The statements that the sink runs, without connecting: per stage (`fold`, `reconcile`, `write`) the text, in order.
    ConfigProblem if the options of the lane do not fit the columns."""

    reader: Reader | None = None
    """Reads targets by name."""

    select: Callable[..., pa.Table] | None = None
    """`select(name, choose, version=None, as_of=None, seconds=None)`: the rows of a target, now or at an earlier version,
    that match the query built by `choose` (`domain.read_query.BuildReadQuery`). It is called with the table's columns at
    that version; its errors pass through.

    Values are bound as parameters, never part of the statement, except whole numbers. Raises as `Reader.read` does,
    `InvalidReadQuery` for values that cannot be compared with their column, and `ReadTimeout` after `seconds`. For a sink
    with a `reader`.
    """

    versions: TargetVersions | None = None
    """The older versions of targets. For a sink with a `reader`."""

    open_comparison: Callable[[Lane], AbstractContextManager[TargetSnapshot | None]] | None = None
    """The lane's target at its newest commit, open for several reads. Only current rows: without soft-deleted rows and
    closed versions. None if the lane has no target yet."""

    projection_inputs: InputTables | None = None
    """Reads its tables as inputs of projections. Projectors read the tables of a lake themselves."""

    gold_tables: GoldTables | None = None
    """Holds the tables of projections. Projectors write the tables of a lake themselves."""

    removal: LaneRemoval | None = None
    """Removes whole lanes."""

    swap: Callable[[Lane, Lane, CutoverDecision], LaneState] | None = None
    """`swap(lane, rebuilt, decide_cutover)`: replace the rows of `lane` by the rows of `rebuilt`, a lane of the same sink,
    with the state that `decide_cutover` returns. Returns the state after that (test_a_target_is_swapped). Takes over both
    lanes as `LaneRemoval.drop` does (test_swap_of_a_held_lane_fences_one_instance). Afterwards `rebuilt` may be gone, or
    has to be dropped. `lane` needs another `prepare`.

    Rows and state change in one commit: readers always find either the old target or the new one. A kill leaves one of
    the two, and the next user of the lane finds everything that belongs to it. Later changes are reconciled as
    `rebuilt` would, including its tombstones (test_swap_includes_tombstones).

    Fatal, with nothing changed, if `decide_cutover` raises it (test_refused_swap_changes_nothing). The same for a target
    that this sink did not create, and for a target with dependent objects that would be lost.
    """

    erasure: KeyErasure | None = None
    """Erases single keys."""

    compact: Callable[[Lane], CompactionResult | None] | None = None
    """Rewrite the small files of the lane's target; the rows stay as they are. None if there is no target. Locks nothing:
    other writers of the lane continue (test_compact_and_vacuum_leave_the_rows)."""

    vacuum: Callable[..., VacuumResult | None] | None = None
    """`vacuum(lane, retain, dry_run=...)`: delete files of the lane's target that have been unused for `retain` (a
    `timedelta` or None), if the sink has such times. The default is the time that the target itself defines. None if there
    is no target. A `dry_run` changes nothing. Locks nothing, as `compact` (test_compact_and_vacuum_leave_the_rows)."""

    restore_state: Callable[[Lane, ApplyPlan, StoredLane], None] | None = None
    """`restore_state(lane, plan, stored)`: copy the rows, the side tables and the state of `stored`, a lane of a
    checkpoint, to `lane`, which has no state yet. The target is created as by `prepare`; `plan` is the plan of `lane`
    under the schema that `stored` has reached. Afterwards `lane` is as if it had applied everything that `stored` has
    applied (test_restored_lane_continues_like_the_model, test_restore_includes_metadata_for_late_changes).

    Rows and state are one commit: after a kill the lane has both or neither, and the call may be repeated
    (test_failed_restore_can_be_repeated). CheckpointUnsupported if the target would reject some of the rows; then there
    is no state (test_unsupported_value_raises_checkpoint_unsupported). The call takes over the lane as
    `LaneRemoval.drop` does; `prepare` must be called again.
    """

    open_stored_lane: Callable[[Lane, ApplyPlan], StoredLane] | None = None
    """The stored lane of the plan. Fatal where it has no state. For a sink in which checkpoints are stored."""

    count_rows: Callable[[Lane], int] | None = None
    """The number of rows of the lane's target; 0 without one. For a sink in which checkpoints are stored."""

    record_erasure: RecordErasure | None = None
    """Erases single records. For an event log."""

    find_cut: Callable[[Collection[str], datetime | Position, Position], LogCut | None] | None = None
    """`find_cut(topics, at, covered)`: the log cut of `at` in the records of these topics. For a time: behind the last
    record of that source time or earlier. For a position: before the records at or above it. None for a time if the
    records are not in its order: a record of that time or earlier follows a later one. `covered`: the position up to
    which the log's lane has read the topics. For an event log."""

    find_newest_time: Callable[[Position, Position], datetime | None] | None = None
    """`find_newest_time(since, below)`: the latest source time of the records at or above `since` and below `below`, in
    the partitions of `below`. None if no record has a time. For an event log."""

    truncate_log: Callable[[Lane, Position, datetime], Mapping[TopicPartition, int]] | None = None
    """`truncate_log(lane, below, came_before)`: remove the first records of the partitions in `below`, in the topics of
    `lane`: all below `below` that arrived before `came_before`. The last record of a partition always stays. Returns the
    new first offset of each partition that lost records.

    One commit removes the records and stores the new first offsets permanently (`ports.source.SourceFeatures.removed`).
    The call takes over the lane; it may be repeated. For an event log.
    """


CutoverDecision = Callable[[LaneState | None, LaneState], LaneState]
"""From the states of a lane and of its rebuild to the state with which the lane continues; raises if it may not."""


@dataclass(frozen=True, slots=True)
class SchemaStore:
    """Stores the schemas of each lane with its target.

    - `schemas(lane)`: all stored schemas of the lane, by number; empty if there are none. Needs no `prepare`.
    - `remember(lane, version)`: store a version, or overwrite it; durable on return. Needs no `prepare`.

    `Sink.prepare` processes each of `ApplyPlan.versions` that is not stored in that state, in order. It applies the
    version's `reshaping` to an existing target, then stores the version. A step is skipped if it is already done, or if
    its column was not created that way. `Sink.reset` keeps the schemas, so that loading a lane again needs no new
    decisions. `LaneRemoval.drop` removes them.
    """

    schemas: Callable[[Lane], Sequence[SchemaVersion]]
    remember: Callable[[Lane, SchemaVersion], None]


@dataclass(frozen=True, slots=True)
class LaneArtifact:
    """One stored thing of a lane, for people: `what` it is (`table`, `positions`), and `where`. `stays`: why
    `LaneRemoval.drop` keeps it, and its further use; empty if it is removed."""

    what: str
    where: str
    stays: str = ""


@dataclass(frozen=True, slots=True)
class LaneRemoval:
    """Removes whole lanes. Not every sink can: an event log has records of many lanes."""

    list_artifacts: Callable[[Lane], Sequence[LaneArtifact]]
    """Everything stored of the lane, also after an interrupted drop; empty if there is nothing. Needs no `prepare`, locks
    nothing and changes nothing."""

    drop: Callable[[Lane], None]
    """Remove the lane's target, and everything else that is stored of the lane.

    Takes over the lane: `Fenced`, with nothing removed, while another instance holds it. If that cannot be detected,
    the other instance fails at the latest at its next commit (test_drop_of_a_held_lane_fences_one_instance). Afterwards
    the lane is new: it has no state and no tombstones (test_drop_removes_tombstones), and `prepare` creates the target
    again, with any columns (test_drop_removes_rows_state_and_metadata). Other lanes stay as they are
    (test_drop_leaves_other_lanes).

    May be called again, also after a kill, and for a lane without anything (test_drop_may_be_repeated). Meanwhile `state`
    and `prepare` return as before, or as for a new lane, or raise DataLoss that names `replicator drop`. They never return
    a state whose rows are gone.

    A target that this sink did not create stays. Only the rows that the lane wrote to it are removed.
    """


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The result of an erasure in one lane: removed `rows` of its target, and `side_rows` of its side tables
    (tombstones and the like). `versions`: older versions that still contain them, for people; empty if there are none."""

    rows: int = 0
    side_rows: int = 0
    versions: str = ""


@dataclass(frozen=True, slots=True)
class KeyErasure:
    """Erases single keys."""

    erase: Callable[[Lane, Mapping[str, str]], ErasureResult]
    """`erase(lane, key)`: remove every row with that key from the lane's target and its side tables. This includes versions
    of an scd2 table and changes of an append table. `key`: the source's names of the key columns, with their texts
    (`domain.erasures.to_key_texts`). The position and all other rows stay as they are (test_a_key_is_erased).

    Takes over the lane as `LaneRemoval.drop` does (test_erasure_in_a_held_lane_fences_one_instance). May be called
    again, also after a kill. No effect for a lane without a target (test_erasure_without_matching_rows_does_nothing).
    The log of the erasure itself does not contain the key.
    """

    end_versions: Callable[[Lane], str]
    """Remove older versions of the target and of its side tables, so that no one can read them
    (test_older_versions_are_removed). No effect if there are none. Returns a text for people that names the remains."""


@dataclass(frozen=True, slots=True)
class RecordErasure:
    """Erases single records of an event log.

    - `records(lane)`: the records of the lane's topics as raw frames (`domain.change.RAW`), per partition in any order.
    - `empty(lane, places)`: clear the records at these positions (topic, partition, offset). Only the position, the times
      and `domain.erasures.ERASED_RECORD` stay. Returns the older versions that still contain them, as in `ErasureResult`.
      Takes over the lane; may be called again.
    - `end_versions(lane)`: as `KeyErasure.end_versions`, for the whole log.
    """

    records: Callable[[Lane], Iterator[pa.Table]]
    empty: Callable[[Lane, Sequence[tuple[str, int, int]]], str]
    end_versions: Callable[[Lane], str]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The number of files of a target before and after a compaction."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """The number of files that were deleted, or would be; None if it is not known."""

    files: int | None


# A bulk load: rows are partitioned by key, then written to an empty target in one commit.


@dataclass(frozen=True, slots=True)
class BulkLoads:
    """Writes the first rows of a target slice by slice, so that they need not all fit in memory."""

    loads: Callable[[Lane, ApplyPlan], bool]
    """True if `load` can be used: it supports the plan, and the prepared target has no rows and no state."""

    load: Callable[[Write[Any], Iterable[FoldedChanges[Any]], RejectRows[Any], Path], LaneOutcome]
    """`load(write, parts, reject, folder)`: write the rows of all `parts` in one commit, otherwise as `Sink.apply`
    (test_a_target_is_loaded_by_partition).

    Each key is in one part only. The parts contain no key changes and no truncates. `write` has no rows of its own,
    only the span. `parts` may be iterated several times. Files may be created in `folder`, which belongs to the caller.
    DataLoss if the target is not empty (test_bulk_load_of_a_filled_target_is_refused).
    """


# What a checkpoint has of a lane.


class CheckpointUnsupported(Exception):
    """The target cannot store something that a lake can, so it would differ from the records. The text completes a
    sentence about the checkpoint."""


class StoredLane(Protocol):
    """A lane of a checkpoint: `lane` of the Delta lake in the folder `path` of this machine, its state, and its schemas."""

    lane: Lane
    path: str
    state: LaneState
    versions: Sequence[SchemaVersion]

    def rows(self) -> Iterable[Any]:
        """Its rows as tables of Arrow, with the columns of the plan's target. CheckpointUnsupported for other columns."""

    def side_rows(self) -> Iterable[Any]:
        """The rows of its side table, as tables of Arrow; of a key there may be several."""
