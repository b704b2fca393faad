"""Casts of rows to the types of a target, with rejects for values that do not fit."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.errors import Reject, RejectCode

from .decimals import cast_digits, from_text
from .record_errors import ValueMisfit

NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueMisfit)
"""Errors of a cast for values that do not fit."""


def conform_rows(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """`rows` with the columns of `schema` cast to its types without loss, and the rows that do not fit.

    Columns missing in `schema` stay unchanged. Rejected rows keep their original types and get `_error`.
    """
    cast, bad = {}, {}
    for field in schema:
        if field.name in rows.column_names and not rows[field.name].type.equals(field.type):
            cast[field.name], failing = cast_column(rows[field.name], field.type)
            bad.update({i: field.name for i in failing if i not in bad})
    good = _replace_columns(rows, cast)
    if not bad:
        return good, rows.slice(0, 0).append_column(ERROR, pa.nulls(0, pa.string()))
    keep = pa.array([i not in bad for i in range(rows.num_rows)])
    errors = [_describe_misfit(name, schema.field(name).type) for _, name in sorted(bad.items())]
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
        return pa.chunked_array([from_text(chunk, to) for chunk in column.chunks], to)
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


def _replace_columns(rows: pa.Table, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _describe_misfit(name: str, to: pa.DataType) -> str:
    return str(Reject(RejectCode.OUT_OF_RANGE, f"the value of column {name!r} does not fit the target's type {to}"))
