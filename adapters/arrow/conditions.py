"""Conditions of the configuration (`domain.conditions`) over changes."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import UNSENT
from replicator.domain.conditions import comparable, constant
from replicator.domain.elements import plain
from replicator.domain.expr import AllOf, AnyOf, Col, Compare, Expr, IsNull, Lit, Not

COMPARISONS = {"=": "equal", "<>": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def holds(changes: pa.Table, condition: Expr) -> pa.ChunkedArray:
    """Per change whether the condition holds; false where it is unknown. The condition has passed `refuse_condition` for the
    table of this changes frame."""
    found = _truth(changes, condition)
    if isinstance(found, pa.Scalar):
        return pa.chunked_array([pa.repeat(pc.fill_null(found, False), changes.num_rows)])
    return pc.fill_null(found, False)


def unsent(changes: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Per change whether it did not send a value of this column; None where all did."""
    lists = changes[UNSENT]
    if lists.null_count == changes.num_rows:
        return None
    return pa.chunked_array([pa.array([names is not None and name in names for names in lists.to_pylist()], pa.bool_())])


def _truth(changes: pa.Table, condition: Expr) -> pa.ChunkedArray:
    """Three-valued: null where it is unknown."""
    match condition:
        case AllOf(terms) | AnyOf(terms):
            join, empty = (pc.and_kleene, True) if isinstance(condition, AllOf) else (pc.or_kleene, False)
            return reduce(join, [_truth(changes, term) for term in terms], pa.scalar(empty))
        case Not(operand):
            return pc.invert(_truth(changes, operand))
        case IsNull(Col(_, name)):
            return _known(changes, name, pc.is_null(changes[name]))
        case Compare(op, left, right):
            return pc.call_function(COMPARISONS[op], [*_sides(changes, left, right)])
        case Col(_, name):
            return _known(changes, name, _values(changes[name], pa.bool_()))
        case Lit(value):
            return pa.scalar(value, pa.bool_())
    raise AssertionError(f"no condition: {condition}")


def _sides(changes: pa.Table, left: Expr, right: Expr) -> list[pa.ChunkedArray]:
    """Both sides in one type: that of the first column, floating where the other one is."""
    names = [side.name for side in (left, right) if isinstance(side, Col)]
    kinds = [comparable(changes[name].type) for name in names]
    kind = next((k for k in kinds if pa.types.is_floating(k)), kinds[0])
    return [_side(changes, side, changes[names[0]].type, kind) for side in (left, right)]


def _side(changes: pa.Table, side: Expr, of: pa.DataType, kind: pa.DataType) -> pa.ChunkedArray:
    match side:
        case Lit():
            return constant(side, of).cast(kind)
        case Col(_, name):
            return _known(changes, name, _values(changes[name], kind))
    raise AssertionError(f"no side of a comparison: {side}")


def _values(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The values in a type in which they are compared; times with the finer unit of two stay as they are."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_timestamp(kind):
        return column.cast(plain(column.type))
    if pa.types.is_decimal(kind) and pa.types.is_integer(plain(column.type)):
        # Arrow compares the widest value of the integer type with the precision, not the values there are.
        column = column.cast(pa.decimal256(20, 0))
    return column.cast(kind)


def _known(changes: pa.Table, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """`values`, null where the column was not sent."""
    lacking = unsent(changes, name)
    return values if lacking is None else pc.if_else(lacking, pa.scalar(None, values.type), values)
