"""Reading on in an event log, version after version."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, F, Stop

from ...event_logs.bounds import Bounds, made_anew, refuse, removed
from ...event_logs.live import one_by_one, read_ahead
from ...event_logs.source import ApplyBatch
from .backlog import Backlog, Window
from .files import Rewritten
from .pace import Pace, TooMuch
from .ranges import Ranges
from .table import EventLogTable, LogFile, Snapshot

Load = Callable[[Snapshot, Window, Pace], Batch[F]]
"""Reads the records of a window. May raise TooMuch and Rewritten."""


NOTHING = Snapshot("", -1, (), Position())
"""Before the first look."""


@dataclass
class Log:
    """The table, and which offsets its files hold. `below`: where it is taken to end."""

    table: EventLogTable
    ranges: Ranges
    below: Position | None = None

    def now(self) -> tuple[Snapshot, Bounds]:
        """The newest version and its bounds."""
        while True:
            snapshot = self.table.newest()
            try:
                return snapshot, self.ranges.bounds(snapshot).within(self.below)
            except Rewritten as gone:
                self.refuse_missing(gone)

    def refuse_missing(self, gone: Rewritten) -> None:
        """Raise EnvironmentProblem when the newest version still names the file that is gone."""
        if any(file.path == gone.path for file in self.table.newest().files):
            raise EnvironmentProblem(
                f"The event log names the file {gone.path}, which is gone.",
                next_step="Restore it from a copy; or, if its records are lost, let deltalake forget the file: "
                "`DeltaTable(path).repair()`.",
            )


class Following(Generic[F]):
    """One way through the log, from `start` on and, where that is given, to `until`. With `ahead` a batch is read in another
    thread while the one before it is at work; after an error, or the end that was asked for, more was read than handed
    over, and it is of no more use."""

    def __init__(
        self,
        log: Log,
        load: Load[F],
        pace: Pace,
        start: Mapping[TopicPartition, int],
        until: Position | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._log, self._load, self._pace = log, load, pace
        self._until = until
        self._ahead = ahead
        self._backlog = Backlog(log.ranges, start, until)
        self._snapshot = NOTHING
        self._bounds = Bounds(Position(), Position())
        self._table = ""
        self._emptied: set[TopicPartition] = set()

    def refresh(self) -> None:
        """Take in what the newest version has. DataLoss when records that come next are gone from it, or records were
        appended below others."""
        snapshot, bounds = self._log.now()
        if snapshot is self._snapshot:
            return
        self._refuse_another(snapshot.table)
        known = set(self._snapshot.files)
        fresh = [file for file in snapshot.files if file not in known]
        appended = self._snapshot is not NOTHING and known <= set(snapshot.files)
        if appended:
            self._refuse_late(fresh)
        self._refuse_gaps({place: at for place, at in bounds.firsts.items() if not appended or place in self._emptied})
        self._emptied = (self._emptied | set(self._bounds.firsts)) - set(bounds.firsts)
        for place, first in bounds.firsts.items():
            if self._until is None or place in self._until:
                self._backlog.next.setdefault(place, first)
        self._backlog.add(fresh)
        self._snapshot, self._bounds = snapshot, bounds
        self._log.ranges.forget_others(snapshot.files)

    def _refuse_another(self, table: str) -> None:
        """A table that was made anew holds other records under the same offsets."""
        if self._table and table != self._table:
            raise made_anew(self._log.table.root)
        self._table = table

    def _refuse_gaps(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Of records that were appended where there were others nothing can be missing. A log that was emptied and loaded
        again may begin later."""
        at = {place: self._backlog.next.get(place, first) for place, first in firsts.items()}
        refuse({place: said for place, first in firsts.items() if (said := removed(place, at[place], first))})

    def _refuse_late(self, fresh: Iterable[LogFile]) -> None:
        """What was rewritten may be anywhere; what was only appended goes on where the log ended."""
        for file in fresh:
            for number, (first, _) in self._log.ranges.of(file).items():
                place = TopicPartition(file.topic, number)
                end = self._bounds.ends.get(place, first)
                if first < end:
                    raise DataLoss(
                        f"Record {first} of {place} was appended to the event log after record {end - 1}.",
                        next_step="Two writers share this table. Give each log a folder of its own, and reload with "
                        "`replicator lanes resync LANE`.",
                    )

    def deliver(self, apply_batch: ApplyBatch[F], stop: Stop) -> bool:
        """Hand over all that is there and was not handed over; whether that was anything."""
        handed, batches = False, self._batches()
        try:
            while not stop.is_set():
                try:
                    batch = next(batches, None)
                except Rewritten as gone:
                    self._begin_again(gone)
                    batches = self._batches()
                    continue
                if batch is None:
                    break
                handed = True
                apply_batch(batch)
        finally:
            batches.close()
        return handed

    def _batches(self) -> Generator[Batch[F], None, None]:
        return read_ahead(self._next) if self._ahead else one_by_one(self._next)

    def _next(self) -> Batch[F] | None:
        """The next batch; None where there is nothing more. Raises Rewritten."""
        while True:
            try:
                window = self._backlog.window(self._pace.reach)
                return self._rest() if window is None else self._read(window)
            except TooMuch:
                continue

    def _read(self, window: Window) -> Batch[F]:
        batch = self._load(self._snapshot, window, self._pace)
        self._pace.read(batch.records, batch.size)
        self._backlog.done(window)
        return batch

    def _rest(self) -> Batch[F] | None:
        """Offsets without a record at the end, as the lanes that wrote the log know it, or up to where was asked for."""
        ends = self._until or self._bounds.ends
        left = {place: end for place, end in ends.items() if self._backlog.next.get(place, end) < end}
        if not left:
            return None
        starts = {place: self._backlog.next[place] for place in left}
        self._backlog.next.update(left)
        window = Window(Span(Position(starts), Position(left)), ())
        return self._load(self._snapshot, window, self._pace)

    def _begin_again(self, gone: Rewritten) -> None:
        """The files of a newer version, from where these were read."""
        self._log.refuse_missing(gone)
        self._backlog.clear()
        self._snapshot = NOTHING
        self.refresh()
