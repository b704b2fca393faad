"""The loop of a source that reads versions of a table."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F, Stop

T = TypeVar("T")
TICK = 1.0
"""Seconds between two refreshes. If there is nothing new after it, an empty batch is delivered."""


class VersionReader(Protocol[F]):
    """A pass through the versions of a table."""

    def refresh(self) -> None:
        """Look for new versions."""

    def deliver(self, apply_batch: Callable[[Batch[F]], None], stop: Stop, /) -> bool:
        """Deliver everything new. Returns True if there was anything."""


def follow_versions(
    versions: VersionReader[F],
    start: Position,
    nothing: Callable[[Span], Batch[F]],
    apply_batch: Callable[[Batch[F]], None],
    stop: Stop,
    *,
    once: bool,
) -> None:
    """Read until `stop`, or with `once` up to the newest version. `nothing` builds an empty batch for a span."""
    versions.refresh()
    apply_batch(nothing(Span(start, start)))
    while not stop.is_set():
        handed = versions.deliver(apply_batch, stop)
        if once or stop.wait(TICK):
            return
        if not handed:
            apply_batch(nothing(Span(Position(), Position())))
        versions.refresh()


def iterate(read: Callable[[], T | None]) -> Generator[T, None, None]:
    """The results of `read` until it returns None."""
    while (found := read()) is not None:
        yield found


def read_ahead(read: Callable[[], T | None], end: Callable[[], None] | None = None) -> Generator[T, None, None]:
    """The same, but each next result is read in another thread while the caller uses the last one. When this generator is
    closed, no read is running any more. `end` runs last, in that thread, because connections may belong to it."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        try:
            coming = pool.submit(read)
            while (found := coming.result()) is not None:
                coming = pool.submit(read)
                yield found
        finally:
            if end is not None:
                pool.submit(end).result()
