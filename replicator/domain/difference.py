"""Two states of a table compared: which rows are in one alone, and in which columns the others differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from .plain import rows

AT_ONCE = 20_000
Row = dict[str, Any]


@dataclass
class Difference:
    """Counts of rows; `columns`: in how many rows each column differs. `first`: the first rows of each kind, and of those
    that differ the key and both values of each column that does."""

    same: int = 0
    only_before: int = 0
    only_after: int = 0
    differing: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    columns_only_before: list[str] = field(default_factory=list)
    columns_only_after: list[str] = field(default_factory=list)
    first: dict[str, list[Row]] = field(default_factory=lambda: {"only_before": [], "only_after": [], "differing": []})

    @property
    def none(self) -> bool:
        """Nothing differs."""
        columns = self.columns_only_before or self.columns_only_after
        return not (self.only_before or self.only_after or self.differing or columns)


def difference(
    before: pa.Table, after: pa.Table, keys: Sequence[str], *, apart: Sequence[str] = (), shown: int = 10
) -> Difference:
    """How `after` differs from `before`, in columns that are not `apart`; `shown`: how many rows of each kind are told.

    Rows of equal `keys` are one, the first with the first where there are several. Without keys, or where one of the two
    lacks one of them, a row is the same or another one. Columns that one lacks are named, and not compared."""
    known = [name for name in before.column_names if name not in apart]
    others = [name for name in after.column_names if name not in apart]
    common = [name for name in known if name in others]
    found = Difference(
        columns_only_before=[name for name in known if name not in common],
        columns_only_after=[name for name in others if name not in common],
    )
    by = list(keys) if keys and set(keys) <= set(common) else common
    left = {key: (number, row) for number, (key, row) in enumerate(_digests(before.select(common), by))}
    pairs: list[tuple[int, int]] = []
    added: list[int] = []
    for number, (key, row) in enumerate(_digests(after.select(common), by)):
        was = left.pop(key, None)
        if was is None:
            added.append(number)
        elif was[1] == row:
            found.same += 1
        else:
            pairs.append((was[0], number))
    found.only_before, found.only_after, found.differing = len(left), len(added), len(pairs)
    gone = [number for number, _ in left.values()][:shown]
    found.first["only_before"] = list(_taken(before, gone))
    found.first["only_after"] = list(_taken(after, added[:shown]))
    _tell(found, (before.select(common), after.select(common)), pairs, by, shown)
    return found


def _digests(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Of each row that of its key, and which row of that key it is, and that of the whole."""
    seen: Counter[bytes] = Counter()
    for start in range(0, table.num_rows, AT_ONCE):
        for row in rows(table.slice(start, AT_ONCE)):
            key = _digest([row[name] for name in by])
            seen[key] += 1
            yield key + seen[key].to_bytes(8, "big"), _digest(list(row.values()))


def _digest(values: list[Any]) -> bytes:
    return blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _tell(
    found: Difference, tables: tuple[pa.Table, pa.Table], pairs: Sequence[tuple[int, int]], by: Sequence[str], shown: int
) -> None:
    """In which columns the rows of `pairs` differ."""
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        was, now = (_taken(table, [pair[side] for pair in some]) for side, table in enumerate(tables))
        for one, other in zip(was, now, strict=True):
            changed = {name: [one[name], other[name]] for name in one if repr(one[name]) != repr(other[name])}
            found.columns.update(list(changed))
            if len(found.first["differing"]) < shown:
                found.first["differing"].append({"key": _of(one, by), "columns": changed})


def _of(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}


def _taken(table: pa.Table, numbers: Sequence[int]) -> Iterator[Row]:
    return rows(table.take(pa.array(numbers, pa.int64())))
