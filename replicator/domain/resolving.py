"""From an expression as it is written to one with types (`domain.typed`)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa

from .casting import is_castable, is_textual
from .expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not
from .functions import called
from .typed import NUMBERS, WHOLE, Kind, Senseless, Typed, basic, constant, is_null, kind_of, literal, united

Types = Mapping[str, pa.DataType]


def resolved(expression: Expr, types: Types) -> Typed:  # noqa: PLR0911  (a case each)
    """The expression over columns of these types, all of which it has to find there. Raises Senseless."""
    match expression:
        case Lit(value):
            return literal(value)
        case Col(_, name):
            return Typed("column", types[name], value=name)
        case AllOf() | AnyOf() | Not() | IsNull() | Compare():
            return condition(expression, types)
        case Coalesce():
            return _first(expression, types)
        case Case(branches, otherwise):
            values = united([resolved(e, types) for e in (*(then for _, then in branches), otherwise)])
            asked = [condition(when, types) for when, _ in branches]
            pairs = [part for pair in zip(asked, values[:-1], strict=True) for part in pair]
            return Typed("case", values[0].type, (*pairs, values[-1]))
        case Cast(operand, kind):
            return _cast(operand, kind, types)
        case Call(name, arguments):
            return called(name, [resolved(argument, types) for argument in arguments])
    raise AssertionError(f"no expression: {expression}")


def condition(expression: Expr, types: Types) -> Typed:
    """The same, where what is true or false is to be; NULL is neither."""
    match expression:
        case AllOf(terms) | AnyOf(terms):
            name = "and" if isinstance(expression, AllOf) else "or"
            return Typed(name, pa.bool_(), tuple(condition(term, types) for term in terms))
        case Not(operand):
            return Typed("not", pa.bool_(), (condition(operand, types),))
        case IsNull(operand):
            return Typed("is null", pa.bool_(), (resolved(operand, types),))
        case Compare():
            return _compared(expression, types)
    found = resolved(expression, types)
    if is_null(found):
        return Typed("constant", pa.bool_())
    if kind_of(found.type) is not Kind.TRUTH:
        raise Senseless(f"takes {_named(expression, found)} for true or false")
    return basic(found)


def _named(expression: Expr, found: Typed) -> str:
    return f"column {expression.name!r} ({found.type})" if isinstance(expression, Col) else f"a value of type {found.type}"


def _first(expression: Expr, types: Types) -> Typed:
    terms: list[Expr] = []
    while isinstance(expression, Coalesce):
        terms.append(expression.first)
        expression = expression.other
    operands = united([resolved(term, types) for term in (*terms, expression)])
    return Typed("coalesce", operands[0].type, operands)


def _cast(operand: Expr, kind: pa.DataType, types: Types) -> Typed:
    found = resolved(operand, types)
    if found.does == "constant" and found.value is not None and is_textual(found.type) and kind_of(kind) in _TIMES:
        try:
            return constant(Lit(found.value), kind, "it")
        except Senseless:
            raise Senseless(f"has a text in it that is not {kind_of(kind)}") from None
    if is_null(found):
        return Typed("constant", kind)
    if not is_castable(found.type, kind):
        raise Senseless(f"casts {_named(operand, found)} to {kind}, which cannot be")
    return Typed("cast", kind, (found,))


_TIMES = (Kind.DAY, Kind.MOMENT, Kind.LOCAL_MOMENT)


def _compared(comparison: Compare, types: Types) -> Typed:
    sides = (comparison.left, comparison.right)
    valued = [(side, resolved(side, types)) for side in sides if not isinstance(side, Lit)]
    if not valued:
        raise Senseless("compares constants with each other")
    kinds = [kind_of(found.type) for _, found in valued]
    for (side, found), kind in zip(valued, kinds, strict=True):
        if kind is None:
            named = f"column {side.name!r}" if isinstance(side, Col) else "a value"
            raise Senseless(f"compares {named}, whose type {found.type} cannot be compared")
    if len(set(kinds)) > 1:
        words = "columns" if all(isinstance(side, Col) for side in sides) else "values"
        told = " and ".join(_named(side, found).removeprefix("column ") for side, found in valued)
        raise Senseless(f"compares {words} of different kinds: {told}")
    side, found = valued[0]
    if kinds[0] is Kind.TRUTH and comparison.op not in ("=", "<>"):
        named = repr(side.name) if isinstance(side, Col) else "what"
        raise Senseless(f"asks for an order of {named}, which is true or false")
    into = _comparable([basic(found) for _, found in valued], [side for side in sides if isinstance(side, Lit)])
    nodes = iter(valued)
    operands = (constant(s, into, _named(*valued[0])) if isinstance(s, Lit) else _as(next(nodes)[1], into) for s in sides)
    return Typed(comparison.op, pa.bool_(), tuple(operands))


def _as(node: Typed, into: pa.DataType) -> Typed:
    node = basic(node)
    return node if node.type == into else Typed("as", into, (node,))


def _comparable(nodes: list[Typed], literals: list[Lit]) -> pa.DataType:
    """The type in which values are compared."""
    if kind_of(nodes[0].type) is not Kind.NUMBER:
        return min((node.type for node in nodes), key=str)  # Of two times that with nanoseconds.
    if any(node.type == pa.float64() for node in nodes):
        return pa.float64()
    whole = all(node.type == WHOLE for node in nodes) and all(_is_whole(lit.value) for lit in literals)
    return WHOLE if whole else NUMBERS


def _is_whole(value: str | int | bool | Decimal | None) -> bool:
    """It is a whole number of 64 bits, or none at all."""
    return not isinstance(value, int | Decimal) or literal(value).type == WHOLE
