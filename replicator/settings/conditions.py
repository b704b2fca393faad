"""Conditions on the columns of a source as the config writes them: a part of SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any

from replicator.domain.expr import AllOf, AnyOf, Compare, Comparison, Expr, IsNull, Lit, Not, source

if TYPE_CHECKING:
    from sqlglot import exp

EXPECTED = (
    "conditions are made of columns, 'text', numbers, true, false, =, !=, <, <=, >, >=, in (...), is null, is not null, "
    "and, or, not and parentheses"
)
COMPARISONS: Mapping[str, Comparison] = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
CONSTANTS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
DIGITS = 38


class NoCondition(ValueError):
    """The text is no condition; what it says completes a sentence, and holds no text of a constant."""


@cache
def condition(text: str) -> Expr:
    """`text` as an expression over the source's own columns; NoCondition when it is none."""
    # Loaded here only: a config without conditions does without.
    import sqlglot  # noqa: PLC0415
    from sqlglot import errors, exp  # noqa: PLC0415

    try:
        return _read(sqlglot.parse_one(text, into=exp.Condition))
    except errors.ParseError as wrong:
        raise NoCondition(f"cannot be read{_place(wrong.errors)}; {EXPECTED}") from None
    except (errors.TokenError, RecursionError):
        raise NoCondition(f"cannot be read: a quote or a parenthesis is not closed, or too many are; {EXPECTED}") from None


def _place(errors: list[dict[str, Any]]) -> str:
    """Where the text ceases to make sense."""
    found = errors[0].get("col") if errors else None
    return f" at character {found}" if found else ""


def _read(node: exp.Expr) -> Expr:
    """Reads by the name of the class, so that nothing has to be loaded to say what is known."""
    name = type(node).__name__
    if name in COMPARISONS:
        return Compare(COMPARISONS[name], _operand(node.this), _operand(node.expression))
    if name in READERS:
        return READERS[name](node)
    found = _operand(node)
    if isinstance(found, Lit) and not isinstance(found.value, bool | None):
        raise NoCondition(f"has a constant where a comparison is to be; {EXPECTED}")
    return found


def _operand(node: exp.Expr) -> Expr:
    """A column or a constant."""
    name = type(node).__name__
    if name == "Column" and set(_said(node)) == {"this"} and type(node.this).__name__ == "Identifier":
        return source(node.name)
    if name == "Literal":
        return Lit(node.this if node.is_string else _number(node.this))
    if name == "Neg" and type(node.this).__name__ == "Literal" and not node.this.is_string:
        return Lit(_number(f"-{node.this.this}"))
    if name in ("Boolean", "Null"):
        return Lit(CONSTANTS[node.sql().lower()])
    if name == "Paren":
        return _operand(node.this)
    hint = "; a name with a dot is written in double quotes" if name in ("Column", "Dot") else ""
    raise NoCondition(f"has something else where a column or a constant is to be{hint}; {EXPECTED}")


def _said(node: exp.Expr) -> list[str]:
    return [key for key, value in node.args.items() if value not in (None, False, [])]


def _number(text: str) -> int | Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise NoCondition(f"has a number that is none; {EXPECTED}") from None
    if found.adjusted() >= DIGITS or -int(found.as_tuple().exponent) > DIGITS:
        raise NoCondition(f"has a number of more than {DIGITS} digits")
    return int(found) if found == found.to_integral_value() else found


def _in(node: exp.Expr) -> Expr:
    if not node.expressions or set(_said(node)) != {"this", "expressions"}:
        raise NoCondition("has an 'in' without a list of constants in parentheses")
    left = _operand(node.this)
    return AnyOf(tuple(Compare("=", left, _operand(item)) for item in node.expressions))


def _is(node: exp.Expr) -> Expr:
    if type(node.expression).__name__ != "Null" or type(node.this).__name__ != "Column":
        raise NoCondition("has an 'is' that is not COLUMN is null, or COLUMN is not null")
    return IsNull(_operand(node.this))


READERS: Mapping[str, Callable[[Any], Expr]] = {
    "And": lambda node: AllOf((_read(node.this), _read(node.expression))),
    "Or": lambda node: AnyOf((_read(node.this), _read(node.expression))),
    "Not": lambda node: Not(_read(node.this)),
    "Paren": lambda node: _read(node.this),
    "In": _in,
    "Is": _is,
}
