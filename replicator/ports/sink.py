"""The port of targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

import pyarrow as pa

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.transactions import CompletenessWatermark

from .frames import ApplyOutcome, F, Lane, RejectRows, Write


@dataclass(frozen=True, slots=True)
class SinkCapabilities:
    """The features of a sink, so that the pipeline does not depend on a particular sink.

    - `atomic_across_lanes`: all writes of one `apply` become visible together.
    - `policies`: the names of supported policies.
    - `watermarks`: it rejects late changes of a plan with a watermark. Otherwise lanes with a watermark are refused.
    - `retention`: it deletes tombstones by the retention of a plan. Otherwise it keeps them forever, and no change is
      late because of retention.
    """

    atomic_across_lanes: bool
    policies: frozenset[str]
    watermarks: bool = False
    retention: bool = False


class Sink(Protocol[F]):
    """A target system; it owns the position of every lane it applies.

    One worker thread per sink calls it. Errors:

    - `Retryable`: "not applied, or applied and recorded". The caller reads `state` again and repeats the rest.
    - `Fenced`: another instance writes the lane.
    - Any other `Fatal` concerns the lane (or all writes of the call) and suspends it.

    The sink translates driver errors into these.
    """

    capabilities: SinkCapabilities

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Make the target ready for rows of `plan.target`: create it, or add missing columns (nullable). May be called
        again with a plan of more columns. An existing table is used as it is: its columns keep their types, and columns
        that are not in the plan stay. Locks the lane. If a second instance prepares the same lane, one of the two fails
        with `Fenced`, at the latest at its next commit (test_second_instance_is_fenced)."""

    def state(self, lane: Lane) -> LaneState | None:
        """The state committed last for this lane, read from the target; None if there is none. Needs no `prepare`.
        DataLoss if the state is damaged."""

    def apply(self, writes: Sequence[Write[F]], reject: RejectRows[F]) -> ApplyOutcome:
        """Stages 2 to 4, and the position, in one commit (per lane, or for all lanes: see `capabilities`).

        MUST be all or nothing per commit, for any failure at any time (test_fail_after_apply_then_retry). Per partition:

        - A span that ends at or below the applied position is a no-op.
        - Rows below the applied position are dropped as duplicates (test_redelivery).
        - A span that starts above it raises `DataLoss` (test_gap_is_refused).

        Rows that do not fit the target, and rows that cannot be completed, go to `reject` before the commit and are not
        applied (test_rejects_are_durable_first). Rows that the target refuses because of other rows (a foreign key, a
        unique value) are retried after all others of the call. Rows that are still refused are rejected, unless the
        write `may_wait`: then RowsWait is raised and nothing is committed.

        A write that changes no row still moves the position (test_empty_write_advances_position). The state is
        committed with the rows, and has the plan's rule (test_state_is_committed_with_the_rows).

        Watermark: late changes (`domain.policy.watermark`) go to `reject` as LATE and have no other effect. The fold
        has kept all changes; of the rest, repeated changes count once (test_late_changes_are_rejected,
        test_histories_under_a_watermark_equal_the_model). `LaneState.max_event_time` is committed with the rows.

        Retention (`domain.policy.retention`): `Write.at` may raise `LaneState.purged_up_to`. Tombstones stored until
        then, at or below its sequence, are deleted before any change of the write is reconciled
        (test_tombstones_are_purged). A change that is late because of it goes to `reject` as LATE
        (test_histories_with_purged_tombstones_equal_the_model). For this a truncate counts from the beginning of its write
        (test_a_truncate_counts_from_the_beginning_of_its_write). `purged_up_to` is stored in the state and never
        decreases, for any later writer and retention (test_the_purged_sequence_is_stored).

        Out-of-band write: the span is empty and the position stays. Only sequences decide about its rows, not the
        lane's position (test_left_out_changes_are_applied_out_of_band). It may be repeated
        (test_a_failed_out_of_band_write_is_repeated). No time passes with it.

        A sink that is `atomic_across_lanes` may receive several writes of one lane, in order; the counts are then their
        sum (test_several_writes_of_a_lane_are_one_commit). It publishes `Write.complete` in the same commit, where
        readers of its tables find it.
        """

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Set the lane's state without applying anything: the operator accepts the loss."""

    def reset(self, lane: Lane) -> None:
        """Remove the lane's rows and its state, also a damaged one, so that it starts from nothing. DataLoss, with
        nothing removed, if its rows cannot be identified without the state."""

    def close(self) -> None:
        """Release locks and connections; may be called twice."""


@dataclass(frozen=True, slots=True)
class LaneArtifact:
    """One stored thing of a lane, for people: `what` it is (`table`, `positions`), and `where`. `stays`: why
    `Drops.drop` keeps it, and its further use; empty if it is removed."""

    what: str
    where: str
    stays: str = ""


class Drops(Protocol):
    """A sink that can remove a whole lane. Not every sink can: an event log has records of many lanes."""

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        """Everything stored of the lane, also after an interrupted drop; empty if there is nothing. Needs no `prepare`,
        locks nothing and changes nothing."""

    def drop(self, lane: Lane) -> None:
        """Remove the lane's target, and everything else that is stored of the lane.

        Takes over the lane: `Fenced`, with nothing removed, while another instance holds it. If that cannot be
        detected, the other instance fails at the latest at its next commit (test_drop_takes_the_lane). Afterwards the
        lane is new: it has no state and no tombstones (test_drop_removes_tombstones), and `prepare` creates the target
        again, with any columns (test_drop_leaves_nothing). Other lanes stay as they are (test_drop_leaves_other_lanes).

        May be called again, also after a kill, and for a lane without anything (test_drop_may_be_repeated). Meanwhile
        `state` and `prepare` return as before, or as for a new lane, or raise DataLoss that names `replicator drop`.
        They never return a state whose rows are gone.

        A target that this sink did not create stays. Only the rows that the lane wrote to it are removed.
        """


CutoverDecision = Callable[[LaneState | None, LaneState], LaneState]
"""From the states of a lane and of its rebuild to the state with which the lane continues; raises if it may not."""


class Swaps(Protocol):
    """A sink that can replace a lane's target by a rebuild of it."""

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision) -> LaneState:
        """Replace the rows of `lane` by the rows of `rebuilt`, a lane of the same sink, with the state that `judge`
        returns. Returns the state after that (test_a_target_is_swapped). Takes over both lanes as `Drops.drop` does
        (test_swap_takes_the_lane). Afterwards `rebuilt` may be gone, or has to be dropped. `lane` needs another
        `prepare`.

        Rows and state change in one commit: readers always find either the old target or the new one. A kill leaves one
        of the two, and the next user of the lane finds everything that belongs to it. Later changes are reconciled as
        `rebuilt` would, including its tombstones (test_what_is_remembered_goes_along).

        Fatal, with nothing changed, if `judge` raises it (test_a_swap_that_is_refused). The same for a target that this
        sink did not create, and for a target with dependent objects that would be lost.
        """


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The result of an erasure in one lane: removed `rows` of its target, and `side_rows` of its side tables
    (tombstones and the like). `versions`: older versions that still contain them, for people; empty if there are none."""

    rows: int = 0
    side_rows: int = 0
    versions: str = ""


class Erases(Protocol):
    """A sink that can erase single keys."""

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        """Remove every row with that key from the lane's target and its side tables. This includes versions of an scd2
        table and changes of an append table. `key`: the source's names of the key columns, with their texts
        (`domain.erasures.to_key_texts`). The position and all other rows stay as they are (test_a_key_is_erased).

        Takes over the lane as `Drops.drop` does (test_erasing_takes_the_lane). May be called again, also after a kill.
        No effect for a lane without a target (test_erasing_nothing). The log of the erasure itself does not contain the
        key.
        """

    def end_versions(self, lane: Lane) -> str:
        """Remove older versions of the target and of its side tables, so that no one can read them (test_versions_end).
        No effect if there are none. Returns a text for people that names the remains."""


class ErasesRecords(Protocol):
    """An event log that can erase single records."""

    def records(self, lane: Lane) -> Iterator[pa.Table]:
        """The records of the lane's topics as raw frames (`domain.change.RAW`), per partition in any order."""

    def empty(self, lane: Lane, places: Sequence[tuple[str, int, int]]) -> str:
        """Clear the records at these positions (topic, partition, offset): only the position, the times and
        `domain.erasures.ERASED_RECORD` stay. Returns the older versions that still contain them, as in `ErasureResult`.
        Takes over the lane; may be called again."""

    def end_versions(self, lane: Lane) -> str:
        """As `Erases.end_versions`, for the whole log."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The number of files of a target before and after a compaction."""

    before: int
    after: int


class Compacts(Protocol):
    """A sink whose targets are files, and which can merge small files."""

    def compact(self, lane: Lane) -> CompactionResult | None:
        """Rewrite the small files of the lane's target; the rows stay as they are. None if there is no target. Locks
        nothing: other writers of the lane continue (test_compact_and_vacuum_leave_the_rows)."""


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """The number of files that were deleted, or would be; None if it is not known."""

    files: int | None


class Vacuums(Protocol):
    """A sink that can reclaim unused space of its targets."""

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        """Delete files of the lane's target that have been unused for `retain`, if the sink has such times. The default
        is the time that the target itself defines. None if there is no target. A `dry_run` changes nothing. Locks
        nothing, as `Compacts.compact`."""


@runtime_checkable
class Publishes(Protocol):
    """A sink that commits lane by lane, and can publish up to which transaction its tables are complete."""

    def publish(self, lanes: Sequence[Lane], complete: CompletenessWatermark) -> None:
        """Publish `complete`. `lanes` are all lanes of the source; they have committed everything up to `complete`, and
        nothing since.

        If `complete` names no transaction, the one published last stays, with the new values of the other fields. It
        also stays true after a kill at any time: `skip`, `reset` and `drop` of a lane withdraw it first. Without news
        nothing is committed. Errors as in `Sink.apply`; after an error it may be published or not.
        """


@runtime_checkable
class StoresSchemas(Protocol):
    """A sink that stores the schemas of each lane with its target.

    `Sink.prepare` processes each of `ApplyPlan.versions` that is not stored in that state, in order. It applies the
    version's `reshaping` to an existing target, then stores the version. A step is skipped if it is already done, or if
    its column was not created that way. `Sink.reset` keeps the schemas, so that loading a lane again needs no new
    decisions. `Drops.drop` removes them.
    """

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        """All stored schemas of the lane, by number; empty if there are none. Needs no `prepare`."""

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        """Store a version, or overwrite it; durable on return. Needs no `prepare`."""


@runtime_checkable
class Hurries(Protocol):
    """A sink that can interrupt a call that waits for an answer."""

    def hurry(self) -> None:
        """The program is about to end. A call without an answer raises Retryable within seconds; other calls continue.
        From any thread; may be called again."""


@runtime_checkable
class RefusesSecondWriter(Protocol):
    """A sink in which only one lane may write a target: two lanes, of one or of two pipelines, would write every row
    twice."""

    def refuse_second_writer(self, lane: Lane) -> None:
        """Raise the ConfigProblem with which `Sink.prepare` refuses a target of another lane. Changes nothing."""


class TombstoneStore(Protocol[F]):
    """The tombstones of a target, as (key, sequence): an older update that arrives later cannot bring a row back.

    Entries are facts: storing one twice, or before the target's own commit, is harmless.
    """

    def record(self, lane: Lane, plan: ApplyPlan, deletes: F) -> SequenceKey | None:
        """Store the deletes of a folded frame; returns the highest stored sequence."""

    def lookup(self, lane: Lane, plan: ApplyPlan, keys: F, applied: Position, *, again: bool = False) -> F:
        """The tombstones of these keys: the key columns and `_cdc_seq_1..n`, the highest sequence per key. Tombstones
        of records at or above `applied` are left out (test_tombstones_of_unapplied_records_are_left_out). With `again`,
        for an out-of-band write, tombstones of the records of `keys` are left out too: it is not known if they were
        applied (test_tombstones_of_retried_records_are_left_out)."""

    def forget(self, lane: Lane, plan: ApplyPlan, high: SequenceKey) -> None:
        """Delete the tombstones at or below the sequence `high`; may be repeated."""


class Explains(Protocol):
    """A sink that can show, without connecting, the statements that it runs."""

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """Per stage (`fold`, `reconcile`, `write`) the text that runs, in order. ConfigProblem if the options of the lane
        do not fit the columns."""
