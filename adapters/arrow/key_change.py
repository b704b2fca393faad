"""Segments: the places where a stream of changes must be cut, and the places where it must not.

A key change is a delete of the old key (`_moved_to`) followed by a create of the new one (`_moved_from`). Values missing
in the create come from the old row as it was just before. So both halves must be applied to a target that already
contains that row, and still contains it. Other missing values come from the row with the same key. That row must not be
deleted, truncated or moved in the segment. Otherwise the result depends on how much of the segment was applied before,
because a connector may send changes again.

With configured ordering (`TableSpec.ordered_by`) changes arrive in any order. An earlier change may be older than the
target's row: then the row's values apply, not the values of the change. A change with missing values may find no row to
read them from: then a lower change of its key that arrives later applies.

A change whose NULLs keep the row's values (`TableSpec.ignore_null`) also has missing values, but needs no existing row.
It is not in one segment with a change of its key that needs a row, because only one of them may be rejected.

With soft deletes (`TableSpec.soft_deletes`) a delete keeps the row's values from the changes before it. If these may be
older than the target's row, the delete is the first change of its key in the segment. A truncate is the first change of
its segment: earlier changes are written first, and then marked.

The delete half of a key change with a doubtful image (`is_doubtful`) is the first change of its key
and transaction in the segment."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.change import (
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    TOPIC,
    TX,
    UNCHANGED,
    Op,
    sequence_columns,
)
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import TableSpec

DOUBTFUL = "_doubtful"
Key = tuple[object, ...]


def find_open_key_changes(changes: pa.Table) -> Position:
    """See `ports.engine.Frames.find_open_key_changes`."""
    if OLD_KEY not in changes.column_names or not pc.any(changes[KEY_CHANGE_DELETE]).as_py():
        return Position()
    mask = pc.or_(pc.fill_null(changes[KEY_CHANGE_DELETE], False), pc.is_valid(changes[OLD_KEY]))
    halves = to_comparable(changes.filter(mask))
    keys = [f.name for f in halves.schema.field(OLD_KEY).type]
    columns = [halves[n].to_pylist() for n in (TOPIC, PARTITION, OFFSET, OLD_KEY, *keys)]
    waiting: dict[Key, tuple[TopicPartition, int]] = {}  # The create half may be in another partition.
    for topic, partition, offset, old, *key in zip(*columns, strict=True):
        if old:
            waiting.pop(tuple(old.values()), None)
        else:
            waiting[tuple(key)] = (TopicPartition(topic, partition), offset)
    return Position.lowest(Position({partition: offset}) for partition, offset in waiting.values())


def split_segments(changes: pa.Table, table: TableSpec) -> Sequence[pa.Table]:
    """See `ports.engine.Frames.segments`."""
    doubtful = is_doubtful(changes, [c.name for c in table.values] if table.by_commit else [])
    cuts = find_segment_starts(changes.append_column(DOUBTFUL, doubtful), table)
    if not cuts:
        return [changes]
    starts, ends = [0, *cuts], [*cuts, changes.num_rows]
    return [changes.slice(s, e - s) for s, e in zip(starts, ends, strict=True) if e > s]


def find_segment_starts(changes: pa.Table, table: TableSpec) -> list[int]:
    """The row numbers at which new segments begin. Needs the columns of `list_read_columns`, and `_doubtful`. The changes
    between a cut and the change that caused it are checked again. Every cut is above the previous one, so this ends."""
    if not table.keys or table.has_column_versions or not _can_need_cuts(changes, table):
        return []
    changes = to_comparable(changes)
    keys = zip(*(changes[k].to_pylist() for k in table.keys), strict=True)
    columns = (changes[n].to_pylist() for n in (OP, OLD_KEY, UNCHANGED, KEY_CHANGE_DELETE, DOUBTFUL))
    ordering = _ordering_columns(table)
    orders = zip(*(changes[n].to_pylist() for n in ordering), strict=True) if ordering else repeat((), changes.num_rows)
    key_changes = [
        _to_key_change(key, op, old, unchanged, marks=(bool(departs), doubtful), order=order, table=table)
        for key, op, old, unchanged, departs, doubtful, order in zip(keys, *columns, orders, strict=True)
    ]
    cuts: list[int] = []
    segment, i, start = _Segment(), 0, 0
    while i < len(key_changes):
        at = segment.find_cut(i, key_changes[i])
        if at is None and i > start and key_changes[i - 1].op == Op.TRUNCATE:
            at = i
        if at is not None and at > start:
            cuts.append(at)
            segment, i, start = _Segment(), at, at
        else:
            segment.add(i, key_changes[i])
            i += 1
    return cuts


def list_read_columns(table: TableSpec) -> tuple[str, ...]:
    """The columns that decide where segments begin."""
    return (*table.keys, OP, OLD_KEY, UNCHANGED, KEY_CHANGE_DELETE, *_ordering_columns(table))


def _ordering_columns(table: TableSpec) -> tuple[str, ...]:
    """The columns that order changes arriving in any order, or that identify the commit."""
    return sequence_columns(table.sequence if table.ordered_by else int(table.by_commit))


def _can_need_cuts(changes: pa.Table, table: TableSpec) -> bool:
    """A fast check: True if cuts may be needed. Causes are doubtful images, and missing values. Missing values matter in
    key changes, in changes in any order, and next to a truncate or a delete of their key."""
    if pc.any(changes[DOUBTFUL]).as_py():
        return True
    is_delete, is_truncate = (pc.equal(changes[OP], op.value) for op in (Op.DELETE, Op.TRUNCATE))
    if table.soft_deletes and pc.any(pc.or_(is_truncate, is_delete) if table.ordered_by else is_truncate).as_py():
        return True
    lacking = pc.and_(pc.is_valid(changes[UNCHANGED]), pc.invert(is_delete))
    if not pc.any(lacking).as_py():
        return False
    is_mixed = False
    if table.ignore_null:  # Some of the changes need a row, and others do not.
        unchanged = changes[UNCHANGED].drop_null().to_pylist()
        is_mixed = len({KEEP_EXISTING in names for names in unchanged}) > 1
    if table.ordered_by or is_mixed:
        return True
    if pc.any(pc.or_(pc.and_(pc.is_valid(changes[OLD_KEY]), lacking), is_truncate)).as_py():
        return True
    keys = rename_plainly(changes.select(list(table.keys)))
    deleted = keys.filter(is_delete)
    both = keys.filter(lacking).join(deleted, keys.column_names, join_type="left semi")
    return bool(both.num_rows)


class _KeyChange(NamedTuple):
    """The facts of one change that matter here.

    - `has_missing`: values are missing. `needs`: so that a row must exist.
    - `departs`: the delete half of a key change.
    - `sequence`: empty if changes arrive in order.
    - `first`: with soft deletes, a delete or truncate.
    - `doubtful`: a delete with a doubtful image.
    - `commit`: the commit of its transaction, if known.
    """

    op: str
    key: Key
    old: Key | None
    has_missing: bool
    departs: bool
    sequence: SequenceKey
    needs: bool
    first: bool
    doubtful: bool
    commit: SequenceKey


def _to_key_change(
    key: Key,
    op: str,
    old: dict[str, object] | None,
    unchanged: Sequence[str] | None,
    *,
    marks: tuple[bool, bool],
    order: SequenceKey,
    table: TableSpec,
) -> _KeyChange:
    lacks = unchanged is not None and op != Op.DELETE
    first = table.soft_deletes and op in (Op.DELETE, Op.TRUNCATE)
    departs, doubtful = marks
    needs = lacks and KEEP_EXISTING not in (unchanged or ())
    order, commit = (order, ()) if table.ordered_by else ((), order)
    return _KeyChange(op, key, tuple(old.values()) if old else None, lacks, departs, order, needs, first, doubtful, commit)


class _Segment:
    """A segment under construction: the facts about its keys that decide if the next change may join it."""

    def __init__(self) -> None:
        self.touched: dict[Key, int] = {}
        self.commits: dict[Key, SequenceKey] = {}
        self.leaving: dict[Key, int] = {}
        self.founded: set[Key] = set()  # The target's row of these keys is void, and the segment lacks some of their values.
        self.lacking = False
        self.awaiting: dict[Key, SequenceKey] = {}  # The highest sequence of a key's changes with missing values.
        self.needy: dict[Key, bool] = {}  # True if a change of the key with missing values needs a row.

    def find_cut(self, i: int, change: _KeyChange) -> int | None:
        """The row number at which a new segment must begin for `change` at `i`, or None."""
        if change.op == Op.TRUNCATE:
            return i if self.lacking or change.first else None
        if change.first and change.sequence and change.key in self.touched:
            return i
        if change.doubtful and self.commits.get(change.key) == change.commit:
            return i
        at = self.leaving.get(change.old, i) if change.old else i
        if change.sequence < self.awaiting.get(change.key, ()) or (change.has_missing and self._can_hide_row(i, at, change)):
            return at
        return None

    def _can_hide_row(self, i: int, at: int, change: _KeyChange) -> bool:
        """True if changes in the segment may hide the row with the missing values, or may not apply themselves."""
        if change.old in self.touched and (self.touched[change.old] < at or at == i):
            return True
        if change.sequence and change.key in self.touched:
            return True
        return change.key in self.founded or self.needy.get(change.key, change.needs) != change.needs

    def add(self, i: int, change: _KeyChange) -> None:
        """Add the change."""
        self.touched.setdefault(change.key, i)
        self.commits[change.key] = change.commit
        self.lacking = self.lacking or change.has_missing
        if change.has_missing:
            self.needy[change.key] = change.needs
            self.awaiting[change.key] = max(change.sequence, self.awaiting.get(change.key, ()))
        if change.departs:
            self.leaving[change.key] = i
        if change.op == Op.DELETE or (change.old and change.has_missing):
            self.founded.add(change.key)
        elif not change.has_missing:
            self.founded.discard(change.key)


# Deletes of key changes that belong to another row than the current row of their key.
#
# A database that checks keys at the end of a statement or transaction may give a row a key that another row still has:
# `UPDATE t SET id = id + 1`. Its stream then contains the create of key 2 (by the row that arrived) before the delete of
# key 2 (by the row that left). Only the image of that delete identifies its row: it differs from the last change of the key
# in the same transaction.
#
# An image is doubtful if it may be incomplete (`is_doubtful`). If a doubtful image differs, its row is unknown, and the
# delete is rejected. Rejection happens in the comparison with the target's rows, so `split_segments` begins a
# segment with such a delete.
#
# If only changes have transaction ids (`TableSpec.by_tx`), the transaction of the target's row is unknown. A delete with an
# image that differs from that row is rejected, too.


class RowOwner(Enum):
    """The row to which the delete half of a key change belongs."""

    OTHERS = 1
    """Another row: a different row took the key before."""
    OPEN = 2
    """Unknown: no lower change of the key is in the batch, so the target's row decides."""
    ITS_OWN = 3


def can_have_foreign_deletes(plan: ApplyPlan) -> bool:
    """True if the plan identifies rows by their keys, and orders changes by sequence only."""
    return bool(plan.table.keys) and (plan.fold == "last" or plan.history is not None)


def needs_target_row(plan: ApplyPlan) -> bool:
    """True if deletes may have to be compared with the target's rows."""
    return can_have_foreign_deletes(plan) and (plan.table.by_commit or plan.table.by_tx)


def null_counts(plan: ApplyPlan, name: str) -> bool:
    """True if a NULL in an image is a value of this column; otherwise the row may have another value."""
    return not (plan.table.by_tx and name in plan.table.ignore_null)


def drop_foreign_deletes(changes: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, int]:
    """Changes in the order of arrival without deletes of other rows, and the number of these. `_moved_to` stays true for
    deletes that must be compared with the target's row (`apply.reconcile_in_process`)."""
    marks = changes[KEY_CHANGE_DELETE]
    if not can_have_foreign_deletes(plan) or marks.null_count == len(marks):
        return changes, 0
    owners = find_owners(changes, plan)
    is_open = [True if owners.get(i) is RowOwner.OPEN else None for i in range(changes.num_rows)]
    changes = changes.set_column(
        changes.column_names.index(KEY_CHANGE_DELETE), KEY_CHANGE_DELETE, pa.array(is_open, pa.bool_())
    )
    others = [i for i, owner in owners.items() if owner is RowOwner.OTHERS]
    if not others:
        return changes, 0
    rows = [i for i in range(changes.num_rows) if owners.get(i) is not RowOwner.OTHERS]
    return changes.take(pa.array(rows, pa.int64())), len(others)


def is_doubtful(changes: pa.Table, names: Sequence[str]) -> pa.Array:
    """True for delete halves of key changes whose image has values of `names` that may not be the row's."""
    marked = pc.and_(pc.fill_null(changes[KEY_CHANGE_DELETE], False), pc.is_valid(changes[UNCHANGED]))
    if not pc.any(marked).as_py():
        return pa.repeat(False, changes.num_rows)
    indices = pc.indices_nonzero(marked).to_pylist()
    unchanged = {i: set(changes[UNCHANGED][i].as_py()).intersection(names) for i in indices}
    doubtful = {i for i, lacking in unchanged.items() if any(changes[n][i].is_valid for n in lacking)}
    return pa.array([i in doubtful for i in range(changes.num_rows)], pa.bool_())


def list_owner_columns(plan: ApplyPlan) -> list[str]:
    """The columns that `find_owners` reads."""
    return [
        *plan.table.keys,
        OP,
        KEY_CHANGE_DELETE,
        TX,
        UNCHANGED,
        *sequence_columns(plan.table.sequence),
        *plan.delete_evidence_columns,
    ]


def find_owners(changes: pa.Table, plan: ApplyPlan) -> dict[int, RowOwner]:
    """The owner of every delete half of a key change, by row number. `changes` must be in the order of arrival. Only
    truncates, and changes of keys that a row left, are looked at."""
    names = list(plan.table.keys)
    numbered = rename_plainly(changes.select(names)).append_column("n", pa.array(range(changes.num_rows), pa.int64()))
    keys = numbered.column_names[:-1]
    keys_left = numbered.filter(pc.fill_null(changes[KEY_CHANGE_DELETE], False)).select(keys)
    of_keys = numbered.join(keys_left, keys, join_type="left semi")["n"]
    truncates = pc.indices_nonzero(pc.equal(changes[OP], Op.TRUNCATE.value)).cast(pa.int64())
    rows = pc.unique(pa.chunked_array([*of_keys.chunks, truncates], pa.int64())).sort()
    finder = _OwnerFinder(changes.select(list_owner_columns(plan)).take(rows), plan)
    return {rows[i].as_py(): owner for i, owner in finder.find_owners().items()}


class _OwnerFinder:
    def __init__(self, rows: pa.Table, plan: ApplyPlan) -> None:
        rows = to_comparable(rows)
        self._by_commit, self._by_tx = plan.table.by_commit, plan.table.by_tx
        self._null_counts = {name: null_counts(plan, name) for name in plan.delete_evidence_columns}
        self._ops, self._tx, self._leaves = (rows[n].to_pylist() for n in (OP, TX, KEY_CHANGE_DELETE))
        self._keys = list(zip(*(rows[n].to_pylist() for n in plan.table.keys), strict=True))
        self._places = list(zip(*(rows[n].to_pylist() for n in sequence_columns(plan.table.sequence)), strict=True))
        self._unsent = [frozenset(names or ()) for names in rows[UNCHANGED].to_pylist()]
        self._values = {name: rows[name].to_pylist() for name in plan.delete_evidence_columns}
        self._cuts: list[Any] = []

    def find_owners(self) -> dict[int, RowOwner]:
        last: dict[tuple[Any, ...], int] = {}
        owners: dict[int, RowOwner] = {}
        for i, key in enumerate(self._keys):
            if self._ops[i] == Op.TRUNCATE:
                self._cuts.append(self._places[i])
                continue
            if self._leaves[i] and self._ops[i] == Op.DELETE:
                owners[i] = self._find_owner(last.get(key), i)
                if owners[i] is RowOwner.OTHERS:
                    continue
            last[key] = i
        return owners

    def _find_owner(self, before: int | None, i: int) -> RowOwner:
        image = {n: v[i] for n, v in self._values.items() if self._null_counts[n] or v[i] is not None}
        if all(value is None for value in image.values()):
            return RowOwner.ITS_OWN
        if before is None or self._places[before] > self._places[i]:
            is_open = self._by_commit or (self._by_tx and self._tx[i] is not None)
            return RowOwner.OPEN if is_open else RowOwner.ITS_OWN
        if self._ops[before] == Op.DELETE or not self._is_same_transaction(before, i):
            return RowOwner.ITS_OWN
        # A doubtful image reaches this point only if commits differ within a transaction. No connector sends
        # that, so it may count.
        unknown = {n for n in self._unsent[i] if image.get(n) is None or not self._by_commit}
        row = {n: self._values[n][before] for n in image.keys() - self._unsent[before] - unknown}
        return RowOwner.OTHERS if has_difference(image, row) else RowOwner.ITS_OWN

    def _is_same_transaction(self, one: int, other: int) -> bool:
        """True for changes of one transaction without a truncate between them."""
        start, end = self._places[one], self._places[other]
        same = self._tx[one] is not None and self._tx[one] == self._tx[other]
        same = same or (self._by_commit and start[0] == end[0])
        return same and start < end and not any(start < cut < end for cut in self._cuts)


def has_difference(image: dict[str, Any], row: dict[str, Any]) -> bool:
    """True if a value of the image differs from the row, in columns that both have. NULL equals NULL, NaN equals NaN."""
    return any(image[n] != row[n] and repr(image[n]) != repr(row[n]) for n in image.keys() & row.keys())


def to_comparable(table: pa.Table) -> pa.Table:
    """`table` with numbers instead of dates and times. Python has no nanoseconds and no years after 9999."""
    return table.cast(pa.schema([f.with_type(_comparable_type(f.type)) for f in table.schema]))


def _comparable_type(kind: pa.DataType) -> pa.DataType:
    if t.is_struct(kind):
        return pa.struct([f.with_type(_comparable_type(f.type)) for f in kind])
    if t.is_list(kind):
        return pa.list_(_comparable_type(kind.value_type))
    if t.is_temporal(kind) and kind.bit_width <= 64:
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def rename_plainly(table: pa.Table) -> pa.Table:
    """`table` with columns `c0`, `c1` ...: some Arrow functions read a name with dots or brackets as a path."""
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])
