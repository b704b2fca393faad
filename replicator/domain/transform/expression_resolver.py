"""Conversion of expressions of the configuration to typed ones (`domain.transform.typed_expressions`)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa

from replicator.domain.policy.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not

from .casts import is_castable, is_textual
from .functions import resolve_call
from .typed_expressions import (
    NUMBERS,
    WHOLE,
    ExpressionKind,
    InvalidExpression,
    TypedExpr,
    get_kind,
    is_null,
    make_constant,
    make_literal,
    to_basic_type,
    unify_types,
)

Types = Mapping[str, pa.DataType]


def resolve_expression(expression: Expr, types: Types) -> TypedExpr:  # noqa: PLR0911  (a case each)
    """The typed expression over columns of these `types`, which must have all its columns. Raises InvalidExpression."""
    match expression:
        case Lit(value):
            return make_literal(value)
        case Col(_, name):
            return TypedExpr("column", types[name], value=name)
        case AllOf() | AnyOf() | Not() | IsNull() | Compare():
            return resolve_boolean(expression, types)
        case Coalesce():
            return _resolve_coalesce(expression, types)
        case Case(branches, otherwise):
            values = unify_types([resolve_expression(e, types) for e in (*(then for _, then in branches), otherwise)])
            asked = [resolve_boolean(when, types) for when, _ in branches]
            pairs = [part for pair in zip(asked, values[:-1], strict=True) for part in pair]
            return TypedExpr("case", values[0].type, (*pairs, values[-1]))
        case Cast(operand, kind):
            return _resolve_cast(operand, kind, types)
        case Call(name, arguments):
            return resolve_call(name, [resolve_expression(argument, types) for argument in arguments])
    raise AssertionError(f"no expression: {expression}")


def resolve_boolean(expression: Expr, types: Types) -> TypedExpr:
    """The typed expression of a condition: it must be boolean or NULL. Raises InvalidExpression."""
    match expression:
        case AllOf(terms) | AnyOf(terms):
            name = "and" if isinstance(expression, AllOf) else "or"
            return TypedExpr(name, pa.bool_(), tuple(resolve_boolean(term, types) for term in terms))
        case Not(operand):
            return TypedExpr("not", pa.bool_(), (resolve_boolean(operand, types),))
        case IsNull(operand):
            return TypedExpr("is null", pa.bool_(), (resolve_expression(operand, types),))
        case Compare():
            return _resolve_comparison(expression, types)
    found = resolve_expression(expression, types)
    if is_null(found):
        return TypedExpr("constant", pa.bool_())
    if get_kind(found.type) is not ExpressionKind.TRUTH:
        raise InvalidExpression(f"uses {_describe_operand(expression, found)} as true or false")
    return to_basic_type(found)


def _describe_operand(expression: Expr, found: TypedExpr) -> str:
    return f"column {expression.name!r} ({found.type})" if isinstance(expression, Col) else f"a value of type {found.type}"


def _resolve_coalesce(expression: Expr, types: Types) -> TypedExpr:
    terms: list[Expr] = []
    while isinstance(expression, Coalesce):
        terms.append(expression.first)
        expression = expression.other
    operands = unify_types([resolve_expression(term, types) for term in (*terms, expression)])
    return TypedExpr("coalesce", operands[0].type, operands)


def _resolve_cast(operand: Expr, kind: pa.DataType, types: Types) -> TypedExpr:
    found = resolve_expression(operand, types)
    if found.operation == "constant" and found.value is not None and is_textual(found.type) and get_kind(kind) in _TIMES:
        try:
            return make_constant(Lit(found.value), kind, "it")
        except InvalidExpression:
            raise InvalidExpression(f"contains a text that is not {get_kind(kind)}") from None
    if is_null(found):
        return TypedExpr("constant", kind)
    if not is_castable(found.type, kind):
        raise InvalidExpression(f"casts {_describe_operand(operand, found)} to {kind}, which is impossible")
    return TypedExpr("cast", kind, (found,))


_TIMES = (ExpressionKind.DAY, ExpressionKind.MOMENT, ExpressionKind.LOCAL_MOMENT)


def _resolve_comparison(comparison: Compare, types: Types) -> TypedExpr:
    sides = (comparison.left, comparison.right)
    valued = [(side, resolve_expression(side, types)) for side in sides if not isinstance(side, Lit)]
    if not valued:
        raise InvalidExpression("compares constants with each other")
    kinds = [get_kind(found.type) for _, found in valued]
    for (side, found), kind in zip(valued, kinds, strict=True):
        if kind is None:
            named = f"column {side.name!r}" if isinstance(side, Col) else "a value"
            raise InvalidExpression(f"compares {named}, whose type {found.type} cannot be compared")
    if len(set(kinds)) > 1:
        words = "columns" if all(isinstance(side, Col) for side in sides) else "values"
        told = " and ".join(_describe_operand(side, found).removeprefix("column ") for side, found in valued)
        raise InvalidExpression(f"compares {words} of different kinds: {told}")
    side, found = valued[0]
    if kinds[0] is ExpressionKind.TRUTH and comparison.op not in ("=", "<>"):
        named = repr(side.name) if isinstance(side, Col) else "a value"
        raise InvalidExpression(f"compares {named} by order, but its type is boolean")
    into = _find_common_type(
        [to_basic_type(found) for _, found in valued], [side for side in sides if isinstance(side, Lit)]
    )
    nodes = iter(valued)
    operands = (
        make_constant(s, into, _describe_operand(*valued[0])) if isinstance(s, Lit) else _view_as(next(nodes)[1], into)
        for s in sides
    )
    return TypedExpr(comparison.op, pa.bool_(), tuple(operands))


def _view_as(node: TypedExpr, into: pa.DataType) -> TypedExpr:
    node = to_basic_type(node)
    return node if node.type == into else TypedExpr("as", into, (node,))


def _find_common_type(nodes: list[TypedExpr], literals: list[Lit]) -> pa.DataType:
    """The type in which the values are compared."""
    if get_kind(nodes[0].type) is not ExpressionKind.NUMBER:
        return min((node.type for node in nodes), key=str)  # Of two time types, the one with nanoseconds.
    if any(node.type == pa.float64() for node in nodes):
        return pa.float64()
    whole = all(node.type == WHOLE for node in nodes) and all(_is_whole(lit.value) for lit in literals)
    return WHOLE if whole else NUMBERS


def _is_whole(value: str | int | bool | Decimal | None) -> bool:
    """True for a whole number of 64 bits, and for values other than numbers."""
    return not isinstance(value, int | Decimal) or make_literal(value).type == WHOLE
