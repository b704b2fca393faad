"""One column of a block of changes: its array, unchanged values and invalid values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from replicator.domain.errors import Reject

from ...arrow.json_objects import UNSET
from ...arrow.record_errors import FAILURES, build_or_reject
from ...arrow.value_readers import ValueReader
from .unchanged_values import Placeholders


@dataclass
class BuiltColumn:
    """One column. `unchanged` are the indices of placeholders, `absent` of values missing in the image, `errors` of
    invalid values. All are null in `array`."""

    array: pa.Array
    unchanged: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    errors: dict[int, Reject] = field(default_factory=dict)


def build_column(node: ValueReader, values: list[Any], name: str, placeholders: Placeholders) -> BuiltColumn:
    """The column `name` from these values."""
    array = _try_build(node, values)
    unsent = placeholders.find_places(node, values, array) if node.placeholder else []
    if array is not None and not unsent:
        return BuiltColumn(array)
    absent = [] if array is not None else [i for i, v in enumerate(values) if v is UNSET]
    left = list(values)
    for place in (*unsent, *absent):
        left[place] = None
    array, errors = build_or_reject(node.build, left, f"column {name!r}")
    return BuiltColumn(array, unsent, absent, errors)


def _try_build(node: ValueReader, values: list[Any]) -> pa.Array | None:
    try:
        return node.build(values)
    except FAILURES:
        return None
