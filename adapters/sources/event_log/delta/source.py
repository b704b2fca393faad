"""The source for event logs in a lake: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F

from ....event_log.bounds import LogBounds
from ....event_log.frames import payload_bytes
from ...delta_reader.window_size import WholeTableSize, WindowSize
from ..source import LogSource
from .backlog import ReadWindow
from .log_reader import DeltaLog, DeltaLogReader, Load
from .offset_ranges import OffsetRanges
from .open_files import OpenLogFiles
from .options import DeltaSourceOptions
from .table import EventLogTable, LogSnapshot
from .window_reader import Period, read_records


class EventLogSource(LogSource[F]):
    """`LogSource` over the table of an `event_log` sink in a lake, without `load`, which reads the records of a window as
    a frame.

    Offsets identify records: files may be compacted, rewritten and vacuumed at any time. In a table with appends only,
    new records below the log's end are a DataLoss.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = DeltaSourceOptions.read(options)
        super().__init__(self._options)
        self._period = Period(self._options.since, self._options.until)
        table = EventLogTable(self._options.path, self._wanted, self._options.storage)
        self._log = DeltaLog(table, OffsetRanges(), self._below)

    ahead = False
    """True if `run` reads the next batch while the caller uses the last one."""

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
        """See `ports.source.LogTruncated`. Empty for readers of a part."""
        if self._options.part:
            return Position()
        firsts = self.bounds().firsts
        cuts = self._log.table.read_removed(firsts)
        # A log that was loaded again since then contains them.
        return firsts.only(place for place, cut in cuts.items() if cut <= firsts[place])

    def _window_size(self) -> WindowSize:
        if self._options.mode == "batch":
            return WholeTableSize(self._options.path, self._options.batch_bytes)
        return WindowSize(self._options.batch_records, self._options.batch_bytes)


class DeltaSource(EventLogSource[pa.Table]):
    """`EventLogSource` with `pyarrow.Table` as frames."""

    ahead = True

    def __init__(self, options: Mapping[str, object]) -> None:
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
