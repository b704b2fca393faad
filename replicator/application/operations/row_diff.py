"""Compares the rows of two tables by value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.differences import RowDifference
from replicator.domain.plain_values import to_json_value, to_rows, to_values

KEY_SEPARATOR = "\0"
"""Between the texts of a key's columns."""
NUMBERS = Context(prec=100)
"""Enough digits for every decimal of Arrow, so that none is rounded."""


@dataclass(frozen=True)
class RowDiff:
    """Rows that differ: row numbers of missing ones in the expected rows, of extra ones in the actual rows, and pairs of
    both. `pairs`: each column of both sides, as of `to_comparable`."""

    expected: pa.Table
    actual: pa.Table
    keys: tuple[str, ...]
    missing: Sequence[int]
    extra: Sequence[int]
    different: Sequence[tuple[int, int]]
    pairs: Mapping[str, tuple[pa.Array, pa.Array]]

    def list_differences(self, count: int) -> Iterator[RowDifference]:
        """The first differences, the missing rows first."""
        for row in self.missing[:count]:
            values = self._read_row(self.expected, row)
            yield RowDifference("missing", self._pick_key(values), {name: (value, None) for name, value in values.items()})
        for row in self.extra[: max(0, count - len(self.missing))]:
            values = self._read_row(self.actual, row)
            yield RowDifference("extra", self._pick_key(values), {name: (None, value) for name, value in values.items()})
        for first, second in self.different[: max(0, count - len(self.missing) - len(self.extra))]:
            wanted, found = self._read_row(self.expected, first), self._read_row(self.actual, second)
            names = [name for name, (one, other) in self.pairs.items() if not one[first].equals(other[second])]
            columns = {name: (wanted[name], found[name]) for name in names}
            yield RowDifference("different", self._pick_key(found), columns)

    def read_keys(self) -> pa.Table:
        """The keys of all these rows, with the types of the expected rows."""
        parts = [
            self.expected.select(self.keys).take(pa.array([*self.missing, *(a for a, _ in self.different)], pa.int64()))
        ]
        parts.append(self.actual.select(self.keys).take(pa.array(self.extra, pa.int64())).cast(parts[0].schema))
        return pa.concat_tables(parts)

    def _read_row(self, rows: pa.Table, row: int) -> dict[str, Any]:
        return {name: to_shown(value) for name, value in next(to_rows(rows.slice(row, 1))).items()}

    def _pick_key(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.keys}


def compare_rows(expected: pa.Table, actual: pa.Table, keys: Sequence[str]) -> RowDiff:
    """The differences between tables with the same column names. A key that occurs twice in `actual` is an extra row."""
    expected, actual = expected.combine_chunks(), actual.select(expected.column_names).combine_chunks()
    pairs = {name: to_comparable(expected[name], actual[name]) for name in expected.column_names}
    wanted, found = (
        to_key_texts([pairs[name][side] for name in keys], len(rows)) for side, rows in ((0, expected), (1, actual))
    )
    place = pc.index_in(found, value_set=wanted)
    first = pa.table({"place": place, "row": pa.array(range(len(found)), pa.int64())})
    matched = first.filter(pc.is_valid(first["place"]))
    kept = matched.group_by("place").aggregate([("row", "min")])
    pair_of, row_of = kept["place"].combine_chunks(), kept["row_min"].combine_chunks()
    missing = pc.filter(pa.array(range(len(wanted)), pa.int64()), pc.invert(pc.is_in(wanted, value_set=found)))
    extra = pc.filter(first["row"].combine_chunks(), pc.invert(pc.is_in(first["row"].combine_chunks(), value_set=row_of)))
    candidates: pa.Array = pa.array([False] * len(pair_of), pa.bool_())
    for one, other in pairs.values():
        candidates = pc.or_(candidates, _differs(one.take(pair_of), other.take(row_of)))
    different = list(zip(pair_of.filter(candidates).to_pylist(), row_of.filter(candidates).to_pylist(), strict=True))
    return RowDiff(expected, actual, tuple(keys), missing.to_pylist(), extra.to_pylist(), different, pairs)


def _differs(one: pa.Array, other: pa.Array) -> pa.Array:
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    return pc.or_(unequal, pc.xor(pc.is_null(one), pc.is_null(other)))


def are_comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """True if values of these types may be equal. A number and a text are not: a number has several texts."""
    return _classify(one) == _classify(other)


def _classify(kind: pa.DataType) -> str:
    t = pa.types
    classes = {
        "number": (t.is_integer, t.is_floating, t.is_decimal),
        "text": (t.is_string, t.is_large_string, t.is_string_view),
        "bytes": (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary),
        "list": (t.is_list, t.is_large_list),
    }
    return next((name for name, checks in classes.items() if any(check(kind) for check in checks)), str(kind))


def to_comparable(expected: pa.ChunkedArray, actual: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Both columns as arrays of one type, whose values are equal where the values of the columns are equal."""
    one, other = _combine(expected), _combine(actual)
    if one.type == other.type and not pa.types.is_nested(one.type) and not pa.types.is_floating(one.type):
        return one, other
    return to_texts(one), to_texts(other)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def to_texts(values: pa.Array) -> pa.Array:
    """The values as texts. Equal numbers of different types have the same text. NaN equals NaN."""
    t = pa.types
    if t.is_integer(values.type) or t.is_string(values.type):
        return values.cast(pa.string())
    return pa.array([None if value is None else _to_text(value) for value in to_values(values)], pa.string())


def _to_text(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        return format(NUMBERS.normalize(value), "f") if value else "0"
    shown = to_shown(value)
    return shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True, ensure_ascii=False)


def to_key_texts(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """One text per row for the key columns."""
    if not columns:
        return pa.nulls(rows, pa.string())
    return pc.binary_join_element_wise(*(to_texts(column) for column in columns), KEY_SEPARATOR)


def to_shown(value: Any) -> Any:
    """A value for JSON. Times are ISO text."""
    if isinstance(value, list | tuple):
        return [to_shown(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): to_shown(one) for name, one in value.items()}
    plain = to_json_value(value)
    return plain if plain is None or isinstance(plain, bool | int | float | str) else str(plain)
