"""The port of change streams, and the reads of a source that no stream does: backfills, and the discovery of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, Span, TopicPartition

from .frames import ConsumeBatch, F, Stop


class Source(Protocol[F]):
    """A transport: it reads records, and never interprets their bytes.

    One thread of the pipeline calls it. Errors:

    - `Retryable` when the other side is away: the caller backs off and calls again from its position.
    - `DataLoss` when records between the position and the stream's beginning are gone, or the stream ends before the
      position.
    - `EnvironmentProblem` when the source cannot be reached as configured.
    """

    @property
    def features(self) -> SourceFeatures:
        """Everything that the source can do besides these methods. The same for all its life; needs no connection."""

    def run(self, start: Position, consume_batch: ConsumeBatch[F], stop: Stop, *, once: bool) -> None:
        """Read from `start` until `stop`, or, with `once`, up to the end of the stream at the time of the call.

        Partitions and topics that appear while running are read from their beginning. The same holds for partitions
        that are not in `start`: it has every partition that existed when the caller looked, so they appeared later.

        - Batches MUST touch: per partition the first span starts at `start`, each next span where the last one ended
          (test_spans_are_contiguous).
        - Per partition records MUST be in offset order (test_records_are_in_offset_order).
        - A record MUST be delivered exactly once per call (test_exactly_once_per_run).
        - A record's time outside the years 1 to 9999 MUST become null (test_odd_times_are_null).
        - A batch is delivered as soon as there are records; it never waits to be full. While there are no records,
          `consume_batch` MUST be called with an empty batch about every second, so that the caller can do its own work.

        `consume_batch` returns when the next batch may be read. Its exception ends the call and is passed on
        (test_error_passes_through).
        """

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[F], stop: Stop) -> None:
        """Read exactly [start, until) of the partitions in `until`, in bounded batches, as `run` does
        (test_bounded_read).

        Safe to call from within `consume_batch` of `run`.
        """

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """Partitions that cannot be continued from `position`, each with the reason as a sentence.

        Reasons are records below the stream's first offset, offsets above its end, a deleted topic, or a topic with
        another id than in `identity` (test_lost_positions_are_reported).
        """

    def start(self) -> Position:
        """The position of lanes without one, by the source's `start_from`, for every current partition."""

    def beginning(self) -> Position:
        """The first available offset of every current partition (test_start_and_end_of_the_stream_are_returned)."""

    def end(self) -> Position:
        """The current end of the stream, for lag (test_start_and_end_of_the_stream_are_returned)."""

    def committed(self, position: Position) -> None:
        """Called from time to time with the position that every lane has reached; may publish it (a Kafka group
        offset). It is only a hint, and never read back to decide where to start. Retryable while some partition cannot
        be read, though the others are: the source counts as away until a call succeeds."""

    def close(self) -> None:
        """Release everything; may be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFeatures:
    """Everything that a source can do besides the methods of `Source`. A field that is None is not supported. A field is
    usually a method of the source:

        SourceFeatures(sparse_offsets=True, unmatched=self.unmatched)

    A source that wraps another one changes the features of that one with `dataclasses.replace`.
    """

    sparse_offsets: bool = False
    """The difference of two offsets is not a number of records."""

    removed: Callable[[], Position] | None = None
    """The first available offset of every partition whose first records were removed. For a source that removes its oldest
    records on purpose, and stores that it did. A lane that has applied nothing before, and starts from the remaining
    records, would build a wrong table."""

    unmatched: Callable[[], Mapping[str, Sequence[str]]] | None = None
    """Patterns that no topic matches, each with the topics that look like it. For a source whose configuration names topics
    that may not exist."""

    files: SourceFiles | None = None
    """For a source whose records are in files that may be missing or damaged."""

    waited_for: Callable[[], tuple[str, float] | None] | None = None
    """The server it waits for, in words, and the seconds so far; None while it does not wait. From any thread. For a source
    that also depends on another server."""

    after_snapshots: Callable[[Position], Position] | None = None
    """`after_snapshots(position)`: the same position, or, if it is within snapshot rows, the start of the changes after
    them. For a source whose stream also contains snapshot rows with offsets of their own, for lanes that start with them.
    Readers of changes skip these rows."""

    get_concurrent_time: Callable[[], datetime | None] | None = None
    """A time on the source's clock, for a source that also returns rows outside its transactions, in topics of their own
    (`ports.source.BACKFILL_TOPICS`). These rows show no transaction that ended later. None if there are no such rows."""

    engine: str = ""
    """The name of the engine, as in the config, whose stream reads the source by itself."""

    pace: Callable[[], Pace | None] | None = None
    """The progress of the engine's stream; None before the end of its first batch. From any thread."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source.

    - `absent()`: why there is no file at all, as a sentence; empty if there is one.
    - `damaged()`: the skipped files. They cannot be read, although nothing writes to them any more.
    - `oldest()`: per partition the first offset in the files. Older files may appear: if a partition began above this
      offset, the records between are unread.
    """

    absent: Callable[[], str]
    damaged: Callable[[], Sequence[str]]
    oldest: Callable[[], Position]


@dataclass(frozen=True, slots=True)
class Pace:
    """The progress of a stream that an engine runs by itself. `batch_seconds` is the duration of its last batch. The
    rates are rows per second, 0 while there are none. `lag_records` is the distance of that batch from the stream's
    end, None if it is not known."""

    batch_seconds: float
    input_rows_per_second: float
    processed_rows_per_second: float
    lag_records: int | None

    def to_text(self, source: str) -> str:
        """One line for people."""
        rates = f"{self.input_rows_per_second:,.0f} rows/s in, {self.processed_rows_per_second:,.0f} rows/s applied"
        behind = "" if self.lag_records is None else f", {format_count(self.lag_records, 'record')} behind"
        return f"source {source}: the last batch took {self.batch_seconds:.1f} s, {rates}{behind}"


# A backfill: the reader of a whole table, and the journal that stores its records.


BACKFILL_TOPICS = "_backfill."
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
    - `end`: of the table's records in the journal.
    """

    rows: int
    resumed: bool
    below: tuple[int, ...]
    keys: tuple[str, ...]
    begun: str
    end: Position


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

    def deletes(self, keys: pa.Table) -> tuple[int, Position]:
        """Store a delete for each row of `keys` (columns `BackfillSnapshot.keys`) that the snapshot did not contain.
        Returns the number of deletes, and the end of the table's records in the journal."""

    def finish(self) -> None:
        """Finish the snapshot: the next `rows` starts another one. Earlier snapshots are removed."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class BackfillJournal(Protocol[F]):
    """The records that backfills of one source stored, in one topic per table (`BACKFILL_TOPICS`). Offsets may have holes.

    The source's thread reads it while another process writes.
    """

    def span(self) -> Span:
        """From the first offset of each topic to its current end."""

    def get_newest_time(self) -> datetime | None:
        """The source's clock when the newest stored record was read; None if there are no records."""

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[F], stop: Stop) -> None:
        """As `ports.source.Source.read`. Removed records are holes, not data loss: a snapshot is only removed as a
        whole, after a newer one exists."""


# What `replicator init` finds at a source.


@dataclass(frozen=True, slots=True)
class DiscoveredTable:
    """A table of a source.

    - `name`: as in `match`. `keys`: its primary key.
    - `rows`: an estimate, None if unknown.
    - `identity`: its replica identity, empty if it has none.
    - `settings`: further keys of its entry in the config. `note`: a comment.
    """

    name: str
    keys: tuple[str, ...] = ()
    rows: int | None = None
    identity: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveredSource:
    """A source of the config, and what reading it needs.

    - `title`: one line for people, without secrets.
    - `settings`: the keys of the source in the config. `${NAME}` stands for `variables`.
    - `variables`: the values of secrets, by the names of their variables.
    - `files`: texts of further files, by their paths in the project.
    - `sql`: statements that the server still needs, each with a comment.
    - `steps`: what to do before `replicator run`, as commands or sentences.
    - `dsn`, `identity`: of a database, its URL with the password, and a text that no other database has.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    tables: Sequence[DiscoveredTable]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    sql: Sequence[str] = ()
    steps: Sequence[str] = ()
    dsn: str = ""
    identity: str = ""


class PasswordNeeded(ConfigProblem):
    """The server asks for a password that neither the URL nor the environment has. `sentence` names user and server."""


Discover: TypeAlias = Callable[[str, str | None], Sequence[DiscoveredSource]]
"""The sources behind a URL, with the password if it was asked for. Changes nothing. Registered under the URL's scheme,
`folder` without one. Raises `PasswordNeeded`, ConfigProblem for a URL without tables, Retryable and EnvironmentProblem for a
server that does not answer or refuses."""
