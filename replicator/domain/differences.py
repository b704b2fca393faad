"""The result of a comparison of a source table with a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa

from .plain_values import to_rows

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
        said = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "keys"}
        return {**said, "equal": self.equal, "differences": [asdict(one) for one in self.differences]}


# The difference between two states of a table: rows that only one has, and the columns in which rows differ.

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
    known = [name for name in before.column_names if name not in ignored]
    others = [name for name in after.column_names if name not in ignored]
    common = [name for name in known if name in others]
    found = TableDiff(
        columns_only_before=[name for name in known if name not in common],
        columns_only_after=[name for name in others if name not in common],
    )
    by = list(keys) if keys and set(keys) <= set(common) else common
    left = {key: (number, row) for number, (key, row) in enumerate(_hash_rows(before.select(common), by))}
    pairs: list[tuple[int, int]] = []
    added: list[int] = []
    for number, (key, row) in enumerate(_hash_rows(after.select(common), by)):
        was = left.pop(key, None)
        if was is None:
            added.append(number)
        elif was[1] == row:
            found.same += 1
        else:
            pairs.append((was[0], number))
    found.only_before, found.only_after, found.different = len(left), len(added), len(pairs)
    gone = [number for number, _ in left.values()][:max_shown]
    found.first["only_before"] = list(_take_rows(before, gone))
    found.first["only_after"] = list(_take_rows(after, added[:max_shown]))
    _add_differences(found, (before.select(common), after.select(common)), pairs, by, max_shown)
    return found


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
    found: TableDiff, tables: tuple[pa.Table, pa.Table], pairs: Sequence[tuple[int, int]], by: Sequence[str], shown: int
) -> None:
    """Add the columns in which the rows of `pairs` differ."""
    for start in range(0, len(pairs), BATCH_ROWS):
        some = pairs[start : start + BATCH_ROWS]
        was, now = (_take_rows(table, [pair[side] for pair in some]) for side, table in enumerate(tables))
        for one, other in zip(was, now, strict=True):
            changed = {name: [one[name], other[name]] for name in one if repr(one[name]) != repr(other[name])}
            found.columns.update(list(changed))
            if len(found.first["differing"]) < shown:
                found.first["differing"].append({"key": _select_columns(one, by), "columns": changed})


def _select_columns(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}


def _take_rows(table: pa.Table, numbers: Sequence[int]) -> Iterator[Row]:
    return to_rows(table.take(pa.array(numbers, pa.int64())))
