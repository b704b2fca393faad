"""Base class of event log sources: recorded topics, as if they came from the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from replicator.domain.errors import refuse_losses
from replicator.domain.patterns import TopicFilter
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, F, Stop
from replicator.ports.source import SourceFeatures

from ...event_log import ACCEPT, LogBounds, describe_loss


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

    def run(self, start: Position, consume_batch: ConsumeBatch[F], stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the log at the start."""
        refuse_losses(self.losses(start, {}), ACCEPT)
        follow_versions(self.follow_from(start), start, self.empty_batch, consume_batch, stop, once=once)

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[F], stop: Stop) -> None:
        requested = start.only(until)
        refuse_losses({**self.losses(until, {}), **self.losses(requested, {})}, ACCEPT)
        unread = until.only(p for p in until if requested.get(p, -1) < until[p])
        between = self.read_between(requested.only(unread), unread)
        between.refresh()
        between.deliver(consume_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """See the port. Topic ids of the broker are not in the log. Unwanted topics are ignored."""
        bounds = self.bounds()
        requested = [p for p in position if self._wanted(p.topic)]
        return {p: sentence for p in requested if (sentence := describe_loss(bounds, p, position[p]))}

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


# The loop of a source that reads versions of a table.


T = TypeVar("T")
TICK = 1.0
"""Seconds between two refreshes. If there is nothing new after it, an empty batch is delivered."""


class VersionReader(Protocol[F]):
    """A pass through the versions of a table."""

    def refresh(self) -> None:
        """Look for new versions."""

    def deliver(self, consume_batch: ConsumeBatch[F], stop: Stop, /) -> bool:
        """Deliver everything new. Returns True if there was anything."""


def follow_versions(
    versions: VersionReader[F],
    start: Position,
    nothing: Callable[[Span], Batch[F]],
    consume_batch: ConsumeBatch[F],
    stop: Stop,
    *,
    once: bool,
) -> None:
    """Read until `stop`, or with `once` up to the newest version. `nothing` builds an empty batch for a span."""
    versions.refresh()
    consume_batch(nothing(Span(start, start)))
    while not stop.is_set():
        has_new = versions.deliver(consume_batch, stop)
        if once or stop.wait(TICK):
            return
        if not has_new:
            consume_batch(nothing(Span(Position(), Position())))
        versions.refresh()


def iterate(read: Callable[[], T | None]) -> Generator[T, None, None]:
    """The results of `read` until it returns None."""
    while (answer := read()) is not None:
        yield answer


def read_ahead(read: Callable[[], T | None], end: Callable[[], None] | None = None) -> Generator[T, None, None]:
    """The same, but each next result is read in another thread while the caller uses the last one. When this generator is
    closed, no read is running any more. `end` runs last, in that thread, because connections may belong to it."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        try:
            coming = pool.submit(read)
            while (answer := coming.result()) is not None:
                coming = pool.submit(read)
                yield answer
        finally:
            if end is not None:
                pool.submit(end).result()
