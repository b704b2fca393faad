"""The source for event logs in a lake: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from math import inf
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW, TIMESTAMP
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, F
from replicator.ports.source import SourceFeatures

from ...arrow.record_positions import payload_bytes
from ...delta.folders import FileLocation
from ...event_log import LogBounds, drop_repeated, sort_records, to_raw
from ..delta_options import DeltaSourceSettings
from ..delta_reader import WholeTableSize, WindowSize, open_reader, read_slices, translate_damage
from .delta_log import DeltaLog, DeltaLogReader, Load, LogFile, LogSnapshot, ReadWindow
from .source import LogSource


class EventLogSource(LogSource[F]):
    """`LogSource` over the table of an `event_log` sink in a lake, without `load`, which reads the records of a window as
    a frame.

    Offsets identify records: files may be compacted, rewritten and vacuumed at any time. In a table with appends only,
    new records below the log's end are a DataLoss.
    """

    def __init__(self, options: DeltaSourceSettings | Mapping[str, Any]) -> None:
        self._options = DeltaSourceSettings.read(options)
        super().__init__(self._options.topics or ("*",), self._options.below)
        bounds = (self._options.since, self._options.until)
        self._period = Period(*(None if text is None else datetime.fromisoformat(text) for text in bounds))
        self._log = DeltaLog(self._options.path or "", self._wanted, self._options.storage, self._below)

    ahead = False
    """True if `run` reads the next batch while the caller uses the last one."""

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, removed=self.removed)

    @abstractmethod
    def load(self, snapshot: LogSnapshot, window: ReadWindow, pace: WindowSize) -> Batch[F]:
        """The records of `window`; an empty batch for one without files. May raise WindowTooLarge and FileRewritten."""

    def make_loader(self) -> Load[F]:
        """`load` for one `run`, which may read at the same time as `read`."""
        return self.load

    def bounds(self) -> LogBounds:
        return self._log.read_latest()[1]

    def follow_from(self, start: Position) -> DeltaLogReader[F]:
        return DeltaLogReader(self._log, self.make_loader(), self._window_size(), start, self._below, ahead=self.ahead)

    def read_between(self, start: Position, until: Position) -> DeltaLogReader[F]:
        """Opens only files with records in the requested range."""
        return DeltaLogReader(self._log, self.load, self._window_size(), start, until)

    def removed(self) -> Position:
        """See `ports.source.SourceFeatures`. Empty for readers of a part."""
        if self._options.part:
            return Position()
        firsts = self.bounds().firsts
        cuts = self._log.read_removed(firsts)
        # A log that was loaded again since then contains them.
        return firsts.only(partition for partition, cut in cuts.items() if cut <= firsts[partition])

    def _window_size(self) -> WindowSize:
        if self._options.mode == "batch":
            return WholeTableSize(self._options.path or "", self._options.batch_bytes)
        return WindowSize(self._options.batch_records, self._options.batch_bytes)


class DeltaSource(EventLogSource[pa.Table]):
    """`EventLogSource` with `pyarrow.Table` as frames."""

    ahead = True

    def __init__(self, options: DeltaSourceSettings | Mapping[str, Any]) -> None:
        super().__init__(options)
        self._files = OpenLogFiles(self._period.stored_schema)
        self._of_run = OpenLogFiles(self._period.stored_schema)

    def close(self) -> None:
        """Close files that were not read to their ends."""
        self._files.close()
        self._of_run.close()

    def load(self, snapshot: LogSnapshot, window: ReadWindow, pace: WindowSize) -> Batch[pa.Table]:  # noqa: ARG002
        """Reads in this process, file by file in small slices."""
        return self._load(self._files, window, pace)

    def make_loader(self) -> Load[pa.Table]:
        return lambda _, window, pace: self._load(self._of_run, window, pace)

    def _load(self, files: OpenLogFiles, window: ReadWindow, pace: WindowSize) -> Batch[pa.Table]:
        frame = read_records(window, pace, files, self._period)
        return Batch(frame, window.span, frame.num_rows, payload_bytes(frame))

    def empty_batch(self, span: Span) -> Batch[pa.Table]:
        """A batch without records."""
        return Batch(RAW.empty_table(), span, 0, 0)


# Records of a window, read in this process.

STORED = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG if c.name in RAW.names and c.name != "topic"])
TIME = pa.field("ts", TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Period:
    """A range of source times that includes both ends. Records without a time belong to every range."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def stored_schema(self) -> pa.Schema:
        """The columns to read from a log's files."""
        return STORED.append(TIME) if self.since or self.until else STORED

    def filter_rows(self, piece: pa.Table) -> pa.Table:
        """The rows of a log in the range, and rows without a time."""
        keep = [pc.greater_equal(piece["ts"], self.since)] if self.since else []
        keep += [pc.less_equal(piece["ts"], self.until)] if self.until else []
        return piece.filter(pc.fill_null(reduce(pc.and_, keep), True)) if keep else piece


ALWAYS = Period()


def read_records(window: ReadWindow, pace: WindowSize, files: OpenLogFiles, period: Period = ALWAYS) -> pa.Table:
    """The records of `window` in a period, as a raw frame by topic, partition and offset, without duplicates. Raises
    WindowTooLarge soon after a limit is exceeded, and FileRewritten if a file does not exist any more."""
    pieces, count, size = [], 0, 0
    for file in window.files:
        for piece in files.read_rows(file, window):
            inside = to_raw(period.filter_rows(piece))
            count, size = count + inside.num_rows, size + payload_bytes(inside)
            pace.refuse_more(count, size)
            if inside.num_rows:
                pieces.append(inside)
    files.mark_done(window)
    return drop_repeated(sort_records(pa.concat_tables(pieces))) if pieces else RAW.empty_table()


# Files that span several windows: the next window continues in the open file instead of reading it from the start.

PIECE_ROWS = 10_000
HELD_BYTES = 64 * 1024 * 1024
"""The most bytes of an unordered file that are kept for later windows. Beyond it, these read the file again."""


class OpenLogFile:
    """A file with its read position. Rows from the start of the last window are kept until a window is above them. A
    window that was too large is requested again, shorter."""

    def __init__(self, file: LogFile, schema: pa.Schema, lowest: int) -> None:
        self._file, self._stored, self._lowest = file, schema, lowest
        with translate_damage(file.path):
            self._reader = open_reader(file.path)
            groups = sorted(
                (i for i in range(self._reader.metadata.num_row_groups) if self._offset_range(i)[1] >= lowest),
                key=lambda i: self._offset_range(i)[0],
            )
            self._places = self._reader.read_row_groups(groups, columns=["partition", "offset"])
            self._batches = self._read_pieces(groups)
        self._read = 0
        self._held: list[pa.Table] = []
        self._from: dict[TopicPartition, int] = {}

    def can_continue(self, window: ReadWindow) -> bool:
        """True if all rows of the window are still available."""
        starts = (item for item in window.span.start.items() if item[0].topic == self._file.topic)
        return all(offset >= self._from.get(partition, self._lowest) for partition, offset in starts)

    def read_rows(self, window: ReadWindow) -> Iterator[pa.Table]:
        """The rows of the window, in small slices."""
        topic = self._file.topic
        starts = {partition: offset for partition, offset in window.span.start.items() if partition.topic == topic}
        self._from.update(starts)
        self._held = [piece for piece in self._held if pc.any(pc.invert(_is_below(piece, starts))).as_py()]
        ends = {partition: offset for partition, offset in window.span.end.items() if partition.topic == topic}
        for piece in self._held:
            yield _select_window(piece, starts, ends)
        wanted = pc.indices_nonzero(_is_inside(self._places, starts, ends))
        last = wanted[-1].as_py() if len(wanted) else -1
        while self._read <= last:
            with translate_damage(self._file.path):
                piece = next(self._batches)
            self._held.append(piece)
            self._read += piece.num_rows
            yield _select_window(piece, starts, ends)

    def is_reusable(self, window: ReadWindow) -> bool:
        """True if later windows need rows of the file, and not too many of these are kept."""
        ends = {partition: offset for partition, offset in window.span.end.items() if partition.topic == self._file.topic}
        if not pc.any(pc.invert(_is_below(self._places, ends))).as_py():
            return False
        later = (piece for piece in self._held if pc.any(pc.invert(_is_below(piece, ends))).as_py())
        held_bytes: int = sum(piece.nbytes for piece in later)
        return held_bytes <= HELD_BYTES

    def close(self) -> None:
        """May be called twice. Releases slices and file, because they reference each other and garbage collection is
        rare."""
        self._held = []
        self._batches.close()
        self._reader.close()

    def _offset_range(self, number: int) -> tuple[float, float]:
        """The first and last offset of a row group from its statistics. In a compacted file the newest may be first."""
        group = self._reader.metadata.row_group(number)
        columns = (group.column(i) for i in range(group.num_columns))
        statistics = next((c.statistics for c in columns if c.path_in_schema == "offset"), None)
        return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (-inf, inf)

    def _read_pieces(self, groups: list[int]) -> Generator[pa.Table, None, None]:
        names = self._stored.names
        for batch in read_slices(self._file.path, self._reader, PIECE_ROWS, names, groups):
            topic = pa.repeat(pa.scalar(self._file.topic), batch.num_rows)
            yield pa.table(batch).select(names).cast(self._stored).append_column("topic", topic)


class OpenLogFiles:
    """The open files. Files that a later window continues stay open."""

    def __init__(self, schema: pa.Schema) -> None:
        self._stored = schema
        self._open: dict[FileLocation, OpenLogFile] = {}

    def read_rows(self, file: LogFile, window: ReadWindow) -> Iterator[pa.Table]:
        """The rows of `file` in `window`, in small slices. Raises FileRewritten if it does not exist any more."""
        opened = self._open.get(file.path)
        if opened is None or not opened.can_continue(window):
            self._close(file.path)
            lowest = min(offset for partition, offset in window.span.start.items() if partition.topic == file.topic)
            opened = self._open[file.path] = OpenLogFile(file, self._stored, lowest)
        return opened.read_rows(window)

    def mark_done(self, window: ReadWindow) -> None:
        """Close files that later windows do not need."""
        paths = {file.path for file in window.files}
        for path in [p for p, one in self._open.items() if p not in paths or not one.is_reusable(window)]:
            self._close(path)

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        for path in list(self._open):
            self._close(path)

    def _close(self, path: FileLocation) -> None:
        opened = self._open.pop(path, None)
        if opened is not None:
            opened.close()


Bounds = Mapping[TopicPartition, int]
"""Offsets of some partitions of one topic."""


def _is_below(rows: pa.Table, bounds: Bounds) -> pa.ChunkedArray:
    """True for rows below the offset of their partition; False for partitions without one."""
    below = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for partition, bound in bounds.items():
        below = pc.or_(below, pc.and_(pc.equal(rows["partition"], partition.partition), pc.less(rows["offset"], bound)))
    return below


def _is_inside(rows: pa.Table, starts: Bounds, ends: Bounds) -> pa.ChunkedArray:
    return pc.and_(_is_below(rows, ends), pc.invert(_is_below(rows, starts)))


def _select_window(piece: pa.Table, starts: Bounds, ends: Bounds) -> pa.Table:
    """The rows of a window. Copies only if they are not consecutive, as in a log of several writers."""
    indexes = pc.indices_nonzero(_is_inside(piece, starts, ends))
    if not len(indexes):
        return piece.slice(0, 0)
    first, last = indexes[0].as_py(), indexes[-1].as_py()
    return piece.slice(first, len(indexes)) if last - first + 1 == len(indexes) else piece.take(indexes)
