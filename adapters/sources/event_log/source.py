"""Base class of event log sources: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from replicator.domain.patterns import TopicFilter
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, F, Stop
from replicator.ports.source import SourceFeatures

from ...event_log import LogBounds, describe_loss, refuse_losses
from .version_loop import VersionReader, follow_versions

ApplyBatch = Callable[[Batch[F]], None]


class LogSource(ABC, Generic[F]):
    """A `Source` over an `event_log` sink's records (`replicator.ports.source` is the contract). Subclasses define the
    storage (`bounds`, `follow_from`, `read_between`) and the frames.

    Offsets are those of the recorded topics, so a lane can change between the broker and the event log. Offsets may have
    holes, so records missing *between* others are not detected, only records missing before the first one.
    """

    def __init__(self, topics: Sequence[str], below: Mapping[str, Mapping[str, int]] | None) -> None:
        self._topics = topics
        self._wanted = TopicFilter(topics)
        self._below = None if below is None else Position.from_json(below)

    @property
    def features(self) -> SourceFeatures:
        return SourceFeatures(unmatched=self.unmatched)

    @abstractmethod
    def bounds(self) -> LogBounds:
        """The start and end of the log for the wanted topics, limited by `below`."""

    @abstractmethod
    def follow_from(self, start: Position) -> VersionReader[F]:
        """A reader of the growing log from `start`."""

    @abstractmethod
    def read_between(self, start: Position, until: Position) -> VersionReader[F]:
        """A reader of the records between the two positions, for the partitions in `until`."""

    @abstractmethod
    def empty_batch(self, span: Span) -> Batch[F]:
        """A batch without records."""

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the log at the start."""
        refuse_losses(self.losses(start, {}))
        follow_versions(self.follow_from(start), start, self.empty_batch, apply_batch, stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        asked = start.only(until)
        refuse_losses({**self.losses(until, {}), **self.losses(asked, {})})
        unread = until.only(p for p in until if asked.get(p, -1) < until[p])
        between = self.read_between(asked.only(unread), unread)
        between.refresh()
        between.deliver(apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """See the port. Topic ids of the broker are not in the log. Unwanted topics are ignored."""
        bounds = self.bounds()
        asked = [place for place in position if self._wanted(place.topic)]
        return {place: sentence for place in asked if (sentence := describe_loss(bounds, place, position[place]))}

    def start(self) -> Position:
        """See the port: the first available offsets."""
        return self.bounds().firsts

    def beginning(self) -> Position:
        return self.start()

    def end(self) -> Position:
        return self.bounds().ends

    def unmatched(self) -> Mapping[str, Sequence[str]]:
        """See `ports.source.SourceFeatures`: used if the log has no wanted topic."""
        return dict.fromkeys(self._topics, ())

    def committed(self, position: Position) -> None:
        """Does nothing: positions are not published."""

    def close(self) -> None:
        """Does nothing: nothing stays open between calls."""
