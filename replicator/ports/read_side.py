"""The port to what programs elsewhere may read: targets by name, their rows, and what became of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.timeline import HistoryEntry


class NotFound(Fatal):
    """There is no such target, or no such row."""


class Busy(Retryable):
    """As many read as may at once."""


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A table that may be read: `name` is SINK.TABLE. `key`: the columns that tell its rows apart, for which there may be
    several rows where the policy keeps versions or changes; empty where none is known. `source_table`: whose copy it is,
    and None where it is no lane's, or that of several tables."""

    name: str
    key: tuple[str, ...]
    policy: str | None
    source_table: str | None
    has_history: bool


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition as somebody wrote it: `operator` is one of `application.operations.read_pages.OPERATORS`."""

    column: str
    operator: str
    text: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which rows, of now or of `as_of`: at most `limit`, behind the place `after` that the page before told. `key`: only
    those with this key, a text for each column. `from_log`: by the event log, whatever versions there are."""

    limit: int
    filters: tuple[Filter, ...] = ()
    key: tuple[str, ...] = ()
    as_of: datetime | None = None
    from_log: bool = False
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of the key; `after` is the place of the next page, None where there are no more."""

    rows: pa.Table
    after: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowHistory:
    """Every change of a row, oldest first, in the columns that the target has of the source's own; `rejected`: records of
    the table that could not be used, and are left out. `notes`: what the event log has no more, for people."""

    target: ReadTarget
    entries: Sequence[HistoryEntry]
    rejected: int
    notes: tuple[str, ...] = ()


class ReadSide(Protocol):
    """Answers from any thread, several at once. Reads alone, and no further than its time.

    Raises `NotFound`, `domain.read_query.InvalidReadQuery` and `ReadTimeout`, `Busy`, `Retryable` while a target is away,
    and other errors of the program for what cannot be told.
    """

    def targets(self) -> Sequence[ReadTarget]:
        """The tables that may be read, by name."""

    def columns(self, name: str) -> tuple[ReadTarget, pa.Schema]:
        """A target and its columns."""

    def rows(self, name: str, wanted: PageRequest) -> Page:
        """Some of its rows."""

    def history(self, name: str, key: Sequence[str]) -> RowHistory:
        """What became of the row with that key, a text for each column, by the event log. NotThere where it never was."""
