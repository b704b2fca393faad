"""Repeated snapshots of a database, in the background of the stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

from replicator.domain.errors import Retryable
from replicator.ports.frames import Stop

from .journal import SnapshotJournal
from .options import SnapshotsOptions
from .query_snapshots import QuerySnapshots, snapshot_query

FIRST_WITHIN = 15.0
"""Seconds that a caller waits for the first snapshot before it gets Retryable."""
TURN = 0.2


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

    def _run(self, told: Future[bool]) -> None:
        self._since = time.monotonic()
        try:
            told.set_result(self._take())
        except BaseException as problem:  # Raised in `wait`.
            told.set_exception(problem)
        finally:
            self._since = None


class PacedPoller:
    """The schedule of a `SnapshotPoller`: `take` runs at once, then every `every` seconds, in the background of the
    stream. After `catch_up`, in which it runs once, it never runs again."""

    def __init__(self, take: Callable[[], bool], every: float) -> None:
        self._beside, self._every = BackgroundTask(take), every
        self._due = time.monotonic()
        self._once = self._was_read = False

    def waited_for(self) -> tuple[str, float] | None:
        seconds = self._beside.running_seconds
        return None if seconds is None else ("asking its database", seconds)

    def poll(self) -> None:
        """See `SnapshotPoller.poll`: get a finished result, and start a read if it is time."""
        self._wait(0)

    def catch_up(self, stop: Stop) -> None:
        self._once = True
        while not self._was_read and not stop.is_set():
            self._wait(TURN)

    def _wait(self, seconds: float) -> None:
        is_due = not self._was_read if self._once else time.monotonic() >= self._due
        if self._beside.wait(seconds, begin=is_due) is not None:
            self._due = time.monotonic() + self._every
            self._was_read = True


class QuerySnapshotPoller(PacedPoller):
    """`SnapshotPoller` of query results, each of which is a snapshot."""

    def __init__(self, options: SnapshotsOptions) -> None:
        self._name = options.name
        self._query = snapshot_query(options)
        self._journal = SnapshotJournal(options, QuerySnapshots(self._query, options.name))
        super().__init__(self._journal.take_next, options.every)

    def begin(self) -> None:
        """Raises Retryable while the first snapshot is being read, by this process or another one."""
        if not self._journal.has_snapshots:
            self._wait(FIRST_WITHIN)
        if not self._journal.has_snapshots:
            raise Retryable(
                f"The first snapshot of {self._name} is being read.",
                next_step="The program waits for it. If another command printed this, start `replicator run` first.",
            )
        self._journal.check_rules()

    def close(self) -> None:
        """See `SnapshotPoller`: ends all reads."""
        self._query.cancel()
