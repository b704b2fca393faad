"""Conditions on the columns of a source as the config writes them: expressions that are true or false."""

from __future__ import annotations

from functools import cache

from replicator.domain.expr import AllOf, AnyOf, Expr, Lit, Not

from .expressions import EXPECTED, NoExpression, expression


@cache
def condition(text: str) -> Expr:
    """`text` as a condition over the source's own columns; NoExpression when it is none."""
    found = expression(text)
    _refuse(found)
    return found


def _refuse(found: Expr) -> None:
    match found:
        case AllOf(terms) | AnyOf(terms):
            for term in terms:
                _refuse(term)
        case Not(operand):
            _refuse(operand)
        case Lit(value) if not isinstance(value, bool | None):
            raise NoExpression(f"has a constant where a comparison is to be; {EXPECTED}")
