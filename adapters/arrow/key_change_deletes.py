"""Deletes of key changes that belong to another row than the current row of their key.

A database that checks keys at the end of a statement or transaction may give a row a key that another row still has:
`UPDATE t SET id = id + 1`. Its stream then contains the create of key 2 (by the row that arrived) before the delete of
key 2 (by the row that left). Only the image of that delete identifies its row: it differs from the last change of the key
in the same transaction.

An image is doubtful if it may be incomplete (`is_doubtful`). If a doubtful image differs, its row is unknown, and the
delete is rejected. Rejection happens in the comparison with the target's rows, so `key_change.split_segments` begins a
segment with such a delete.

If only changes have transaction ids (`TableSpec.by_tx`), the transaction of the target's row is unknown. A delete with an
image that differs from that row is rejected, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import KEY_CHANGE_DELETE, OP, TX, UNCHANGED, Op, sequence_columns
from replicator.domain.policy.plan import ApplyPlan

from .columns import rename_plainly


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


def asks_target(plan: ApplyPlan) -> bool:
    """True if deletes may have to be compared with the target's rows."""
    return can_have_foreign_deletes(plan) and (plan.table.by_commit or plan.table.by_tx)


def null_counts(plan: ApplyPlan, name: str) -> bool:
    """True if a NULL in an image is a value of this column; otherwise the row may have another value."""
    return not (plan.table.by_tx and name in plan.table.ignore_null)


def drop_foreign_deletes(changes: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, int]:
    """Changes in the order of arrival without deletes of other rows, and the number of these. `_moved_to` stays true for
    deletes that must be compared with the target's row (`apply.key_change_deletes`)."""
    marks = changes[KEY_CHANGE_DELETE]
    if not can_have_foreign_deletes(plan) or marks.null_count == len(marks):
        return changes, 0
    whose = find_owners(changes, plan)
    asked = [True if whose.get(i) is RowOwner.OPEN else None for i in range(changes.num_rows)]
    changes = changes.set_column(
        changes.column_names.index(KEY_CHANGE_DELETE), KEY_CHANGE_DELETE, pa.array(asked, pa.bool_())
    )
    others = [i for i, said in whose.items() if said is RowOwner.OTHERS]
    if not others:
        return changes, 0
    kept = [i for i in range(changes.num_rows) if whose.get(i) is not RowOwner.OTHERS]
    return changes.take(pa.array(kept, pa.int64())), len(others)


def is_doubtful(changes: pa.Table, names: Sequence[str]) -> pa.Array:
    """True for delete halves of key changes whose image has values of `names` that may not be the row's."""
    asked = pc.and_(pc.fill_null(changes[KEY_CHANGE_DELETE], False), pc.is_valid(changes[UNCHANGED]))
    if not pc.any(asked).as_py():
        return pa.repeat(False, changes.num_rows)
    places = pc.indices_nonzero(asked).to_pylist()
    unsent = {i: set(changes[UNCHANGED][i].as_py()).intersection(names) for i in places}
    found = {i for i, lacking in unsent.items() if any(changes[n][i].is_valid for n in lacking)}
    return pa.array([i in found for i in range(changes.num_rows)], pa.bool_())


def list_read_columns(plan: ApplyPlan) -> list[str]:
    """The columns that `find_owners` reads."""
    return [
        *plan.table.keys,
        OP,
        KEY_CHANGE_DELETE,
        TX,
        UNCHANGED,
        *sequence_columns(plan.table.sequence),
        *plan.shown_columns,
    ]


def find_owners(changes: pa.Table, plan: ApplyPlan) -> dict[int, RowOwner]:
    """The owner of every delete half of a key change, by row number. `changes` must be in the order of arrival."""
    near = _find_vacated_keys(changes, plan.table.keys)
    judge = _OwnerFinder(changes.select(list_read_columns(plan)).take(near), plan)
    return {near[i].as_py(): whose for i, whose in judge.find_owners().items()}


def _find_vacated_keys(changes: pa.Table, names: Sequence[str]) -> pa.Array:
    """The row numbers of truncates, and of changes of keys that a row left."""
    numbered = rename_plainly(changes.select(list(names))).append_column("n", pa.array(range(changes.num_rows), pa.int64()))
    keys = numbered.column_names[:-1]
    left = numbered.filter(pc.fill_null(changes[KEY_CHANGE_DELETE], False)).select(keys)
    of_keys = numbered.join(left, keys, join_type="left semi")["n"]
    truncates = pc.indices_nonzero(pc.equal(changes[OP], Op.TRUNCATE.value)).cast(pa.int64())
    return pc.unique(pa.chunked_array([*of_keys.chunks, truncates], pa.int64())).sort()


class _OwnerFinder:
    def __init__(self, rows: pa.Table, plan: ApplyPlan) -> None:
        self._by_commit, self._by_tx = plan.table.by_commit, plan.table.by_tx
        self._null_counts = {name: null_counts(plan, name) for name in plan.shown_columns}
        self._ops, self._tx, self._leaves = (rows[n].to_pylist() for n in (OP, TX, KEY_CHANGE_DELETE))
        self._keys = list(zip(*(rows[n].to_pylist() for n in plan.table.keys), strict=True))
        self._places = list(zip(*(rows[n].to_pylist() for n in sequence_columns(plan.table.sequence)), strict=True))
        self._unsent = [frozenset(names or ()) for names in rows[UNCHANGED].to_pylist()]
        self._values = {name: rows[name].to_pylist() for name in plan.shown_columns}
        self._cuts: list[Any] = []

    def find_owners(self) -> dict[int, RowOwner]:
        last: dict[tuple[Any, ...], int] = {}
        found: dict[int, RowOwner] = {}
        for i, key in enumerate(self._keys):
            if self._ops[i] == Op.TRUNCATE:
                self._cuts.append(self._places[i])
                continue
            if self._leaves[i] and self._ops[i] == Op.DELETE:
                found[i] = self._find_owner(last.get(key), i)
                if found[i] is RowOwner.OTHERS:
                    continue
            last[key] = i
        return found

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
        left = {n: self._values[n][before] for n in image.keys() - self._unsent[before] - unknown}
        return RowOwner.OTHERS if has_difference(image, left) else RowOwner.ITS_OWN

    def _is_same_transaction(self, one: int, other: int) -> bool:
        """True for changes of one transaction without a truncate between them."""
        start, end = self._places[one], self._places[other]
        same = self._tx[one] is not None and self._tx[one] == self._tx[other]
        same = same or (self._by_commit and start[0] == end[0])
        return same and start < end and not any(start < cut < end for cut in self._cuts)


def has_difference(image: dict[str, Any], row: dict[str, Any]) -> bool:
    """True if a value of the image differs from the row, in columns that both have. NULL equals NULL, NaN equals NaN."""
    return any(image[n] != row[n] and repr(image[n]) != repr(row[n]) for n in image.keys() & row.keys())
