"""Rejected records on their way to the dead-letter store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Generic

import structlog

from replicator.domain.errors import Fatal, Reject, Retryable, TooManyRejects
from replicator.ports.dead_letters import DeadLetter, DeadLetters
from replicator.ports.engine import Engine
from replicator.ports.frames import F, Rejected, Stop

from .lanes import Clock, monotonic
from .options import Options
from .problem import Stopped
from .retry import Backoff

log = structlog.get_logger(__name__)


class StoreDown(Fatal):
    """The dead-letter store cannot be written: the program stops rather than drop what it rejected."""


class Rejects(Generic[F]):
    """Writes rejects, durable before anything moves past them. Safe for use from several threads.

    `broken` holds the error after which nothing may go on, whatever a sink made of it on the way.
    """

    def __init__(
        self,
        store: DeadLetters,
        engine: Engine[F],
        stop: Stop,
        options: Options,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Clock = monotonic,
    ) -> None:
        self._store = store
        self._engine = engine
        self._stop = stop
        self._options = options
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self.broken: BaseException | None = None

    def keep(self, rows: F, raw: Sequence[F], *, stage: str, table: str, lane: str = "") -> int:
        """Durable when it returns; the number of records. Raises StoreDown when they cannot be written."""
        now = self._now()
        letters = [_letter(r, stage, table, lane, now) for r in self._engine.rejected(rows, raw)]
        if letters:
            try:
                self._write(letters)
            except BaseException as error:
                self.broken = error
                raise
        return len(letters)

    @property
    def total(self) -> int:
        """How many records were rejected so far."""
        return self._count

    def count(self, records: int) -> None:
        """Count records that were rejected; TooManyRejects above what is allowed."""
        with self._lock:
            self._count += records
        most = self._options.max_rejects
        if records and most is not None and self._count > most:
            self.broken = TooManyRejects(
                f"{self._count} records were rejected, and max_rejects is {most}.",
                next_step="See them with `replicator dlq list`; raise max_rejects to go on.",
            )
            raise self.broken

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        deadline = self._clock() + self._options.reject_patience
        while True:
            try:
                with self._lock:
                    self._store.write(letters)
                return
            except Retryable as error:
                log.warning("dead-letter store away", sentence=error.sentence)
                if self._clock() >= deadline:
                    raise _down(error) from error
                if backoff.wait(self._stop):
                    raise Stopped from error
            except Exception as error:
                raise _down(error) from error


def _down(error: Exception) -> StoreDown:
    why = error.sentence if isinstance(error, Fatal | Retryable) else type(error).__name__
    return StoreDown(
        f"Rejected records cannot be written to the dead-letter store: {why}",
        next_step="Make the store writable (`dead_letters` in the configuration), then start again: nothing is lost.",
    )


def _letter(rejected: Rejected, stage: str, table: str, lane: str, now: datetime) -> DeadLetter:
    reject = Reject.parse(rejected.error)
    return DeadLetter(
        event_id=f"{rejected.topic}-{rejected.partition}-{rejected.offset}",
        lane=lane,
        stage=stage,
        code=reject.code,
        sentence=reject.sentence,
        table=table,
        key_hash=hashlib.sha256(rejected.key).hexdigest() if rejected.key is not None else "",
        record=rejected.value,
        first_seen=now,
        last_seen=now,
    )
