"""Conditions on the columns of a source as the config writes them: expressions that are true or false."""

from __future__ import annotations

from functools import cache

from replicator.domain.policy.expr import AllOf, AnyOf, Expr, Lit, Not

from .expressions import EXPECTED, InvalidExpressionText, parse_expression


@cache
def parse_condition(text: str) -> Expr:
    """`text` as a condition over the source's own columns; NoExpression when it is none."""
    found = parse_expression(text)
    _refuse_no_condition(found)
    return found


def _refuse_no_condition(found: Expr) -> None:
    match found:
        case AllOf(terms) | AnyOf(terms):
            for term in terms:
                _refuse_no_condition(term)
        case Not(operand):
            _refuse_no_condition(operand)
        case Lit(value) if not isinstance(value, bool | None):
            raise InvalidExpressionText(f"has a constant where only a comparison is allowed; {EXPECTED}")
