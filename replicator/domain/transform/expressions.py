"""Expressions of the configuration on the columns of a source: conditions, and computed columns.

They use `domain.expr` with the side `source`, and SQL's three-valued logic. In a condition, an unchanged value
is unknown: neither NULL nor anything else. A condition that is unknown for a row does not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not
from replicator.domain.sequence import is_text
from replicator.domain.table import TableSpec

from .typed_expressions import (
    MAX_DIGITS,
    NUMBERS,
    WHOLE,
    ExpressionKind,
    InvalidExpression,
    TypedExpr,
    convert_to,
    count_digits,
    get_kind,
    has_text,
    is_castable,
    is_null,
    make_constant,
    make_literal,
    to_basic_type,
    unify_types,
)

# Conversion of expressions of the configuration to typed ones (`domain.transform.typed_expressions`).

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
            terms: list[Expr] = []
            rest: Expr = expression
            while isinstance(rest, Coalesce):
                terms.append(rest.first)
                rest = rest.other
            operands = unify_types([resolve_expression(term, types) for term in (*terms, rest)])
            return TypedExpr("coalesce", operands[0].type, operands)
        case Case(branches, otherwise):
            values = unify_types([resolve_expression(e, types) for e in (*(then for _, then in branches), otherwise)])
            conditions = [resolve_boolean(when, types) for when, _ in branches]
            pairs = [part for pair in zip(conditions, values[:-1], strict=True) for part in pair]
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
    typed = resolve_expression(expression, types)
    if is_null(typed):
        return TypedExpr("constant", pa.bool_())
    if get_kind(typed.type) is not ExpressionKind.TRUTH:
        raise InvalidExpression(f"uses {_describe_operand(expression, typed)} as true or false")
    return to_basic_type(typed)


def _describe_operand(expression: Expr, typed: TypedExpr) -> str:
    return f"column {expression.name!r} ({typed.type})" if isinstance(expression, Col) else f"a value of type {typed.type}"


def _resolve_cast(operand: Expr, kind: pa.DataType, types: Types) -> TypedExpr:
    typed = resolve_expression(operand, types)
    if typed.operation == "constant" and typed.value is not None and is_text(typed.type) and get_kind(kind) in TIMES:
        try:
            return make_constant(Lit(typed.value), kind, "it")
        except InvalidExpression:
            raise InvalidExpression(f"contains a text that is not {get_kind(kind)}") from None
    if is_null(typed):
        return TypedExpr("constant", kind)
    if not is_castable(typed.type, kind):
        raise InvalidExpression(f"casts {_describe_operand(operand, typed)} to {kind}, which is impossible")
    return TypedExpr("cast", kind, (typed,))


def _resolve_comparison(comparison: Compare, types: Types) -> TypedExpr:
    sides = (comparison.left, comparison.right)
    valued = [(side, resolve_expression(side, types)) for side in sides if not isinstance(side, Lit)]
    if not valued:
        raise InvalidExpression("compares constants with each other")
    kinds = [get_kind(typed.type) for _, typed in valued]
    for (side, typed), kind in zip(valued, kinds, strict=True):
        if kind is None:
            label = f"column {side.name!r}" if isinstance(side, Col) else "a value"
            raise InvalidExpression(f"compares {label}, whose type {typed.type} cannot be compared")
    if len(set(kinds)) > 1:
        words = "columns" if all(isinstance(side, Col) for side in sides) else "values"
        described = " and ".join(_describe_operand(side, typed).removeprefix("column ") for side, typed in valued)
        raise InvalidExpression(f"compares {words} of different kinds: {described}")
    side, typed = valued[0]
    if kinds[0] is ExpressionKind.TRUTH and comparison.op not in ("=", "<>"):
        label = repr(side.name) if isinstance(side, Col) else "a value"
        raise InvalidExpression(f"compares {label} by order, but its type is boolean")
    into = _find_common_type(
        [to_basic_type(typed) for _, typed in valued], [side for side in sides if isinstance(side, Lit)]
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
    if any(node.type != WHOLE for node in nodes):
        return NUMBERS
    # A literal may also be no number.
    numbers = (make_literal(lit.value) for lit in literals if isinstance(lit.value, int | Decimal))
    return WHOLE if all(number.type == WHOLE for number in numbers) else NUMBERS


def list_columns(expression: Expr) -> frozenset[str]:
    """The columns in an expression."""
    if isinstance(expression, Col):
        return frozenset({expression.name})
    return frozenset[str]().union(*map(list_columns, list_operands(expression)))


def list_operands(expression: Expr) -> tuple[Expr, ...]:
    """The direct operands of an expression."""
    match expression:
        case Compare(_, left, right) | Coalesce(left, right):
            return (left, right)
        case AllOf(terms) | AnyOf(terms) | Call(_, terms):
            return terms
        case IsNull(operand) | Not(operand) | Cast(operand, _):
            return (operand,)
        case Case(branches, otherwise):
            return (*(part for branch in branches for part in branch), otherwise)
    return ()


def to_text(expression: Expr) -> str:  # noqa: PLR0911  (a case each)
    """The expression in the syntax of the configuration; equal expressions have equal texts."""
    match expression:
        case Col(_, name):
            return name
        case Lit(str(text)):
            return "'{}'".format(text.replace("'", "''"))
        case Lit(value):
            return "null" if value is None else str(value).lower()
        case Compare(op, left, right):
            return f"{to_text(left)} {op} {to_text(right)}"
        case AllOf(terms) | AnyOf(terms):
            return f"({(' and ' if isinstance(expression, AllOf) else ' or ').join(map(to_text, terms))})"
        case IsNull(operand):
            return f"{to_text(operand)} is null"
        case Not(operand):
            return f"not ({to_text(operand)})"
    return _function_to_text(expression)


def _function_to_text(expression: Expr) -> str:
    match expression:
        case Coalesce(first, other):
            return f"coalesce({to_text(first)}, {to_text(other)})"
        case Cast(operand, kind):
            return f"cast({to_text(operand)} as {kind})"
        case Case(branches, otherwise):
            cases = (f"when {to_text(when)} then {to_text(then)}" for when, then in branches)
            return f"case {' '.join(cases)} else {to_text(otherwise)} end"
        case Call(name, arguments):
            between, words = (f" {name} ", "") if name in (*ARITHMETIC, "||") else (", ", name)
            return f"{words}({between.join(map(to_text, arguments))})"
    raise AssertionError(f"no expression: {expression}")


def refuse_condition(expression: Expr, table: TableSpec, key: str) -> None:
    """Raise ConfigProblem if the condition, under `key` in the configuration, is invalid for `table`. It may name an
    unknown column, or compare values that cannot be compared."""
    _refuse_unknown(expression, table, key)
    try:
        resolve_condition(expression, table)
    except InvalidExpression as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the condition.") from None


def resolve_condition(expression: Expr, table: TableSpec) -> TypedExpr:
    """The condition with types. InvalidExpression if it is invalid."""
    return resolve_boolean(expression, {column.name: column.type for column in table.columns})


def resolve_computed_column(name: str, expression: Expr, table: TableSpec) -> TypedExpr:
    """The typed expression of the computed column `name`, over the columns of `table`. ConfigProblem if it is invalid."""
    key = f"the expression of column {name}"
    _refuse_unknown(expression, table, key)
    try:
        typed = resolve_expression(expression, {column.name: column.type for column in table.columns})
        if pa.types.is_null(typed.type):
            raise InvalidExpression("is always NULL")
    except InvalidExpression as why:
        raise ConfigProblem(f"'{key}' of table {table.name} {why}", next_step="Correct the expression.") from None
    return typed


def _refuse_unknown(expression: Expr, table: TableSpec, key: str) -> None:
    for name in sorted(list_columns(expression) - set(table.column_names)):
        raise make_unknown_column_error(name, table, key)


def make_unknown_column_error(name: str, table: TableSpec, key: str) -> ConfigProblem:
    """The error of a configuration key that names a column which the table does not have."""
    names = ", ".join(table.column_names)
    return ConfigProblem(
        f"'{key}' names column {name!r}, which table {table.name} does not have",
        next_step=f"Its columns are: {names}. Names are compared exactly. Write text in single quotes.",
    )


# The functions of expressions: their arguments and result types.

ARITHMETIC = ("+", "-", "*", "/", "%")
DATE_PARTS = ("year", "quarter", "month", "week", "day")
TIME_PARTS = ("hour", "minute", "second")
PARTS = ("year", "quarter", "month", "day", "day_of_year", *TIME_PARTS)
"""Parts that `extract` returns of a date or a time."""

UNITS = (*DATE_PARTS, *TIME_PARTS)
"""Units to which `date_trunc` truncates a date or a time."""

MAX_INNER_DIGITS = 76

Resolve = Callable[[str, Sequence[TypedExpr]], TypedExpr]


def resolve_call(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """The call of a function with these operands; InvalidExpression if the operands do not fit."""
    for operand in operands:
        if is_null(operand):
            raise InvalidExpression(f"passes NULL to {_quote_name(name)}, whose result is then always NULL")
    return FUNCTIONS[name](name, operands)


def _quote_name(name: str) -> str:
    return f"'{name}'"


def _require_kind(kind: ExpressionKind | Sequence[ExpressionKind], name: str, operand: TypedExpr) -> TypedExpr:
    """The operand, which must be of one of these kinds."""
    kinds = (kind,) if isinstance(kind, ExpressionKind) else kind
    if get_kind(operand.type) not in kinds:
        kind_names = " or ".join(dict.fromkeys(kinds))
        raise InvalidExpression(f"passes a value of type {operand.type} to {_quote_name(name)}, which needs {kind_names}")
    return to_basic_type(operand)


def _read_count(name: str, operand: TypedExpr, least: int, most: int = 2**31 - 1) -> int:
    """The operand, which must be a constant whole number."""
    value = operand.value
    if operand.operation != "constant" or operand.type != WHOLE or not least <= value <= most:
        raise InvalidExpression(f"needs a whole number of {least} or more as an argument of {_quote_name(name)}")
    return int(value)


def _resolve_arithmetic(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (_require_kind(ExpressionKind.NUMBER, name, operand) for operand in operands)
    if t.is_floating(left.type) or t.is_floating(right.type):
        return TypedExpr(name, pa.float64(), (convert_to(left, pa.float64()), convert_to(right, pa.float64())))
    if left.type == right.type == WHOLE:
        return TypedExpr(name, WHOLE, (left, right))
    # Decimals: exact, with all possible digits. Beyond 38 digits, only values that need more of them fail.
    (p, s), (q, r) = count_digits(left), count_digits(right)
    digits, scale = (p + q + 1, s + r) if name == "*" else (max(p - s, q - r) + max(s, r) + 1, max(s, r))
    if scale > MAX_DIGITS or digits > MAX_INNER_DIGITS:
        raise InvalidExpression(
            f"uses {_quote_name(name)} on decimals that have too many digits together: cast one of them to fewer digits"
        )
    kind = pa.decimal128 if digits <= MAX_DIGITS else pa.decimal256
    typed = TypedExpr(name, kind(digits, scale), (convert_to(left, kind(p, s)), convert_to(right, kind(q, r))))
    return typed if digits <= MAX_DIGITS else TypedExpr("narrowed", pa.decimal128(MAX_DIGITS, scale), (typed,))


def _resolve_division(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (convert_to(_require_kind(ExpressionKind.NUMBER, name, operand), pa.float64()) for operand in operands)
    return TypedExpr(name, pa.float64(), (left, right))


def _resolve_remainder(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    left, right = (_require_kind(ExpressionKind.NUMBER, name, operand) for operand in operands)
    if not left.type == right.type == WHOLE:
        raise InvalidExpression(f"uses {_quote_name(name)} on {left.type} and {right.type}, but it needs whole numbers")
    return TypedExpr(name, WHOLE, (left, right))


def _resolve_one_number(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    operand = _require_kind(ExpressionKind.NUMBER, name, operands[0])
    return TypedExpr(name, operand.type, (operand,))


def _resolve_round(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """The rounded number; its type has that many decimals, and one more digit before them."""
    operand = _require_kind(ExpressionKind.NUMBER, name, operands[0])
    places = _read_count(name, operands[1], 0, MAX_DIGITS) if len(operands) > 1 else 0
    if t.is_floating(operand.type):
        return TypedExpr(name, operand.type, (operand,), places)
    digits, scale = count_digits(operand)
    if operand.type == WHOLE or places >= scale:
        return operand
    wide = (pa.decimal128 if digits < MAX_DIGITS else pa.decimal256)(digits + 1, scale)
    rounding = TypedExpr(name, wide, (convert_to(operand, wide),), places)
    return TypedExpr("narrowed", pa.decimal128(digits - scale + places + 1, places), (rounding,))


def _resolve_concat(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    """`concat` and `||`, of values that have one text."""
    for operand in operands:
        if not has_text(operand.type) or t.is_binary(operand.type) or t.is_large_binary(operand.type):
            raise InvalidExpression(f"passes a value of type {operand.type} to {_quote_name(name)}: cast it to string first")
    return TypedExpr(name, pa.string(), tuple(map(_to_text, operands)))


def _to_text(operand: TypedExpr) -> TypedExpr:
    return (
        to_basic_type(operand)
        if get_kind(operand.type) is ExpressionKind.TEXT
        else TypedExpr("text", pa.string(), (operand,))
    )


def _resolve_text_function(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    return TypedExpr(name, pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),))


def _resolve_length(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    return TypedExpr(name, WHOLE, (_require_kind(ExpressionKind.TEXT, name, operands[0]),))


def _resolve_substring(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    start = _read_count(name, operands[1], 1) - 1
    stop = None if len(operands) < 3 else start + _read_count(name, operands[2], 0)
    return TypedExpr("slice", pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),), (start, stop))


def _resolve_end(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    operand, count = _require_kind(ExpressionKind.TEXT, name, operands[0]), _read_count(name, operands[1], 0)
    part = (0, count) if name == "left" or not count else (-count, None)
    return TypedExpr("slice", pa.string(), (operand,), part)


def _resolve_replace(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    texts = [operand.value for operand in operands[1:] if operand.operation == "constant" and isinstance(operand.value, str)]
    if len(texts) != 2 or not texts[0]:
        raise InvalidExpression(f"needs two texts as arguments of {_quote_name(name)}, the first not empty")
    return TypedExpr(name, pa.string(), (_require_kind(ExpressionKind.TEXT, name, operands[0]),), tuple(texts))


TIMES = (ExpressionKind.DAY, ExpressionKind.MOMENT, ExpressionKind.LOCAL_MOMENT)


def _resolve_extract(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    part, operand = _read_unit(name, operands, PARTS)
    return TypedExpr(name, WHOLE, (operand,), part)


def _resolve_truncate(name: str, operands: Sequence[TypedExpr]) -> TypedExpr:
    unit, operand = _read_unit(name, operands, UNITS)
    return TypedExpr(name, operand.type, (operand,), unit)


def _read_unit(name: str, operands: Sequence[TypedExpr], units: Sequence[str]) -> tuple[str, TypedExpr]:
    unit, operand = operands[0].value, _require_kind(TIMES, name, operands[1])
    fitting = [one for one in units if operand.type != pa.date32() or one not in TIME_PARTS]
    if unit not in fitting:
        raise InvalidExpression(f"needs one of these as an argument of {_quote_name(name)}: {', '.join(fitting)}")
    return unit, operand


FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("+", "-", "*"), _resolve_arithmetic),
    "/": _resolve_division,  # a float: no rule for the scale of a quotient suits every user
    "%": _resolve_remainder,
    **dict.fromkeys(("negative", "abs"), _resolve_one_number),
    **dict.fromkeys(("round", "floor", "ceil"), _resolve_round),
    **dict.fromkeys(("concat", "||"), _resolve_concat),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), _resolve_text_function),
    "length": _resolve_length,
    "substring": _resolve_substring,
    **dict.fromkeys(("left", "right"), _resolve_end),
    "replace": _resolve_replace,
    "extract": _resolve_extract,
    "date_trunc": _resolve_truncate,
}
"""By name in `expr.Call`."""
