"""Batches that are kept back until others come, so that an engine may begin with these while one is made use of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from replicator.application.delivery.batch_records import BatchRecords
from replicator.application.runtime_context import RuntimeContext
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Prefetches
from replicator.ports.frames import Batch, F

ApplyBatch = Callable[[Batch[F]], None]


@dataclass(frozen=True, slots=True)
class Prefetcher(Generic[F]):
    """What can be done with a batch before its turn."""

    engine: Any
    decoder: Decoder
    batch_records: BatchRecords[F]

    @property
    def depth(self) -> int:
        """So many batches before."""
        return self.engine.prefetch_depth if isinstance(self.engine, Prefetches) else 0

    def __call__(self, batch: Batch[F]) -> None:
        """Begin with it."""
        self.batch_records.begin(batch)
        self.engine.begin(batch.frame, self.decoder)


@contextmanager
def prefetch_batches(
    shared: RuntimeContext[F], begin: Prefetcher[F], apply: ApplyBatch[F], *, once: bool
) -> Iterator[ApplyBatch[F]]:
    """What takes the batches of one run of a source on their way to `apply`. Up to the end of a stream (`once`), where the
    engine works ahead, as many as that are kept back until others come, each of which is begun as it does; or until none
    comes any more: at the end of the block, or at an error of the source, which these came before. After one of `apply`, or
    a stop, they are not applied."""
    if not once or not begin.depth:
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
        begin.engine.rest()


def _release_all(ahead: _PrefetchQueue[F], shared: RuntimeContext[F]) -> None:
    if not shared.stop.is_set():
        ahead.release_until(0)


class _PrefetchQueue(Generic[F]):
    def __init__(self, begin: Prefetcher[F], apply: ApplyBatch[F]) -> None:
        self._begin, self._apply = begin, apply
        self._held: deque[Batch[F]] = deque()
        self.at_work = False

    def add_batch(self, batch: Batch[F]) -> None:
        """A batch without records is not worth waiting for: it is how a source gives others a turn."""
        self.at_work = True  # And stays so where it ends in an error.
        if batch.records:
            self._begin(batch)
        self._held.append(batch)
        self.release_until(self._begin.depth if batch.records else 0)
        self.at_work = False

    def release_until(self, left: int) -> None:
        """Hand over what is kept back, but for so many."""
        while len(self._held) > left:
            self._apply(self._held.popleft())
