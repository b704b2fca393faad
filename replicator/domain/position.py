"""Positions and spans of a stream.

A position has, per (topic, partition), the offset of the *next* record. Files and archives use the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One ordered log. Its offsets only grow; they may have holes (transaction markers, compaction)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


RecordPosition = tuple[str, int, int]
"""Topic, partition and offset of one record."""


@dataclass(frozen=True)
class Position(Mapping[TopicPartition, int]):
    """Next offset per partition. Immutable; a missing partition is unknown, which is not the same as 0."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def __getitem__(self, partition: TopicPartition) -> int:
        return self.offsets[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def advanced_to(self, end: Mapping[TopicPartition, int]) -> Position:
        """This position moved forward to `end` where `end` is ahead; never backward."""
        return Position({**self.offsets, **{p: max(o, self.offsets.get(p, o)) for p, o in end.items()}})

    def covers(self, end: Mapping[TopicPartition, int]) -> bool:
        """True if everything below `end` is below this position, in which a missing partition counts as 0."""
        return all(self.get(p, 0) >= offset for p, offset in end.items())

    def only(self, partitions: Iterable[TopicPartition]) -> Position:
        """This position without all other partitions."""
        wanted = set(partitions)
        return Position({p: o for p, o in self.offsets.items() if p in wanted})

    def to_json(self) -> dict[str, dict[str, int]]:
        """`{topic: {"partition": offset}}`, sorted, for files, rows and people."""
        out: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            out.setdefault(topic, {})[str(partition)] = offset
        return out

    def to_option(self) -> str:
        """The form of the option `--until` of commands."""
        return ",".join(f"{topic}:{partition}:{offset}" for (topic, partition), offset in sorted(self.offsets.items()))

    @classmethod
    def from_option(cls, text: str) -> Position:
        """The position of a text as `to_option` writes it. ValueError for any other, also with a partition twice."""
        offsets: dict[TopicPartition, int] = {}
        for item in text.split(","):
            topic, partition, offset = item.strip().rsplit(":", 2)
            at = TopicPartition(topic, int(partition))
            if not topic or at in offsets or at.partition < 0 or int(offset) < 0:
                raise ValueError(item)
            offsets[at] = int(offset)
        return cls(offsets)

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, int]]) -> Position:
        """The position that `to_json` wrote."""
        return cls({TopicPartition(t, int(p)): int(o) for t, parts in data.items() for p, o in parts.items()})

    @classmethod
    def lowest(cls, positions: Iterable[Position]) -> Position:
        """Per partition the lowest offset in any of `positions`."""
        out: dict[TopicPartition, int] = {}
        for position in positions:
            for partition, offset in position.items():
                out[partition] = min(offset, out.get(partition, offset))
        return cls(out)

    @classmethod
    def highest(cls, positions: Iterable[Position]) -> Position:
        """Per partition the highest offset in any of `positions`."""
        return reduce(Position.advanced_to, positions, cls())


LAST_OFFSET = (1 << 63) - 1
"""No record has this offset, or a higher one."""


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous range of a stream: per partition the half-open range of offsets [start, end).

    `start` and `end` have the same partitions. Spans of consecutive batches touch: `end` of one is `start` of the next.
    """

    start: Position
    end: Position

    def __bool__(self) -> bool:
        return any(self.start[p] < o for p, o in self.end.items())

    @classmethod
    def between(cls, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Span:
        """The span from `start` to `end`, without partitions in which nothing lies between."""
        parts = {p: o for p, o in end.items() if start.get(p, o) < o}
        return cls(Position({p: start[p] for p in parts}), Position(parts))

    @classmethod
    def below(cls, end: Position) -> Span:
        """Everything below `end`, in its partitions."""
        return cls(Position(dict.fromkeys(end, 0)), end)

    @classmethod
    def from_position(cls, start: Position) -> Span:
        """Everything at or above `start`, in its partitions."""
        return cls(start, Position(dict.fromkeys(start, LAST_OFFSET)))

    def then(self, later: Span) -> Span:
        """The span that covers this one and the `later` one that touches it."""
        return Span(Position({**later.start, **self.start}), Position({**self.end, **later.end}))

    def only(self, partitions: Iterable[TopicPartition]) -> Span:
        """This span without all other partitions."""
        wanted = set(partitions)
        return Span(self.start.only(wanted), self.end.only(wanted))

    def after(self, applied: Position) -> Span:
        """The rest of this span for a target at `applied`; completely applied partitions are dropped."""
        partitions = [p for p, end in self.end.items() if applied.get(p, -1) < end]
        start = {p: max(self.start[p], applied.get(p, self.start[p])) for p in partitions}
        return Span(Position(start), self.end.only(partitions))

    def gaps(self, applied: Position) -> tuple[TopicPartition, ...]:
        """Partitions in which records between `applied` and this span's start would be skipped."""
        return tuple(p for p, start in self.start.items() if p in applied and applied[p] < start)

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """`{"start": ..., "end": ...}` in the form of `Position.to_json`."""
        return {"start": self.start.to_json(), "end": self.end.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Span:
        """The span that `to_json` wrote."""
        return cls(Position.from_json(data["start"]), Position.from_json(data["end"]))


EMPTY_SPAN = Span(Position(), Position())
