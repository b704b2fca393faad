"""Polls of a database: schedule, and storage of new rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Fenced, Retryable

from ...delta.lane_lock import LaneLock
from ..journal.options import VERSION
from ..snapshot_diff.diff import refuse_unusable
from ..snapshot_diff.journal import unwritable_error
from ..snapshot_diff.query_poll import FIRST_WITHIN, TURN, PacedPoller
from ..snapshot_diff.snapshot_provider import ReadSnapshot, to_storable
from ..snapshot_diff.unsupported_values import refuse_unsupported
from .cursor_splits import ParallelReader, split_range
from .cursor_values import CursorValues, Value
from .database import QueryConnection, QueryDatabase
from .journal import QueryJournal, QueryProgress
from .options import QueryOptions
from .recent_rows import RecentRows

REMEDY = "Correct the rows in the database, or the query"


class QueryPolls:
    """Consecutive reads, each from the end of the last one. For one thread at a time."""

    def __init__(self, options: QueryOptions) -> None:
        self._options = options
        self.database, self.journal, self._privacy = QueryDatabase(options), QueryJournal(options), options.row_masker()
        self._progress: QueryProgress | None = None
        self._recent: RecentRows | None = None

    def run(self) -> bool:
        """One complete read; False if another process is reading."""
        try:
            lock = LaneLock(Path(self._options.state) / "lock", self._options.name)
        except Fenced:
            return False
        except OSError as error:
            raise unwritable_error(Path(self._options.state), error) from error
        try:
            self.journal.check_rules()
            with self.database.connect() as reading:
                self._run(reading)
        except BaseException:
            # The journal has what was committed.
            self._progress = self._recent = None
            raise
        finally:
            lock.release()
        return True

    def _run(self, reading: QueryConnection) -> None:
        refuse_unsupported(self._to_snapshot(to_storable(reading.schema.empty_table())), self._options.name)
        schema = self._to_stored(reading.schema.empty_table()).schema
        if not self.journal.has_rows:
            reading.check_query()
        reading.refuse_nulls()
        self.journal.begin(schema)
        progress = self._progress or self.journal.read_progress()
        clock, borders = reading.read_clock(), reading.borders
        if progress.border is None:
            progress = self._read_in_parallel(reading, progress, clock)
        border = None if progress.border is None else borders.from_text(progress.border)
        recent = self._load_recent(schema, borders.lower_bound(border))
        for some in reading.read_rows(borders.lower_bound(border)):
            border = borders.advance(border, self._last_value(borders, some), clock)
            progress = self._write_rows(some, recent, replace(progress, border=borders.to_text(border)))
            self._drop_recent(recent, borders.lower_bound(border))
        self._progress, self._recent = progress, recent

    def _read_in_parallel(self, reading: QueryConnection, progress: QueryProgress, clock: Value | None) -> QueryProgress:
        """Read the first rows in parts, if configured: all rows below the value that was the highest then."""
        borders, is_new = reading.borders, not progress.version and not progress.parts
        if is_new and self._options.ranges > 1:
            progress = replace(progress, parts=split_range(reading, self._options.ranges))
        if not progress.parts:
            return progress
        schema = self._to_stored(reading.schema.empty_table()).schema
        begun = {n: part for n, part in enumerate(progress.parts) if part.border is not None and not part.done}
        known = {n: self._load_recent(schema, borders.from_text(str(part.border))) for n, part in begun.items()}
        for number, some in ParallelReader(self.database, progress.parts, borders).read_rows():
            part = progress.parts[number]
            if some is None:
                progress = progress.with_part(number, replace(part, done=True))
                continue
            part = replace(part, border=borders.to_text(self._last_value(borders, some)))
            progress = self._write_rows(some, known.get(number), progress.with_part(number, part))
        end = borders.from_text(str(progress.parts[-1].upper))
        return replace(progress, border=borders.to_text(borders.advance(None, end, clock)), parts=())

    def _last_value(self, borders: CursorValues, rows: pa.Table) -> Value:
        return borders.normalize(rows[self._options.cursor_column][-1].as_py())

    def _write_rows(self, some: pa.Table, recent: RecentRows | None, progress: QueryProgress) -> QueryProgress:
        """Store the new rows in the journal, with the progress. Returns the progress."""
        rows = self._to_stored(some)
        news = rows if recent is None else recent.select_news(rows)
        if news.num_rows:
            progress = replace(progress, version=_next_version(progress.version))
            self.journal.append(news, progress)
            if recent is not None:
                recent.add(news, pa.repeat(pa.scalar(progress.version, pa.int64()), news.num_rows))
        return progress

    def _to_stored(self, some: pa.Table) -> pa.Table:
        """The rows in the form in which they are stored. Raises for unusable rows."""
        rows = to_storable(some)
        refuse_unusable(self._to_snapshot(rows), self._options.keys)
        return self._privacy.mask_rows(rows)

    def _load_recent(self, schema: pa.Schema, floor: Value | None) -> RecentRows:
        """The rows at or above `floor`: for each key the one that was read last."""
        if self._recent is not None and self._recent.schema.equals(schema):
            return self._recent
        recent = RecentRows(schema, self._options.keys, self._options.cursor_column)
        if floor is None:
            return recent
        cursor = schema.field(self._options.cursor_column)
        at = pc.field(cursor.name) >= pa.scalar(floor, cursor.type)
        oldest = min((pc.min(versions).as_py() for _, versions in self.journal.read_rows(at)), default=None)
        if oldest is not None:
            # Rows of these keys that were read later may be below the floor.
            for rows, versions in self.journal.read_rows(pc.field(VERSION) >= oldest):
                recent.add(_cast_rows(rows, schema), versions)
        self._drop_recent(recent, floor)
        return recent

    def _drop_recent(self, recent: RecentRows, floor: Value | None) -> None:
        if floor is not None:
            recent.drop_below(pa.scalar(floor, recent.schema.field(self._options.cursor_column).type))

    def _to_snapshot(self, rows: pa.Table) -> ReadSnapshot:
        return ReadSnapshot(f"The result for {self._options.name}", 0, rows, remedy=REMEDY)


def _next_version(version: int) -> int:
    """The next version: the time in microseconds, or one above the last version if the clock is behind."""
    return max(version + 1, time.time_ns() // 1_000)


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


class QueryPoller(PacedPoller):
    """`SnapshotPoller` of new rows."""

    def __init__(self, options: QueryOptions, polls: Callable[[QueryOptions], QueryPolls] = QueryPolls) -> None:
        self._name, self._polls = options.name, polls(options)
        super().__init__(self._polls.run, options.every)

    def begin(self) -> None:
        """Raises Retryable while the columns are unknown."""
        ends = time.monotonic() + FIRST_WITHIN
        while not self._polls.journal.has_rows and time.monotonic() < ends:
            self._wait(TURN)
        if not self._polls.journal.has_rows:
            raise Retryable(
                f"{self._name}: its columns are being read.",
                next_step="The program waits for it. If another command printed this, start `replicator run` first.",
            )
        self._polls.journal.check_rules()

    def close(self) -> None:
        """See `SnapshotPoller`: ends all reads."""
        self._polls.database.cancel()
