"""Data files and their statistics in the log, which show the files that may contain some rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

from replicator.domain.projection import Groups

FEW_BYTES, FEW_ROWS = 16 * 1024 * 1024, 250_000
"""Limits in bytes and rows for files whose rows are held in memory. A streaming read holds as much, because a
row group is larger."""


class ColumnBounds(NamedTuple):
    """Statistics of a column in a file: rows, minimum, maximum and nulls; None where they are not known."""

    rows: int | None
    low: Any = None
    high: Any = None
    nulls: int | None = None

    @property
    def is_exact(self) -> bool:
        """True when every value of the column is known to be null, or between `low` and `high`."""
        return (self.low is not None and self.high is not None) or (self.rows is not None and self.nulls == self.rows)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version: `path` as the log spells it, its partition values, and the bounds of a column."""

    path: str
    size: int
    partition: Mapping[str, Any]
    bounds: ColumnBounds

    @property
    def relative_path(self) -> str:
        """Its path in the table's folder."""
        return unquote(self.path)


def has_few_rows(files: Sequence[DataFile]) -> bool:
    """True when the rows of all these files may be held in memory, where queries take half the time.

    Rows count besides bytes, because a small file can have many rows.
    """
    sizes, rows = [file.size for file in files], [file.bounds.rows for file in files]
    return sum(sizes) <= FEW_BYTES and None not in rows and sum(n for n in rows if n is not None) <= FEW_ROWS


def mask_candidates(bounds: Iterable[ColumnBounds], groups: Groups) -> list[bool]:
    """For each file: may it have rows with one of `groups` in the column?"""
    wanted, with_null = sorted(group for group in groups if group is not None), None in groups
    return [not one.is_exact or (with_null and one.nulls != 0) or _is_wanted(one, wanted) for one in bounds]


def has_only_groups(files: Iterable[DataFile], groups: Groups) -> bool:
    """True when all rows of these files are known to have one of `groups` in the column."""
    return all(_is_of_one_group(file.bounds, groups) for file in files)


def _is_of_one_group(one: ColumnBounds, groups: Groups) -> bool:
    if one.rows is None or one.nulls is None or (one.nulls and None not in groups):
        return False
    return one.nulls == one.rows or (one.low is not None and one.low == one.high and one.low in groups)


def _is_wanted(one: ColumnBounds, wanted: Sequence[Any]) -> bool:
    low = one.low
    if low is None or not wanted:
        return False
    if type(low) is not type(wanted[0]):
        return True  # The query may treat values of another type as equal.
    first = bisect_left(wanted, low)
    return first < len(wanted) and bool(wanted[first] <= one.high)
