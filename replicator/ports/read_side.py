"""The port of reads by other programs: targets by name, their rows, and the history of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.timeline import HistoryEntry


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
