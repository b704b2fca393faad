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

The delete half of a key change with a doubtful image (`key_change_deletes.is_doubtful`) is the first change of its key
and transaction in the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import (
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    TOPIC,
    UNCHANGED,
    Op,
    sequence_columns,
)
from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import TableSpec

from .columns import rename_plainly
from .key_change_deletes import is_doubtful

DOUBTFUL = "_doubtful"
Key = tuple[object, ...]


def find_open_key_changes(changes: pa.Table) -> Position:
    """See `ports.engine.Frames.find_open_key_changes`."""
    if OLD_KEY not in changes.column_names or not pc.any(changes[KEY_CHANGE_DELETE]).as_py():
        return Position()
    waiting: dict[Key, tuple[TopicPartition, int]] = {}  # The create half may be in another partition.
    for half in _list_halves(changes):
        if half.arrives_from is None:
            waiting[half.key] = (half.partition, half.offset)
        else:
            waiting.pop(half.arrives_from, None)
    return Position.lowest(Position({partition: offset}) for partition, offset in waiting.values())


class _Half(NamedTuple):
    partition: TopicPartition
    offset: int
    key: Key
    arrives_from: Key | None


def _list_halves(changes: pa.Table) -> list[_Half]:
    mask = pc.or_(pc.fill_null(changes[KEY_CHANGE_DELETE], False), pc.is_valid(changes[OLD_KEY]))
    halves = changes.filter(mask)
    keys = [f.name for f in halves.schema.field(OLD_KEY).type]
    columns = [halves[n].to_pylist() for n in (TOPIC, PARTITION, OFFSET, OLD_KEY, *keys)]
    return [
        _Half(TopicPartition(topic, partition), offset, tuple(key), tuple(old.values()) if old else None)
        for topic, partition, offset, old, *key in zip(*columns, strict=True)
    ]


def split_segments(changes: pa.Table, table: TableSpec) -> Sequence[pa.Table]:
    """See `ports.engine.Frames.segments`."""
    doubtful = is_doubtful(changes, [c.name for c in table.values] if table.by_commit else [])
    cuts = find_cut_places(changes.append_column(DOUBTFUL, doubtful), table)
    if not cuts:
        return [changes]
    starts, ends = [0, *cuts], [*cuts, changes.num_rows]
    return [changes.slice(s, e - s) for s, e in zip(starts, ends, strict=True) if e > s]


def find_cut_places(changes: pa.Table, table: TableSpec) -> list[int]:
    """The row numbers at which new segments begin. Needs the columns of `list_read_columns`, and `_doubtful`."""
    if not table.keys or table.has_column_versions or not _can_need_cuts(changes, table):
        return []
    return _find_cuts(_list_key_changes(changes, table))


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
    if table.ordered_by or (table.ignore_null and len(set(map(_needs_row, changes[UNCHANGED].to_pylist())) - {None}) > 1):
        return True
    if pc.any(pc.or_(pc.and_(pc.is_valid(changes[OLD_KEY]), lacking), is_truncate)).as_py():
        return True
    keys = rename_plainly(changes.select(list(table.keys)))
    deleted = keys.filter(is_delete)
    both = keys.filter(lacking).join(deleted, keys.column_names, join_type="left semi")
    return bool(both.num_rows)


def _needs_row(unsent: Sequence[str] | None) -> bool | None:
    return None if unsent is None else KEEP_EXISTING not in unsent


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


def _list_key_changes(changes: pa.Table, table: TableSpec) -> list[_KeyChange]:
    keys = zip(*(changes[k].to_pylist() for k in table.keys), strict=True)
    columns = (changes[n].to_pylist() for n in (OP, OLD_KEY, UNCHANGED, KEY_CHANGE_DELETE, DOUBTFUL))
    ordering = _ordering_columns(table)
    places = zip(*(changes[n].to_pylist() for n in ordering), strict=True) if ordering else repeat((), changes.num_rows)
    return [
        _to_key_change(key, op, old, unsent, marks=(bool(departs), doubtful), place=place, table=table)
        for key, op, old, unsent, departs, doubtful, place in zip(keys, *columns, places, strict=True)
    ]


def _to_key_change(
    key: Key,
    op: str,
    old: dict[str, object] | None,
    unsent: Sequence[str] | None,
    *,
    marks: tuple[bool, bool],
    place: SequenceKey,
    table: TableSpec,
) -> _KeyChange:
    lacks = unsent is not None and op != Op.DELETE
    first = table.soft_deletes and op in (Op.DELETE, Op.TRUNCATE)
    departs, doubtful = marks
    needs = lacks and KEEP_EXISTING not in (unsent or ())
    place, commit = (place, ()) if table.ordered_by else ((), place)
    return _KeyChange(op, key, tuple(old.values()) if old else None, lacks, departs, place, needs, first, doubtful, commit)


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


def _find_cuts(changes: Sequence[_KeyChange]) -> list[int]:
    """The row numbers at which new segments begin. The changes between a cut and the change that caused it are checked
    again. Every cut is above the previous one, so this ends."""
    cuts: list[int] = []
    segment, i, start = _Segment(), 0, 0
    while i < len(changes):
        at = segment.find_cut(i, changes[i])
        if at is None and i > start and changes[i - 1].op == Op.TRUNCATE:
            at = i
        if at is not None and at > start:
            cuts.append(at)
            segment, i, start = _Segment(), at, at
        else:
            segment.add(i, changes[i])
            i += 1
    return cuts
