"""Expressions of the configuration (`domain.typed`) over the columns of a frame. Every engine evaluates them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.typed import Typed

from .steps import STEPS, Found, Texts, first_of, whole


@dataclass(frozen=True)
class Rows:
    """The columns that there are, each of `count` values. `lacking`: of columns that were not sent in every row, where."""

    columns: Mapping[str, pa.ChunkedArray]
    count: int
    lacking: Mapping[str, pa.Array] = field(default_factory=dict)

    def evaluated(self, node: Typed) -> Found:
        """The values of the expression, of its type, and why there is none where it failed: a division by zero, a number
        out of range, a cast that does not fit. Such a value is NULL."""
        values, failed = self._evaluated(node)
        return (values if failed is None else _where(pc.is_null(failed), values)), failed

    def _evaluated(self, node: Typed) -> Found:  # noqa: PLR0911  (a case each)
        match node.does:
            case "column":
                return whole(self.columns[node.value], node.type), None
            case "constant":
                return pa.repeat(pa.scalar(node.value, node.type), self.count), None
            case "and" | "or":
                return self._joined(node)
            case "not":
                values, failed = self.asked(node.operands[0])
                return pc.invert(values), failed
            case "is null":
                values, failed = self.evaluated(node.operands[0])
                return pc.is_null(values), failed
            case "case":
                return self._case(node)
            case "coalesce":
                return self._first(node)
        operands = [self.evaluated(operand) for operand in node.operands]
        values, failed = STEPS[node.does](node, [found for found, _ in operands])
        return values, first_of(*(why for _, why in operands), failed)

    def asked(self, node: Typed) -> Found:
        """As `evaluated`, of a condition: what asks for a column that was not sent is unknown."""
        if node.does in ("and", "or", "not"):
            return self.evaluated(node)
        values, failed = self.evaluated(node)
        for name in node.columns & self.lacking.keys():
            known = pc.invert(self.lacking[name])
            values, failed = _where(known, values), _where(known, failed)
        return values, failed

    def _joined(self, node: Typed) -> Found:
        """From left to right; what cannot change the answer any more is not asked, so that it cannot fail."""
        decides = node.does == "or"
        join = pc.or_kleene if decides else pc.and_kleene
        values, failed = pa.repeat(pa.scalar(not decides), self.count), None
        for operand in node.operands:
            others, why = self.asked(operand)
            if why is not None:
                failed = first_of(failed, _where(pc.fill_null(pc.not_equal(values, decides), True), why))
            values = join(values, others)
        return values, failed

    def _case(self, node: Typed) -> Found:
        *pairs, last = node.operands
        values, failed = pa.nulls(self.count, node.type), None
        left = pa.repeat(pa.scalar(True), self.count)
        for when, then in zip(pairs[::2], pairs[1::2], strict=True):
            holds, why = self.asked(when)
            failed = first_of(failed, _where(left, why))
            chosen = pc.and_(left, pc.fill_null(holds, False))
            left = pc.and_(left, pc.invert(chosen))
            values, failed = self._taken(then, chosen, values, failed)
        return self._taken(last, left, values, failed)

    def _first(self, node: Typed) -> Found:
        values, failed = self.evaluated(node.operands[0])
        for operand in node.operands[1:]:
            left = pc.is_null(values) if failed is None else pc.and_(pc.is_null(values), pc.is_null(failed))
            values, failed = self._taken(operand, left, values, failed)
        return values, failed

    def _taken(self, node: Typed, where: pa.Array, values: pa.Array, failed: Texts) -> Found:
        """`values`, and where this is asked for those of `node`."""
        if not pc.any(where).as_py():
            return values, failed
        others, why = self.evaluated(node)
        return pc.if_else(where, others, values), first_of(failed, _where(where, why))


def _where(mask: pa.Array, values: pa.Array | None) -> pa.Array | None:
    """The values where it is so."""
    return None if values is None else pc.if_else(mask, values, pa.scalar(None, values.type))
