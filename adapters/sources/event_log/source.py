"""The source that reads an event log: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.topics import TopicFilter
from replicator.ports.frames import Batch, F, Stop

from ...event_log.bounds import LogBounds, describe_loss, refuse_losses
from .options import LogOptions
from .version_loop import VersionReader, follow_versions

ApplyBatch = Callable[[Batch[F]], None]


class LogSource(ABC, Generic[F]):
    """A `Source` over what an `event_log` sink writes (`replicator.ports.source` is the contract), but for where that is
    (`bounds`, `follow_from`, `read_between`) and how records become a frame.

    Offsets are those of the recorded topics, so a lane may go on here that was fed by the broker, and the other way round.
    Offsets may have holes, so records missing *between* those of a log cannot be noticed; only what is missing before its
    first record can.
    """

    def __init__(self, options: LogOptions) -> None:
        self._said = options
        self._wanted = TopicFilter(options.topics)
        self._below = None if options.below is None else Position.from_json(options.below)

    @abstractmethod
    def bounds(self) -> LogBounds:
        """Where the log begins and ends, of the topics that are wanted; below where it is taken to end."""

    @abstractmethod
    def follow_from(self, start: Position) -> VersionReader[F]:
        """A way through the log as it grows, from `start` on."""

    @abstractmethod
    def read_between(self, start: Position, until: Position) -> VersionReader[F]:
        """A way through what lies between the two, of the partitions of `until`."""

    @abstractmethod
    def empty_batch(self, span: Span) -> Batch[F]:
        """A batch without records."""

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the end of the log as it is now."""
        refuse_losses(self.losses(start, {}))
        follow_versions(self.follow_from(start), start, self.empty_batch, apply_batch, stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        """As the port says."""
        asked = start.only(until)
        refuse_losses({**self.losses(until, {}), **self.losses(asked, {})})
        unread = until.only(p for p in until if asked.get(p, -1) < until[p])
        between = self.read_between(asked.only(unread), unread)
        between.refresh()
        between.deliver(apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """As the port says; the broker's ids of topics are not in the log. Topics that are not wanted do not count."""
        bounds = self.bounds()
        asked = [place for place in position if self._wanted(place.topic)]
        return {place: sentence for place in asked if (sentence := describe_loss(bounds, place, position[place]))}

    def start(self) -> Position:
        """As the port says: the first offsets there are."""
        return self.bounds().firsts

    def beginning(self) -> Position:
        """As the port says."""
        return self.start()

    def end(self) -> Position:
        """As the port says."""
        return self.bounds().ends

    def unmatched(self) -> Mapping[str, Sequence[str]]:
        """See `ports.source.NamesTopics`: of a log that has no topic that is wanted."""
        return dict.fromkeys(self._said.topics, ())

    def committed(self, position: Position) -> None:
        """Nothing to publish: nobody else asks how far a log was read."""

    def close(self) -> None:
        """Nothing is kept open between calls."""
