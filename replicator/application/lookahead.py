"""Batches that are kept back until others come, so that an engine may begin with these while one is made use of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from replicator.ports.decoder import Decoder
from replicator.ports.engine import WorksAhead
from replicator.ports.frames import Batch, F

from .records import Keeping
from .shared import Shared

ApplyBatch = Callable[[Batch[F]], None]


@dataclass(frozen=True, slots=True)
class Begin(Generic[F]):
    """What can be done with a batch before its turn."""

    engine: Any
    decoder: Decoder
    keeping: Keeping[F]

    @property
    def ahead(self) -> int:
        """So many batches before."""
        return self.engine.ahead if isinstance(self.engine, WorksAhead) else 0

    def __call__(self, batch: Batch[F]) -> None:
        """Begin with it."""
        self.keeping.begin(batch)
        self.engine.begin(batch.frame, self.decoder)


@contextmanager
def looking_ahead(shared: Shared[F], begin: Begin[F], apply: ApplyBatch[F], *, once: bool) -> Iterator[ApplyBatch[F]]:
    """What takes the batches of one run of a source on their way to `apply`. Up to the end of a stream (`once`), where the
    engine works ahead, as many as that are kept back until others come, each of which is begun as it does; or until none
    comes any more: at the end of the block, or at an error of the source, which these came before. After one of `apply`, or
    a stop, they are not applied."""
    if not once or not begin.ahead:
        yield apply
        return
    ahead = _Ahead(begin, apply)
    try:
        try:
            yield ahead.take
        except Exception:
            if not ahead.at_work:
                _rest(ahead, shared)
            raise
        _rest(ahead, shared)
    finally:
        begin.engine.rest()


def _rest(ahead: _Ahead[F], shared: Shared[F]) -> None:
    if not shared.stop.is_set():
        ahead.let_go(0)


class _Ahead(Generic[F]):
    def __init__(self, begin: Begin[F], apply: ApplyBatch[F]) -> None:
        self._begin, self._apply = begin, apply
        self._held: deque[Batch[F]] = deque()
        self.at_work = False

    def take(self, batch: Batch[F]) -> None:
        """A batch without records is not worth waiting for: it is how a source gives others a turn."""
        self.at_work = True  # And stays so where it ends in an error.
        if batch.records:
            self._begin(batch)
        self._held.append(batch)
        self.let_go(self._begin.ahead if batch.records else 0)
        self.at_work = False

    def let_go(self, left: int) -> None:
        """Hand over what is kept back, but for so many."""
        while len(self._held) > left:
            self._apply(self._held.popleft())
