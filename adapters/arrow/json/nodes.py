"""Columns of scalar values: the JSON they are read from, the Arrow type they become, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode

from .faults import Build, Unfit

SPECIAL_FLOATS = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}


@dataclass(frozen=True)
class Node:
    """How values of one schema are decoded. `wire` is what msgspec reads (null apart), `build` makes the array.

    `unsent` says in which form Debezium writes the placeholder of a value that was not sent (see `unsent`). `beyond`: the
    text of a date or time that `type` cannot hold, of a value that is no text itself.
    """

    type: pa.DataType
    wire: Any
    build: Build
    unsent: str = ""
    beyond: Callable[[Any], str] | None = None


def plain(arrow: pa.DataType, wire: Any, unsent: str = "") -> Node:
    """Values that Arrow takes as they are."""
    return Node(arrow, wire, lambda values: pa.array(values, arrow), unsent)


def cast(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """`values` in another type; nulls alone are null in any, also where there is no cast."""
    return pa.nulls(len(values), arrow) if values.null_count == len(values) else values.cast(arrow)


def integer(arrow: pa.DataType) -> Node:
    """Whole numbers; Arrow refuses those that its type cannot hold."""
    return plain(arrow, int)


def text() -> Node:
    """Strings."""
    return plain(pa.string(), str, "text")


def binary() -> Node:
    """Base64 text to bytes."""
    return plain(pa.binary(), bytes, "bytes")


def boolean() -> Node:
    """True and false."""
    return plain(pa.bool_(), bool)


def floating(arrow: pa.DataType) -> Node:
    """JSON numbers, and the strings NaN, Infinity and -Infinity, which are kept."""

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            wide = pa.array(values, pa.float64())
        except (pa.ArrowException, TypeError):
            wide = pa.array([_special(v) for v in values], pa.float64())
        narrow = wide.cast(arrow)
        if arrow != pa.float64() and _finite(wide) != _finite(narrow):
            raise Unfit(RejectCode.OUT_OF_RANGE, "holds a number too large for a 32-bit float")
        return narrow

    return Node(arrow, float | str, build, "text")


def _special(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in SPECIAL_FLOATS:
        raise Unfit(RejectCode.MALFORMED, "holds text where a number belongs")
    return SPECIAL_FLOATS[value]


def _finite(values: pa.Array) -> int:
    return int(pc.sum(pc.is_finite(values)).as_py() or 0)


def nullable(wire: Any) -> Any:
    """`wire`, null, or absent. Raw JSON cannot be told to be null or not (it is the text `null`)."""
    return wire | msgspec.UnsetType if wire is msgspec.Raw else wire | None | msgspec.UnsetType


def element(wire: Any) -> Any:
    """`wire` or null, as an element of an array or map."""
    return wire if wire is msgspec.Raw else wire | None
