"""The source for event logs in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import AwareDatetime, Field

from replicator.domain.change import RAW
from replicator.domain.errors import refuse_losses
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.adapter_options import AdapterOptions
from replicator.ports.frames import Batch, ConsumeBatch, Stop
from replicator.ports.options import Dsn

from ...arrow.record_positions import payload_bytes
from ...event_log import ACCEPT, LogBounds, describe_removed, recreated_error, split_batches
from ...postgres import LOG_TABLE
from ...postgres.connection import PostgresSession
from ...postgres.event_log_reader import LogState, open_snapshot, read_log_state, read_records
from ...postgres.names import TableLocation, read_dsn
from .source import LogSource, read_ahead

ROLE = "event log reader"


class PostgresLogOptions(AdapterOptions):
    """Options of the source. No config has it: commands read a log with it.

    - `dsn`, `schema` and `table`: as in the `event_log` sink that writes it.
    - `topics`: names, globs, or regular expressions that start with `^`.
    - `since`, `until`: the range of source times, inclusive. Records without a time are included.
    - `below`: by topic and partition the offset at which the log ends for this reader. Other partitions have no records
      then.
    - `part`: the reader accepts that first records may have been removed. They never are.
    - `batch_records`, `batch_bytes` (of keys and values): limits of one batch.
    """

    what: ClassVar[str] = "an event log in PostgreSQL"

    transport: Literal["postgres_log"] = "postgres_log"
    format: str = ""
    dsn: Dsn
    schema_name: str = Field(LOG_TABLE[0], alias="schema")
    table: str = LOG_TABLE[1]
    topics: tuple[str, ...] = Field(("*",), min_length=1)
    start_from: Literal["earliest"] = "earliest"
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    below: Mapping[str, Mapping[str, int]] | None = None
    part: bool = False
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @property
    def location(self) -> TableLocation:
        """The location of the table."""
        return TableLocation(read_dsn(self.dsn), self.schema_name, self.table)


class PostgresLogTable:
    """The table with its last known state. Safe for use from several threads."""

    def __init__(self, location: TableLocation, is_wanted: Callable[[str], bool]) -> None:
        self.location, self.wanted = location, is_wanted
        self.known: LogState | None = None
        self._session = PostgresSession(location.dsn, ROLE)
        self._turn = threading.Lock()

    def read_latest(self) -> LogState:
        """The current state of the log."""
        with self._turn, open_snapshot(self._session, self.location) as cursor:
            self.known = read_log_state(cursor, self.location, self.wanted, self.known)
            return self.known

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


class PostgresLogSource(LogSource[pa.Table]):
    """`LogSource` over the table of an `event_log` sink in PostgreSQL, with `pyarrow.Table` as frames.

    Every refresh, and every range of batches, reads one database snapshot, so records and positions of the lanes that
    write the log are consistent. Connections are open only while records are read; the server keeps the snapshot for that
    time. Without an index of `event_log_reader.INDEX` the server sorts the requested records, on disk if there are many.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = PostgresLogOptions.read(options)
        super().__init__(self._options.topics, self._options.below)
        self._log = PostgresLogTable(self._options.location, self._wanted)

    def bounds(self) -> LogBounds:
        return self._log.read_latest().bounds.limit_to(self._below)

    def follow_from(self, start: Position) -> PostgresLogReader:
        return PostgresLogReader(self._log, self._options, start, self._below)

    def read_between(self, start: Position, until: Position) -> PostgresLogReader:
        return PostgresLogReader(self._log, self._options, start, until)

    def empty_batch(self, span: Span) -> Batch[pa.Table]:
        """A batch without records."""
        return Batch(RAW.empty_table(), span, 0, 0)

    def close(self) -> None:
        """Close the connection."""
        self._log.close()


class PostgresLogReader:
    """A pass through the log, from `start`, and up to `until` if given. The next batch is read in another thread while
    the caller uses the last one. After an error the reader must not be used again."""

    def __init__(
        self, log: PostgresLogTable, options: PostgresLogOptions, start: Mapping[TopicPartition, int], until: Position | None
    ) -> None:
        self._log, self._said, self._until = log, options, until
        self._next = dict(start)
        self._ends: Mapping[TopicPartition, int] = {}
        self._table: int | None = None

    def refresh(self) -> None:
        """Read the current end of the log. Raises DataLoss if records that come next were removed."""
        self._accept(self._log.read_latest())

    def _accept(self, state: LogState) -> None:
        if self._table not in (None, state.table):
            raise recreated_error(self._log.location.url)
        self._table = state.table
        bounds = state.bounds.limit_to(self._until)
        at = {partition: self._next.get(partition, first) for partition, first in bounds.firsts.items()}
        refuse_losses({p: s for p, first in bounds.firsts.items() if (s := describe_removed(p, at[p], first))}, ACCEPT)
        self._next.update(at)
        self._ends = bounds.ends

    def deliver(self, consume_batch: ConsumeBatch[pa.Table], stop: Stop) -> bool:
        """Deliver everything new. Returns True if there was anything."""
        if not self._find_left():
            return False
        has_new = False
        batches = self._read_batches()
        with closing(read_ahead(partial(next, batches, None), batches.close)) as prefetch:
            for batch in prefetch:
                if stop.is_set():
                    break
                has_new = True
                consume_batch(batch)
        return has_new

    def _find_left(self) -> dict[TopicPartition, int]:
        """The partitions with undelivered offsets, and their ends."""
        return {partition: end for partition, end in self._ends.items() if self._next.get(partition, end) < end}

    def _read_batches(self) -> Generator[Batch[pa.Table], None, None]:
        with (
            closing(PostgresSession(self._log.location.dsn, ROLE)) as session,
            open_snapshot(session, self._log.location) as cursor,
        ):
            # The state is read again: records of the last refresh may have been removed.
            self._accept(read_log_state(cursor, self._log.location, self._log.wanted))
            stretches = [(partition, self._next[partition], end) for partition, end in self._find_left().items()]
            rows = read_records(cursor, self._log.location, stretches, self._said.since, self._said.until)
            for frame in split_batches(rows, self._said.batch_records, self._said.batch_bytes):
                lasts = frame.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist()
                ends = {TopicPartition(row["topic"], row["partition"]): row["offset_max"] + 1 for row in lasts}
                yield Batch(frame, self._span_to(ends), frame.num_rows, payload_bytes(frame))
        if ends := self._find_left():
            # Trailing offsets without records, which the lanes that wrote the log have passed, or which were
            # requested.
            yield Batch(RAW.empty_table(), self._span_to(ends), 0, 0)

    def _span_to(self, ends: Mapping[TopicPartition, int]) -> Span:
        starts = {partition: self._next[partition] for partition in ends}
        self._next.update(ends)
        return Span(Position(starts), Position(ends))
