"""The source over a journal, and the schedule of the polls that fill it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from threading import Thread
from typing import Protocol

from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop
from replicator.ports.source import SourceFeatures

from ..delta_table.source import ApplyBatch, TableRows

FIRST_WITHIN = 15.0
"""Seconds that a caller waits for the first snapshot before it gets Retryable."""
TURN = 0.2


class JournalRows(TableRows):
    """A `Source` over a journal, which a poller fills. Subclasses define the poller.

    Its one topic has the name of the table. Lanes without a position begin with the first rows in the journal. This
    process polls and writes the journal. The engine reads it, so Spark's executors need access to the state folder.
    """

    _intake: JournalPoller

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, waited_for=self._intake.waited_for)

    def before_refresh(self) -> None:
        """Process the next snapshot, if there is one."""
        self._intake.poll()

    def run(self, start: Position, apply_batch: ApplyBatch, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the newest snapshot at the start; for a database, up to one new snapshot."""
        self._intake.begin()
        if once:
            self._intake.catch_up(stop)
        try:
            super().run(start, apply_batch, stop, once=once)
        finally:
            if stop.is_set():
                self.close()

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        self._intake.begin()
        return super().losses(position, identity)

    def start(self) -> Position:
        """See the port: the first snapshot."""
        return self.beginning()

    def beginning(self) -> Position:
        self._intake.begin()
        return super().beginning()

    def end(self) -> Position:
        """See the port: the end of the processed snapshots."""
        self._intake.begin()
        return super().end()

    def close(self) -> None:
        self._intake.close()


class JournalPoller(Protocol):
    """Fills a journal, on a schedule. A snapshot is what one poll reads."""

    def begin(self) -> None:
        """Process the first snapshot, unless there was one before. Raises the reason if there is none, and if it was
        compared by other keys."""

    def poll(self) -> None:
        """Process available snapshots. Called about every second while a stream runs."""

    def catch_up(self, stop: Stop) -> None:
        """Process all snapshots that exist now; none is processed after that."""

    def waited_for(self) -> tuple[str, float] | None:
        """See `ports.source.SourceFeatures`."""

    def close(self) -> None:
        """End running work."""


class PacedPoller:
    """The schedule of a `JournalPoller`: `take` runs at once, then every `every` seconds, in the background of the
    stream. After `catch_up`, in which it runs once, it never runs again."""

    def __init__(self, take: Callable[[], bool], every: float) -> None:
        self._task, self._every = BackgroundTask(take), every
        self._due = time.monotonic()
        self._once = self._was_read = False

    def waited_for(self) -> tuple[str, float] | None:
        seconds = self._task.running_seconds
        return None if seconds is None else ("asking its database", seconds)

    def poll(self) -> None:
        """See `JournalPoller.poll`: get a finished result, and start a read if it is time."""
        self._wait(0)

    def catch_up(self, stop: Stop) -> None:
        self._once = True
        while not self._was_read and not stop.is_set():
            self._wait(TURN)

    def _wait(self, seconds: float) -> None:
        is_due = not self._was_read if self._once else time.monotonic() >= self._due
        if self._task.wait(seconds, begin=is_due) is not None:
            self._due = time.monotonic() + self._every
            self._was_read = True


class BackgroundTask:
    """Runs `take` in a thread of its own, once at a time, so that the caller never waits for long."""

    def __init__(self, take: Callable[[], bool]) -> None:
        self._take = take
        self._running: Future[bool] | None = None
        self._since: float | None = None

    @property
    def running_seconds(self) -> float | None:
        """The seconds for which it has been running; None if it is not."""
        since = self._since
        return None if since is None else time.monotonic() - since

    def wait(self, seconds: float, *, begin: bool) -> bool | None:
        """The result, after at most `seconds`; None if it is not finished, or not running. Raises the error of the task.
        With `begin`, starts the task if it is not running."""
        if self._running is None:
            if not begin:
                return None
            self._running = Future()
            Thread(target=self._run, args=(self._running,), name="snapshot", daemon=True).start()
        if not wait([self._running], seconds).done:
            return None
        ended, self._running = self._running, None
        return ended.result()

    def _run(self, done: Future[bool]) -> None:
        self._since = time.monotonic()
        try:
            done.set_result(self._take())
        except BaseException as problem:  # Raised in `wait`.
            done.set_exception(problem)
        finally:
            self._since = None
