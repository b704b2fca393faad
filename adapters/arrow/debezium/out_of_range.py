"""Values of dates and times that have no place, read as a table says (`domain.out_of_range`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode
from replicator.domain.moments import DAY_MS, FIRST_DAY, FIRST_US, LAST_DAY, LAST_US
from replicator.domain.out_of_range import Reading

from ..json.faults import FAILURES, Unfit, fit
from ..json.nodes import Node
from ..json.objects import UNSET
from ..json.temporal import INT64

BEFORE = re.compile(r"-|0000-|.*\bBC\b")
AFTER = re.compile(r"infinity\Z|\+?\d{5,}-|(2[4-9]|[3-9]\d|\d{3,}):", re.IGNORECASE)
HINT = "; `out_of_range` of its table may keep the row, or leave the column out of all targets"
BOUNDS = {
    "date32[day]": (FIRST_DAY, LAST_DAY),
    "timestamp[us]": (FIRST_US, LAST_US),
    "timestamp[us, tz=UTC]": (FIRST_US, LAST_US),
    "timestamp[ns]": (INT64[0] + 1, INT64[1] - 1),
    "time64[us]": (0, DAY_MS * 1_000 - 1),
    "time64[ns]": (0, DAY_MS * 1_000_000 - 1),
}


def lenient(node: Node, how: Reading) -> Node:
    """`node`, reading values that have no place as `how` says; others are refused as before."""
    if how != "unread" and str(node.type) not in BOUNDS:
        return node
    if how == "reject":
        return replace(node, build=partial(_hinting, node))

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            return node.build(values)
        except FAILURES:
            if any(value is UNSET for value in values):
                raise  # It has to be known which were not sent.
        array, bad = fit(node.build, list(values), "")
        if how == "unread":
            return array
        limits: dict[int, int] = {}
        for place, reject in bad.items():
            side = _side(values[place]) if reject.code == RejectCode.OUT_OF_RANGE else None
            if side is None:
                raise Unfit(reject.code, reject.sentence.strip())
            limits[place] = BOUNDS[str(node.type)][side]
        return array if how == "null" else _clamped(array, limits)

    return replace(node, build=build)


def _hinting(node: Node, values: Sequence[Any]) -> pa.Array:
    try:
        return node.build(values)
    except Unfit as error:
        if error.reject.code != RejectCode.OUT_OF_RANGE:
            raise
        raise Unfit(error.reject.code, error.reject.sentence + HINT) from None


def _clamped(array: pa.Array, limits: dict[int, int]) -> pa.Array:
    width = pa.int32() if pa.types.is_date32(array.type) else pa.int64()
    mask = pa.array([place in limits for place in range(len(array))], pa.bool_())
    found = pa.array([limits[place] for place in sorted(limits)], width).view(array.type)
    return pc.replace_with_mask(array, mask, found)


def _side(value: Any) -> int | None:
    """0 for what lies before all that there is, 1 for what lies after; None for what is no date or time out of range."""
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if isinstance(value, int):
        return int(value > 0)
    text = str(value).strip()
    if BEFORE.match(text):
        return 0
    return 1 if AFTER.match(text) else None
