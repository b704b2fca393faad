"""The ports of reads: targets by name, the rows that other programs read, and the comparison of a table with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import pyarrow as pa

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.expr import Expr
from replicator.domain.position import Position
from replicator.domain.timeline import HistoryEntry

from .frames import Lane

# Queries on targets.


class Reader(Protocol):
    """Reads targets by name."""

    def tables(self) -> Sequence[str]:
        """The names of the targets, as `read` expects them."""

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a target, now or at an earlier version. `where` is a SQL condition on its columns, evaluated
        read-only.

        Raises `Fatal` with the available versions if `version` or `as_of` cannot be read, or if the target does not
        exist.
        """


@dataclass(frozen=True, slots=True)
class TargetVersions:
    """The older versions of targets.

    - `read_version_positions(lane)`: the versions of the lane's target, newest first, each with the lane's position at that
      version. Versions with an unknown position are left out. Rows of a version may be gone.
    - `columns_at(name, version)`: the columns that `Reader.read` returns for a version of a target, without reading its
      rows. Fatal as in `Reader.read`.
    """

    read_version_positions: Callable[[Lane], Iterator[tuple[int, Position]]]
    columns_at: Callable[[str, int], pa.Schema]


# Reads by other programs: targets by name, their rows, and the history of a row.


class NotFound(Fatal):
    """The target or the row does not exist."""


class Busy(Retryable):
    """The maximum number of concurrent reads is reached."""


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A table that may be read: `name` is SINK.TABLE. `key`: the columns that identify its rows; empty if they are not
    known. A policy that stores versions or changes has several rows per key. `source_table`: the source table that it
    copies; None if it belongs to no lane, or copies several tables."""

    name: str
    key: tuple[str, ...]
    policy: str | None
    source_table: str | None
    has_history: bool


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition as the user wrote it: `operator` is one of `application.operations.read_side.OPERATORS`."""

    column: str
    operator: str
    text: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The rows to read, now or at `as_of`: at most `limit`, after the position `after` from the previous page. `key`:
    only rows with this key, one text per column. `from_log`: read from the event log, even if there are versions."""

    limit: int
    filters: tuple[Filter, ...] = ()
    key: tuple[str, ...] = ()
    as_of: datetime | None = None
    from_log: bool = False
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of the key; `after` is the position of the next page, None on the last page."""

    rows: pa.Table
    after: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowHistory:
    """Every change of a row, oldest first, with the target's columns that exist at the source. `rejected`: the number
    of unusable records of the table, which are left out. `notes`: gaps of the event log, for people."""

    target: ReadTarget
    entries: Sequence[HistoryEntry]
    rejected: int
    notes: tuple[str, ...] = ()


class ReadSide(Protocol):
    """Serves reads from any thread, several at once. It only reads, and only within its time limit.

    Raises `NotFound`, `domain.read_query.InvalidReadQuery` and `ReadTimeout`, `Busy`, `Retryable` while a target is
    away, and other errors of the program if a read is not possible.
    """

    def targets(self) -> Sequence[ReadTarget]:
        """The readable tables, by name."""

    def columns(self, name: str) -> tuple[ReadTarget, pa.Schema]:
        """A target and its columns."""

    def rows(self, name: str, wanted: PageRequest) -> Page:
        """One page of its rows."""

    def history(self, name: str, key: Sequence[str]) -> RowHistory:
        """The history of the row with that key, one text per column, from the event log. NotFound if there never was
        such a row."""


# A comparison: a table at one known point, in its source's database and in its targets.
#
# Both sides compute checksums where the rows are. A checksum may only show that rows are equal. Rows with other checksums
# are read and compared by value.


ChecksumKind = Literal["integer", "boolean", "decimal", "float", "text", "bytes", "date", "timestamp", "timestamptz"]
"""How the text of a value is made for a checksum. Equal values of a kind have the same text in every database."""

BUCKETS = 1024
"""Rows of a split are divided by a hash of their key, so that few rows are read if some differ."""

CHECKSUMS = pa.schema([("bucket", pa.int32()), ("rows", pa.int64()), ("low", pa.int64()), ("high", pa.int64())])
"""One row per bucket that has rows: their number, and two sums of hashes of their values."""


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column of a comparison: its name in the source and in the target."""

    source: str
    target: str
    kind: ChecksumKind


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows with `above` < `column` <= `upto`. `column` is the first key column, an integer; None is no bound."""

    column: str
    above: int | None
    upto: int | None


@dataclass(frozen=True, slots=True)
class TableSplit:
    """The rows of a table to compare at once. `within`: None for all. `without`: keys whose rows are left out, with the
    names of the source's key columns. `where`: a condition on columns with the same name on both sides; the source may
    ignore it."""

    columns: tuple[ComparedColumn, ...]
    keys: tuple[str, ...]
    within: KeyRange | None
    without: pa.Table
    where: Expr | None = None


class SourceSnapshot(Protocol):
    """A table of a source as it was at one point. It stays open, at the cost of an open transaction in the database.

    - `point`: among the changes, for people. The snapshot contains exactly the changes before it.
    - `keys`: the key columns.
    - `kinds`: the columns that are read; None for a column that has no checksum.
    - `unread`: the other columns, with their types in the database.
    """

    point: str
    keys: tuple[str, ...]
    kinds: Mapping[str, ChecksumKind | None]
    unread: Mapping[str, str]

    def list_ranges(self, rows: int) -> tuple[Sequence[KeyRange], int | None]:
        """Ranges of the first key column with about this many rows each, in order, that together contain every row. Empty
        if that column is no integer. And the approximate number of all rows; None if the database does not know it."""

    def sum(self, split: TableSplit) -> pa.Table:
        """The checksums of a split (`CHECKSUMS`)."""

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[pa.Table]:
        """The rows of a split, in these buckets or in all, as raw frames of read events."""

    def read_keys(self, keys: pa.Table) -> Iterator[pa.Table]:
        """The rows with these keys, as raw frames of read events."""

    def is_delivered(self) -> bool | None:
        """True once every change that the snapshot contains is in the log. None if the database does not know it."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Stored changes of a repair: the numbers of `rows` and `deletes`, and the end of the records."""

    rows: int
    deletes: int
    end: Position


class ComparableTable(Protocol):
    """Opens snapshots of one table of a source. Errors as of `ports.source.Backfill`."""

    def open_snapshot(self, report: Callable[[str], None]) -> AbstractContextManager[SourceSnapshot]:
        """A snapshot of the table as it is now."""

    def repair(self, keys: pa.Table, report: Callable[[str], None]) -> Repair:
        """Store the rows with these keys, as a new snapshot shows them, as changes at the point of that snapshot. A key
        without a row becomes a delete. Lanes apply them like those of a backfill. All or nothing.

        Fatal while a backfill of the table is not finished. Fenced while another process reads the table."""


class TargetSnapshot(Protocol):
    """A target as it was at one commit of its lane.

    - `commit`: for people. `position`: of the lane at that commit.
    - `identity`: the same for all commits of a target. A target that is built again has another one.
    - `columns`: those of `read`.
    """

    commit: str
    position: Position
    identity: str
    columns: pa.Schema

    def can_sum(self, columns: Sequence[ComparedColumn]) -> bool:
        """True if the types of the target's columns have checksums."""

    def sum(self, split: TableSplit) -> pa.Table:
        """The checksums of a split (`CHECKSUMS`), if `can_sum`."""

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> pa.Table:
        """The rows of a split, in these buckets or in all."""

    def read_all(self) -> pa.Table:
        """All rows, also soft-deleted ones and closed versions."""

    def convert(self, name: str, values: pa.Array) -> pa.Array:
        """Values in the form in which `read` returns them from the column `name`, once they were written to it."""

    def read_keys(self, keys: pa.Table, where: Expr | None) -> pa.Table:
        """The rows with these keys that match a condition. The columns of `keys` have the names of the target."""
