"""Computed columns (`domain.transform.columns.ColumnTransforms`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OLD_KEY, OP, Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.expr import Expr
from replicator.domain.transform.expression_resolver import resolve_expression

from .casts import cast_values
from .expressions import ExpressionRows
from .kernels import combine_arrays, first_reasons, lossy_cast_reasons

NO_TEXT = pa.scalar(None, pa.string())
UPSERTS = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])


@dataclass(frozen=True)
class ComputedColumn:
    """One column, NULL for deletes and truncates. `errors`: the reject of each change, or null. `unchanged`: upserts that
    sent no input of the column."""

    values: pa.Array
    errors: pa.Array
    unchanged: pa.Array


def compute_column(
    columns: Mapping[str, pa.ChunkedArray],
    name: str,
    expression: Expr,
    kind: pa.DataType,
    *,
    keys: Collection[str],
    lacking: pa.ChunkedArray,
) -> ComputedColumn:
    """The column `name` of type `kind`, from changes with these columns and the key `keys`. `lacking`: missing values."""
    node = resolve_expression(expression, {known: column.type for known, column in columns.items()})
    values, failed = ExpressionRows(columns, len(lacking)).evaluate(node)
    if values.type != kind:
        done, lost = cast_values(pa.chunked_array([values]), kind)
        values, failed = (
            combine_arrays(done, kind),
            first_reasons(failed, lossy_cast_reasons(combine_arrays(lost, pa.bool_()), kind)),
        )
    upsert = pc.is_in(columns[OP], value_set=UPSERTS).combine_chunks()
    partly, wholly = _find_missing(columns, node.columns, keys, lacking)
    errors = pc.if_else(pc.and_(upsert, pc.and_not(partly, wholly)), str(missing_input_reject(name)), NO_TEXT)
    known = pc.and_not(upsert, partly)
    if failed is not None:
        errors = pc.coalesce(errors, pc.if_else(known, _failure_texts(name, failed), NO_TEXT))
    return ComputedColumn(pc.if_else(known, values, pa.scalar(None, kind)), errors, pc.and_(upsert, wholly))


def _find_missing(
    columns: Mapping[str, pa.ChunkedArray], inputs: Collection[str], keys: Collection[str], lacking: pa.ChunkedArray
) -> tuple[pa.Array, pa.Array]:
    """The changes without some of the inputs, and the changes among them without any new input."""
    if lacking.null_count == len(lacking) or not inputs:
        return _no_values(len(lacking)), _no_values(len(lacking))
    lists = lacking.to_pylist()
    of_values = {name for name in inputs if name not in keys}
    partly = pa.array([names is not None and not of_values.isdisjoint(names) for names in lists], pa.bool_())
    wholly = pa.array([names is not None and of_values.issubset(names) for names in lists], pa.bool_())
    if OLD_KEY in columns and len(of_values) < len(inputs):
        wholly = pc.and_(wholly, pc.is_null(columns[OLD_KEY]).combine_chunks())
    return partly, pc.and_(wholly, partly)


def _no_values(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(False), count)


def _failure_texts(name: str, failed: pa.Array) -> pa.Array:
    known = failed.dictionary_encode()
    told = [why and str(expression_failure_reject(name, why)) for why in known.dictionary.to_pylist()]
    return pa.array(told, pa.string()).take(known.indices)


def missing_input_reject(name: str) -> Reject:
    """The reject of an upsert with only a part of the inputs."""
    return Reject(
        RejectCode.INCOMPLETE,
        f"an input of column {name!r} is computed of was not sent; have the source send whole rows for updates",
    )


def expression_failure_reject(name: str, why: str) -> Reject:
    """The reject of an upsert for which the expression fails."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"column {name!r} cannot be computed: {why}; correct the row, or the expression in 'columns'",
    )
