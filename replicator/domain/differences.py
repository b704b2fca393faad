"""Differences between tables: their form in reports, and two ways to find them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from decimal import Context, Decimal
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from .plain_values import to_json_value, to_rows, to_values

DifferenceKind = Literal["missing", "extra", "different"]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs. `missing`: only the source has it. `extra`: only the target has it.

    - `key`: the values of the key columns in the target, as plain values.
    - `columns`: by name the expected value and the value in the target, of the columns that differ. For a missing or an
      extra row, all columns; the value of the absent side is None.
    - `reason`: why the row differs, if the pipeline knows it; else empty.
    """

    kind: DifferenceKind
    key: Mapping[str, Any]
    columns: Mapping[str, tuple[Any, Any]]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LaneDiff:
    """The comparison of one lane.

    - `against`: `source` or `log`.
    - `position`: the points of the first and the last split, for people. `commit`: the compared commit of the target.
    - `rows`: compared rows of the source. `missing`, `extra`, `different`: numbers of rows.
    - `differences`: the first of these rows.
    - `not_compared`: what was not compared, and why, in sentences.
    - `begun`: ISO time. `seconds`: the duration.
    - `keys`: the keys of all rows that differ, with the source's names. Empty if the target has other keys than the source.
    """

    lane: str
    table: str
    against: str
    position: tuple[str, str]
    commit: str
    rows: int
    missing: int
    extra: int
    different: int
    differences: tuple[RowDifference, ...]
    not_compared: tuple[str, ...]
    begun: str
    seconds: float
    keys: pa.Table = field(default_factory=lambda: pa.table({}), repr=False, compare=False)

    @property
    def equal(self) -> bool:
        """True if no row differs."""
        return not (self.missing or self.extra or self.different)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "keys"}
        return {**counts, "equal": self.equal, "differences": [asdict(one) for one in self.differences]}


# Rows of a source and a target, compared by value: their columns may have other types.

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
            expected, actual = self._read_row(self.expected, first), self._read_row(self.actual, second)
            names = [name for name, (one, other) in self.pairs.items() if not one[first].equals(other[second])]
            columns = {name: (expected[name], actual[name]) for name in names}
            yield RowDifference("different", self._pick_key(actual), columns)

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
    wanted, present = (
        to_key_texts([pairs[name][side] for name in keys], len(rows)) for side, rows in ((0, expected), (1, actual))
    )
    index = pc.index_in(present, value_set=wanted)
    first = pa.table({"place": index, "row": pa.array(range(len(present)), pa.int64())})
    matched = first.filter(pc.is_valid(first["place"]))
    grouped = matched.group_by("place").aggregate([("row", "min")])
    pair_of, row_of = grouped["place"].combine_chunks(), grouped["row_min"].combine_chunks()
    missing = pc.filter(pa.array(range(len(wanted)), pa.int64()), pc.invert(pc.is_in(wanted, value_set=present)))
    extra = pc.filter(first["row"].combine_chunks(), pc.invert(pc.is_in(first["row"].combine_chunks(), value_set=row_of)))
    candidates: pa.Array = pa.array([False] * len(pair_of), pa.bool_())
    for wanted_values, present_values in pairs.values():
        one, other = wanted_values.take(pair_of), present_values.take(row_of)
        unequal = pc.fill_null(pc.not_equal(one, other), False)
        candidates = pc.or_(candidates, pc.or_(unequal, pc.xor(pc.is_null(one), pc.is_null(other))))
    different = list(zip(pair_of.filter(candidates).to_pylist(), row_of.filter(candidates).to_pylist(), strict=True))
    return RowDiff(expected, actual, tuple(keys), missing.to_pylist(), extra.to_pylist(), different, pairs)


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
    plain_value = to_shown(value)
    return plain_value if isinstance(plain_value, str) else json.dumps(plain_value, sort_keys=True, ensure_ascii=False)


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


# Two states of one table: rows that only one has, and the columns in which rows differ.

BATCH_ROWS = 20_000
Row = dict[str, Any]


@dataclass
class TableDiff:
    """Counts of rows. `columns`: per column the number of rows in which it differs. `first`: the first rows of each
    kind; for different rows the key, and both values of each column that differs."""

    same: int = 0
    only_before: int = 0
    only_after: int = 0
    different: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    columns_only_before: list[str] = field(default_factory=list)
    columns_only_after: list[str] = field(default_factory=list)
    first: dict[str, list[Row]] = field(default_factory=lambda: {"only_before": [], "only_after": [], "differing": []})

    @property
    def is_empty(self) -> bool:
        """True if there is no difference."""
        columns = self.columns_only_before or self.columns_only_after
        return not (self.only_before or self.only_after or self.different or columns)


def compare_tables(
    before: pa.Table, after: pa.Table, keys: Sequence[str], *, ignored: Sequence[str] = (), max_shown: int = 10
) -> TableDiff:
    """The differences of `after` from `before`, in columns that are not `ignored`. `max_shown`: the number of returned
    rows of each kind.

    Rows with equal `keys` are compared; of several, the first with the first. Without keys, or if a key column is
    missing in one table, rows are either equal or different rows. Columns of only one table are listed, and not
    compared.
    """
    names = [name for name in before.column_names if name not in ignored]
    others = [name for name in after.column_names if name not in ignored]
    common = [name for name in names if name in others]
    diff = TableDiff(
        columns_only_before=[name for name in names if name not in common],
        columns_only_after=[name for name in others if name not in common],
    )
    by = list(keys) if keys and set(keys) <= set(common) else common
    old_rows = {key: (number, row) for number, (key, row) in enumerate(_hash_rows(before.select(common), by))}
    pairs: list[tuple[int, int]] = []
    added: list[int] = []
    for number, (key, row) in enumerate(_hash_rows(after.select(common), by)):
        old_row = old_rows.pop(key, None)
        if old_row is None:
            added.append(number)
        elif old_row[1] == row:
            diff.same += 1
        else:
            pairs.append((old_row[0], number))
    diff.only_before, diff.only_after, diff.different = len(old_rows), len(added), len(pairs)
    removed_numbers = [number for number, _ in old_rows.values()][:max_shown]
    diff.first["only_before"] = list(_take_rows(before, removed_numbers))
    diff.first["only_after"] = list(_take_rows(after, added[:max_shown]))
    _add_differences(diff, (before.select(common), after.select(common)), pairs, by, max_shown)
    return diff


def _hash_rows(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Per row a hash of its key with its number among equal keys, and a hash of the whole row."""
    seen: Counter[bytes] = Counter()
    for start in range(0, table.num_rows, BATCH_ROWS):
        for row in to_rows(table.slice(start, BATCH_ROWS)):
            key = _hash_values([row[name] for name in by])
            seen[key] += 1
            yield key + seen[key].to_bytes(8, "big"), _hash_values(list(row.values()))


def _hash_values(values: list[Any]) -> bytes:
    return blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _add_differences(
    diff: TableDiff, tables: tuple[pa.Table, pa.Table], pairs: Sequence[tuple[int, int]], by: Sequence[str], max_shown: int
) -> None:
    """Add the columns in which the rows of `pairs` differ."""
    for start in range(0, len(pairs), BATCH_ROWS):
        batch = pairs[start : start + BATCH_ROWS]
        old_rows, new_rows = (_take_rows(table, [pair[side] for pair in batch]) for side, table in enumerate(tables))
        for one, other in zip(old_rows, new_rows, strict=True):
            changed = {name: [one[name], other[name]] for name in one if repr(one[name]) != repr(other[name])}
            diff.columns.update(list(changed))
            if len(diff.first["differing"]) < max_shown:
                diff.first["differing"].append({"key": {name: one[name] for name in by}, "columns": changed})


def _take_rows(table: pa.Table, numbers: Sequence[int]) -> Iterator[Row]:
    return to_rows(table.take(pa.array(numbers, pa.int64())))
