"""The source that reads an event log: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F

from ...event_logs.bounds import Bounds
from ...event_logs.frames import payload
from ...event_logs.source import LogSource
from .backlog import Window
from .following import Following, Load, Log
from .options import DeltaSourceOptions
from .pace import AllAtOnce, Pace
from .ranges import Ranges
from .reading import Period, records
from .table import EventLogTable, Snapshot
from .unfinished import OpenFiles


class EventLogSource(LogSource[F]):
    """`LogSource` over the table of an `event_log` sink in a lake, but for how the records of a window become a frame
    (`load`).

    Records are told by their offsets: files may be compacted, rewritten and cleaned up at any time. In a table that is only
    appended to, records that turn up below the log's end are a DataLoss.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = DeltaSourceOptions.read(options)
        super().__init__(self._options)
        self._period = Period(self._options.since, self._options.until)
        table = EventLogTable(self._options.path, self._wanted, self._options.storage)
        self._log = Log(table, Ranges(), self._below)

    ahead = False
    """Whether `run` reads a batch while the one before it is at work."""

    @abstractmethod
    def load(self, snapshot: Snapshot, window: Window, pace: Pace) -> Batch[F]:
        """The records of `window`, a batch without any for one without files. May raise TooMuch and Rewritten."""

    def loading(self) -> Load[F]:
        """`load` for one `run`, which may read while `read` does."""
        return self.load

    def bounds(self) -> Bounds:
        """See `LogSource.bounds`."""
        return self._log.now()[1]

    def through(self, start: Position) -> Following[F]:
        """See `LogSource.through`."""
        return Following(self._log, self.loading(), self._pace(), start, self._below, ahead=self.ahead)

    def stretch(self, start: Position, until: Position) -> Following[F]:
        """See `LogSource.stretch`. Only files that reach into what is asked for are opened."""
        return Following(self._log, self.load, self._pace(), start, until)

    def removed(self) -> Position:
        """See `ports.source.Shortened`; nothing for who asks for a part."""
        if self._options.part:
            return Position()
        firsts = self.bounds().firsts
        cuts = self._log.table.removed(firsts)
        # A log that was loaded anew since then has them again.
        return firsts.only(place for place, cut in cuts.items() if cut <= firsts[place])

    def _pace(self) -> Pace:
        if self._options.mode == "batch":
            return AllAtOnce(self._options.path, self._options.batch_bytes)
        return Pace(self._options.batch_records, self._options.batch_bytes)


class DeltaSource(EventLogSource[pa.Table]):
    """`EventLogSource` whose frames are `pyarrow.Table`."""

    ahead = True

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self._files = OpenFiles(self._period.stored)
        self._of_run = OpenFiles(self._period.stored)

    def close(self) -> None:
        """Close the files that are not read to their ends."""
        self._files.close()
        self._of_run.close()

    def load(self, snapshot: Snapshot, window: Window, pace: Pace) -> Batch[pa.Table]:  # noqa: ARG002
        """Read in this process, file by file and a little at a time."""
        return self._loaded(self._files, window, pace)

    def loading(self) -> Load[pa.Table]:
        """See `EventLogSource.loading`."""
        return lambda _, window, pace: self._loaded(self._of_run, window, pace)

    def _loaded(self, files: OpenFiles, window: Window, pace: Pace) -> Batch[pa.Table]:
        frame = records(window, pace, files, self._period)
        return Batch(frame, window.span, frame.num_rows, payload(frame))

    def nothing(self, span: Span) -> Batch[pa.Table]:
        """A batch without records."""
        return Batch(RAW.empty_table(), span, 0, 0)
