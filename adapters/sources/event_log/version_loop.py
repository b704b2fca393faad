"""Reading on for as long as a stream is wanted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F, Stop

T = TypeVar("T")
TICK = 1.0
"""Seconds between two looks for a new version, and without one after which an empty batch is handed over."""


class VersionReader(Protocol[F]):
    """A way through the versions of a table."""

    def refresh(self) -> None:
        """Take notice of the versions there are."""

    def deliver(self, apply_batch: Callable[[Batch[F]], None], stop: Stop, /) -> bool:
        """Hand over all that is there and was not handed over; whether that was anything."""


def follow_versions(
    versions: VersionReader[F],
    start: Position,
    nothing: Callable[[Span], Batch[F]],
    apply_batch: Callable[[Batch[F]], None],
    stop: Stop,
    *,
    once: bool,
) -> None:
    """Until `stop` or, with `once`, up to the newest version. `nothing` makes the batch without records for a span."""
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
    """What `read` gives until it gives None."""
    while (found := read()) is not None:
        yield found


def read_ahead(read: Callable[[], T | None], end: Callable[[], None] | None = None) -> Generator[T, None, None]:
    """The same, each read in another thread while the one before it is made use of. Nothing is being read any more once this
    is closed; `end` is called last, in that thread, to which connections may belong."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        try:
            coming = pool.submit(read)
            while (found := coming.result()) is not None:
                coming = pool.submit(read)
                yield found
        finally:
            if end is not None:
                pool.submit(end).result()
