"""Rows in the types of a target, and rows that it cannot store.

A rejected row is its number in the folded frame and a reason (`REJECTED`), until `to_rejects` looks up the row itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OP, UNCHANGED, Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan

from ..arrow.decimals import cast_digits, from_text
from ..arrow.record_errors import ValueMisfit

Rejected = TypeVar("Rejected")
ROW_NUMBER = "_place"
REJECTED = pa.schema([pa.field(ROW_NUMBER, pa.int64()), pa.field(ERROR, pa.string())])
"""Rejected rows: their number in the original frame, and the reason."""


def number_rows(rows: pa.Table) -> pa.Table:
    """`rows` with the column `_place`, their numbers from 0."""
    return rows.append_column(ROW_NUMBER, pa.array(range(rows.num_rows), pa.int64()))


def conform_to_schema(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Rows (with `_place`) in the types of `schema`, cast without loss, and the rest as `REJECTED`."""
    good, bad = cast_rows(rows, schema)
    return good, bad.select(REJECTED.names).cast(REJECTED)


def conform_changes(
    rows: pa.Table, plan: ApplyPlan, conform: Callable[[pa.Table], tuple[pa.Table, Rejected]]
) -> tuple[pa.Table, Rejected]:
    """The result of `conform`: rows (with `_place`) that fit, and the rest. A merge needs no values of a delete: one with a
    value that does not fit counts as a delete without values."""
    good, rejected = conform(rows)
    if not plan.merge_keys or good.num_rows == rows.num_rows:
        return good, rejected
    numbers, is_delete = rows[ROW_NUMBER], pc.equal(rows[OP], Op.DELETE.value)
    mask = pc.and_(is_delete, pc.invert(pc.is_in(numbers, value_set=good[ROW_NUMBER].combine_chunks())))
    if not pc.any(mask).as_py():
        return good, rejected
    names = [column.name for column in plan.table.values]
    for name in [*names, *([CDC_DELETED] if plan.soft_deletes else [])]:
        values = rows[name].take(pc.if_else(mask, None, numbers))
        rows = rows.set_column(rows.column_names.index(name), name, values)
    kind = rows.schema.field(UNCHANGED).type
    missing = pa.chunked_array([*rows[UNCHANGED].chunks, pa.array([names], kind)]).take(pc.if_else(mask, len(rows), numbers))
    return conform(rows.set_column(rows.column_names.index(UNCHANGED), UNCHANGED, missing))


def mask_written_rows(rows: pa.Table, plan: ApplyPlan) -> pa.ChunkedArray:
    """True for rows that the target stores.

    A merge stores no deletes, except soft deletes with their values. An append stores every row.
    """
    if plan.soft_deletes:
        return pc.is_valid(rows[CDC_DELETED])
    return pc.or_(pc.not_equal(rows[OP], Op.DELETE.value), not plan.merge_keys)


def require_values(rows: pa.Table, plan: ApplyPlan, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Rows to write that have a value in every column that must not be null, and the rest as `REJECTED`."""
    rejects = []
    for field in schema:
        if field.nullable or field.name not in rows.column_names or not rows[field.name].null_count:
            continue
        mask = pc.and_(pc.is_null(rows[field.name]), mask_written_rows(rows, plan))
        rows, bad = reject_rows(
            rows, plan, mask, out_of_range_reason(f"column {field.name!r} of the target must not be null")
        )
        rejects.append(bad)
    return rows, pa.concat_tables([REJECTED.empty_table(), *rejects])


def reject_rows(rows: pa.Table, plan: ApplyPlan, bad: pa.ChunkedArray, reason: str) -> tuple[pa.Table, pa.Table]:
    """The good rows, and the bad ones as `REJECTED`.

    A delete with bad values counts as a delete without values. In a batch of its own, the change with these
    values would be rejected, and the delete would not.
    """
    if plan.soft_deletes:
        is_delete = pc.equal(rows[OP], Op.DELETE.value)
        marks = pc.if_else(pc.and_(bad, is_delete), pa.scalar(None, pa.bool_()), rows[CDC_DELETED])
        rows = rows.set_column(rows.column_names.index(CDC_DELETED), CDC_DELETED, marks)
        bad = pc.and_(bad, pc.invert(is_delete))
    return rows.filter(pc.invert(bad)), to_refused(rows.filter(bad), reason)


def to_rejects(frame: pa.Table, *rejected_tables: pa.Table) -> pa.Table:
    """The rows of `frame` that `rejected_tables` name, with `_error`, in the order of `frame`."""
    all_of_them = pa.concat_tables([r.select(REJECTED.names).cast(REJECTED) for r in rejected_tables]).sort_by(ROW_NUMBER)
    rows = frame.take(all_of_them[ROW_NUMBER])
    if ERROR in rows.column_names:
        rows = rows.drop_columns([ERROR])
    return rows.append_column(ERROR, all_of_them[ERROR])


def out_of_range_reason(sentence: str) -> str:
    """The reason for a row with a value that the target cannot store."""
    return str(Reject(RejectCode.OUT_OF_RANGE, sentence))


def to_refused(rows: pa.Table, reason: str) -> pa.Table:
    """`rows` (with `_place`) as `REJECTED`, all with this reason."""
    columns = [rows[ROW_NUMBER], pa.repeat(pa.scalar(reason), rows.num_rows)]
    return pa.table(columns, schema=REJECTED)


# Casts of rows to the types of a target, with rejects for values that do not fit.

NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueMisfit)
"""Errors of a cast for values that do not fit."""


def cast_rows(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """`rows` with the columns of `schema` cast to its types without loss, and the rows that do not fit.

    Columns missing in `schema` stay unchanged. Rejected rows keep their original types and get `_error`.
    """
    cast_columns, bad = {}, {}
    for field in schema:
        if field.name in rows.column_names and not rows[field.name].type.equals(field.type):
            cast_columns[field.name], failing = cast_column(rows[field.name], field.type)
            bad.update({i: field.name for i in failing if i not in bad})
    good = rows
    for name, column in cast_columns.items():
        good = good.set_column(good.column_names.index(name), name, column)
    if not bad:
        return good, rows.slice(0, 0).append_column(ERROR, pa.nulls(0, pa.string()))
    keep = pa.array([i not in bad for i in range(rows.num_rows)])
    errors = [
        out_of_range_reason(f"the value of column {name!r} does not fit the target's type {schema.field(name).type}")
        for _, name in sorted(bad.items())
    ]
    rejects = rows.take(pa.array(sorted(bad), pa.int64())).append_column(ERROR, pa.array(errors, pa.string()))
    return good.filter(keep), rejects


def cast_column(column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.ChunkedArray, list[int]]:
    """`column` cast to `to`, and the row numbers of values that do not fit, which become null."""
    try:
        return _cast(column, to), []
    except NO_CAST:
        pieces, failing = _bisect(column, to, 0)
        return pa.chunked_array(pieces, to), failing


def _cast(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """A cast without Arrow's wrong results for text with many digits."""
    if pa.types.is_decimal(to) and pa.types.is_string(column.type):
        return pa.chunked_array([from_text(array, to) for array in column.chunks], to)
    return cast_digits(column, to)


def _bisect(column: pa.ChunkedArray, to: pa.DataType, start: int) -> tuple[list[pa.Array], list[int]]:
    """Cast halves until each failing value is alone. Few values fail, so this stays near linear."""
    try:
        whole = _cast(column, to)
    except NO_CAST:
        if len(column) == 1:
            return [pa.nulls(1, to)], [start]
    else:
        return list(whole.chunks), []
    half = len(column) // 2
    left, left_bad = _bisect(column.slice(0, half), to, start)
    right, right_bad = _bisect(column.slice(half), to, start + half)
    return left + right, left_bad + right_bad
