"""When a database is asked, and what becomes of what it says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Fenced, Retryable

from ....delta.locks import LaneLock
from ....sql.recent import Recent
from ..journalled import VERSION
from ..snapshots.asking import FIRST_WITHIN, TURN, Paced
from ..snapshots.compared import refuse_unusable
from ..snapshots.journal import unwritable
from ..snapshots.supply import Snapshot, kept
from ..snapshots.unkept import refuse_unkept
from .borders import Borders, Value
from .database import Database, Reading
from .journal import Journal, Progress
from .options import QueryOptions
from .parts import SideBySide, cut

REMEDY = "Correct the rows in the database, or the query"


class Polls:
    """Readings one after the other, each from where the last one ended. For one thread at a time."""

    def __init__(self, options: QueryOptions) -> None:
        self._options = options
        self.database, self.journal, self._privacy = Database(options), Journal(options), options.privacy()
        self._progress: Progress | None = None
        self._recent: Recent | None = None

    def take(self) -> bool:
        """One reading, to its end; False where another process is at one."""
        try:
            lock = LaneLock(Path(self._options.state) / "lock", self._options.name)
        except Fenced:
            return False
        except OSError as error:
            raise unwritable(Path(self._options.state), error) from error
        try:
            self.journal.hold()
            with self.database.reading() as reading:
                self._take(reading)
        except BaseException:
            # What was committed is known again from the journal.
            self._progress = self._recent = None
            raise
        finally:
            lock.release()
        return True

    def _take(self, reading: Reading) -> None:
        refuse_unkept(self._read(kept(reading.schema.empty_table())), self._options.name)
        schema = self._kept(reading.schema.empty_table()).schema
        if not self.journal.is_there:
            reading.check()
        reading.refuse_nulls()
        self.journal.begin(schema)
        progress = self._progress or self.journal.progress()
        clock, borders = reading.clock(), reading.borders
        if progress.border is None:
            progress = self._side_by_side(reading, progress, clock)
        border = None if progress.border is None else borders.value_of(progress.border)
        recent = self._known(schema, borders.floor(border))
        for some in reading.rows(borders.floor(border)):
            border = borders.reached(border, self._last(borders, some), clock)
            progress = self._written(some, recent, replace(progress, border=borders.text(border)))
            self._forget(recent, borders.floor(border))
        self._progress, self._recent = progress, recent

    def _side_by_side(self, reading: Reading, progress: Progress, clock: Value | None) -> Progress:
        """The first rows in parts, where they are to be read so: all below the value up to which they were read then."""
        borders, is_new = reading.borders, not progress.version and not progress.parts
        if is_new and self._options.ranges > 1:
            progress = replace(progress, parts=cut(reading, self._options.ranges))
        if not progress.parts:
            return progress
        schema = self._kept(reading.schema.empty_table()).schema
        begun = {n: part for n, part in enumerate(progress.parts) if part.border is not None and not part.done}
        known = {n: self._known(schema, borders.value_of(str(part.border))) for n, part in begun.items()}
        for number, some in SideBySide(self.database, progress.parts, borders).rows():
            part = progress.parts[number]
            if some is None:
                progress = progress.at(number, replace(part, done=True))
                continue
            part = replace(part, border=borders.text(self._last(borders, some)))
            progress = self._written(some, known.get(number), progress.at(number, part))
        end = borders.value_of(str(progress.parts[-1].upper))
        return replace(progress, border=borders.text(borders.reached(None, end, clock)), parts=())

    def _last(self, borders: Borders, rows: pa.Table) -> Value:
        return borders.plain(rows[self._options.cursor_column][-1].as_py())

    def _written(self, some: pa.Table, recent: Recent | None, progress: Progress) -> Progress:
        """The progress once the rows that are not known are in the journal, with it."""
        rows = self._kept(some)
        news = rows if recent is None else recent.news(rows)
        if news.num_rows:
            progress = replace(progress, version=_next(progress.version))
            self.journal.append(news, progress)
            if recent is not None:
                recent.add(news, pa.repeat(pa.scalar(progress.version, pa.int64()), news.num_rows))
        return progress

    def _kept(self, some: pa.Table) -> pa.Table:
        """The rows as they are written down. Raises where they cannot be."""
        rows = kept(some)
        refuse_unusable(self._read(rows), self._options.keys)
        return self._privacy.masked(rows)

    def _known(self, schema: pa.Schema, floor: Value | None) -> Recent:
        """The rows at or above the floor, of each key what was read last."""
        if self._recent is not None and self._recent.schema.equals(schema):
            return self._recent
        recent = Recent(schema, self._options.keys, self._options.cursor_column)
        if floor is None:
            return recent
        cursor = schema.field(self._options.cursor_column)
        at = pc.field(cursor.name) >= pa.scalar(floor, cursor.type)
        oldest = min((pc.min(versions).as_py() for _, versions in self.journal.rows(at)), default=None)
        if oldest is not None:
            # What was read later of these keys may lie below the floor.
            for rows, versions in self.journal.rows(pc.field(VERSION) >= oldest):
                recent.add(_fitted(rows, schema), versions)
        self._forget(recent, floor)
        return recent

    def _forget(self, recent: Recent, floor: Value | None) -> None:
        if floor is not None:
            recent.forget_below(pa.scalar(floor, recent.schema.field(self._options.cursor_column).type))

    def _read(self, rows: pa.Table) -> Snapshot:
        return Snapshot(f"What was read of {self._options.name}", 0, rows, remedy=REMEDY)


def _next(version: int) -> int:
    """Versions are times, in microseconds, as far as clocks let them."""
    return max(version + 1, time.time_ns() // 1_000)


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


class QueryIntake(Paced):
    """`Intake` of what is new."""

    def __init__(self, options: QueryOptions, polls: Callable[[QueryOptions], Polls] = Polls) -> None:
        self._name, self._polls = options.name, polls(options)
        super().__init__(self._polls.take, options.every)

    def begin(self) -> None:
        """See `Intake`. Retryable while nothing is known of the columns."""
        ends = time.monotonic() + FIRST_WITHIN
        while not self._polls.journal.is_there and time.monotonic() < ends:
            self._turn(TURN)
        if not self._polls.journal.is_there:
            raise Retryable(
                f"{self._name} is being asked for its columns.",
                next_step="The program waits for it: where another command said this, `replicator run` first.",
            )
        self._polls.journal.hold()

    def close(self) -> None:
        """See `Intake`: nothing is read after that."""
        self._polls.database.end()
