"""The lowest offset per partition of a changing set of names, in logarithmic time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from replicator.domain.position import Position, TopicPartition


class LowestOffsets:
    """Names with an offset in any number of partitions. Each operation needs logarithmic time.

    A removed name stays in each heap until it is the lowest there.
    """

    def __init__(self) -> None:
        self._heaps: dict[TopicPartition, list[tuple[int, str]]] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}

    def add(self, name: str, partition: TopicPartition, offset: int) -> None:
        """Add an offset of a name. If the name has an offset in the partition, that one stays."""
        offsets = self._offsets.setdefault(name, {})
        if partition not in offsets:
            offsets[partition] = offset
            heappush(self._heaps.setdefault(partition, []), (offset, name))

    def remove(self, name: str) -> None:
        """Remove a name, if it is there."""
        self._offsets.pop(name, None)

    def clear(self) -> None:
        """Remove all names."""
        self._heaps.clear()
        self._offsets.clear()

    def find_lowest(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The lowest offset in a partition, and its name; None without any."""
        heap = self._heaps.get(partition, [])
        while heap and self._offsets.get(heap[0][1], {}).get(partition) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def list_below(self, position: Position) -> Iterator[str]:
        """The names with an offset below `position` in some partition. The caller must remove each name at once."""
        for partition, offset in position.items():
            while (lowest := self.find_lowest(partition)) is not None and lowest[0] < offset:
                yield lowest[1]

    @property
    def position(self) -> Position:
        """Per partition the lowest offset."""
        found = {partition: self.find_lowest(partition) for partition in self._heaps}
        return Position({partition: lowest[0] for partition, lowest in found.items() if lowest})
