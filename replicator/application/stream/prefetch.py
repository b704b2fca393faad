"""Prefetch: an engine starts to decode the next batches while the current one is applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

from replicator.application.delivery.batch_records import BatchRecords
from replicator.application.runtime_context import RuntimeContext
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Prefetch
from replicator.ports.frames import Batch, F

ApplyBatch = Callable[[Batch[F]], None]


@dataclass(frozen=True, slots=True)
class Prefetcher(Generic[F]):
    """Starts the work on a batch before its turn."""

    prefetch: Prefetch[F]
    decoder: Decoder
    batch_records: BatchRecords[F]

    def __call__(self, batch: Batch[F]) -> None:
        """Start to pack and decode the batch."""
        self.batch_records.begin(batch)
        self.prefetch.begin(batch.frame, self.decoder)


@contextmanager
def prefetch_batches(
    shared: RuntimeContext[F], begin: Prefetcher[F] | None, apply: ApplyBatch[F], *, once: bool
) -> Iterator[ApplyBatch[F]]:
    """The consumer of a source's batches, which passes them to `apply`.

    If the stream is read to its end (`once`) and the engine prefetches, the last `depth` batches are held. The
    engine starts each of them at once; it is applied when newer ones arrive. The rest is applied at the end of
    the block, and before an error of the source is raised. It is not applied after an error of `apply`, or a
    stop.
    """
    # A daemon does not prefetch: it must answer soon, its batches are small, and its memory is limited.
    if not once or begin is None:
        yield apply
        return
    ahead = _PrefetchQueue(begin, apply)
    try:
        try:
            yield ahead.add_batch
        except Exception:
            if not ahead.at_work:
                _release_all(ahead, shared)
            raise
        _release_all(ahead, shared)
    finally:
        begin.prefetch.rest()


def _release_all(ahead: _PrefetchQueue[F], shared: RuntimeContext[F]) -> None:
    if not shared.stop.is_set():
        ahead.release_until(0)


class _PrefetchQueue(Generic[F]):
    def __init__(self, begin: Prefetcher[F], apply: ApplyBatch[F]) -> None:
        self._begin, self._apply = begin, apply
        self._held: deque[Batch[F]] = deque()
        self.at_work = False

    def add_batch(self, batch: Batch[F]) -> None:
        """Start and hold a batch. A batch without records is not held: sources send it to give others a turn."""
        self.at_work = True  # Stays True after an error.
        if batch.records:
            self._begin(batch)
        self._held.append(batch)
        self.release_until(self._begin.prefetch.depth if batch.records else 0)
        self.at_work = False

    def release_until(self, left: int) -> None:
        """Apply held batches until only `left` are left."""
        while len(self._held) > left:
            self._apply(self._held.popleft())
