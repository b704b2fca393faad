"""Ports of a backfill: the reader of a whole table, and the journal that stores its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from replicator.domain.position import Position

from .frames import Batch, F, Stop

TOPICS = "_backfill."
"""Prefix of topics that only backfills have; the table's name follows. Their records are Debezium JSON with schemas, for
every format of the source."""


@dataclass(frozen=True, slots=True)
class BackfillSnapshot:
    """A table snapshot that a backfill has stored completely.

    - `rows`: the number of rows.
    - `resumed`: an earlier call stored some of them.
    - `below`: leading elements of a sequence. A target row with lower leading elements is older than the snapshot.
    - `keys`: the columns that identify a row.
    - `begun`: the source's clock when the snapshot began, as ISO text.
    """

    rows: int
    resumed: bool
    below: tuple[int, ...]
    keys: tuple[str, ...]
    begun: str


class Backfill(Protocol):
    """Reads one table of a source's database completely, and stores its rows as Debezium records in a
    `BackfillJournal`. After any kill, each stored record is in the journal exactly once.

    Every record has the position in the source's log at which it was read. Changes that the rows already contain are
    below that position, later changes are above it.

    Errors:

    - `Retryable` while the database is away
    - `ConfigProblem` for a table that cannot be read this way
    - `EnvironmentProblem` for a database that is not set up for it
    - `Fenced` while another process reads the same table
    """

    def rows(self, report: Callable[[str], None], *, from_scratch: bool = False) -> BackfillSnapshot:
        """Store all rows. Resumes an unfinished call, unless `from_scratch`; the remaining rows are read as they are
        now. Returns at once if only `deletes` or `finish` is missing. `report` is called with the progress, one
        sentence at a time."""

    def deletes(self, keys: pa.Table) -> int:
        """Store a delete for each row of `keys` (columns `BackfillSnapshot.keys`) that the snapshot did not contain.
        Returns the number of deletes."""

    def end(self) -> Position:
        """The end of the table's records in the journal."""

    def finish(self) -> None:
        """Finish the snapshot: the next `rows` starts another one. Earlier snapshots are removed."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class BackfillJournal(Protocol[F]):
    """The records that backfills of one source stored, in one topic per table. Offsets may have holes.

    The source's thread reads it while another process writes.
    """

    def owns(self, topic: str) -> bool:
        """True for a topic that only backfills have."""

    def beginning(self) -> Position:
        """The first offset of each topic."""

    def get_newest_time(self) -> datetime | None:
        """The source's clock when the newest stored record was read; None if there are no records."""

    def end(self) -> Position:
        """The current end of each topic."""

    def read(self, start: Position, until: Position, apply_batch: Callable[[Batch[F]], None], stop: Stop) -> None:
        """As `ports.source.Source.read`. Removed records are holes, not data loss: a snapshot is only removed as a
        whole, after a newer one exists."""
