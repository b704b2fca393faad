"""The meaning of transforms, one change or row at a time. Part of the definition in `model`; it uses
no plan and no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.expr import AllOf, AnyOf, Call, Case, Cast, Coalesce, Col, Compare, Expr, IsNull, Lit, Not

from .model import Change, Outcome, Policy, Row

# Column transforms, one change at a time


class UnrepresentableValue(Exception):
    """A value without a lossless form in its new type, or an expression without a value."""


class NoValue(Enum):
    """Why a computed column has no value."""

    UNSENT = "not sent"
    NOTHING = "rejected"


@dataclass(frozen=True)
class ModelComputedColumn:
    """A computed column: its input columns, and its function. UnrepresentableValue if there is no value."""

    inputs: frozenset[str]
    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class ModelColumnTransforms:
    """Transforms of single columns.

    - `dropped`: columns to leave out. `names`: new names of columns. `values`: functions of column values.
    - `added`: columns from the metadata of a change. A truncate has none.
    - `computed`: columns from the values of the change, as sent:
      - If no input but key columns was sent, the column is unchanged.
      - If only some inputs were sent, or there is no value, the change is rejected.
      - If no input was sent and the key change affects an input, the change is rejected.
      - In a delete the column is NULL.

    A change with an unrepresentable value is rejected. In a delete, that value counts as unchanged, or is NULL in an
    added column. NULL stays NULL, and unchanged values stay unchanged.
    """

    dropped: frozenset[str] = frozenset()
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Callable[[Change], Any]] = field(default_factory=dict)
    computed: Mapping[str, ModelComputedColumn] = field(default_factory=dict)

    def list_columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The columns after the transforms."""
        return (*self.list_keys(names), *self.added, *self.computed)

    def list_keys(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The remaining source columns, with their new names."""
        return tuple(self.names.get(name, name) for name in names if name not in self.dropped)

    def transform_change(self, change: Change, keys: tuple[str, ...], previous: Change | None = None) -> Change | None:
        """The change for the policy; None if it is rejected. `keys`: their names in the source. `previous`: the change
        with the dropped columns."""
        image, unchanged = {}, {self.names.get(n, n) for n in change.unsent if n not in self.dropped}
        for name, value in change.image.items():
            if name in self.dropped:
                continue
            try:
                image[self.names.get(name, name)] = self._transform_value(name, None if name in change.unsent else value)
            except UnrepresentableValue:
                if change.op != "d":
                    return None
                unchanged.add(self.names.get(name, name))
        for name, make_value in self.added.items() if change.op != "t" else ():
            try:
                image[name] = make_value(change)
            except UnrepresentableValue:
                if change.op != "d":
                    return None
                image[name] = None
        for name, computing in self.computed.items() if change.op != "t" else ():
            computed = None if change.op == "d" else self._compute(previous or change, computing, keys)
            if computed is NoValue.NOTHING:
                return None
            image[name] = None if computed is NoValue.UNSENT else computed
            unchanged |= {name} if computed is NoValue.UNSENT else set()
        old = change.moved_from and tuple(map(self._transform_value, keys, change.moved_from))
        computed_names = frozenset({*self.added, *self.computed})
        return replace(change, image=image, unsent=frozenset(unchanged), moved_from=old, computed=computed_names)

    def _compute(self, original: Change, computing: ModelComputedColumn, keys: tuple[str, ...]) -> Any:
        lacking, of_keys = computing.inputs & original.unsent, computing.inputs & set(keys)
        if lacking:
            moves = original.moved_from is not None and of_keys
            return NoValue.UNSENT if lacking == computing.inputs - of_keys and not moves else NoValue.NOTHING
        try:
            return computing.value(original.image)
        except UnrepresentableValue:
            return NoValue.NOTHING

    def _transform_value(self, name: str, value: Any) -> Any:
        return value if value is None or name not in self.values else self.values[name](value)


# Row transforms, one change at a time

Condition = Callable[[Mapping[str, Any], frozenset[str]], bool | None]
"""Called with an image and the names of unchanged columns, whose values are unknown. None if the result is unknown."""


@dataclass(frozen=True)
class ModelRowTransforms:
    """The row transforms of a lane; by default none.

    - `truncates`, `deletes`: conditions for creates, updates and reads that are truncates, or else deletes.
    - `sequence_by`: columns whose values come before the log's elements in the sequence. Versions show the first of
      them.
    - `stored`: by column, the form in which a target stores these values, if it differs.
    - `columns`: the columns to keep; all when None.
    - `without_deletes`: no deletes and truncates, except delete halves of key changes.
    - `ignore_null`: columns in which a NULL of an upsert keeps the row's value.
    - `soft_deletes`: the policy marks deleted rows. `has_column_versions`: the policy has a sequence per column.
    - `where`: creates, updates and reads that do not match are deletes, or, unless `rows_leave`, filtered.
    - `condition_columns`: the columns of `where`. A change that did not send all of them is rejected.
    - `column_transforms`: applied last.
    """

    truncates: Condition | None = None
    deletes: Condition | None = None
    sequence_by: tuple[str, ...] = ()
    stored: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    columns: Container[str] | None = None
    without_deletes: bool = False
    ignore_null: Container[str] = ()
    soft_deletes: bool = False
    has_column_versions: bool = False
    where: Condition | None = None
    condition_columns: frozenset[str] = frozenset()
    rows_leave: bool = True
    column_transforms: ModelColumnTransforms | None = None

    def wrap_policy(self, policy: Policy, keys: tuple[str, ...] = ()) -> Policy:
        """The policy with these transforms before it. `keys`: their names in the source."""
        return TransformingPolicy(policy, self, keys)

    def list_names(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns and keys after the transforms."""
        columns = tuple(name for name in columns if self.columns is None or name in self.columns)
        return (
            (columns, keys)
            if self.column_transforms is None
            else (self.column_transforms.list_columns(columns), self.column_transforms.list_keys(keys))
        )


class TransformingPolicy:
    """A policy with row transforms before it.

    A change with a NULL or missing value in a column of `sequence_by` has no position in the order, and is rejected.
    A filtered delete needs no such value.
    """

    def __init__(self, policy: Policy, wanted: ModelRowTransforms, keys: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self.wanted = wanted
        self.keys = keys

    def apply_change(self, change: Change) -> Outcome:
        op = change.op
        for new_op, condition in (("t", self.wanted.truncates), ("d", self.wanted.deletes)):
            if op in ("c", "u", "r") and condition is not None and condition(change.image, change.unsent):
                op = new_op
        if self.wanted.without_deletes and (op == "t" or (op == "d" and not change.moved_to)):
            return Outcome.FILTERED
        if self.wanted.where is not None and op in ("c", "u", "r"):
            if self.wanted.condition_columns & change.unsent:
                return Outcome.REJECTED
            if self.wanted.where(change.image, change.unsent) is not True:
                if not self.wanted.rows_leave:
                    return Outcome.FILTERED
                op = "d"
        sent = {name: value for name, value in change.image.items() if name not in change.unsent}
        sequence = tuple(sent.get(name) for name in self.wanted.sequence_by)
        if None in sequence:
            return Outcome.REJECTED
        became = op != change.op
        shaped = replace(
            change,
            op=op,
            sequence=(*sequence, *change.sequence),
            image={} if op == "t" else {name: v for name, v in change.image.items() if self._is_there(name)},
            unsent=frozenset() if op == "t" else frozenset(filter(self._is_there, change.unsent)),
            moved_from=None if became else change.moved_from,
            ignore_null=self.wanted.ignore_null,
            at=sequence[0] if sequence else None,
        )
        transformed = (
            shaped
            if self.wanted.column_transforms is None
            else self.wanted.column_transforms.transform_change(shaped, self.keys, change)
        )
        return Outcome.REJECTED if transformed is None else self.policy.apply_change(transformed)

    def _is_there(self, name: str) -> bool:
        return self.wanted.columns is None or name in self.wanted.columns

    def table(self) -> list[Row]:
        """The rows of the policy, with the sequence in its stored form."""
        converters = {
            f"{prefix}_{i}": self.wanted.stored[name]
            for i, name in enumerate(self.wanted.sequence_by, 1)
            for prefix in ("_cdc_seq", "_cdc_end_seq", "_cdc_last_seq")
            if name in self.wanted.stored
        }
        return [
            row | {name: stored(row[name]) for name, stored in converters.items() if row.get(name) is not None}
            for row in self.policy.table()
        ]


# Expressions in the configuration, one row at a time: with Python values, without types or columnar data

EXACT = Context(prec=200)
BY_NAME: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def evaluate(expression: Expr, row: Mapping[str, Any]) -> Any:  # noqa: PLR0911  (a case each)
    """The value of the expression for a row; None for NULL. Evaluation is from left to right and stops when the
    value is clear.

    UnrepresentableValue if there is no value: a division by zero, a number out of range, a cast that does not fit.
    """
    match expression:
        case Col(_, name):
            return row[name]
        case Lit(value):
            return value
        case AllOf(terms) | AnyOf(terms):
            return _combine(terms, row, decides=isinstance(expression, AnyOf))
        case Not(operand):
            operand_value = evaluate(operand, row)
            return None if operand_value is None else not operand_value
        case IsNull(operand):
            return evaluate(operand, row) is None
        case Compare(op, left, right):
            return _compare(op, evaluate(left, row), evaluate(right, row))
        case Coalesce(first, other):
            operand_value = evaluate(first, row)
            return evaluate(other, row) if operand_value is None else operand_value
        case Case(branches, otherwise):
            return evaluate(next((then for when, then in branches if evaluate(when, row)), otherwise), row)
    return _compute(expression, row)


def _compute(expression: Expr, row: Mapping[str, Any]) -> Any:
    match expression:
        case Cast(operand, kind):
            operand_value = evaluate(operand, row)
            return None if operand_value is None else _cast_value(operand_value, kind)
        case Call(name, arguments):
            operands = [evaluate(argument, row) for argument in arguments]
            if name == "concat":
                return "".join(_to_text(one) for one in operands if one is not None)
            return None if None in operands else FUNCTIONS[name](*operands)
    raise AssertionError(f"no expression: {expression}")


def _combine(terms: tuple[Expr, ...], row: Mapping[str, Any], *, decides: bool) -> bool | None:
    unknown = False
    for term in terms:
        truth = evaluate(term, row)
        if truth is decides:
            return bool(decides)
        unknown |= truth is None
    return None if unknown else not decides


def _compare(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    for one, other in ((left, right), (right, left)):
        if isinstance(one, date) and isinstance(other, str):
            parsed = type(one).fromisoformat(other)
            left, right = (left, parsed) if one is left else (parsed, right)
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return BY_NAME[op](left, right)


def _to_text(value: Any) -> str:
    return (
        ("false", "true")[value] if isinstance(value, bool) else f"{value:f}" if isinstance(value, Decimal) else str(value)
    )


def _make_arithmetic(op: str) -> Callable[[Any, Any], Any]:
    exact = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply}[op]

    def of(left: Any, right: Any) -> Any:
        if isinstance(left, float) or isinstance(right, float):
            a, b = float(left), float(right)
            return _check_finite({"+": a + b, "-": a - b, "*": a * b}[op])
        if isinstance(left, int) and isinstance(right, int):
            return _check_whole(int(exact(Decimal(left), Decimal(right))))
        number = exact(Decimal(left), Decimal(right))
        if len(number.as_tuple().digits) > 38:
            raise UnrepresentableValue
        return number

    return of


def _check_whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise UnrepresentableValue
    return value


def _check_finite(value: float) -> float:
    if math.isinf(value):
        raise UnrepresentableValue
    return value


def _divide(left: Any, right: Any) -> float:
    if not right:
        raise UnrepresentableValue
    try:
        return _check_finite(float(left) / float(right))
    except OverflowError:
        raise UnrepresentableValue from None


def _compute_remainder(left: int, right: int) -> int:
    if not right:
        raise UnrepresentableValue
    return left - right * (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)


def _make_round(mode: str) -> Callable[..., Any]:
    def of(value: Any, digits: int = 0) -> Any:
        if isinstance(value, int) or (isinstance(value, float) and (value.is_integer() or not math.isfinite(value))):
            return value
        if isinstance(value, Decimal) and -int(value.as_tuple().exponent) <= digits:
            return value
        number = Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=mode, context=EXACT)
        return float(number) if isinstance(value, float) else number

    return of


def _negate(value: Any) -> Any:
    return _check_whole(-value) if isinstance(value, int) else -value


def _extract_part(part: str, value: date) -> int:
    match part:
        case "quarter":
            return (value.month + 2) // 3
        case "day_of_year":
            return value.timetuple().tm_yday
    return int(getattr(value, part))


def _truncate(unit: str, value: Any) -> Any:
    order = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    if unit == "week":
        return _truncate("day", value) - timedelta(days=value.weekday())
    month = (value.month - 1) // 3 * 3 + 1 if unit == "quarter" else 1
    after = order[order.index("year" if unit == "quarter" else unit) + 1 :]
    units = [name for name in after if name in order[:3] or isinstance(value, datetime)]
    return value.replace(**{name: month if name == "month" else 1 if name == "day" else 0 for name in units})


def _cast_value(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911  (a case each)
    try:
        if t.is_string(kind):
            return _to_text(value)
        if t.is_floating(kind):
            return _require_same(float(value), value)
        if t.is_boolean(kind):
            return {"true": True, "false": False}[value] if isinstance(value, str) else _require_same(bool(value), value)
        if t.is_integer(kind):
            exact = _require_same(int(value), value)
            return exact if -(2 ** (kind.bit_width - 1)) <= exact < 2 ** (kind.bit_width - 1) else _raise_unrepresentable()
        if t.is_decimal(kind):
            exact = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)
            return (
                _require_same(exact, Decimal(value))
                if abs(exact) < Decimal(10) ** (kind.precision - kind.scale)
                else _raise_unrepresentable()
            )
        if isinstance(value, str):
            return (datetime if t.is_timestamp(kind) else date).fromisoformat(value)
        return _require_same(value.date(), value)
    except (ValueError, KeyError, ArithmeticError):
        raise UnrepresentableValue from None


def _require_same(exact: Any, value: Any) -> Any:
    back = datetime(exact.year, exact.month, exact.day) if isinstance(value, datetime) else exact
    return exact if isinstance(value, str) or back == value else _raise_unrepresentable()


def _raise_unrepresentable() -> Any:
    raise UnrepresentableValue


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{op: _make_arithmetic(op) for op in ("+", "-", "*")},
    "/": _divide,
    "%": _compute_remainder,
    "negative": _negate,
    "abs": lambda value: _negate(value) if value < 0 else value,
    "round": _make_round(ROUND_HALF_UP),
    "floor": _make_round(ROUND_FLOOR),
    "ceil": _make_round(ROUND_CEILING),
    "||": lambda left, right: _to_text(left) + _to_text(right),
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "ltrim": lambda text: text.lstrip(" "),
    "rtrim": lambda text: text.rstrip(" "),
    "length": len,
    "substring": lambda text, start, count=None: text[start - 1 :][:count],
    "left": lambda text, count: text[:count],
    "right": lambda text, count: text[len(text) - min(count, len(text)) :],
    "replace": lambda text, old, new: text.replace(old, new),
    "extract": _extract_part,
    "date_trunc": _truncate,
}
"""Functions of non-NULL values."""
