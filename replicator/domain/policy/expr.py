"""The vocabulary of conditions, assignments and computed columns.

What a policy uses is small, and rendered by `adapters.sql`: everything but `Call`, `Cast` and `Case`. These are for
expressions of the configuration, which are typed by `domain.transform.expression_resolver` and evaluated over Arrow.
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
    """A column of the row to write (`source`) or of the row that is there (`target`)."""

    side: Side
    name: str


@dataclass(frozen=True, slots=True)
class Lit:
    """A constant: of this code base, or of a condition in the configuration; never from data."""

    value: str | int | bool | Decimal | None


@dataclass(frozen=True, slots=True)
class Compare:
    """SQL comparison: unknown when either side is NULL."""

    op: Comparison
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction; true when empty."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction; false when empty."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """True when the operand is NULL; never unknown."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; unknown when the operand is."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Coalesce:
    """The first value that is not NULL."""

    first: Expr
    other: Expr


@dataclass(frozen=True, slots=True)
class SentValue:
    """The value of that column in the row to write, or, where its `_unsent` names the column, in the row that is there."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator of `domain.transform.functions`, by its name there."""

    name: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """The operand's value in another type; it fails where that cannot hold it."""

    operand: Expr
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Case:
    """The value beside the first condition that holds, else the last one. What is not reached is not asked."""

    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr


Expr = SentValue | Col | Lit | Compare | AllOf | AnyOf | IsNull | Not | Coalesce | Call | Cast | Case


def source(name: str) -> Col:
    """The column of the row to write."""
    return Col("source", name)


def target(name: str) -> Col:
    """The column of the row that is there."""
    return Col("target", name)


def tuple_after(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> Expr:
    """`left` > `right`, compared element by element from the left; spelt out so that every dialect agrees."""
    terms = []
    for i in range(len(left)):
        equal = tuple(Compare("=", a, b) for a, b in zip(left[:i], right[:i], strict=True))
        terms.append(AllOf((*equal, Compare(">", left[i], right[i]))))
    return AnyOf(tuple(terms))
