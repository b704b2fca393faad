"""Configured conditions (`domain.transform.expressions`) over changes."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import UNCHANGED
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.expr import Expr
from replicator.domain.transform.expression_resolver import resolve_boolean as with_types

from .expressions import ExpressionRows
from .kernels import Texts


def evaluate_condition(changes: pa.Table, condition: Expr) -> tuple[pa.Array, Texts]:
    """For each change True if the condition holds, False if it is unknown; and the reasons why it failed. The condition
    must have passed `refuse_condition` for the table of this frame."""
    found = with_types(condition, {field.name: field.type for field in changes.schema})
    lacking = {name: where for name in found.columns if (where := mask_missing(changes, name)) is not None}
    values, failed = ExpressionRows(select_columns(changes, found.columns), changes.num_rows, lacking).evaluate_condition(
        found
    )
    return pc.fill_null(values, False), failed


def select_columns(changes: pa.Table, names: Iterable[str]) -> dict[str, pa.ChunkedArray]:
    """Columns by their names."""
    return {name: changes[name] for name in names}


def mask_missing(changes: pa.Table, name: str) -> pa.Array | None:
    """True for changes with a missing value of this column; None if there are none."""
    lists = changes[UNCHANGED]
    if lists.null_count == changes.num_rows:
        return None
    return pa.array([names is not None and name in names for names in lists.to_pylist()], pa.bool_())


def unknown_condition_reject(key: str, why: str) -> Reject:
    """The reject of a change for which a condition failed."""
    return Reject(
        RejectCode.OUT_OF_RANGE, f"'{key}' cannot be evaluated for this row: {why}; correct the row, or the condition"
    )
