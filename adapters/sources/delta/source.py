"""The source that reads an event log: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.topics import TopicFilter
from replicator.ports.frames import Batch, F, Stop

from .backlog import Window
from .following import ApplyBatch, Following, Load, Log
from .live import follow
from .losses import lost, refuse
from .options import DeltaSourceOptions
from .pace import Pace
from .ranges import Ranges
from .reading import Period, payload, records
from .table import EventLogTable, Snapshot
from .unfinished import OpenFiles


class EventLogSource(ABC, Generic[F]):
    """A `Source` over the table of an `event_log` sink (`replicator.ports.source` is the contract), but for how the records
    of a window become a frame (`load`).

    Offsets are those of the recorded topics, so a lane may go on here that was fed by the broker, and the other way round.
    Records are told by them too: files may be compacted, rewritten and cleaned up at any time. In a table that is only
    appended to, records that turn up below the log's end are a DataLoss. Offsets may have holes, so records missing
    *between* those of a log cannot be noticed; only what is missing before its first record can.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = DeltaSourceOptions.read(options)
        self._wanted = TopicFilter(self._options.topics)
        self._period = Period(self._options.since, self._options.until)
        below = self._options.below
        self._below = None if below is None else Position.from_json(below)
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

    @abstractmethod
    def nothing(self, span: Span) -> Batch[F]:
        """A batch without records."""

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the end of the log as it is now."""
        refuse(self.losses(start, {}))
        following = Following(self._log, self.loading(), self._pace(), start, self._below, ahead=self.ahead)
        follow(following, start, self.nothing, apply_batch, stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        """As the port says. Only files that reach into what is asked for are opened."""
        asked = start.only(until)
        refuse({**self.losses(until, {}), **self.losses(asked, {})})
        unread = until.only(p for p in until if asked.get(p, -1) < until[p])
        following = Following(self._log, self.load, self._pace(), asked.only(unread), unread)
        following.refresh()
        following.deliver(apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """As the port says; the broker's ids of topics are not in the log. Topics that are not wanted do not count."""
        bounds = self._log.now()[1]
        asked = [place for place in position if self._wanted(place.topic)]
        return {place: sentence for place in asked if (sentence := lost(bounds, place, position[place]))}

    def start(self) -> Position:
        """As the port says: the first offsets there are."""
        return self._log.now()[1].firsts

    def beginning(self) -> Position:
        """As the port says."""
        return self.start()

    def removed(self) -> Position:
        """See `ports.source.Shortened`; nothing for who asks for a part."""
        if self._options.part:
            return Position()
        firsts = self._log.now()[1].firsts
        cuts = self._log.table.removed(firsts)
        # A log that was loaded anew since then has them again.
        return firsts.only(place for place, cut in cuts.items() if cut <= firsts[place])

    def end(self) -> Position:
        """As the port says."""
        return self._log.now()[1].ends

    def _pace(self) -> Pace:
        return Pace(self._options.batch_records, self._options.batch_bytes)

    def committed(self, position: Position) -> None:
        """Nothing to publish: nobody else asks how far a log was read."""

    def close(self) -> None:
        """Nothing is kept open between calls."""


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
