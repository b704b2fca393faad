"""Expressions on the columns of a source as the config writes them: a part of SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replicator.domain.expr import (
    AllOf,
    AnyOf,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    Comparison,
    Expr,
    IsNull,
    Lit,
    Not,
    source,
)
from replicator.domain.transform.expressions import list_operands

if TYPE_CHECKING:
    from sqlglot import exp

COMPARISONS: Mapping[str, Comparison] = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
CONSTANTS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "DPipe": "||"}
FUNCTIONS = {
    **dict.fromkeys(("Lower", "Upper", "Length", "Abs", "Floor", "Ceil"), ("this",)),
    **{"Left": ("this", "expression"), "Right": ("this", "expression")},
    **{"Round": ("this", "decimals"), "Substring": ("this", "start", "length")},
    "Replace": ("this", "expression", "replacement"),
}
"""By the class: what its arguments are called there, in order."""

PARTS = {
    **{name: name.lower() for name in ("Year", "Quarter", "Month", "Day", "Hour", "Minute", "Second")},
    "DayOfYear": "day_of_year",
}
TRIMS = {"": "trim", "BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}
FLAGS = frozenset({"safe", "coalesce", "typed", "coerce", "nested"})
"""Attributes that sqlglot adds to functions by itself."""

KNOWN_FUNCTIONS = ", ".join(
    (
        "concat, lower, upper, trim, ltrim, rtrim, substring, left, right, replace, length, abs, round, floor, ceil",
        "coalesce, nullif, extract, year, quarter, month, day, hour, minute, second, date_trunc, cast",
    )
)
EXPECTED = (
    "expressions consist of columns, 'text', numbers, true, false, null, + - * / % ||, =, !=, <, <=, >, >=, in (...), "
    f"between, is null, is not null, and, or, not, case, parentheses, and functions. The functions are: {KNOWN_FUNCTIONS}"
)
DIGITS = 38
MAX_DEPTH = 200
"""Levels of an expression; operators side by side are one below the other."""

MAX_NODES = 50_000


class InvalidExpressionText(ValueError):
    """The text is no expression; what it says completes a sentence, and holds no text of a constant."""


@cache
def parse_expression(text: str) -> Expr:
    """`text` as an expression over the source's own columns; InvalidExpressionText when it is none, or is nested
    too deeply."""
    # Loaded here only: a config without expressions does without.
    import sqlglot  # noqa: PLC0415
    from sqlglot import errors, exp  # noqa: PLC0415

    try:
        expression = read_node(sqlglot.parse_one(text, into=exp.Condition))
    except errors.ParseError as wrong:
        column = wrong.errors[0].get("col") if wrong.errors else None
        place = f" at character {column}" if column else ""
        raise InvalidExpressionText(f"cannot be read{place}; {EXPECTED}") from None
    except (errors.TokenError, RecursionError):
        raise InvalidExpressionText(
            f"cannot be read: a quote or a parenthesis is not closed, or closed twice; {EXPECTED}"
        ) from None
    if _count_nodes(expression, {}) > MAX_NODES:
        raise InvalidExpressionText("is too long; compute a part of it in the source")
    return expression


def _count_nodes(node: Expr, counts: dict[int, int]) -> int:
    """How many parts there are to compute; some are there twice."""
    if id(node) not in counts:
        counts[id(node)] = 1 + sum(_count_nodes(part, counts) for part in list_operands(node))
    return counts[id(node)]


def read_node(node: exp.Expr, level: int = 0) -> Expr:
    """Reads by the name of the class, so that nothing has to be loaded to say what is known."""
    if level > MAX_DEPTH:
        raise InvalidExpressionText(f"is nested more than {MAX_DEPTH} levels deep; compute a part of it in the source")
    name = type(node).__name__

    def below(*keys: str) -> tuple[Expr, ...]:
        return tuple(read_node(node.args[key], level + 1) for key in keys if node.args.get(key) is not None)

    if name in COMPARISONS:
        return Compare(COMPARISONS[name], *below("this", "expression"))
    if name in OPERATORS:
        return Call(OPERATORS[name], below("this", "expression"))
    if name in FUNCTIONS:
        _refuse_more(node, FUNCTIONS[name])
        return Call(name.lower(), below(*FUNCTIONS[name]))
    if name in PARTS:
        _refuse_more(node, ("this",))
        return Call("extract", (Lit(PARTS[name]), *below("this")))
    if name in READERS:
        if name in ARGUMENTS:
            _refuse_more(node, ARGUMENTS[name])
        return READERS[name](node, lambda part: read_node(part, level + 1))
    raise InvalidExpressionText(f"{_describe_problem(node, name)}; {EXPECTED}")


def _describe_problem(node: Any, name: str) -> str:
    """The problem of a node that is not part of an expression."""
    ancestors = {kind.__name__ for kind in type(node).__mro__}
    if ancestors & {"AggFunc", "Window"}:
        return "has an aggregate, but an expression reads only one row"
    if ancestors & {"Query", "Subquery", "Exists", "Subqueryable"}:
        return "has a query in it, but an expression reads only one row"
    if name in ("Anonymous", "Dot") or "Func" in ancestors:
        called = f" {node.name.lower()!r}" if name == "Anonymous" and node.name.isidentifier() else ""
        return f"has an unknown function{called}"
    return "has something else where only a column, a constant or a function is allowed"


def _list_set_keys(node: exp.Expr) -> set[str]:
    return {key for key, value in node.args.items() if value not in (None, False, [])}


def _refuse_more(node: exp.Expr, keys: tuple[str, ...]) -> None:
    if _list_set_keys(node) - {*keys, *FLAGS}:
        raise InvalidExpressionText(f"has a function with unknown arguments; {EXPECTED}")


ReadNode = Callable[[Any], Expr]


def _read_column(node: exp.Expr, _: ReadNode) -> Expr:
    if _list_set_keys(node) != {"this"} or type(node.this).__name__ != "Identifier":
        raise InvalidExpressionText(
            f"has something else in the place of a column (write a name with a dot in double quotes); {EXPECTED}"
        )
    return source(node.name)


def _read_literal(node: exp.Expr, _: ReadNode) -> Expr:
    if node.is_string:
        return Lit(node.this)
    try:
        number = Decimal(node.this)
    except InvalidOperation:
        raise InvalidExpressionText(f"has an invalid number; {EXPECTED}") from None
    if number.adjusted() >= DIGITS or -int(number.as_tuple().exponent) > DIGITS:
        raise InvalidExpressionText(f"has a number of more than {DIGITS} digits")
    return Lit(int(number) if number == number.to_integral_value() else number)


def _read_negative(node: exp.Expr, read_: ReadNode) -> Expr:
    operand = read_(node.this)
    if isinstance(operand, Lit) and isinstance(operand.value, int | Decimal) and not isinstance(operand.value, bool):
        return Lit(-operand.value)
    return Call("negative", (operand,))


def _read_in(node: exp.Expr, read_: ReadNode) -> Expr:
    if not node.expressions or _list_set_keys(node) != {"this", "expressions"}:
        raise InvalidExpressionText("has an 'in' without a list of constants in parentheses")
    left = read_(node.this)
    return AnyOf(tuple(Compare("=", left, read_(item)) for item in node.expressions))


def _read_between(node: exp.Expr, read_: ReadNode) -> Expr:
    value = read_(node.this)
    return AllOf((Compare(">=", value, read_(node.args["low"])), Compare("<=", value, read_(node.args["high"]))))


def _read_is(node: exp.Expr, read_: ReadNode) -> Expr:
    if type(node.expression).__name__ != "Null" or type(node.this).__name__ == "Is":
        raise InvalidExpressionText("has an 'is' that is not 'is null', or 'is not null'")
    return IsNull(read_(node.this))


def _read_case(node: exp.Expr, read_: ReadNode) -> Expr:
    default = node.args.get("default")
    value = node.args.get("this")
    branches = []
    for branch in node.args["ifs"]:
        when = read_(branch.this)
        when = when if value is None else Compare("=", read_(value), when)
        branches.append((when, read_(branch.args["true"])))
    return Case(tuple(branches), Lit(None) if default is None else read_(default))


def _read_cast(node: exp.Expr, read_: ReadNode) -> Expr:
    to = node.args["to"]
    kind = find_type(NAMES_OF_TYPES.get(to.sql().upper(), to.sql()))
    if kind is None:
        raise InvalidExpressionText(
            "casts to an unknown type; use the types of 'cast' of a column, such as int64, decimal(12,2), string, "
            "date, timestamp and timestamptz"
        )
    return Cast(read_(node.this), kind)


NAMES_OF_TYPES = {
    **{"TINYINT": "int8", "SMALLINT": "int16", "INT": "int32", "BIGINT": "int64", "TEXT": "string", "VARCHAR": "string"},
    **{"FLOAT": "float32", "DOUBLE": "float64", "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamptz"},
}


def _read_coalesce(node: exp.Expr, read_: ReadNode) -> Expr:
    terms = [read_(part) for part in (node.this, *node.expressions)]
    return reduce(lambda other, first: Coalesce(first, other), reversed(terms))


def _read_nullif(node: exp.Expr, read_: ReadNode) -> Expr:
    value = read_(node.this)
    return Case(((Compare("=", value, read_(node.expression)), Lit(None)),), value)


ARGUMENTS = {
    **{"Between": ("this", "low", "high"), "Case": ("this", "ifs", "default"), "Cast": ("this", "to")},
    **{"Concat": ("expressions",), "Trim": ("this", "position"), "DateTrunc": ("this", "unit")},
}
"""By the class, all arguments that it may have."""
EXTRACTED = {"DOY": "day_of_year"}
"""Parts of a date that have another name here."""

READERS: Mapping[str, Callable[[Any, ReadNode], Expr]] = {
    "And": lambda node, read_: AllOf((read_(node.this), read_(node.expression))),
    "Or": lambda node, read_: AnyOf((read_(node.this), read_(node.expression))),
    "Not": lambda node, read_: Not(read_(node.this)),
    "Paren": lambda node, read_: read_(node.this),
    "Boolean": lambda node, _: Lit(CONSTANTS[node.sql().lower()]),
    "Null": lambda *_: Lit(None),
    **{
        "Column": _read_column,
        "Literal": _read_literal,
        "Neg": _read_negative,
        "In": _read_in,
        "Between": _read_between,
        "Is": _read_is,
    },
    **{"Case": _read_case, "Cast": _read_cast, "Coalesce": _read_coalesce, "Nullif": _read_nullif},
    "Concat": lambda node, read_: Call("concat", tuple(map(read_, node.expressions))),
    "Trim": lambda node, read_: Call(TRIMS[node.text("position")], (read_(node.this),)),
    "Extract": lambda node, read_: Call(
        "extract", (Lit(EXTRACTED.get(node.this.name.upper(), node.this.name.lower())), read_(node.expression))
    ),
    "DateTrunc": lambda node, read_: Call("date_trunc", (Lit(node.text("unit").lower()), read_(node.this))),
}


# Conditions on the columns of a source as the config writes them: expressions that are true or false.


@cache
def parse_condition(text: str) -> Expr:
    """`text` as a condition over the source's own columns; InvalidExpressionText when it is none."""
    condition = parse_expression(text)
    _refuse_no_condition(condition)
    return condition


def _refuse_no_condition(condition: Expr) -> None:
    match condition:
        case AllOf(terms) | AnyOf(terms):
            for term in terms:
                _refuse_no_condition(term)
        case Not(operand):
            _refuse_no_condition(operand)
        case Lit(value) if not isinstance(value, bool | None):
            raise InvalidExpressionText(f"has a constant where only a comparison is allowed; {EXPECTED}")


# The types that the config names.

TYPES: Mapping[str, pa.DataType] = {
    **{name: pa.type_for_alias(name) for name in ("int8", "int16", "int32", "int64", "float32", "float64")},
    **{"float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(), "boolean": pa.bool_()},
    **{"string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "date32": pa.date32()},
    **{"timestamp": pa.timestamp("us"), "timestamp[us]": pa.timestamp("us")},
    **dict.fromkeys(("timestamptz", "timestamp[us, utc]"), pa.timestamp("us", "UTC")),
}
DECIMAL = re.compile(r"decimal\((\d{1,2})(?:, ?(\d{1,2}))?\)")
MAX_DIGITS, WIDE_DIGITS = 38, 76


def find_type(text: str) -> pa.DataType | None:
    """The Arrow type of that name, as far as every sink knows it."""
    name = re.sub(r"\s*,\s*", ", ", text.strip().lower())
    match = DECIMAL.fullmatch(name)
    if match is None:
        return TYPES.get(name)
    digits, scale = int(match[1]), int(match[2] or 0)
    if not 1 <= digits <= WIDE_DIGITS or scale > digits:
        return None
    return pa.decimal128(digits, scale) if digits <= MAX_DIGITS else pa.decimal256(digits, scale)
