"""Columns that are computed of what a change sent (`domain.columns.Remade`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import MOVED_FROM, OP, Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.expr import Expr
from replicator.domain.resolving import resolved

from .casts import cast
from .expressions import Rows
from .steps import cast_lost, first_of, whole

NO_TEXT = pa.scalar(None, pa.string())
UPSERTS = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])


@dataclass(frozen=True)
class Computed:
    """One column, NULL of deletes and truncates. `errors`: why a change is rejected, null where it is not. `unsent`: the
    upserts that sent nothing of what it is made of."""

    values: pa.Array
    errors: pa.Array
    unsent: pa.Array


def computed(
    columns: Mapping[str, pa.ChunkedArray],
    name: str,
    expression: Expr,
    kind: pa.DataType,
    *,
    keys: Collection[str],
    lacking: pa.ChunkedArray,
) -> Computed:
    """The column `name`, of type `kind`, of changes with these columns, of which `keys` are the key. `lacking`: the
    names of what was not sent."""
    node = resolved(expression, {known: column.type for known, column in columns.items()})
    values, failed = Rows(columns, len(lacking)).evaluated(node)
    if values.type != kind:
        done, lost = cast(pa.chunked_array([values]), kind)
        values, failed = whole(done, kind), first_of(failed, cast_lost(whole(lost, pa.bool_()), kind))
    upsert = pc.is_in(columns[OP], value_set=UPSERTS).combine_chunks()
    partly, wholly = _lacks(columns, node.columns, keys, lacking)
    errors = pc.if_else(pc.and_(upsert, pc.and_not(partly, wholly)), str(untold(name)), NO_TEXT)
    known = pc.and_not(upsert, partly)
    if failed is not None:
        errors = pc.coalesce(errors, pc.if_else(known, _told(name, failed), NO_TEXT))
    return Computed(pc.if_else(known, values, pa.scalar(None, kind)), errors, pc.and_(upsert, wholly))


def _lacks(
    columns: Mapping[str, pa.ChunkedArray], inputs: Collection[str], keys: Collection[str], lacking: pa.ChunkedArray
) -> tuple[pa.Array, pa.Array]:
    """Which changes sent less than all of the inputs, and which of them sent nothing that is new."""
    if lacking.null_count == len(lacking) or not inputs:
        return _none(len(lacking)), _none(len(lacking))
    lists = lacking.to_pylist()
    of_values = {name for name in inputs if name not in keys}
    partly = pa.array([names is not None and not of_values.isdisjoint(names) for names in lists], pa.bool_())
    wholly = pa.array([names is not None and of_values.issubset(names) for names in lists], pa.bool_())
    if MOVED_FROM in columns and len(of_values) < len(inputs):
        wholly = pc.and_(wholly, pc.is_null(columns[MOVED_FROM]).combine_chunks())
    return partly, pc.and_(wholly, partly)


def _none(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(False), count)


def _told(name: str, failed: pa.Array) -> pa.Array:
    known = failed.dictionary_encode()
    told = [why and str(failing(name, why)) for why in known.dictionary.to_pylist()]
    return pa.array(told, pa.string()).take(known.indices)


def untold(name: str) -> Reject:
    """The reason of an upsert that sent a part of what a column is made of."""
    return Reject(
        RejectCode.INCOMPLETE,
        f"a part of what column {name!r} is computed of was not sent; have the source send whole rows for updates",
    )


def failing(name: str, why: str) -> Reject:
    """The reason of an upsert for which an expression has no value."""
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"column {name!r} cannot be computed: {why}; correct the row, or the expression in 'columns'",
    )
