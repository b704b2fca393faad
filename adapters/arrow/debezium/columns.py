"""Columns of one block of changes: arrays, what was not sent, and what does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from replicator.domain.errors import Reject

from ..json.faults import FAILURES, fit
from ..json.nodes import Node
from ..json.objects import UNSET
from .unsent import Placeholders


@dataclass
class Built:
    """One column. `unsent` are places of placeholders, `absent` of values that the image does not have at all; both are
    null in `array`, as are the places of `errors`."""

    array: pa.Array
    unsent: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    errors: dict[int, Reject] = field(default_factory=dict)


def build_column(node: Node, values: list[Any], name: str, placeholders: Placeholders) -> Built:
    """The column `name` of these values."""
    array = _tried(node, values)
    unsent = placeholders.find(node, values, array) if node.unsent else []
    if array is not None and not unsent:
        return Built(array)
    absent = [] if array is not None else [i for i, v in enumerate(values) if v is UNSET]
    left = list(values)
    for place in (*unsent, *absent):
        left[place] = None
    array, errors = fit(node.build, left, f"column {name!r}")
    return Built(array, unsent, absent, errors)


def _tried(node: Node, values: list[Any]) -> pa.Array | None:
    try:
        return node.build(values)
    except FAILURES:
        return None
