"""The folded rows of one write on their way into the lane's staging table, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR
from replicator.domain.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Write

from .local_watermark import admitted
from .pg_fitting import fitting
from .pg_inline import inline_json
from .pg_refused import Refused, copy_bisecting
from .pg_target import ROW, Target
from .pg_types import Fit
from .rows import POSITION, to_rows

EVENT_POSITION = ("topic", "partition", "offset")


class Rows(Protocol):
    """Rows that fit the target. Each has a number of its own below `bound`; numbers may be missing."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def bound(self) -> int:
        """Above every number."""

    def inline(self, fits: Mapping[str, Fit]) -> str | None:
        """The rows as `inline_json`; None when they must go through the staging table."""

    def stage(self, cursor: psycopg.Cursor, target: Target, names: Sequence[str], *, careful: bool) -> list[Refused]:
        """Put the columns `names` (at least) of the rows into the lane's staging table, but for the rows it returns."""

    def rejects(self, cursor: psycopg.Cursor, target: Target, sentences: Mapping[int, str]) -> pa.Table:
        """The rows of these numbers as rejects: where each comes from, and as `_error` its sentence."""


@dataclass(frozen=True)
class Entered:
    """What a write brings: rows that fit, rejects, how many were applied before or came twice, and how many truncates are
    no rows."""

    rows: Rows
    rejects: Sequence[pa.Table]
    trimmed: int
    truncates: int


class Supply(Protocol):
    """The frame of a write that PostgreSQL applies."""

    def entered(
        self, write: Write[Supply], before: LaneState, target: Target, applied_at: datetime, *, careful: bool
    ) -> Entered:
        """The rows above the lane's state. May be asked again, `careful` after the server refused something."""

    def forget(self, cursor: psycopg.Cursor) -> None:
        """Remove what the server keeps of the supply, in the transaction that applied it."""


@dataclass(frozen=True)
class InMemory:
    """A `Supply` of this process."""

    frame: pa.Table

    def entered(
        self, write: Write[Supply], before: LaneState, target: Target, applied_at: datetime, *, careful: bool
    ) -> Entered:
        """See `Supply.entered`."""
        frame = above(self.frame, write, before.position, EVENT_POSITION if target.event_log else POSITION)
        trimmed = self.frame.num_rows - frame.num_rows
        let_in = admitted(frame, write, before)
        frame = let_in.rows
        rows = frame if target.event_log else to_rows(frame, write.plan, applied_at)
        good, rejects = fitting(rows, target.fits, careful=careful)
        late = [] if let_in.late is None else [let_in.late]
        return Entered(numbered(good), [*late, *rejects], trimmed + let_in.duplicates, frame.num_rows - rows.num_rows)

    def forget(self, cursor: psycopg.Cursor) -> None:
        """See `Supply.forget`: the server keeps nothing."""


@dataclass(frozen=True)
class RowsInMemory:
    """`Rows` of this process, numbered by their places."""

    rows: pa.Table

    @property
    def count(self) -> int:
        """See `Rows.count`."""
        return int(self.rows.num_rows)

    bound = count

    def inline(self, fits: Mapping[str, Fit]) -> str | None:
        """See `Rows.inline`."""
        return inline_json(self.rows, fits)

    def stage(self, cursor: psycopg.Cursor, target: Target, names: Sequence[str], *, careful: bool) -> list[Refused]:
        """See `Rows.stage`."""
        return copy_bisecting(cursor, target.copy(names), self.rows.select(names), target.forms(names), careful=careful)

    def rejects(self, cursor: psycopg.Cursor, target: Target, sentences: Mapping[int, str]) -> pa.Table:  # noqa: ARG002
        """See `Rows.rejects`: whole rows."""
        numbers = sorted(sentences)
        errors = pa.array([sentences[number] for number in numbers], pa.string())
        return self.rows.take(pa.array(numbers, pa.int64())).drop_columns([ROW]).append_column(ERROR, errors)


def numbered(rows: pa.Table) -> RowsInMemory:
    """`rows` with `_cdc_row`."""
    return RowsInMemory(rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int32())))


def above(frame: pa.Table, write: Write[Any], applied: Position, names: tuple[str, str, str]) -> pa.Table:
    """The rows of the write at or above the applied position."""
    for partition, offset in applied.items():
        if write.span.start.get(partition, offset) < offset:
            frame = frame.filter(pc.invert(_below(frame, partition, offset, names)))
    return frame


def _below(frame: pa.Table, at: TopicPartition, offset: int, names: tuple[str, str, str]) -> pa.ChunkedArray:
    topic, partition, place = names
    same = pc.and_(pc.equal(frame[topic], at.topic), pc.equal(frame[partition], at.partition))
    return pc.and_(same, pc.less(frame[place], offset))
