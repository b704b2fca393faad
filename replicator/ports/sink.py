"""The port to targets."""

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
    """What a sink can do, so that the pipeline need not know which sink it is.

    `atomic_across_lanes`: all writes of one `apply` become visible together. `policies`: names it accepts. `watermarks`: it
    rejects late changes of a plan with a watermark; lanes with one are refused where it does not. `retention`: it forgets
    deletes by the retention of a plan; where it does not, it remembers them for ever, and nothing is late for that.
    """

    atomic_across_lanes: bool
    policies: frozenset[str]
    watermarks: bool = False
    retention: bool = False


class Sink(Protocol[F]):
    """A target system; owns the position of every lane it applies.

    Who calls: one worker thread per sink. Errors: `Retryable` when the outcome is "not applied, or applied and
    recorded": the caller asks `state` again and repeats what is left. `Fenced` when another instance writes the lane.
    Any other `Fatal` concerns the lane (or all writes of the call) and suspends it. Driver errors are translated here.
    """

    capabilities: SinkCapabilities

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Make the target ready for rows of `plan.target`: create it, or add the columns it lacks (nullable). May be
        called again with a plan of more columns. An existing table is used as it is: its columns keep their types, and
        columns that the plan does not name are left alone. Takes the lane's lock: a second instance that prepares the
        same lane makes one of the two fail with `Fenced` at the latest at its next commit (test_second_instance_is_fenced).
        """

    def state(self, lane: Lane) -> LaneState | None:
        """What was committed last for this lane, read from the target; None when nothing ever was. Needs no `prepare`.
        DataLoss when what is there is damaged."""

    def apply(self, writes: Sequence[Write[F]], reject: RejectRows[F]) -> ApplyOutcome:
        """Stages 2 to 4, and the position, in one commit (per lane, or for all: see `capabilities`).

        MUST be all or nothing per commit, whatever fails when (test_fail_after_apply_then_retry). Per partition: a span that
        ends at or below the applied position is a no-op; rows below it are dropped as duplicates (test_redelivery); a
        span that starts above it raises `DataLoss` (test_gap_is_refused). Rows that do not fit the target, and rows that
        cannot be completed, go to `reject` before the commit and are not applied (test_rejects_are_durable_first).
        Rows that a target refuses for what other rows hold (a foreign key, a unique value) are tried again after all others
        of the call. Those that are refused still are rejected, unless the write `may_wait`: then RowsWait, and nothing is
        committed.
        A write that changes no row still moves the position (test_empty_write_advances_position). The state that is
        committed with the rows names the plan's rule (test_state_is_committed_with_the_rows).

        Under a watermark changes that are late (`domain.policy.watermark`) go to `reject` as LATE, and nothing else comes
        of them; of the others, of which the fold has left all, changes that come twice are one
        (test_late_changes_are_rejected, test_histories_under_a_watermark_equal_the_model). `LaneState.max_event_time` is
        committed with the rows.

        Under a retention (`domain.policy.retention`) `Write.at` may raise the floor, at or below which the deletes
        remembered until then are forgotten before anything of the write is judged (test_tombstones_are_purged). A change
        that is late for it goes to `reject` as LATE (test_histories_with_purged_tombstones_equal_the_model). The floor is
        kept in the state, and never falls, whoever writes next and under whatever retention
        (test_the_purged_sequence_is_stored).

        A write `beside` the stream has an empty span and moves nothing: its rows are judged by their sequences, wherever the
        lane stands (test_left_out_changes_are_applied_out_of_band), and again as often as it is given
        (test_a_failed_out_of_band_write_is_repeated). No time passes with it.

        A sink that is `atomic_across_lanes` may be given several writes of one lane, one after the other; the counts are
        then those of all of them (test_several_writes_of_a_lane_are_one_commit). It publishes `Write.complete` in the same
        commit, where readers of its tables find it.
        """

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Set the lane's state without applying anything: the operator accepts the loss."""

    def reset(self, lane: Lane) -> None:
        """Remove the lane's rows and its state, also a damaged one, so that it starts from nothing. DataLoss, and nothing is
        removed, where its rows cannot be told from others without the state."""

    def close(self) -> None:
        """Release locks and connections; may be called twice."""


@dataclass(frozen=True, slots=True)
class LaneArtifact:
    """One thing that is kept of a lane, for people: `what` it is (`table`, `positions`), and `where`. `stays` says why
    `Drops.drop` leaves it, and what becomes of it; empty for what goes."""

    what: str
    where: str
    stays: str = ""


class Drops(Protocol):
    """A sink whose lanes can be taken away whole. Not every one can: the records of an event log are of many lanes."""

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        """What is kept of the lane, also of one that was dropped half way; empty when there is nothing. Needs no `prepare`,
        takes no lock and changes nothing."""

    def drop(self, lane: Lane) -> None:
        """Remove the lane's target, and everything else that is kept of the lane.

        Takes the lane: `Fenced`, and nothing is removed, while another instance holds it. Where that cannot be told, the
        other one fails at the latest at its next commit (test_drop_takes_the_lane). Afterwards the lane is one that never
        was: there is no state, no delete is remembered (test_drop_removes_tombstones), and `prepare` makes the target
        anew, in whatever shape (test_drop_leaves_nothing). Other lanes stay as they are (test_drop_leaves_other_lanes).

        May be called again, after it was killed anywhere too, and for a lane of which there is nothing
        (test_drop_may_be_repeated). In between `state` and `prepare` answer as before, or as for a lane that never was, or
        raise DataLoss that names `replicator drop`: never a state whose rows are gone.

        A target that this sink did not make stays. The rows that the lane wrote to it go, others do not.
        """


CutoverDecision = Callable[[LaneState | None, LaneState], LaneState]
"""Given the states of a lane and of the one that made its target anew, the state from which the lane goes on; raises where
it may not."""


class Swaps(Protocol):
    """A sink in which a lane can have its target exchanged for another one that was made beside it."""

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision) -> LaneState:
        """Let the rows of `rebuilt`, a lane of the same sink, be those of `lane`, under the state that `judge` gives; the
        state after that (test_a_target_is_swapped). Both lanes are taken as by `Drops.drop` (test_swap_takes_the_lane);
        `rebuilt` may be gone afterwards, or is to be dropped. The lane needs another `prepare`.

        Rows and state change in one commit: who reads at any time finds the old target or the new one. Killed anywhere, it
        is the one or the other, and whoever opens the lane next finds everything that belongs to it. Changes after it are
        judged as they were by `rebuilt`, deletes that it remembers included (test_what_is_remembered_goes_along). Fatal,
        and nothing is changed, where `judge` raises it (test_a_swap_that_is_refused), for a target that this sink did not
        make, and for one with what would not outlive it.
        """


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """What was removed of one lane: `rows` of its target, and `side_rows` it (remembered deletes and the like). `versions`:
    what still holds them, for people; empty where nothing does."""

    rows: int = 0
    side_rows: int = 0
    versions: str = ""


class Erases(Protocol):
    """A sink from which single keys can be taken."""

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        """Remove every row with that key from the lane's target, versions of a history and changes of a log of them too, and
        from all that is kept beside it. `key`: the names of its columns at the source, and their texts
        (`domain.erasures.to_key_texts`). The position and the other rows stay as they are (test_a_key_is_erased).

        Takes the lane as `Drops.drop` does (test_erasing_takes_the_lane). May be called again, after it was killed anywhere
        too. Nothing for a lane without a target (test_erasing_nothing). What is written down of the act itself does not
        name the key."""

    def end_versions(self, lane: Lane) -> str:
        """Remove what older versions of the target hold, and of what is beside it; nobody can read these afterwards. Nothing
        where there are none (test_versions_end). What could not be removed, for people."""


class ErasesRecords(Protocol):
    """An event log from which single records can be taken."""

    def records(self, lane: Lane) -> Iterator[pa.Table]:
        """The records of the lane's topics as raw frames (`domain.change.RAW`), per partition in any order."""

    def empty(self, lane: Lane, places: Sequence[tuple[str, int, int]]) -> str:
        """Leave of the records at these places (topic, partition, offset) nothing but place and times, and
        `domain.erasures.ERASED_RECORD`; where older versions still hold them, as in `ErasureResult`. Takes the lane; may be
        called again."""

    def end_versions(self, lane: Lane) -> str:
        """See `Erases.end_versions`; of the whole log."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The number of files that a target had, and has."""

    before: int
    after: int


class Compacts(Protocol):
    """A sink whose targets are files, of which small ones can become few."""

    def compact(self, lane: Lane) -> CompactionResult | None:
        """Rewrite the small files of the lane's target, whose rows stay as they are; None where there is no target. Takes no
        lock: who writes the lane meanwhile goes on (test_compact_and_vacuum_leave_the_rows)."""


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """How many files were deleted, or would be; None where that is not known."""

    files: int | None


class Vacuums(Protocol):
    """A sink whose targets leave room behind that can be had again."""

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        """Free what the lane's target does not need, and has not needed for `retain`, where the sink knows such times; by
        default for as long as the target itself says. None where there is no target; nothing is changed in a `dry_run`.
        Takes no lock, as `Compacts.compact`."""


@runtime_checkable
class Publishes(Protocol):
    """A sink that commits lane by lane, and can tell readers of its tables up to which transaction these are complete."""

    def publish(self, lanes: Sequence[Lane], complete: CompletenessWatermark) -> None:
        """`lanes`, which are all of their source, have committed what `complete` says, and nothing since.

        Where it names no transaction, what was published of one stays true and stays, beside what else it says; as it does
        after a kill, whenever that comes. `skip`, `reset` and `drop` of a lane take it back first. Nothing is committed
        where nothing is new. Errors as of `Sink.apply`; the outcome may be either.
        """


@runtime_checkable
class StoresSchemas(Protocol):
    """A sink that keeps, beside each target, the schemas that its lane has met.

    For each of `ApplyPlan.versions` that it does not remember so, in order, `Sink.prepare` does what its `reshaping` asks of
    a target that is there, each part unless it is done already or concerns a column that was not made so, and remembers it
    after that. `Sink.reset` keeps them, so
    that a lane which is loaded anew asks nothing again; `Drops.drop` forgets them.
    """

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        """All that is remembered of the lane, by number; empty when there is nothing. Needs no `prepare`."""

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        """Write down a version, or write it anew; durable on return. Needs no `prepare`."""


@runtime_checkable
class Hurries(Protocol):
    """A sink that can end a call that waits for an answer."""

    def hurry(self) -> None:
        """The program is to end. A call in progress whose answer will not come raises Retryable within seconds; others go
        on. From any thread; may be called again."""


@runtime_checkable
class RefusesSecondWriter(Protocol):
    """A sink that lets one lane write a target: two lanes, of one pipeline or of two, would each write every row."""

    def refuse_second_writer(self, lane: Lane) -> None:
        """Raise the ConfigProblem with which `Sink.prepare` refuses a target of another lane. Changes nothing."""


class TombstoneStore(Protocol[F]):
    """(key, sequence) of deletes beside a target, so that an older update that arrives later cannot bring the row back.

    Entries are true facts: recording one twice, or before the target's own commit, is harmless.
    """

    def record(self, lane: Lane, plan: ApplyPlan, deletes: F) -> SequenceKey | None:
        """Remember the deletes of a folded frame; returns the highest sequence now remembered."""

    def lookup(self, lane: Lane, plan: ApplyPlan, keys: F, applied: Position, *, again: bool = False) -> F:
        """The remembered entries of these keys: the key columns and `_cdc_seq_1..n`, the highest per key. Entries of records
        at or above `applied` are left out (test_tombstones_of_unapplied_records_are_left_out). With `again`, for rows of a
        write beside the stream, those of the records of `keys` too: whether they were applied is not known
        (test_tombstones_of_retried_records_are_left_out)."""

    def forget(self, lane: Lane, plan: ApplyPlan, high: SequenceKey) -> None:
        """Remove the entries whose sequence is not above `high`; may be repeated."""


class Explains(Protocol):
    """A sink that can say, without connecting, what it will run."""

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """Per stage (`fold`, `repair`, `write`) the text that runs, in the order in which it runs. ConfigProblem where the
        options of the lane do not suit the columns."""
