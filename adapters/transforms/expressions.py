"""Evaluation of configured expressions (`domain.transform.typed_expressions`) over frames, for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.transform.typed_expressions import TypedExpr

from .kernels import STEPS, Found, Texts, combine_arrays, first_reasons


@dataclass(frozen=True)
class ExpressionRows:
    """The input columns, each with `count` values. `missing`: for columns with missing values, the rows with them."""

    columns: Mapping[str, pa.ChunkedArray]
    count: int
    missing: Mapping[str, pa.Array] = field(default_factory=dict)

    def evaluate(self, node: TypedExpr) -> Found:
        """The values of the expression, and reasons for failures: a division by zero, a number out of range, a lossy
        cast. Failed values are NULL."""
        values, failed = self._evaluate(node)
        return (values if failed is None else _select_values(pc.is_null(failed), values)), failed

    def _evaluate(self, node: TypedExpr) -> Found:  # noqa: PLR0911  (one return per case)
        match node.operation:
            case "column":
                return combine_arrays(self.columns[node.value], node.type), None
            case "constant":
                return pa.repeat(pa.scalar(node.value, node.type), self.count), None
            case "and" | "or":
                return self._evaluate_junction(node)
            case "not":
                values, failed = self.evaluate_condition(node.operands[0])
                return pc.invert(values), failed
            case "is null":
                values, failed = self.evaluate(node.operands[0])
                return pc.is_null(values), failed
            case "case":
                return self._evaluate_case(node)
            case "coalesce":
                return self._evaluate_coalesce(node)
        operands = [self.evaluate(operand) for operand in node.operands]
        values, failed = STEPS[node.operation](node, [found for found, _ in operands])
        return values, first_reasons(*(why for _, why in operands), failed)

    def evaluate_condition(self, node: TypedExpr) -> Found:
        """Like `evaluate`, for conditions: a condition on a missing value is unknown."""
        if node.operation in ("and", "or", "not"):
            return self.evaluate(node)
        values, failed = self.evaluate(node)
        for name in node.columns & self.missing.keys():
            known = pc.invert(self.missing[name])
            values, failed = _select_values(known, values), _select_values(known, failed)
        return values, failed

    def _evaluate_junction(self, node: TypedExpr) -> Found:
        """From left to right. Operands that cannot change the result any more cannot fail."""
        decides = node.operation == "or"
        join = pc.or_kleene if decides else pc.and_kleene
        values, failed = pa.repeat(pa.scalar(not decides), self.count), None
        for operand in node.operands:
            others, why = self.evaluate_condition(operand)
            if why is not None:
                failed = first_reasons(failed, _select_values(pc.fill_null(pc.not_equal(values, decides), True), why))
            values = join(values, others)
        return values, failed

    def _evaluate_case(self, node: TypedExpr) -> Found:
        *pairs, last = node.operands
        values, failed = pa.nulls(self.count, node.type), None
        left = pa.repeat(pa.scalar(True), self.count)
        for when, then in zip(pairs[::2], pairs[1::2], strict=True):
            holds, why = self.evaluate_condition(when)
            failed = first_reasons(failed, _select_values(left, why))
            chosen = pc.and_(left, pc.fill_null(holds, False))
            left = pc.and_(left, pc.invert(chosen))
            values, failed = self._choose_values(then, chosen, values, failed)
        return self._choose_values(last, left, values, failed)

    def _evaluate_coalesce(self, node: TypedExpr) -> Found:
        values, failed = self.evaluate(node.operands[0])
        for operand in node.operands[1:]:
            left = pc.is_null(values) if failed is None else pc.and_(pc.is_null(values), pc.is_null(failed))
            values, failed = self._choose_values(operand, left, values, failed)
        return values, failed

    def _choose_values(self, node: TypedExpr, where: pa.Array, values: pa.Array, failed: Texts) -> Found:
        """`values`, replaced by the values of `node` where `where` is true."""
        if not pc.any(where).as_py():
            return values, failed
        others, why = self.evaluate(node)
        return pc.if_else(where, others, values), first_reasons(failed, _select_values(where, why))


def _select_values(mask: pa.Array, values: pa.Array | None) -> pa.Array | None:
    """The values where the mask is true, otherwise null."""
    return None if values is None else pc.if_else(mask, values, pa.scalar(None, values.type))
