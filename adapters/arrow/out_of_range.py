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
from pydantic import BaseModel, Field, InstanceOf

from replicator.domain.errors import RejectCode
from replicator.domain.moments import DAY_MS, FIRST_DAY, FIRST_US, LAST_DAY, LAST_US
from replicator.domain.out_of_range import OutOfRange, Reading
from replicator.domain.table import Column, TableSpec

from .json.faults import FAILURES, Unfit, fit
from .json.limits import of_table
from .json.nodes import Node, cast
from .json.objects import UNSET
from .json.temporal import INT64

BEFORE = re.compile(r"-\d|-infinity\Z|0000-|\d.*\bBC\Z", re.IGNORECASE)
AFTER = re.compile(r"\+?infinity\Z|\+?\d{5,}-|(2[4-9]|[3-9]\d|\d{3,}):", re.IGNORECASE)
ZEROS = re.compile(r"\d{4}-(00-\d\d|\d\d-00)")
"""A day without month or day, as MySQL may store it: it lies neither before nor after what there is."""
ISO_BEFORE = re.compile(r"-(\d{4,})-(.*)\Z", re.DOTALL)
HINT = "; `out_of_range` of its table may keep the row, `cast: string` its text; or leave the column out of all targets"
BOUNDS = {
    "date32[day]": (FIRST_DAY, LAST_DAY),
    "timestamp[us]": (FIRST_US, LAST_US),
    "timestamp[us, tz=UTC]": (FIRST_US, LAST_US),
    "timestamp[ns]": (INT64[0] + 1, INT64[1] - 1),
    "time64[us]": (0, DAY_MS * 1_000 - 1),
    "time64[ns]": (0, DAY_MS * 1_000_000 - 1),
}


class ReadsOutOfRange(BaseModel):
    """The option `out_of_range` of decoders: per table what becomes of dates and times that no target can hold."""

    out_of_range: dict[str, InstanceOf[OutOfRange]] = Field(default_factory=dict)

    def reading_of(self, table: str, column: str) -> Reading:
        """How dates and times of a column are read that no target can hold. Those of keys are rejected: rows could become
        alike."""
        found = of_table(self.out_of_range, table)
        return found.of(column) if found else "reject"

    def as_read(self, table: TableSpec) -> TableSpec:
        """The table with the types in which its columns are read."""
        return replace(table, columns=tuple(self._column(column, table) for column in table.columns))

    def _column(self, column: Column, table: TableSpec) -> Column:
        is_text = column.name not in table.keys and self.reading_of(table.name, column.name) == "text"
        return Column(column.name, pa.string(), column.nullable) if is_text and str(column.type) in BOUNDS else column


def lenient(node: Node, how: Reading) -> Node:
    """`node`, reading values that have no place as `how` says; others are refused as before."""
    if how != "unread" and str(node.type) not in BOUNDS:
        return node
    if how == "reject":
        return replace(node, build=partial(_hinting, node))
    arrow = pa.string() if how == "text" else node.type

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            return _as(node.build(values), arrow)
        except FAILURES:
            if any(value is UNSET for value in values):
                raise  # It has to be known which were not sent.
        given = values.to_pylist() if isinstance(values, pa.Array) else list(values)
        array, bad = fit(lambda some: node.build(_like(values, some)), given, "")
        if how == "unread":
            return array
        texts = {place: _text(node, given[place]) for place in bad}
        for place, reject in bad.items():
            if reject.code != RejectCode.OUT_OF_RANGE or not _is_out(texts[place], how):
                raise Unfit(reject.code, reject.sentence.strip())
        if how == "clamp":
            limits = BOUNDS[str(node.type)]
            return _put(array, {place: limits[_is_after(text)] for place, text in texts.items()})
        return _put(_as(array, arrow), texts) if how == "text" else array

    return replace(node, type=arrow, build=build)


def _like(values: Sequence[Any], some: Sequence[Any]) -> Sequence[Any]:
    return pa.array(some, values.type) if isinstance(values, pa.Array) else some


def _as(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    return array if array.type == arrow else cast(array, arrow)


def _hinting(node: Node, values: Sequence[Any]) -> pa.Array:
    try:
        return node.build(values)
    except Unfit as error:
        if error.reject.code != RejectCode.OUT_OF_RANGE or len(values) != 1 or not _is_out(_text(node, values[0]), "text"):
            raise
        raise Unfit(error.reject.code, error.reject.sentence + HINT) from None


def _put(array: pa.Array, found: dict[int, Any]) -> pa.Array:
    wire = {"date32[day]": pa.int32(), "string": pa.string()}.get(str(array.type), pa.int64())
    mask = pa.array([place in found for place in range(len(array))], pa.bool_())
    return pc.replace_with_mask(array, mask, pa.array([found[place] for place in sorted(found)], wire).view(array.type))


def _text(node: Node, value: Any) -> str:
    """The text of a value that its type has no place for: years before 1 as PostgreSQL writes them, all else as it is."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if node.beyond is not None and not isinstance(value, str):
        return node.beyond(value)
    text = str(value).strip()
    year = ISO_BEFORE.match(text)
    return f"{int(year[1]) + 1:04}-{year[2].replace('T', ' ')} BC" if year else text


def _is_out(text: str, how: Reading) -> bool:
    """Whether it is a date or time at all, and there is something to put in its place."""
    return bool(BEFORE.match(text) or AFTER.match(text) or (how != "clamp" and ZEROS.match(text)))


def _is_after(text: str) -> bool:
    """Whether it lies after all that there is, and not before."""
    return BEFORE.match(text) is None
