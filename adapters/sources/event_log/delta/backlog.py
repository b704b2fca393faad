"""The unread part of an event log, in windows that are read at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from replicator.domain.position import Position, Span, TopicPartition

from .offset_ranges import OffsetRanges, Range
from .table import LogFile


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
        return not any(p in self.next and self.next[p] <= last and self._is_below_end(p, first) for p in places)

    def _is_below_end(self, place: TopicPartition, offset: int) -> bool:
        return self._until is None or offset < self._until.get(place, 0)

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
