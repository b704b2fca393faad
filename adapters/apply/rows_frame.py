"""Turns a folded frame into the rows frame that is written: the target's columns, and the inputs of stages 3
and 4."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain import change
from replicator.domain.policy.plan import (
    CDC_APPLIED_AT,
    CDC_DELETED,
    CDC_DELETED_AT,
    CDC_OP,
    CDC_TS,
    CDC_UNSENT,
    END_AT,
    EVENT_ID,
    START_AT,
    ApplyPlan,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.policy.policies import get_start_type

from ..arrow.key_change import can_have_foreign_deletes
from ..arrow.sequence_elements import to_values
from ..sql.reconcile import old_key_columns


def to_rows(folded: pa.Table, plan: ApplyPlan, applied_at: datetime) -> pa.Table:
    """The rows frame of a folded frame. `applied_at` is one value for the batch.

    - `_op`.
    - The columns of `plan.target`, in order and with their types.
    - `_unsent`, `_reset`.
    - `_from_1..n`: the old key; null unless the key changed. For a delete that must be compared with the
      target's row, its own key.
    - `_topic`, `_partition`, `_offset`.

    If `plan.truncates`, truncates are not rows (see `Facts.truncated_at`), except under
    `plan.has_column_versions`.
    """
    if plan.truncates and not plan.has_column_versions and folded.num_rows:
        folded = folded.filter(pc.not_equal(folded[change.OP], change.Op.TRUNCATE.value))
    extra = _computed_columns(folded, plan, applied_at)
    extra |= {stored: folded[sent] for stored, sent in copied_columns(plan).items()}
    empty = end_columns(plan)
    columns: dict[str, pa.Array] = {change.OP: folded[change.OP]}
    for column in plan.target:
        if column.name in empty:
            columns[column.name] = pa.nulls(folded.num_rows, column.type)
        else:
            columns[column.name] = extra[column.name] if column.name in extra else folded[column.name].cast(column.type)
    columns[change.UNCHANGED] = folded[change.UNCHANGED]
    if plan.table.ignore_null or plan.soft_deletes:
        # The missing values without which there is no row. A NULL that means "not sent" may stay NULL if there is no row.
        # A delete that must be compared with the target's row keeps its names.
        pairs = zip(folded[change.UNCHANGED].to_pylist(), folded[change.KEY_CHANGE_DELETE].to_pylist(), strict=True)
        needed = [
            None if names and names[0] == change.KEEP_EXISTING and not compared else names for names, compared in pairs
        ]
        columns[change.UNCHANGED] = pa.array(needed, folded[change.UNCHANGED].type)
    has_reset = change.RESET in folded.column_names
    columns[change.RESET] = folded[change.RESET] if has_reset else pa.repeat(pa.scalar(False), folded.num_rows)
    columns.update(_old_key_columns(folded, plan))
    columns.update({name: folded[name] for name in change.RECORD_POSITION})
    return pa.table(columns)


def build_event_ids(frame: pa.Table) -> pa.Array:
    """`<topic>-<partition>-<offset>` of every row."""
    parts = [frame[name].cast(pa.string()) for name in change.RECORD_POSITION]
    return pc.binary_join_element_wise(*parts, "-")


def copied_columns(plan: ApplyPlan) -> dict[str, str]:
    """The bookkeeping columns that have the value of a column of the change: their name, and the column of the change.

    With history, every change is the version that it would start.
    """
    sequence = change.sequence_columns(plan.table.sequence)
    columns = {CDC_OP: change.OP, CDC_TS: change.TS, CDC_UNSENT: change.UNCHANGED}
    columns |= zip(cdc_sequence_columns(plan.table.sequence), sequence, strict=True)
    if plan.history:
        columns |= zip(last_sequence_columns(plan.table.sequence), sequence, strict=True)
        columns |= {START_AT: change.TS} if get_start_type(plan.table) is None else {}
    return columns


def end_columns(plan: ApplyPlan) -> tuple[str, ...]:
    """The columns that are null because a version that starts has no end."""
    return (END_AT, *end_sequence_columns(plan.table.sequence)) if plan.history else ()


def _computed_columns(folded: pa.Table, plan: ApplyPlan, applied_at: datetime) -> dict[str, pa.Array]:
    columns = {
        EVENT_ID: build_event_ids(folded),
        CDC_APPLIED_AT: pa.repeat(pa.scalar(applied_at, change.TIMESTAMP), folded.num_rows),
    }
    if plan.soft_deletes:
        # The marks are null for deletes that lack values; stage 3 decides these.
        is_delete = pc.equal(folded[change.OP], change.Op.DELETE.value)
        is_incomplete = pc.and_(is_delete, pc.is_valid(folded[change.UNCHANGED]))
        columns[CDC_DELETED] = pc.if_else(is_incomplete, pa.scalar(None, pa.bool_()), is_delete)
        columns[CDC_DELETED_AT] = pc.if_else(is_delete, folded[change.TS], pa.scalar(None, change.TIMESTAMP))
    start = get_start_type(plan.table) if plan.history else None
    if start is not None:
        columns[START_AT] = to_values(folded[change.sequence_columns(1)[0]], start)
    return columns


def _old_key_columns(folded: pa.Table, plan: ApplyPlan) -> dict[str, pa.Array]:
    if not plan.table.keys:
        return {}
    old_keys = folded[change.OLD_KEY].combine_chunks()
    # By index, because a name with dots or slashes is read as a path.
    old = {name: pc.struct_field(old_keys, i) for i, name in enumerate(old_key_columns(plan))}
    leaves = folded[change.KEY_CHANGE_DELETE]
    if not can_have_foreign_deletes(plan) or leaves.null_count == len(leaves):
        return old
    mask = pc.fill_null(leaves, False).combine_chunks()
    keys = zip(old.items(), plan.table.keys, strict=True)
    return {name: pc.if_else(mask, folded[key].combine_chunks(), values) for (name, values), key in keys}
