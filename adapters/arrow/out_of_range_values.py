"""Dates and times out of range, with their configured treatment (`domain.out_of_range`)."""

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
from replicator.domain.out_of_range import DAY_MS, FIRST_DAY, FIRST_US, LAST_DAY, LAST_US, OutOfRange, ReadMode
from replicator.domain.table import Column, TableSpec

from .record_errors import FAILURES, ValueMisfit, build_or_reject
from .record_limits import find_table_entry
from .temporal_values import INT64
from .value_readers import UNSET, ValueReader, cast_values

BEFORE = re.compile(r"-\d|-infinity\Z|0000-|\d.*\bBC\Z", re.IGNORECASE)
AFTER = re.compile(r"\+?infinity\Z|\+?\d{5,}-|(2[4-9]|[3-9]\d|\d{3,}):", re.IGNORECASE)
ZEROS = re.compile(r"\d{4}-(00-\d\d|\d\d-00)")
"""A day without month or day, as MySQL may store it. It is neither below nor above the range."""
ISO_BEFORE = re.compile(r"-(\d{4,})-(.*)\Z", re.DOTALL)
HINT = "; set `out_of_range` of the table to keep the row, or `cast: string` to keep its text, or drop the column"
BOUNDS = {
    "date32[day]": (FIRST_DAY, LAST_DAY),
    "timestamp[us]": (FIRST_US, LAST_US),
    "timestamp[us, tz=UTC]": (FIRST_US, LAST_US),
    "timestamp[ns]": (INT64[0] + 1, INT64[1] - 1),
    "time64[us]": (0, DAY_MS * 1_000 - 1),
    "time64[ns]": (0, DAY_MS * 1_000_000 - 1),
}


class OutOfRangeOptions(BaseModel):
    """The option `out_of_range` of decoders: for each table the treatment of times that no target can hold."""

    out_of_range: dict[str, InstanceOf[OutOfRange]] = Field(default_factory=dict, exclude=True)

    def reading_of(self, table: str, column: str) -> ReadMode:
        """The treatment of out-of-range times in a column. In keys they are rejected, because rows could become equal."""
        found = find_table_entry(self.out_of_range, table)
        return found.get_mode(column) if found else "reject"

    def to_read_types(self, table: TableSpec) -> TableSpec:
        """The table with the types in which its columns are read."""
        return replace(table, columns=tuple(self._to_read_type(column, table) for column in table.columns))

    def _to_read_type(self, column: Column, table: TableSpec) -> Column:
        is_text = column.name not in table.keys and self.reading_of(table.name, column.name) == "text"
        return Column(column.name, pa.string(), column.nullable) if is_text and str(column.type) in BOUNDS else column


def make_lenient(node: ValueReader, how: ReadMode) -> ValueReader:
    """A reader like `node` with treatment `how` for values out of range. Other invalid values are still refused."""
    if how != "unread" and str(node.type) not in BOUNDS:
        return node
    if how == "reject":
        return replace(node, build=partial(_build_with_hint, node))
    arrow = pa.string() if how == "text" else node.type

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            return _cast_to(node.build(values), arrow)
        except FAILURES:
            if any(value is UNSET for value in values):
                raise  # The caller needs to find the UNSET values.
        given = values.to_pylist() if isinstance(values, pa.Array) else list(values)
        array, bad = build_or_reject(lambda some: node.build(_take_like(values, some)), given, "")
        if how == "unread":
            return array
        texts = {place: _to_text(node, given[place]) for place in bad}
        for place, reject in bad.items():
            if reject.code != RejectCode.OUT_OF_RANGE or not _is_out_of_range(texts[place], how):
                raise ValueMisfit(reject.code, reject.sentence.strip())
        if how == "clamp":
            limits = BOUNDS[str(node.type)]
            return _fill_nulls(array, {place: limits[_is_above_range(text)] for place, text in texts.items()})
        return _fill_nulls(_cast_to(array, arrow), texts) if how == "text" else array

    return replace(node, type=arrow, build=build)


def _take_like(values: Sequence[Any], some: Sequence[Any]) -> Sequence[Any]:
    return pa.array(some, values.type) if isinstance(values, pa.Array) else some


def _cast_to(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    return array if array.type == arrow else cast_values(array, arrow)


def _build_with_hint(node: ValueReader, values: Sequence[Any]) -> pa.Array:
    try:
        return node.build(values)
    except ValueMisfit as error:
        if (
            error.reject.code != RejectCode.OUT_OF_RANGE
            or len(values) != 1
            or not _is_out_of_range(_to_text(node, values[0]), "text")
        ):
            raise
        raise ValueMisfit(error.reject.code, error.reject.sentence + HINT) from None


def _fill_nulls(array: pa.Array, found: dict[int, Any]) -> pa.Array:
    wire = {"date32[day]": pa.int32(), "string": pa.string()}.get(str(array.type), pa.int64())
    mask = pa.array([place in found for place in range(len(array))], pa.bool_())
    return pc.replace_with_mask(array, mask, pa.array([found[place] for place in sorted(found)], wire).view(array.type))


def _to_text(node: ValueReader, value: Any) -> str:
    """The text of an out-of-range value: years before 1 in PostgreSQL's form, all else as it is."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if node.out_of_range_text is not None and not isinstance(value, str):
        return node.out_of_range_text(value)
    text = str(value).strip()
    year = ISO_BEFORE.match(text)
    return f"{int(year[1]) + 1:04}-{year[2].replace('T', ' ')} BC" if year else text


def _is_out_of_range(text: str, how: ReadMode) -> bool:
    """True if the text is an out-of-range date or time that `how` can treat."""
    return bool(BEFORE.match(text) or AFTER.match(text) or (how != "clamp" and ZEROS.match(text)))


def _is_above_range(text: str) -> bool:
    """True if the value is above the range, False if below."""
    return BEFORE.match(text) is None
