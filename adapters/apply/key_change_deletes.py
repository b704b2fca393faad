"""Finds deletes that belong to another row than the target's row of the same key.

`arrow.key_change_deletes` does the same within a batch; this module is for batches that end between the two
changes. The rows frame marks the deletes to compare with the target: their own key is also their old key
(`_from_1..n`). `sql.reconcile.other_row_condition` is the same comparison as SQL.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OP, UNCHANGED, Op
from replicator.domain.policy.plan import (
    CDC_DELETED,
    ApplyPlan,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)

from ..arrow.key_change_deletes import asks_target, has_difference, null_counts
from ..sql.reconcile import old_key_columns


def mask_lookups(plan: ApplyPlan, rows: pa.Table) -> pa.ChunkedArray:
    """Per row of a rows frame: must it be compared with the target?"""
    if not asks_target(plan):
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.and_(pc.equal(rows[OP], Op.DELETE.value), pc.is_valid(rows[old_key_columns(plan)[-1]]))


def drop_foreign_deletes(plan: ApplyPlan, rows: pa.Table, related: pa.Table) -> tuple[pa.Table, int, pa.Table]:
    """Returns the rows without deletes of other rows, the number of such deletes, and the ambiguous deletes.

    `related`: the target's rows of these keys with the values of `plan.shown_columns`; additional rows are
    harmless.
    """
    if not pc.any(asked := mask_lookups(plan, rows)).as_py():
        return rows, 0, rows.slice(0, 0)
    there: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in related.to_pylist():
        there.setdefault(tuple(row[k] for k in plan.table.keys), []).append(row)
    left, ambiguous = [], []
    for i in pc.indices_nonzero(asked).to_pylist():
        (row,) = rows.slice(i, 1).to_pylist()
        unsent = frozenset(row[UNCHANGED] or ())
        whole, doubtful = ({n: row[n] for n in plan.shown_columns if (n in unsent) is lacks} for lacks in (False, True))
        others = [o for o in there.get(tuple(row[k] for k in plan.table.keys), ()) if _can_be_other_row(plan, row, o)]
        if plan.table.by_tx:
            doubtful, whole = {n: v for n, v in whole.items() if v is not None or null_counts(plan, n)}, {}
        if any(has_difference(whole, other) for other in others):
            left.append(i)
        elif any(v is not None for v in doubtful.values()) and any(has_difference(doubtful, other) for other in others):
            ambiguous.append(i)
    kept = pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), pa.array([*left, *ambiguous], pa.int64())))
    return rows.filter(kept), len(left), rows.take(pa.array(ambiguous, pa.int64()))


def _can_be_other_row(plan: ApplyPlan, row: dict[str, Any], other: dict[str, Any]) -> bool:
    """`sql.reconcile.other_row_condition` without the comparison of values."""
    names = cdc_sequence_columns(plan.table.sequence)
    mine, starts = tuple(row[n] for n in names), tuple(other[n] for n in names)
    if None in starts or starts >= mine or other.get(CDC_DELETED):
        return False
    commits = {starts[0]}
    if plan.history:
        ends = tuple(other[n] for n in end_sequence_columns(plan.table.sequence))
        if None not in ends and ends <= mine:
            return False
        commits.add(other[last_sequence_columns(plan.table.sequence)[0]])
    return plan.table.by_tx or mine[0] in commits
