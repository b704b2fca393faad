"""Stages 3 and 4 of a plan, row by row over dicts: slow, and in memory. `FakeSink` applies rows with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.change import (
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    RESET,
    TOPIC,
    TS,
    UNCHANGED,
    Op,
    sequence_columns,
)
from replicator.domain.errors import AMBIGUOUS_DELETE, Reject, RejectCode
from replicator.domain.expr import AllOf, AnyOf, Coalesce, Col, Compare, Expr, IsNull, Lit, Not, SentValue
from replicator.domain.policy.late_changes import LatenessLimit, make_watermark_reject
from replicator.domain.policy.plan import (
    CDC_DELETED,
    CDC_DELETED_AT,
    CDC_OP,
    CDC_TS,
    CDC_UNSENT,
    EVENT_ID,
    ApplyPlan,
    DeleteHorizon,
    LaneState,
    cdc_sequence_columns,
    is_counting_copies,
)
from replicator.domain.position import Span, TopicPartition
from replicator.domain.sequence import Sequence

from .source import EPOCH, to_micros

Row = dict[str, Any]
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


def evaluate(expr: Expr, source: Mapping[str, Any], target: Mapping[str, Any]) -> Any:  # noqa: PLR0911  (a case each)
    """The value of `expr` for two rows; None for SQL's unknown."""
    match expr:
        case Col(side, name):
            return (source if side == "source" else target).get(name)
        case Lit(value):
            return value
        case SentValue(name):
            return (target if name in (source[UNCHANGED] or ()) else source).get(name)
        case Coalesce(first, other):
            inner = evaluate(first, source, target)
            return evaluate(other, source, target) if inner is None else inner
        case IsNull(operand) | Not(operand):
            inner = evaluate(operand, source, target)
            return inner is None if isinstance(expr, IsNull) else None if inner is None else not inner
        case Compare(op, left, right):
            values = evaluate(left, source, target), evaluate(right, source, target)
            return None if None in values else COMPARISONS[op](*values)
        case AllOf(terms) | AnyOf(terms):
            decisive, truths = isinstance(expr, AnyOf), [evaluate(term, source, target) for term in terms]
            return decisive if decisive in truths else None if None in truths else not decisive


def to_plain(value: Any) -> Any:
    """A hashable form of a value, equal for equal values, including NaN."""
    return repr(value) if isinstance(value, float | list | dict) else value


@dataclass
class PlainTarget:
    """The rows of one target, its tombstones and its last truncate.

    `resent_limit`: the `get_resent_limit` of the current write. `copies`: by identity, the number of rows at or
    below it. `late`: the `LatenessLimit` of the write, and its reject.
    """

    rows: list[Row] = field(default_factory=list)
    deletes: dict[tuple[Any, ...], Sequence] = field(default_factory=dict)
    truncated_at: Sequence | None = None
    resent_limit: Sequence | None = None
    copies: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    late: tuple[LatenessLimit, Reject] | None = None

    def copy(self) -> PlainTarget:
        """An independent copy."""
        return PlainTarget([dict(row) for row in self.rows], dict(self.deletes), self.truncated_at)

    def purge_tombstones(self, max_sequence: Sequence) -> None:
        """Remove tombstones at or below that sequence."""
        self.deletes = {key: sequence for key, sequence in self.deletes.items() if sequence > max_sequence}

    def purge_rows(self, plan: ApplyPlan, horizon: DeleteHorizon) -> None:
        """Remove marked rows whose delete or truncate is purged."""
        self.rows = [row for row in self.rows if not (row[CDC_DELETED] and _is_purged(plan, row, horizon))]

    def find(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Row | None:
        """The first row with these values."""
        return next(iter(self.all(names, values)), None)

    def all(self, names: tuple[str, ...], values: tuple[Any, ...]) -> list[Row]:
        """The rows with these values."""
        wanted = tuple(map(to_plain, values))
        return [row for row in self.rows if tuple(to_plain(row.get(n)) for n in names) == wanted]


@dataclass(frozen=True)
class Verdict:
    """The verdict for one row: a field of `plan.Counts`, and the reason of a reject."""

    outcome: str
    reject: Reject | None = None


APPLIED, DUPLICATE, SUPERSEDED = Verdict("applied"), Verdict("duplicate"), Verdict("superseded")


def apply_row(plan: ApplyPlan, target: PlainTarget, folded: Mapping[str, Any], related: PlainTarget) -> Verdict:
    """Apply one folded row to `target`. `related`: the target before the first row of the write."""
    marks, folded_change = _make_delete_flags(folded) if plan.soft_deletes else {}, folded
    if KEEP_EXISTING in (folded[UNCHANGED] or ()):
        folded = {**folded, UNCHANGED: None}
    row = to_row(plan, folded) | marks
    if folded[OP] == Op.TRUNCATE and plan.truncates:
        return _truncate_rows(plan, target, row)
    verdict = _check_other_row(plan, folded_change, related) or _check_stale(plan, target, row, related)
    if verdict is not None:
        return verdict
    if related.late is not None and _is_late(plan, row, related, related.late[0]):
        return Verdict("rejected", related.late[1])
    if plan.reconcile.complete and folded[UNCHANGED] is not None and folded[OP] != Op.DELETE:
        base = _find_base(plan, folded, related)
        if base is None:
            names = ", ".join(folded[UNCHANGED]) or "all columns at once"
            reject = Reject(RejectCode.INCOMPLETE, f"no value was sent for {names}, and there is no row to take it from")
            return Verdict("rejected", reject)
        row |= {name: base.get(name) for name in folded[UNCHANGED]}
    if plan.soft_deletes and folded[OP] == Op.DELETE and folded[UNCHANGED] is not None:
        base = _find_base(plan, folded, related)
        if base is not None:
            row |= {CDC_DELETED: True, **{name: base.get(name) for name in folded[UNCHANGED]}}
    if plan.reconcile.uses_tombstones and folded[OP] == Op.DELETE:
        target.deletes[_get_key(plan, row)] = get_sequence(plan, row)
    _write_row(plan, target, row)
    return APPLIED


def _check_other_row(plan: ApplyPlan, folded: Mapping[str, Any], related: PlainTarget) -> Verdict | None:
    """The verdict for the delete half of a key change that shows another row than the target's, in one transaction.

    Rejected if the image may not be that of its row, or if the transaction of the target's row is unknown
    (`by_tx`).
    """
    target_row = related.find(plan.table.keys, tuple(folded[k] for k in plan.table.keys))
    table = plan.table
    leaves = plan.fold == "last" and folded[OP] == Op.DELETE and folded[KEY_CHANGE_DELETE]
    if target_row is None or target_row.get(CDC_DELETED) or not (leaves and (table.by_commit or table.by_tx)):
        return None
    sequence = tuple(folded[name] for name in sequence_columns(plan.table.sequence))
    together = table.by_tx or sequence[:1] == get_sequence(plan, target_row)[:1]
    if not together or get_sequence(plan, target_row) >= sequence:
        return None
    differing = [n for n in plan.delete_evidence_columns if to_plain(folded[n]) != to_plain(target_row[n])]
    doubtful = {n for n in plan.delete_evidence_columns if n in (folded[UNCHANGED] or ())}
    if table.by_tx:
        is_void = {n for n in plan.delete_evidence_columns if folded[n] is None and n in table.ignore_null}
        return Verdict("rejected", AMBIGUOUS_DELETE) if {*differing} - doubtful - is_void else None
    if any(n not in doubtful for n in differing):
        return SUPERSEDED
    is_doubt = any(folded[n] is not None for n in doubtful)
    return Verdict("rejected", AMBIGUOUS_DELETE) if is_doubt and differing else None


def to_row(plan: ApplyPlan, folded: Mapping[str, Any]) -> Row:
    """The row of the rows frame: `_op` and the columns of `plan.target`, without the time of applying."""
    count = plan.table.sequence
    stored = zip(cdc_sequence_columns(count), sequence_columns(count), strict=True)
    bookkeeping = {
        CDC_OP: folded[OP],
        CDC_TS: folded["_ts"],
        EVENT_ID: f"{folded[TOPIC]}-{folded[PARTITION]}-{folded[OFFSET]}",
        CDC_UNSENT: folded[UNCHANGED],
        **{target_name: folded[frame_name] for target_name, frame_name in stored},
    }
    return {OP: folded[OP]} | {c.name: bookkeeping.get(c.name, folded.get(c.name)) for c in plan.target}


def _make_delete_flags(folded: Mapping[str, Any]) -> Row:
    """The columns of soft deletes. NULL so far for a delete without all values."""
    is_delete = folded[OP] == Op.DELETE
    lacks = is_delete and folded[UNCHANGED] is not None
    return {CDC_DELETED: None if lacks else is_delete, CDC_DELETED_AT: folded["_ts"] if is_delete else None}


def get_sequence(plan: ApplyPlan, row: Mapping[str, Any]) -> Sequence:
    """The sequence of a target row. Without one, a value lower than all others."""
    values = tuple(row[name] for name in cdc_sequence_columns(plan.table.sequence))
    return () if None in values else values


def _get_key(plan: ApplyPlan, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in plan.table.keys)


def _truncate_rows(plan: ApplyPlan, target: PlainTarget, row: Row) -> Verdict:
    sequence = get_sequence(plan, row)
    if target.truncated_at is not None and sequence <= target.truncated_at:
        return DUPLICATE if sequence == target.truncated_at else SUPERSEDED
    target.truncated_at = sequence
    old_rows = [old for old in target.rows if get_sequence(plan, old) < sequence]
    if plan.soft_deletes:
        for old in old_rows:
            old.update({} if old[CDC_DELETED] else {CDC_DELETED: True, CDC_DELETED_AT: row[CDC_TS]})
    else:
        target.rows = [old for old in target.rows if get_sequence(plan, old) >= sequence]
    return APPLIED


def _check_stale(plan: ApplyPlan, target: PlainTarget, row: Row, related: PlainTarget) -> Verdict | None:
    if plan.reconcile.guard == "absent":
        return DUPLICATE if _is_there(plan, row, related) else None
    target_row = related.find(plan.reconcile.identity, tuple(row[n] for n in plan.reconcile.identity))
    sequences: list[Sequence] = [get_sequence(plan, target_row)] if target_row else []
    if plan.reconcile.uses_tombstones:
        sequences.append(related.deletes.get(_get_key(plan, row), ()))
    sequence = get_sequence(plan, row)
    if sequence in sequences:
        return DUPLICATE
    floor = [target.truncated_at] if target.truncated_at is not None else []
    return SUPERSEDED if any(sequence <= other for other in (*sequences, *floor)) else None


def _is_purged(plan: ApplyPlan, row: Row, horizon: DeleteHorizon) -> bool:
    if row[CDC_OP] == Op.DELETE:
        return get_sequence(plan, row) <= horizon.max_sequence
    return horizon.truncated is not None and get_sequence(plan, row) < horizon.truncated


def _is_late(plan: ApplyPlan, row: Row, related: PlainTarget, lateness: LatenessLimit) -> bool:
    target_row = related.find(plan.reconcile.identity, tuple(row[n] for n in plan.reconcile.identity))
    has_row = target_row is not None and (lateness.clears is None or get_sequence(plan, target_row) >= lateness.clears)
    remembered = related.deletes.get(_get_key(plan, row), ()) > (lateness.truncated or ())
    return get_sequence(plan, row) <= lateness.max_purged and not has_row and not remembered


def _is_there(plan: ApplyPlan, row: Mapping[str, Any], related: PlainTarget) -> bool:
    names = plan.reconcile.identity
    if related.resent_limit is None or get_sequence(plan, row) > related.resent_limit:
        return related.find(names, tuple(row[n] for n in names)) is not None
    names = tuple(n for n in names if n != cdc_sequence_columns(plan.table.sequence)[-1])
    values = tuple(row[n] for n in names)
    identity = tuple(map(to_plain, values))
    related.copies[identity] += 1
    return len(related.all(names, values)) >= related.copies[identity]


def _find_base(plan: ApplyPlan, folded: Mapping[str, Any], related: PlainTarget) -> Row | None:
    moved_from = folded.get(OLD_KEY)
    if folded[RESET] and not moved_from:
        return None
    target_row = related.find(plan.table.keys, tuple((moved_from or folded)[k] for k in plan.table.keys))
    if target_row is None or target_row.get(CDC_DELETED):
        return None
    sequence = tuple(folded[name] for name in sequence_columns(plan.table.sequence))
    return None if moved_from and get_sequence(plan, target_row) >= sequence else target_row  # It is a newer row of the key.


def _write_row(plan: ApplyPlan, target: PlainTarget, row: Row) -> None:
    """Stage 4: run the first clause that matches."""
    stored = target.find(plan.merge_keys, tuple(row[k] for k in plan.merge_keys)) if plan.merge_keys else None
    target_row = {} if stored is None else stored
    for clause in plan.clauses:
        if clause.matched != (stored is not None) or not evaluate(clause.when, row, target_row):
            continue
        values = {name: evaluate(value, row, target_row) for name, value in clause.assign}
        match clause.action:
            case "insert":
                target.rows.append(values)
            case "update":
                target_row.update(values)
            case "delete":
                target.rows = [other for other in target.rows if other is not target_row]
        return


# The watermark, change by change over dicts. `FakeSink` checks it before it applies a row.


@dataclass
class PlainWatermark:
    """The watermark for the changes of one write. `seen`: the identities that passed."""

    plan: ApplyPlan
    lane: str
    max_event_times: dict[TopicPartition, int]
    counted: bool
    seen: set[tuple[Any, ...]] = field(default_factory=set)
    copies: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    last: Sequence = ()

    @classmethod
    def from_state(cls, plan: ApplyPlan, lane: str, state: LaneState, span: Span) -> PlainWatermark:
        """For the changes of `span` that are not in `state`."""
        return cls(plan, lane, dict(state.max_event_time), is_counting_copies(plan, state, span))

    def verdict(self, change: Mapping[str, Any]) -> Verdict | None:
        """Why the change does not pass; None if it passes, and always without a watermark."""
        if self.plan.watermark is None:
            return None
        # Snapshot reads, and changes without an event time, are never late.
        if change[TS] is not None and change[OP] != Op.READ:
            partition, time = TopicPartition(change[TOPIC], change[PARTITION]), to_micros(change[TS])
            newest = self.max_event_times.get(partition, time)
            self.max_event_times[partition] = max(newest, time)
            mark = EPOCH + timedelta(microseconds=newest) - self.plan.watermark
            if change[TS] < mark:
                return Verdict("rejected", make_watermark_reject(_to_text(change[TS]), _to_text(mark), self.lane))
        identity = self._get_identity(change)
        is_repeated = identity in self.seen
        self.seen.add(identity)
        return DUPLICATE if is_repeated else None

    def _get_identity(self, change: Mapping[str, Any]) -> tuple[Any, ...]:
        table = self.plan.table
        values = tuple(to_plain(change[name]) for name in table.keys or table.column_names)
        sequence = tuple(change[name] for name in sequence_columns(table.sequence))
        if not self.counted:
            return (*values, *sequence)
        if sequence <= self.last:
            self.copies.clear()
        self.last = sequence
        alike = (*values, *sequence[:-1])
        self.copies[alike] += 1
        return (*alike, self.copies[alike])


def _to_text(time: datetime) -> str:
    return str(time.replace(tzinfo=None))
