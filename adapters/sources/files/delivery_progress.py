"""Delivered offsets of an archive, so that no record is delivered twice or skipped silently."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from replicator.domain.errors import DataLoss
from replicator.domain.position import Position, Span, TopicPartition

NEXT_STEP = (
    "Files are read in the order of their names, and each from its first line on. Offsets must increase in this order: "
    "rename the files, or sort their lines. Then start again. If the table already has a lane, load it again with "
    "`replicator lanes resync LANE`."
)


class DeliveryProgress:
    """The next offset of each partition, and the holes between the offsets of this run.

    An offset below the next one was delivered before, by this run, or by another one if it is below the start position.
    But a record in a hole of this run is too late to be delivered in order, which is a DataLoss.
    """

    def __init__(self, start: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int] | None = None) -> None:
        self.next = dict(start)
        self._until = until
        self._handed: dict[TopicPartition, int] = {}
        self._holes: dict[TopicPartition, list[tuple[int, int, str]]] = {}
        """Start, end, and the file with the record after the hole."""

    def accept(self, place: TopicPartition, offset: int, label: str) -> bool:
        """True if the record at `offset`, from the file `label`, must be delivered now."""
        first, end = self.accept_range(place, offset, offset + 1, label)
        return first < end

    def accept_range(self, place: TopicPartition, first: int, end: int, label: str) -> tuple[int, int]:
        """The part of the records [first, end) to deliver now. All of them must be in the file `label`."""
        if self._until is not None:
            end = min(end, self._until.get(place, -1))
        expected = self.next.get(place)
        if expected is not None and first < expected:
            self._refuse_late(place, first, min(end, expected), label)
            first = expected
        if first >= end:
            return end, end
        if expected is None or first > expected:
            self._holes.setdefault(place, []).append((-1 if expected is None else expected, first, label))
        self._handed.setdefault(place, first if expected is None else expected)
        self.next[place] = end
        return first, end

    def _refuse_late(self, place: TopicPartition, first: int, end: int, label: str) -> None:
        """Raise DataLoss for the first record of [first, end) in a hole."""
        holes = self._holes.get(place, [])
        at = bisect_right(holes, first, key=lambda hole: hole[0]) - 1
        for start, after, other in holes[max(at, 0) : at + 2]:
            late = max(first, start)
            if late < min(end, after):
                raise DataLoss(
                    f"Record {late} of {place} was found in {label} after record {after}, in {other}, had been delivered.",
                    next_step=NEXT_STEP,
                )

    def close_until(self, until: Mapping[TopicPartition, int]) -> None:
        """Mark everything below `until` as delivered; the missing offsets are holes."""
        for place, end in until.items():
            if self.next.get(place, -1) < end:
                self._handed.setdefault(place, self.next.get(place, end))
                self.next[place] = end

    def announce(self, places: Mapping[TopicPartition, int]) -> None:
        """Include `places` in the next span, changed or not."""
        for place, offset in places.items():
            self._handed.setdefault(place, offset)

    def next_span(self) -> Span:
        """The span since the last call."""
        start = Position(dict(self._handed))
        end = Position({place: self.next[place] for place in self._handed})
        self._handed.clear()
        return Span(start, end)
