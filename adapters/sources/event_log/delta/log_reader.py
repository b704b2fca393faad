"""Reading of an event log, version after version, in windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, F, Stop

from ....event_log import LogBounds, describe_removed, recreated_error, refuse_losses
from ...delta_reader import FileRewritten, WindowSize, WindowTooLarge
from ..source import ApplyBatch
from ..version_loop import iterate, read_ahead
from .table import EventLogTable, LogFile, LogSnapshot, OffsetRanges, Range

# The unread part of an event log, in windows that are read at once.


@dataclass(frozen=True)
class ReadWindow:
    """A span of offsets, and every file that may contain records of it."""

    span: Span
    files: tuple[LogFile, ...]


class Backlog:
    """Files with records to deliver, from `next` up to `until` if given.

    The order of files, and of rows in them, does not matter: a window includes all files that overlap it. Windows of a
    partition follow each other without gaps.
    """

    def __init__(self, ranges: OffsetRanges, start: Mapping[TopicPartition, int], until: Position | None = None) -> None:
        self.next = dict(start)
        self._ranges, self._until = ranges, until
        self._files: deque[LogFile] = deque()

    def add(self, files: Iterable[LogFile]) -> None:
        """Add files to read."""
        every = sorted({*self._files, *files}, key=lambda f: (f.topic, (-1, -1) if f.offsets is None else f.offsets, f.path))
        self._files = deque(every)

    def clear(self) -> None:
        """Remove all files. The positions stay."""
        self._files.clear()

    def next_window(self, reach: int) -> ReadWindow | None:
        """The next window of at most `reach` offsets; None if everything was read."""
        while self._files and not self._find_reach(self._files[0]):
            self._files.popleft()
        if not self._files:
            return None
        wanted = self._gather_ends(reach)
        near = [(file, self._ranges.read_ranges(file)) for file in self._list_files_below(wanted)]
        # Holes before the first record do not count.
        firsts = {p: min(r[p.partition][0] for f, r in near if f.topic == p.topic and p.partition in r) for p in wanted}
        ends = _share_reach({place: max(self.next[place], first) for place, first in firsts.items()}, wanted, reach)
        starts = {place: self.next[place] for place in ends}
        files = [file for file, ranges in near if _has_overlap(file, ranges, starts, ends)]
        return ReadWindow(Span(Position(starts), Position(ends)), tuple(files))

    def mark_done(self, window: ReadWindow) -> None:
        """Mark the records of `window` as read."""
        self.next.update(window.span.end)

    def _find_reach(self, file: LogFile) -> dict[TopicPartition, int]:
        """The ends up to which records of `file` are to be read."""
        if self._is_outside(file):
            return {}
        found = {}
        for number, (first, last) in self._ranges.read_ranges(file).items():
            place = TopicPartition(file.topic, number)
            end = last + 1 if self._until is None else min(last + 1, self._until.get(place, 0))
            if place in self.next and max(first, self.next[place]) < end:
                found[place] = end
        return found

    def _is_outside(self, file: LogFile) -> bool:
        """True if statistics show that no record of `file` is to be read."""
        if file.offsets is None or file.partitions is None:
            return False
        (first, last), (low, high) = file.offsets, file.partitions
        places = (TopicPartition(file.topic, number) for number in range(low, high + 1))
        unread = [place for place in places if place in self.next and self.next[place] <= last]
        return not unread if self._until is None else all(first >= self._until.get(place, 0) for place in unread)

    def _gather_ends(self, reach: int) -> dict[TopicPartition, int]:
        """The ends for the records of the first files, for as many files as needed for `reach` offsets."""
        ends: dict[TopicPartition, int] = {}
        begins: dict[TopicPartition, int] = {}
        for file in self._files:
            for place, end in self._find_reach(file).items():
                first = max(self.next[place], self._ranges.read_ranges(file)[place.partition][0])
                begins[place] = min(first, begins.get(place, first))
                ends[place] = max(end, ends.get(place, end))
            if sum(ends.values()) - sum(begins.values()) >= reach:
                break
        return ends

    def _list_files_below(self, ends: Mapping[TopicPartition, int]) -> list[LogFile]:
        highest: dict[str, int] = {}
        for place, end in ends.items():
            highest[place.topic] = max(end, highest.get(place.topic, end))
        below = [f for f in self._files if f.topic in highest and (f.offsets is None or f.offsets[0] < highest[f.topic])]
        starts = {place: self.next[place] for place in ends}
        return [f for f in below if not self._is_outside(f) and _has_overlap(f, self._ranges.read_ranges(f), starts, ends)]


def _has_overlap(
    file: LogFile,
    ranges: Mapping[int, Range],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> bool:
    places = ((TopicPartition(file.topic, number), offsets) for number, offsets in ranges.items())
    return any(p in ends and first < ends[p] and last >= starts[p] for p, (first, last) in places)


def _share_reach(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], reach: int
) -> dict[TopicPartition, int]:
    """Ends with at most `reach` offsets above `begins`, divided among the partitions in proportion."""
    widths = {place: end - begins[place] for place, end in ends.items()}
    total = sum(widths.values())
    if total <= reach:
        return dict(ends)
    out, left = {}, reach
    for place, width in sorted(widths.items()):
        taken = min(left, max(1, width * reach // total))
        if taken:
            out[place] = begins[place] + taken
            left -= taken
    return out


# Reading of an event log, version after version.

Load = Callable[[LogSnapshot, ReadWindow, WindowSize], Batch[F]]
"""Reads the records of a window. May raise WindowTooLarge and FileRewritten."""


NOTHING = LogSnapshot("", -1, (), Position())
"""The snapshot before the first refresh."""


@dataclass
class DeltaLog:
    """The table, and the offset ranges of its files. `below`: the position at which the log ends for this reader."""

    table: EventLogTable
    ranges: OffsetRanges
    below: Position | None = None

    def read_latest(self) -> tuple[LogSnapshot, LogBounds]:
        """The newest version and its bounds."""
        while True:
            snapshot = self.table.newest()
            try:
                return snapshot, self.ranges.find_bounds(snapshot).limit_to(self.below)
            except FileRewritten as gone:
                self.refuse_missing(gone)

    def refuse_missing(self, gone: FileRewritten) -> None:
        """Raise EnvironmentProblem if the newest version still contains the missing file."""
        if any(file.path == gone.path for file in self.table.newest().files):
            raise EnvironmentProblem(
                f"The event log names the file {gone.path}, which is gone.",
                next_step="Restore it from a copy; or, if its records are lost, let deltalake forget the file: "
                "`DeltaTable(path).repair()`.",
            )


class DeltaLogReader(Generic[F]):
    """A pass through the log, from `start`, and up to `until` if given. With `ahead`, the next batch is read in another
    thread while the caller uses the last one. After an error or a stop, more was read than delivered, so the reader must
    not be used again."""

    def __init__(
        self,
        log: DeltaLog,
        load: Load[F],
        pace: WindowSize,
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
        self._bounds = LogBounds(Position(), Position())
        self._table = ""
        self._emptied: set[TopicPartition] = set()

    def refresh(self) -> None:
        """Add the newest version. Raises DataLoss if the next records were removed, or some were appended below
        others, or the table was replaced."""
        snapshot, bounds = self._log.read_latest()
        if snapshot is self._snapshot:
            return
        if self._table and snapshot.table != self._table:
            # It has other records with the same offsets.
            raise recreated_error(self._log.table.root)
        self._table = snapshot.table
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
        self._log.ranges.keep_only(snapshot.files)

    def _refuse_gaps(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Raise DataLoss for removed records. Records that were appended to existing ones cannot be missing. A log that
        was emptied and loaded again may begin later."""
        at = {place: self._backlog.next.get(place, first) for place, first in firsts.items()}
        refuse_losses(
            {place: said for place, first in firsts.items() if (said := describe_removed(place, at[place], first))}
        )

    def _refuse_late(self, fresh: Iterable[LogFile]) -> None:
        """Raise DataLoss for appended records below the log's end. Only rewritten files may have them."""
        for file in fresh:
            for number, (first, _) in self._log.ranges.read_ranges(file).items():
                place = TopicPartition(file.topic, number)
                end = self._bounds.ends.get(place, first)
                if first < end:
                    raise DataLoss(
                        f"Record {first} of {place} was appended to the event log after record {end - 1}.",
                        next_step="Two writers share this table. Give each log a folder of its own, and reload with "
                        "`replicator lanes resync LANE`.",
                    )

    def deliver(self, apply_batch: ApplyBatch[F], stop: Stop) -> bool:
        """Deliver everything new. Returns True if there was anything."""
        handed, batches = False, self._read_batches()
        try:
            while not stop.is_set():
                try:
                    batch = next(batches, None)
                except FileRewritten as gone:
                    self._restart(gone)
                    batches = self._read_batches()
                    continue
                if batch is None:
                    break
                handed = True
                apply_batch(batch)
        finally:
            batches.close()
        return handed

    def _read_batches(self) -> Generator[Batch[F], None, None]:
        return read_ahead(self._next_batch) if self._ahead else iterate(self._next_batch)

    def _next_batch(self) -> Batch[F] | None:
        """The next batch; None at the end. Raises FileRewritten."""
        while True:
            try:
                window = self._backlog.next_window(self._pace.reach)
                return self._final_batch() if window is None else self._read_window(window)
            except WindowTooLarge:
                continue

    def _read_window(self, window: ReadWindow) -> Batch[F]:
        batch = self._load(self._snapshot, window, self._pace)
        self._pace.grow(batch.records, batch.size)
        self._backlog.mark_done(window)
        return batch

    def _final_batch(self) -> Batch[F] | None:
        """A batch for trailing offsets without records, which the writing lanes have passed or which were requested."""
        ends = self._until or self._bounds.ends
        left = {place: end for place, end in ends.items() if self._backlog.next.get(place, end) < end}
        if not left:
            return None
        starts = {place: self._backlog.next[place] for place in left}
        self._backlog.next.update(left)
        window = ReadWindow(Span(Position(starts), Position(left)), ())
        return self._load(self._snapshot, window, self._pace)

    def _restart(self, gone: FileRewritten) -> None:
        """Continue with the files of a newer version."""
        self._log.refuse_missing(gone)
        self._backlog.clear()
        self._snapshot = NOTHING
        self.refresh()
