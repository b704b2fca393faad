"""A policy as data: the work of each of the four stages (fold, related rows, reconcile, write) for one table.

`adapters.sql` renders plans in one dialect per engine. No engine and no sink adds rules of its own."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from replicator.domain.expr import Expr
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.sequence import Sequence, SequenceValue, get_element
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import to_text
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

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
    """`_cdc_seq_1` to `_cdc_seq_<count>`: the target's columns for the sequence of each row."""
    return tuple(f"_cdc_seq_{i}" for i in range(1, count + 1))


def end_sequence_columns(count: int) -> tuple[str, ...]:
    """`_cdc_end_seq_1` to `_cdc_end_seq_<count>`: the sequence at which a version ended; null while it is open."""
    return tuple(f"_cdc_end_seq_{i}" for i in range(1, count + 1))


def last_sequence_columns(count: int) -> tuple[str, ...]:
    """`_cdc_last_seq_1` to `_cdc_last_seq_<count>`: the sequence of the newest change in a version."""
    return tuple(f"_cdc_last_seq_{i}" for i in range(1, count + 1))


Action = Literal["update", "insert", "delete"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One branch of the MERGE: for rows that match an existing row, or do not, with a true condition, do the action.

    `assign` pairs target columns with expressions; empty for a delete. The first clause that holds wins.
    """

    matched: bool
    when: Expr
    action: Action
    assign: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True, slots=True)
class ReconcileRule:
    """The rule of stage 3 for each folded row, with the target's related rows and its tombstones.

    - `identity`: columns (of the rows frame) that relate a row to a row of the target.
    - `guard`: `newer` drops a row whose sequence is not above the related row's sequence; `absent` drops a row that
      exists.
    - `complete`: unchanged values are read from the related row, or from the row of the old key after a key change.
      Without that row, or if it is void (`_reset`) or marked as deleted, the row is rejected as INCOMPLETE.
    - `uses_tombstones`: a row at or below a tombstone of its key, or a stored truncate, is dropped as superseded.
    - `counted` (with `absent`): the last element of the sequence does not identify (`TableSpec.counted`). At or below
      `get_resent_limit`, the n-th row of one identity is a duplicate if the target has n of them.
    """

    identity: tuple[str, ...]
    guard: Literal["newer", "absent"]
    complete: bool
    uses_tombstones: bool
    counted: bool = False


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Stage 3 of a plan that stores every version of a row (`sql.scd2`), instead of `ReconcileRule`.

    An upsert that differs from the previous version in a column of `tracked` starts a version. Any other upsert is
    absorbed into that version, which then has its values of the `untracked` columns. The side table stores the rest:
    changes that were absorbed, and deletes that ended no version.
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

    - `fold`: `last` keeps one row per key of the table, `none` keeps each change once, in arrival order.
    - `merge_keys`, `clauses`: the MERGE of stage 4 over the rows frame (the columns of `target` plus `_op`). Without
      merge keys rows are appended.
    - `truncates`: a truncate clears the target's rows below its sequence; otherwise it is a row like any other.
    - `soft_deletes`: deletes and truncates mark rows in `_cdc_deleted` and `_cdc_deleted_at`, and do not remove them.
      In the rows frame `_cdc_deleted` is NULL for a delete without values: the target's row keeps its values, and
      without a row nothing is written. It is true for a delete with values: the row was written and deleted within the
      batch.
    - `watermark`: the grace after which a change is late (`domain.policy.late_changes`); None: no change is late. Under a
      watermark the fold keeps every change, because a sink finds late changes before duplicates.
    - `history`: the target stores every version; then only `reconcile.identity` is used.
    - `retention`: how long tombstones are kept, if the plan uses them (`domain.policy.late_changes`); None: forever.
    - `versions`: the schemas that the sink has to store, unless it has. It first applies `SchemaVersion.reshaping` to
      an existing target.
    - `row_transforms`: applied to the table's changes before the fold (`ports.engine.Engine.transform_rows`). `table`
      is the table after them.
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
    def soft_deletes(self) -> bool:
        """See the class."""
        return self.table.soft_deletes

    @property
    def has_column_versions(self) -> bool:
        """The newest value of each column wins (`sql.per_column`). That is stage 3; only `reconcile.identity` is used."""
        return self.table.has_column_versions

    @property
    def delete_evidence_columns(self) -> tuple[str, ...]:
        """The columns that are compared to decide whether a delete belongs to the target's row. Columns that the lane
        adds, and untracked columns of a history, prove nothing."""
        added = {name for name, _ in self.row_transforms.column_transforms.additions}
        names = self.history.tracked if self.history else tuple(c.name for c in self.table.values)
        return tuple(name for name in names if name not in added)

    @property
    def rule(self) -> str:
        """The policy, its identifying columns and, if configured, its order and its row filter. Rows that were written
        under another rule must not be changed."""
        by = self.table.keys if self.history else self.merge_keys
        policy = f"{self.policy} with soft deletes" if self.soft_deletes else self.policy
        policy = f"{self.policy} with sequences per column" if self.has_column_versions else policy
        rule = f"{policy} by {', '.join(sorted(by))}" if by else policy
        order = ", ".join(f"{column.name} ({get_element(column.type)})" for column in self.table.ordered_by)
        rule = f"{rule} in the order of {order}" if order else rule
        return f"{rule} where {to_text(self.row_transforms.where)}" if self.row_transforms.where is not None else rule

    @property
    def fold_sharing_key(self) -> tuple[object, ...]:
        """Plans with an equal `fold_sharing_key` share one folded frame."""
        table, keeps_all, has_history = self.table, self.watermark is not None, self.history is not None
        return (
            self.fold,
            keeps_all,
            has_history,
            table.name,
            table.keys,
            table.sequence,
            table.column_names,
            self.row_transforms,
            self.delete_evidence_columns,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The outcomes of changes in one lane; every change is counted in exactly one field."""

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
        """The number of counted changes."""
        return sum(self.as_tuple())


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a batch from the fold, so that stages 2 and 3 run only if they can matter.

    - `lowest`, `highest`: sequences over all changes of the batch; None for an empty batch.
    - `has_unchanged`: some folded row has an unchanged value.
    - `has_key_changes`: some folded row has an old key, or is a delete that has to be compared with the target's row.
    - `has_doubtful_deletes`: some of these deletes have an image that may not be complete, or a transaction that the
      target's row does not show.
    - `has_deletes`: some folded row is a delete. `max_delete`: the highest sequence of a delete, of all changes.
    - `truncated_at`, `truncate_time`: sequence and event time of the last truncate.
    - `truncates`: for a plan with `history`, every truncate, in order of sequence.
    - `newest`: the greatest event time in microseconds since 1970, or None.
    - `oldest`, `max_event_times`: under a watermark, for the changes that it concerns, the least event time, and the
      greatest one of each partition.
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
    """The deletes up to a time, `until`, in microseconds since 1970: none is above the sequence `max_sequence`.
    `truncated`, under soft deletes: the highest truncate by then, which counts as a delete there."""

    until: int
    max_sequence: Sequence
    truncated: Sequence | None = None


@dataclass(frozen=True, slots=True)
class LaneState:
    """The state that a sink stores with a target, committed together with its rows.

    - `position`: all changes below it are applied. `max_sequence`: the highest applied sequence.
    - `truncated_at`: the sequence of the last truncate; a change at or below it is superseded. `truncates`: every
      truncate of an scd2 table.
    - `max_side_table_sequence`: the highest sequence in the side table: of a tombstone, for scd2 of an absorbed change.
    - `identity`: per topic the broker's id of it, so that a topic that was created again is detected.
    - `rule`: the `ApplyPlan.rule` under which rows were written; empty if there are none.
    - `max_event_time`: per partition the greatest event time of the changes up to `position`, in microseconds since
      1970, while the lane had a watermark.
    - `purged_up_to`: tombstones older than the retention are deleted, none of them above its sequence.
      `delete_horizons`: the deletes by time since then (`domain.policy.late_changes`). `purge_pending`: the deletion may
      not be finished.
    - `side_table_version`: the version of a lake's side table that belongs to these rows, if it has several.
    - `copied_from`: the target from which these rows were copied, while its side table still has to be copied.
    """

    position: Position = field(default_factory=Position)
    max_sequence: Sequence | None = None
    truncated_at: Sequence | None = None
    max_side_table_sequence: Sequence | None = None
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
    """True if some change of the batch may not be newer than the rows of the target, so related rows must be read."""
    return facts.lowest is not None and state.max_sequence is not None and facts.lowest <= state.max_sequence


def needs_reconcile(plan: ApplyPlan, facts: Facts, state: LaneState) -> bool:
    """True if stages 2 and 3 can change the outcome of this batch."""
    needs_others = plan.reconcile.complete and (facts.has_unchanged or facts.has_key_changes)
    return needs_others or has_overlap(facts, state)


def get_resent_limit(plan: ApplyPlan, state: LaneState, span: Span) -> Sequence | None:
    """The lane's highest sequence, if changes at or below it were sent before, perhaps with another count. None if
    counts are valid as they are: with several partitions one may simply be behind another."""
    return state.max_sequence if is_counting_copies(plan, state, span) else None


def is_counting_copies(plan: ApplyPlan, state: LaneState, span: Span) -> bool:
    """True if equal changes are identified by their number."""
    return plan.reconcile.counted and len({*state.position, *span.end}) < 2


def merge_truncates(*several: tuple[Truncate, ...]) -> tuple[Truncate, ...]:
    """All truncates by sequence; of equal ones the first counts."""
    by_sequence = {truncate.sequence: truncate for truncates in reversed(several) for truncate in reversed(truncates)}
    return tuple(by_sequence[sequence] for sequence in sorted(by_sequence))


def merge_facts(parts: Iterable[Facts]) -> Facts:
    """The facts of several slices of one batch that share no key and have no truncate. Rows of one slice do not affect
    another."""
    several = list(parts)
    reached: dict[TopicPartition, int] = {}
    for facts in several:
        reached.update({partition: max(at, reached.get(partition, at)) for partition, at in facts.max_event_times.items()})
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


# A lane's state as JSON, as the stores of targets keep it with the rows.


def state_to_json(state: LaneState) -> dict[str, object]:
    """Every field of `state`; bytes in a sequence become {"base64": ...}.

    `high`, `floor` and `ledger_high` are the stored names of `max_sequence`, `truncated_at` and
    `max_side_table_sequence`. Some keys are optional:

    - `reached`: only with a watermark.
    - `cuts`: only if an scd2 target was truncated.
    - `beside`: only with a side table version.
    - `took`: only while side tables must still be copied.
    - `forgotten` and `deletes`: only after a purge of tombstones, or before one. `owed`: a purge may not be finished.
    """
    return {
        "position": state.position.to_json(),
        "high": _sequence_to_json(state.max_sequence),
        "floor": _sequence_to_json(state.truncated_at),
        "ledger_high": _sequence_to_json(state.max_side_table_sequence),
        "identity": dict(state.identity),
        "rule": state.rule,
        **({"reached": Position(state.max_event_time).to_json()} if state.max_event_time else {}),
        **({"cuts": [[_sequence_to_json(cut.sequence), cut.at] for cut in state.truncates]} if state.truncates else {}),
        **({} if state.side_table_version is None else {"beside": state.side_table_version}),
        **({"took": state.copied_from} if state.copied_from else {}),
        **({"forgotten": _horizon_to_json(state.purged_up_to)} if state.purged_up_to is not None else {}),
        **({"deletes": [_horizon_to_json(deleted) for deleted in state.delete_horizons]} if state.delete_horizons else {}),
        **({"owed": True} if state.purge_pending else {}),
    }


def state_from_json(data: Mapping[str, Any]) -> LaneState:
    """Parses the result of `state_to_json`. `identity` may also be a list of pairs, as PostgreSQL stores it.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else."""
    identity, purged, version = data["identity"], data.get("forgotten"), data.get("beside")
    if version is not None and not isinstance(version, int):
        raise TypeError("a version is a number")
    return LaneState(
        position=Position.from_json(data["position"]),
        max_sequence=_sequence_from_json(data["high"]),
        truncated_at=_sequence_from_json(data["floor"]),
        max_side_table_sequence=_sequence_from_json(data["ledger_high"]),
        identity=tuple((str(topic), str(topic_id)) for topic, topic_id in identity)
        if isinstance(identity, list)
        else tuple(sorted(identity.items())),
        rule=_check_text(data["rule"]),
        max_event_time=Position.from_json(data.get("reached", {})).offsets,
        truncates=tuple(Truncate(_sequence_from_json(sequence) or (), at) for sequence, at in data.get("cuts", [])),
        side_table_version=version,
        copied_from=_check_text(data.get("took", "")),
        purged_up_to=None if purged is None else _horizon_from_json(purged),
        delete_horizons=tuple(map(_horizon_from_json, data.get("deletes", ()))),
        purge_pending=bool(data.get("owed", False)),
    )


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _horizon_to_json(deleted: DeleteHorizon) -> list[object]:
    truncated = [] if deleted.truncated is None else [_sequence_to_json(deleted.truncated)]
    return [deleted.until, _sequence_to_json(deleted.max_sequence), *truncated]


def _horizon_from_json(entry: Any) -> DeleteHorizon:
    until, high, *more = entry
    sequence, truncated = _sequence_from_json(high), _sequence_from_json(*more) if more else None
    if not isinstance(until, int) or sequence is None or (more and truncated is None):
        raise TypeError("a time and one or two sequences")
    return DeleteHorizon(until, sequence, truncated)


def _sequence_to_json(sequence: Sequence | None) -> list[object] | None:
    if sequence is None:
        return None
    return [{"base64": b64encode(e).decode()} if isinstance(e, bytes) else e for e in sequence]


def _sequence_from_json(data: Any) -> Sequence | None:
    if data is None:
        return None
    if not isinstance(data, list):
        raise TypeError("a sequence is a list")
    return tuple(_element_from_json(e) for e in data)


def _element_from_json(element: Any) -> SequenceValue:
    if isinstance(element, dict):
        return b64decode(element["base64"])
    if isinstance(element, int | str):
        return element
    raise TypeError("an element of a sequence is a number, text or bytes")
