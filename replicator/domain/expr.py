"""The expressions of conditions, assignments and computed columns.

Policies use a small set, which `adapters.sql` renders: everything but `Call`, `Cast` and `Case`. These three are for
expressions of the configuration, which `domain.transform.expressions` types and Arrow evaluates.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import pyarrow as pa

Side = Literal["source", "target"]
Comparison = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Col:
    """A column of the row to write (`source`) or of the existing row (`target`)."""

    side: Side
    name: str


@dataclass(frozen=True, slots=True)
class Lit:
    """A constant of this code or of a condition in the configuration; never from data."""

    value: str | int | bool | Decimal | None


@dataclass(frozen=True, slots=True)
class Compare:
    """SQL comparison: unknown if either side is NULL."""

    op: Comparison
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction; true if empty."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction; false if empty."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """True if the operand is NULL; never unknown."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; unknown if the operand is unknown."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Coalesce:
    """The first value that is not NULL."""

    first: Expr
    other: Expr


@dataclass(frozen=True, slots=True)
class SentValue:
    """The value of a column in the row to write, or in the existing row if `_unsent` contains the column."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator of `domain.transform.expressions`, by its name there."""

    name: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """The operand's value in another type; fails if the type cannot hold it."""

    operand: Expr
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch with a true condition, otherwise `otherwise`. Later branches are not evaluated."""

    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr


Expr = SentValue | Col | Lit | Compare | AllOf | AnyOf | IsNull | Not | Coalesce | Call | Cast | Case


def source(name: str) -> Col:
    """The column of the row to write."""
    return Col("source", name)


def target(name: str) -> Col:
    """The column of the existing row."""
    return Col("target", name)


def tuple_after(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> Expr:
    """`left` > `right`, compared element by element from the left. Written as single comparisons, so that all dialects
    agree."""
    terms = []
    for i in range(len(left)):
        equal = tuple(Compare("=", a, b) for a, b in zip(left[:i], right[:i], strict=True))
        terms.append(AllOf((*equal, Compare(">", left[i], right[i]))))
    return AnyOf(tuple(terms))
