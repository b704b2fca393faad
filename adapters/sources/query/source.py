"""Polls of a database: schedule, and storage of new rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import DataLoss

from ...delta.types import storage_type
from ...duckdb.session import open_session
from ..delta_options import CHANGE, VERSION
from ..journal import MASKS, TURN, JournalRows, PacedPoller, RowJournal
from ..scan import open_scan
from ..snapshot_diff.snapshots import ReadSnapshot, align_rows, refuse_unsupported, refuse_unusable, to_storable
from .columns import CursorValues, Value
from .database import QueryConnection, QueryDatabase
from .options import EVERY, QuerySettings

log = logging.getLogger(__name__)
REMEDY = "Correct the rows in the database, or the query"


class QueryPolls:
    """Consecutive reads, each from the end of the last one. For one thread at a time."""

    def __init__(self, options: QuerySettings) -> None:
        self._options = options
        self.database, self.journal = QueryDatabase(options), QueryJournal(options)
        self._progress: QueryProgress | None = None
        self._recent: RecentRows | None = None

    def run(self) -> bool:
        """One complete read; False if another process is reading."""
        with self.journal.state.lock() as is_mine:
            if not is_mine:
                return False
            try:
                self.journal.check_rules()
                with self.database.connect() as reading:
                    self._run(reading)
            except BaseException:
                # The journal has what was committed.
                self._progress = self._recent = None
                raise
            return True

    def _run(self, reading: QueryConnection) -> None:
        refuse_unsupported(self._to_snapshot(to_storable(reading.schema.empty_table())), self._options.name)
        schema = self._to_stored(reading.schema.empty_table()).schema
        if not self.journal.has_rows:
            reading.check_query()
        reading.refuse_nulls()
        self.journal.begin(schema)
        progress = self._progress or self.journal.read_progress()
        clock, cursor = reading.read_clock(), reading.borders
        if progress.border is None:
            progress = self._read_in_parallel(reading, progress, clock)
        last = None if progress.border is None else cursor.from_text(progress.border)
        if last is not None and clock is not None and clock < last:
            log.warning("The clock of %s went back to %s: rows from then on are read again.", self._options.name, clock)
            last, self._recent = clock, None
        recent = self._load_recent(schema, cursor.lower_bound(last))
        for queried_rows in reading.read_rows(cursor.lower_bound(last)):
            last = cursor.advance(last, self._last_value(cursor, queried_rows), clock)
            progress = self._write_rows(queried_rows, recent, replace(progress, border=cursor.to_text(last)))
            self._drop_recent(recent, cursor.lower_bound(last))
        self._progress, self._recent = progress, recent

    def _read_in_parallel(self, reading: QueryConnection, progress: QueryProgress, clock: Value | None) -> QueryProgress:
        """Read the first rows in parts, if configured: all rows below the value that was the highest then."""
        cursor, is_new = reading.borders, not progress.version and not progress.parts
        if is_new and self._options.ranges > 1:
            progress = replace(progress, parts=split_range(reading, self._options.ranges))
        if not progress.parts:
            return progress
        schema = self._to_stored(reading.schema.empty_table()).schema
        parts = {n: part for n, part in enumerate(progress.parts) if part.border is not None and not part.done}
        recent_rows = {n: self._load_recent(schema, cursor.from_text(str(part.border))) for n, part in parts.items()}
        for number, queried_rows in ParallelReader(self.database, progress.parts, cursor).read_rows():
            part = progress.parts[number]
            if queried_rows is None:
                progress = progress.with_part(number, replace(part, done=True))
                continue
            part = replace(part, border=cursor.to_text(self._last_value(cursor, queried_rows)))
            progress = self._write_rows(queried_rows, recent_rows.get(number), progress.with_part(number, part))
        end = cursor.from_text(str(progress.parts[-1].upper))
        return replace(progress, border=cursor.to_text(cursor.advance(None, end, clock)), parts=())

    def _last_value(self, cursor: CursorValues, rows: pa.Table) -> Value:
        return cursor.normalize(rows[self._options.cursor_column][-1].as_py())

    def _write_rows(self, queried_rows: pa.Table, recent: RecentRows | None, progress: QueryProgress) -> QueryProgress:
        """Store the new rows in the journal, with the progress. Returns the progress."""
        rows = self._to_stored(queried_rows)
        news = rows if recent is None else recent.select_news(rows)
        if news.num_rows:
            # The time in microseconds, or one above the last version if the clock is behind.
            progress = replace(progress, version=max(progress.version + 1, time.time_ns() // 1_000))
            self.journal.append(news, progress)
            if recent is not None:
                recent.add(news, pa.repeat(pa.scalar(progress.version, pa.int64()), news.num_rows))
        return progress

    def _to_stored(self, queried_rows: pa.Table) -> pa.Table:
        """The rows in the form in which they are stored. Raises for unusable rows."""
        rows = to_storable(queried_rows)
        refuse_unusable(self._to_snapshot(rows), self._options.keys)
        return self.journal.mask_rows(rows)

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
                columns = [rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in schema]
                recent.add(pa.table(columns, schema=schema), versions)
        self._drop_recent(recent, floor)
        return recent

    def _drop_recent(self, recent: RecentRows, floor: Value | None) -> None:
        if floor is not None:
            recent.drop_below(pa.scalar(floor, recent.schema.field(self._options.cursor_column).type))

    def _to_snapshot(self, rows: pa.Table) -> ReadSnapshot:
        return ReadSnapshot(f"The result for {self._options.name}", 0, rows, remedy=REMEDY)


# The first rows, read by several connections at the same time, each with a range of the cursor column.

PartRows = tuple[int, pa.Table | None]
"""Rows of the part with that number; None at its end."""


def split_range(reading: QueryConnection, count: int) -> tuple[CursorRange, ...]:
    """At most `count` ranges of equal width, with all rows below the highest value. Empty if nothing can be divided."""
    low, high = reading.read_lowest(), reading.read_highest()
    if low is None or high is None or low == high:
        return ()
    width: Any = high - low
    if isinstance(low, Decimal):
        width = int(width)
    points = sorted({low + width * i // count for i in range(count)} | {high})
    texts = [reading.borders.to_text(point) for point in points]
    return tuple(CursorRange(lower, upper) for lower, upper in pairwise(texts))


class ParallelReader:
    """Reads the unfinished parts, each from its position, with a connection of its own. Few rows are queued."""

    def __init__(self, database: QueryDatabase, parts: tuple[CursorRange, ...], cursor: CursorValues) -> None:
        self._database, self._parts, self._borders = database, parts, cursor
        self._queue: Queue[PartRows | BaseException] = Queue(1)
        self._ended = Event()

    def read_rows(self) -> Iterator[PartRows]:
        """The rows, for each part in its order. Raises the first error of any part."""
        numbers = [number for number, part in enumerate(self._parts) if not part.done]
        threads = [
            Thread(target=self._read_range, args=(number,), name=f"range {number}", daemon=True) for number in numbers
        ]
        for thread in threads:
            thread.start()
        open_parts = len(threads)
        try:
            while open_parts:
                try:
                    part_rows = self._queue.get(timeout=TURN)
                except Empty:
                    self._database.refuse_cancelled()
                    continue
                if isinstance(part_rows, BaseException):
                    raise part_rows
                open_parts -= part_rows[1] is None
                yield part_rows
        finally:
            self._ended.set()

    def _read_range(self, number: int) -> None:
        part = self._parts[number]
        at = part.border or part.lower
        try:
            with self._database.connect() as reading:
                lower, upper = (None if text is None else self._borders.from_text(text) for text in (at, part.upper))
                for rows in reading.read_rows(lower, upper):
                    if not self._offer((number, rows)):
                        return
            self._offer((number, None))
        except BaseException as problem:  # Raised in the thread that reads the queue.
            self._offer(problem)

    def _offer(self, part_rows: PartRows | BaseException) -> bool:
        while not self._ended.is_set():
            try:
                self._queue.put(part_rows, timeout=TURN)
            except Full:
                continue
            return True
        return False


# Rows that may be read again, identified by their key and a digest of all values.

AT, DIGEST, VERSION_OF = "cursor_value", "digest", "version_of"


class RecentRows:
    """The last read row of each key with a cursor value at or above the floor: about 32 bytes per row, and its key. So a
    table with equal times in all rows fits, too.

    The digest has 64 bits, and is only compared with the last one of the same key.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], cursor: str) -> None:
        self._schema, self._keys = schema, [schema.names.index(key) for key in keys]
        self._cursor = schema.names.index(cursor)
        own = [(f"k{i}", schema.field(i).type) for i in self._keys]
        fields = [*own, (AT, schema.field(self._cursor).type), (DIGEST, pa.uint64()), (VERSION_OF, pa.int64())]
        self._known: pa.Table = pa.schema(fields).empty_table()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the compared rows."""
        return self._schema

    def __len__(self) -> int:
        return int(self._known.num_rows)

    def select_news(self, rows: pa.Table) -> pa.Table:
        """The rows that are new or have other values."""
        if not self._known.num_rows:
            return rows
        same = " AND ".join(f"o.k{i} = n.k{i}" for i in self._keys)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        with open_session() as duck:
            duck.register("o", self._known)
            duck.register("r", pa.table([*rows.columns, numbers], names=[*_number_columns(rows), "i"]))
            news = duck.sql(
                f"WITH n AS (SELECT i, {self._digest_columns} FROM r) SELECT n.i FROM n LEFT JOIN o ON {same} "
                f"WHERE o.{DIGEST} IS NULL OR o.{DIGEST} <> n.{DIGEST} ORDER BY n.i"
            ).to_arrow_table()
        return rows.take(news["i"])

    def add(self, rows: pa.Table, versions: pa.Array) -> None:
        """Add rows that were read, in any order: for each key the highest version counts."""
        by = ", ".join(f"k{i}" for i in self._keys)
        numbered = pa.table([*rows.columns, versions], names=[*_number_columns(rows), VERSION_OF])
        with open_session() as duck:
            duck.register("o", self._known)
            duck.register("r", numbered)
            newest = duck.sql(
                f"SELECT {by}, arg_max({AT}, {VERSION_OF}) AS {AT}, arg_max({DIGEST}, {VERSION_OF}) AS {DIGEST}, "
                f"max({VERSION_OF}) AS {VERSION_OF} "
                f"FROM (SELECT * FROM o UNION ALL SELECT {self._digest_columns}, {VERSION_OF} FROM r) GROUP BY {by}"
            ).to_arrow_table()
        self._known = pa.table(newest).cast(self._known.schema)

    def drop_below(self, floor: pa.Scalar) -> None:
        """Remove rows below `floor`, which are not read again."""
        self._known = self._known.filter(pc.greater_equal(self._known[AT], floor))

    @property
    def _digest_columns(self) -> str:
        keys = [f"c{i} AS k{i}" for i in self._keys]
        every = ", ".join(f"c{i}" for i in range(len(self._schema)))
        return ", ".join([*keys, f"c{self._cursor} AS {AT}", f"hash({every}) AS {DIGEST}"])


def _number_columns(rows: pa.Table) -> list[str]:
    """Columns by number, because DuckDB ignores the case of names."""
    return [f"c{i}" for i in range(rows.num_columns)]


class QuerySource(JournalRows):
    """A `Source` of rows from a query (see the package). Its one topic has the name of the table. Lanes without a
    position begin with the first rows that were read. Options of `QuerySettings`, and those of the engine."""

    def __init__(self, options: QuerySettings | Mapping[str, Any]) -> None:
        own, scan = open_scan(options)
        read = QuerySettings.read(own)
        polls, pending = QueryPolls(read), f"{read.name}: its columns are being read."
        poller = PacedPoller(polls.journal, polls.run, polls.database.cancel, every=read.every or EVERY, pending=pending)
        super().__init__(read, scan, poller)


# The journal of a query: its rows, and the position in the cursor column, in the same commits.


RULES = "asked.json"
READ = "r"
"""The operation of all rows: a query does not show if a row is new or changed."""


@dataclass(frozen=True)
class CursorRange:
    """A range of cursor values that is read separately at first, as text: from `lower` up to, but not including, `upper`.
    `border`: the last value that was read; `done`: it was read completely."""

    lower: str | None
    upper: str | None
    border: str | None = None
    done: bool = False


@dataclass(frozen=True)
class QueryProgress:
    """The position in the cursor column, as text, and the state of `parts` while the first rows are read. `version`: of
    the newest rows."""

    version: int = 0
    border: str | None = None
    parts: tuple[CursorRange, ...] = ()

    def to_text(self) -> str:
        """The text for `from_text`."""
        parts = [[p.lower, p.upper, p.border, p.done] for p in self.parts]
        return json.dumps({"version": self.version, "border": self.border, "parts": parts})

    @classmethod
    def from_text(cls, text: str) -> QueryProgress:
        """The progress of a text from `to_text`."""
        fields = json.loads(text)
        return cls(fields["version"], fields["border"], tuple(CursorRange(*part) for part in fields["parts"]))

    def with_part(self, number: int, part: CursorRange) -> QueryProgress:
        """The progress with another state of the part with that number."""
        return replace(self, parts=tuple(part if i == number else p for i, p in enumerate(self.parts)))


class QueryJournal(RowJournal):
    """The rows that were read, with the progress in each commit."""

    _options: QuerySettings

    def __init__(self, options: QuerySettings) -> None:
        super().__init__(options, "replicator.query", "has the position of the query")
        self._schema: pa.Schema | None = None

    def check_rules(self) -> None:
        """See `RowJournal.check_rules`: the cursor column, the keys and the masks."""
        rules, stored_rules = self._current_rules(), self._read_rules()
        others = [name for name in rules if stored_rules is not None and stored_rules[name] != rules[name]]
        if others:
            raise DataLoss(
                f"{self._options.name} was read with another {' and '.join(others)} than the configuration has now.",
                next_step=f"{self.state.restart_step} Or restore the earlier setting.",
            )
        if self.has_rows:
            self.refuse_other_masks(stored_rules[MASKS] if stored_rules is not None else {})

    def begin(self, schema: pa.Schema) -> None:
        """Create the journal for rows with these columns. If it exists, raise DataLoss for missing columns and other
        types."""
        if not self.has_rows:
            if (self._read_rules() or {}).get("made"):
                raise self.gone_error("the rows that were read")
            columns = pa.schema([pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64()), *schema])
            self._write_rules(has_table=False)
            self.commit(columns.empty_table(), QueryProgress().to_text())
            self._write_rules(has_table=True)
        if self._schema is None:
            own = (CHANGE, VERSION)
            self._schema = pa.schema(
                [pa.field(f.name, storage_type(f.type)) for f in self.read_schema() if f.name not in own]
            )
            if (self._read_rules() or {}).get(MASKS) != self.mask_notes:
                self._write_rules(has_table=True)  # Masks of columns that are new may have been added.
        remedy = "Give it back to the table, or to the query"
        now = ReadSnapshot(self._options.name, 0, schema.empty_table(), remedy=remedy)
        align_rows(self._schema.empty_table(), now, str(self.state.path))

    def read_progress(self) -> QueryProgress:
        """The progress in the newest commit with one."""
        return QueryProgress.from_text(self.read_newest_progress())

    def append(self, rows: pa.Table, progress: QueryProgress) -> None:
        """Append rows as version `progress.version`, with the progress."""
        names = [CHANGE, VERSION, *rows.schema.names]
        count = rows.num_rows
        own = [pa.repeat(pa.scalar(READ), count), pa.repeat(pa.scalar(progress.version, pa.int64()), count)]
        # As one chunk: delta-rs may write each chunk to a file of its own.
        self.commit(pa.table([*own, *rows.columns], names=names).combine_chunks(), progress.to_text())
        self._schema = rows.schema

    def _write_rules(self, *, has_table: bool) -> None:
        self.state.write(RULES, {**self._current_rules(), MASKS: self.mask_notes, "made": has_table})

    def _read_rules(self) -> Mapping[str, Any] | None:
        """The stored rules, with all names of `_current_rules`; None if there are none."""

        def parse(stored_rules: Mapping[str, Any]) -> Mapping[str, Any]:
            rules = {name: stored_rules[name] for name in self._current_rules()}
            return {**rules, MASKS: dict(stored_rules.get(MASKS, {})), "made": stored_rules.get("made")}

        return self.state.read(RULES, parse)

    def _current_rules(self) -> Mapping[str, Any]:
        return {"cursor_column": self._options.cursor_column, "keys": sorted(self._options.keys)}
