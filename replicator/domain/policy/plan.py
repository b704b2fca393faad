"""A policy as data: what each of the four stages (fold, related, repair, write) does for one table.

Plans are rendered by `adapters.sql` in one dialect per engine; no engine and no sink adds a rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import pyarrow as pa

from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_versions import SchemaVersion
from replicator.domain.sequence import Sequence
from replicator.domain.sequence_elements import get_element
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import to_text
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

from .expr import Expr

CDC_OP = "_cdc_op"
CDC_TS = "_cdc_ts"
EVENT_ID = "_event_id"
CDC_APPLIED_AT = "_cdc_applied_at"
CDC_UNSENT = "_cdc_unsent"
CDC_DELETED = "_cdc_deleted"
CDC_DELETED_AT = "_cdc_deleted_at"
START_AT = "__START_AT"
END_AT = "__END_AT"


def cdc_sequence_columns(count: int) -> tuple[str, ...]:
    """`_cdc_seq_1` to `_cdc_seq_<count>`: where a target keeps the sequence of each row."""
    return tuple(f"_cdc_seq_{i}" for i in range(1, count + 1))


def end_sequence_columns(count: int) -> tuple[str, ...]:
    """`_cdc_end_seq_1` to `_cdc_end_seq_<count>`: the sequence at which a version ended; null while it is open."""
    return tuple(f"_cdc_end_seq_{i}" for i in range(1, count + 1))


def last_sequence_columns(count: int) -> tuple[str, ...]:
    """`_cdc_last_seq_1` to `_cdc_last_seq_<count>`: the sequence of the newest change that a version stands for."""
    return tuple(f"_cdc_last_seq_{i}" for i in range(1, count + 1))


Action = Literal["update", "insert", "delete"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One branch of the MERGE: for rows that are there or not, when the condition holds, do the action.

    `assign` pairs target columns with expressions; empty for a delete. The first clause that holds wins.
    """

    matched: bool
    when: Expr
    action: Action
    assign: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True, slots=True)
class ReconcileRule:
    """What stage 3 decides per folded row, given the target's related rows and the ledger.

    `identity`: columns (of the rows frame) by which a row of the target is related.
    `guard`: `newer_condition` drops a row whose sequence is not above the related row's; `absent` drops one that is there.
    `complete`: values that were not sent are taken from the related row, or from the row of the old key after a key
    change; where there is none, or it is void (`_reset`), or marked as deleted, the row is rejected as INCOMPLETE.
    `uses_tombstones`: a row at or below a remembered delete of its key, or a remembered truncate, is dropped as superseded.
    `counted` (with `absent`): the last element of the sequence does not identify (`TableSpec.counted`). Of rows at or below
    `get_resent_limit` the n-th of one identity is there when the target has n of them.
    """

    identity: tuple[str, ...]
    guard: Literal["newer", "absent"]
    complete: bool
    uses_tombstones: bool
    counted: bool = False


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Stage 3 of a plan that keeps every version of a row (`sql.scd2`), in place of `ReconcileRule`.

    An upsert that differs from the version it follows in a column of `tracked` begins a version; one that does not is taken
    into it, whose columns `untracked` then hold what it says. What the versions do not show is remembered beside the target:
    changes that were taken into a version, and deletes that ended none.
    """

    tracked: tuple[str, ...]
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate:
    """A truncate: its sequence, and its event time in microseconds since 1970, if it has one."""

    sequence: Sequence
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Everything that decides how changes of one table become rows of one target.

    `fold`: `last` leaves one row per key, `none` keeps every change in arrival order. `merge_keys`, `clauses`: the
    MERGE of stage 4 over the rows frame: the columns of `target` plus `_op`; without merge keys rows are appended.
    `truncates`: a truncate clears the target's rows below its sequence; otherwise it is a row like any other.
    `soft_deletes`: neither deletes nor truncates remove rows, they mark them in `_cdc_deleted` and `_cdc_deleted_at`. In the
    rows frame `_cdc_deleted` is NULL for a delete that brings no values (those of the target's row stay, and without one
    nothing is written), and true for one that does: the row was written and deleted within the batch.
    `watermark`: the grace after which a change is late (`domain.policy.watermark`); None: however late, it is written.
    Under a watermark the fold leaves every change, because a sink tells late ones apart before it tells duplicates.
    `history`: the target keeps every version; then `reconcile` says nothing but what identifies a change.
    `retention`: how long deletes are remembered, under a plan with a ledger (`domain.policy.retention`); None: for ever.
    `versions`: the schemas that the sink is to remember from then on, each unless it does, once it has done to a target that
    is there what `SchemaVersion.reshaping` says.
    `row_transforms`: what becomes of the table's changes before the fold (`ports.engine.Engine.transform_rows`). `table`
    is the table as that leaves it.
    """

    policy: str
    table: TableSpec
    fold: Literal["last", "none"]
    target: tuple[Column, ...]
    reconcile: ReconcileRule
    merge_keys: tuple[str, ...]
    clauses: tuple[Clause, ...]
    truncates: bool
    watermark: timedelta | None = None
    history: HistoryPlan | None = None
    row_transforms: RowTransforms = NO_ROW_TRANSFORMS
    retention: timedelta | None = None
    versions: tuple[SchemaVersion, ...] = ()

    @property
    def target_schema(self) -> pa.Schema:
        """The target's columns in the order they are created."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.target])

    @property
    def soft_deletes(self) -> bool:
        """As the class says."""
        return self.table.soft_deletes

    @property
    def has_column_versions(self) -> bool:
        """Of each column the newest value counts (`sql.per_column`); stage 3 is that, and `reconcile` says nothing but what
        identifies a change."""
        return self.table.has_column_versions

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The columns by which the image of a delete shows the row that it is of: values that begin a version, and that come
        from the source."""
        added = {name for name, _ in self.row_transforms.column_transforms.additions}
        names = self.history.tracked if self.history else tuple(c.name for c in self.table.values)
        return tuple(name for name in names if name not in added)

    @property
    def rule(self) -> str:
        """The policy, what it identifies rows by and, where the configuration says, what orders them and which of them there
        are: rows written under another rule may not be applied to."""
        by = self.table.keys if self.history else self.merge_keys
        policy = f"{self.policy} with soft deletes" if self.soft_deletes else self.policy
        policy = f"{self.policy} with sequences per column" if self.has_column_versions else policy
        rule = f"{policy} by {', '.join(sorted(by))}" if by else policy
        order = ", ".join(f"{column.name} ({get_element(column.type)})" for column in self.table.ordered_by)
        rule = f"{rule} in the order of {order}" if order else rule
        return f"{rule} where {to_text(self.row_transforms.where)}" if self.row_transforms.where is not None else rule

    @property
    def fold_key(self) -> tuple[object, ...]:
        """Plans with equal fold keys share one folded frame."""
        table, whole, cuts = self.table, self.watermark is not None, self.history is not None
        return (
            self.fold,
            whole,
            cuts,
            table.name,
            table.keys,
            table.sequence,
            table.column_names,
            self.row_transforms,
            self.shown_columns,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of changes in one lane; every change is counted in exactly one field."""

    applied: int = 0
    folded: int = 0
    superseded: int = 0
    duplicate: int = 0
    filtered: int = 0
    rejected: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self.as_tuple(), other.as_tuple(), strict=True)))

    def as_tuple(self) -> tuple[int, int, int, int, int, int]:
        """The six counts in the order of the fields."""
        return (self.applied, self.folded, self.superseded, self.duplicate, self.filtered, self.rejected)

    @property
    def total(self) -> int:
        """The number of changes accounted for."""
        return sum(self.as_tuple())


@dataclass(frozen=True, slots=True)
class Facts:
    """What the fold saw, so that stages 2 and 3 run only when they can matter.

    `lowest` and `highest` are sequences over all changes of the batch (None when it has none); `has_unchanged`: some
    folded row lacks a value; `has_key_changes`: some folded row has an old key, or is a delete of which the target's row
    has to be asked; `has_doubtful_deletes`: so it is for a delete whose image may not be whole, or whose transaction the
    target's row does not tell; `has_deletes`: some folded row is a delete; `truncated_at`: the sequence of the last
    truncate, `truncate_time` its event time; `newest` the greatest event time in microseconds since 1970, or None.
    `truncates`: for a history, every truncate, in order of sequence. `max_delete`: the highest sequence of a delete, of
    all changes of the batch. Under a watermark, of the changes that it concerns: `oldest`, the least event time, and
    `max_event_times`, the greatest one of each partition.
    """

    lowest: Sequence | None = None
    highest: Sequence | None = None
    has_unchanged: bool = False
    has_key_changes: bool = False
    has_doubtful_deletes: bool = False
    has_deletes: bool = False
    truncated_at: Sequence | None = None
    truncate_time: int | None = None
    newest: int | None = None
    oldest: int | None = None
    max_event_times: Mapping[TopicPartition, int] = field(default_factory=dict)
    truncates: tuple[Truncate, ...] = ()
    max_delete: Sequence | None = None


@dataclass(frozen=True, slots=True)
class DeleteHorizon:
    """What had been deleted by a moment, in microseconds since 1970: nothing above the sequence `max_sequence`.
    `truncated`, where deletes leave rows: the highest truncate by then, which counts as a delete there."""

    until: int
    max_sequence: Sequence
    truncated: Sequence | None = None


@dataclass(frozen=True, slots=True)
class LaneState:
    """What a sink keeps beside a target, committed together with its rows.

    `position`: applied up to here. `max_sequence`: the highest sequence applied. `truncated_at`: the sequence of the last
    truncate: a change at or below it is superseded. `max_tombstone`: the highest sequence of a remembered delete.
    `identity`: per topic the broker's own id of it, so that a re-created topic is noticed. `rule`: that of the plan under
    which rows were written (`ApplyPlan.rule`); empty when nothing was. `max_event_time`: per partition the greatest event
    time among the changes up to `position`, in microseconds since 1970, as far as the lane had a watermark. `truncates`:
    every truncate of a history. `purged_up_to`: remembered deletes that were older than the retention are gone, none above
    its sequence; `delete_horizons`: what had been deleted by which moment since (`domain.policy.retention`).
    `purge_pending`: they are perhaps still to be removed. `side_table_version`: the version of what a lake keeps beside
    the target that belongs to these rows, where it has several. `copied_from`: the target that these rows came from, where
    what is kept beside them is still to be taken from.
    """

    position: Position = field(default_factory=Position)
    max_sequence: Sequence | None = None
    truncated_at: Sequence | None = None
    max_tombstone: Sequence | None = None
    identity: tuple[tuple[str, str], ...] = ()
    rule: str = ""
    max_event_time: Mapping[TopicPartition, int] = field(default_factory=dict)
    truncates: tuple[Truncate, ...] = ()
    purged_up_to: DeleteHorizon | None = None
    delete_horizons: tuple[DeleteHorizon, ...] = ()
    purge_pending: bool = False
    side_table_version: int | None = None
    copied_from: str = ""


def has_overlap(facts: Facts, state: LaneState) -> bool:
    """True when some change of the batch may be no newer than what the target holds, so related rows must be read."""
    return facts.lowest is not None and state.max_sequence is not None and facts.lowest <= state.max_sequence


def needs_reconcile(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True when stages 2 and 3 can change the outcome of this batch."""
    needs_others = plan.reconcile.complete and (facts.has_unchanged or facts.has_key_changes)
    return needs_others or has_overlap(facts, state)


def get_resent_limit(plan: ApplyPlan, state: LaneState, span: Span) -> Sequence | None:
    """The highest sequence of the lane when what is at or below it was sent before, perhaps with another count; None when
    counts are to be taken as they are. That is so where several partitions are read: one may simply be behind another."""
    return state.max_sequence if is_counting_copies(plan, state, span) else None


def is_counting_copies(plan: ApplyPlan, state: LaneState, span: Span) -> bool:
    """True when changes that are alike are told by how many there were."""
    return plan.reconcile.counted and len({*state.position, *span.end}) < 2


def merge_truncates(*several: tuple[Truncate, ...]) -> tuple[Truncate, ...]:
    """All truncates by sequence; of equal ones the first counts."""
    known = {cut.sequence: cut for cuts in reversed(several) for cut in reversed(cuts)}
    return tuple(known[sequence] for sequence in sorted(known))


def merge_facts(parts: Iterable[Facts]) -> Facts:
    """What is known of several parts of one batch that share no key and have no truncate: rows of one say nothing of those
    of another."""
    several = list(parts)
    reached: dict[TopicPartition, int] = {}
    for facts in several:
        reached.update({place: max(at, reached.get(place, at)) for place, at in facts.max_event_times.items()})
    return Facts(
        lowest=min((f.lowest for f in several if f.lowest is not None), default=None),
        highest=find_highest(*(f.highest for f in several)),
        has_unchanged=any(f.has_unchanged for f in several),
        has_key_changes=any(f.has_key_changes for f in several),
        has_doubtful_deletes=any(f.has_doubtful_deletes for f in several),
        has_deletes=any(f.has_deletes for f in several),
        newest=max((f.newest for f in several if f.newest is not None), default=None),
        oldest=min((f.oldest for f in several if f.oldest is not None), default=None),
        max_event_times=reached,
        max_delete=find_highest(*(f.max_delete for f in several)),
    )


def find_highest(*sequences: Sequence | None) -> Sequence | None:
    """The greatest of the known sequences, or None."""
    return max((s for s in sequences if s is not None), default=None)
