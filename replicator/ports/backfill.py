"""The ports to tables that are read whole: who reads them, and what was written down of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

import pyarrow as pa

from replicator.domain.position import Position

from .frames import Batch, F, Stop

TOPICS = "_backfill."
"""How topics begin that only backfills have; the table's name follows. Their records are Debezium's JSON with schemas,
whatever the format of the source."""


@dataclass(frozen=True, slots=True)
class BackfillSnapshot:
    """A snapshot that was written down whole. `rows`: how many; `resumed`: some of them by an earlier call. `below`: a row
    of a target whose sequence is lower, as far as these numbers go, is older than the snapshot; `keys`: what tells rows
    apart. `begun`: the source's own clock when it began, as ISO text."""

    rows: int
    resumed: bool
    below: tuple[int, ...]
    keys: tuple[str, ...]
    begun: str


class Backfill(Protocol):
    """Reads one table of a source's database whole, and writes its rows down as Debezium's records, in a
    `BackfillJournal`. What was written down is there after any kill, once.

    Every record has the place in the source's log at which it was read: the stream's own changes that the rows show stand
    below it, those that they do not show above it. Errors: `Retryable` while the database is away, `ConfigProblem` for a
    table that cannot be read so, `EnvironmentProblem` for a database that is not set up for it, `Fenced` while another
    process reads the same table.
    """

    def rows(self, report: Callable[[str], None], *, from_scratch: bool = False) -> BackfillSnapshot:
        """Write down all rows. Goes on where an unfinished call stopped, with the rows as they are now, unless
        `from_scratch`; at once where only `deletes` or `finish` was missing. `report` is told how far it got, a sentence
        at a time."""

    def deletes(self, keys: pa.Table) -> int:
        """Write down deletes for those of the rows `keys` (the columns `BackfillSnapshot.keys`) that the snapshot did not
        hold; how many they are."""

    def end(self) -> Position:
        """Where what was written down of the table ends."""

    def finish(self) -> None:
        """The snapshot is done with: the next `rows` begins another one, and earlier ones are removed."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


class BackfillJournal(Protocol[F]):
    """What backfills of one source wrote down, a topic of its own for each table. Offsets may have holes.

    Read by the source's thread while another process writes.
    """

    def owns(self, topic: str) -> bool:
        """True for a topic that only backfills have."""

    def beginning(self) -> Position:
        """The first offset there is, per topic."""

    def get_newest_time(self) -> datetime | None:
        """When the newest was read of what is there, by the source's own clock; None where nothing is there."""

    def end(self) -> Position:
        """Where it ends now, per topic."""

    def read(self, start: Position, until: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop) -> None:
        """As `ports.source.Source.read`; what is gone of it is a hole, for only whole snapshots are removed, once another
        one is there."""


@runtime_checkable
class ReadsConcurrently(Protocol):
    """A source that gives rows which belong to none of the source's transactions, in topics of their own (`TOPICS`)."""

    def get_concurrent_time(self) -> datetime | None:
        """They show no transaction that ended later, by the source's own clock; None where there are no such rows."""
