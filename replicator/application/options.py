"""Limits of the application, and the delays between attempts. Wiring sets them from the configuration.

Also the base of schedulers, each with a thread of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.ports.frames import Stop


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Limits of the application: memory, waiting times and intervals. Times in seconds, sizes in bytes.

    - `handover_bytes`: queued writes of one sink before the source has to wait.
    - `drain`: time for workers to finish after a stop.
    - `state_patience`: time to wait for a lane's position before the stream goes on without the lane.
    - `new_patience`: the same for lanes of tables that appear in the stream.
    - `reject_patience`: how long the dead-letter store may fail.
    - `report_every`: interval of lag, commits to the source, and positions of lanes without rows to write.
    - `catch_up_offsets`: offsets per partition and read of a lane that catches up.
    - `catch_up_turn`: time for catch-up between two batches.
    - `hold_idle`: waiting for the source without a record, after which half a key change is applied as it is. It
      must be longer than a restart of the connector, which may have sent only one half.
    - `hold_batches`: the same after this number of batches with changes of its table; `hold_bytes`: after batches of
      this size.
    - `first_delay`, `longest_delay`: first and longest delay of every backoff.
    - `max_rejects`: None accepts any number. `log_rejects`: log the first one of each kind.
    - `publish_every`: shortest time between two watermarks that a sink publishes outside of its commits.
    - `gather`: time that a worker waits for its queue to fill; 0 if new rows are to be visible soon.
    - `row_patience`: how long rows are retried that a target refuses because of other rows.
    - `row_retry`: interval of these retries if no other lane commits.
    """

    handover_bytes: int = 64 << 20
    drain: float = 30.0
    state_patience: float = 5.0
    new_patience: float = 0.05
    reject_patience: float = 60.0
    report_every: float = 5.0
    catch_up_offsets: int = 50_000
    catch_up_turn: float = 0.5
    hold_idle: float = 60.0
    hold_batches: int = 16
    hold_bytes: int = 64 << 20
    first_delay: float = 0.1
    longest_delay: float = 5.0
    max_rejects: int | None = None
    log_rejects: bool = True
    publish_every: float = 1.0
    gather: float = 0.0
    row_patience: float = 60.0
    row_retry: float = 1.0


# Delays between attempts, with exponential backoff and jitter.


@dataclass
class Backoff:
    """Exponential delays with jitter: attempt n waits between half and all of `first * 2**n`, at most `longest` seconds.

    The number of attempts is not limited: the caller decides when to give up. Not thread-safe.
    """

    first: float = 0.1
    longest: float = 5.0
    jitter: Callable[[], float] = random.random
    attempts: int = field(default=0, init=False)

    def reset(self) -> None:
        """Make the next delay short again, after a success."""
        self.attempts = 0

    def next_delay(self) -> float:
        """The seconds to wait now. Each call counts as one attempt."""
        whole: float = min(self.longest, self.first * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return whole * (0.5 + self.jitter() / 2)

    def wait(self, stop: Stop) -> bool:
        """Sleep for `next_delay`, or until `stop` is set. True if it is set."""
        return stop.wait(self.next_delay())


# Threads.


class BackgroundThread:
    """Base of schedulers: a thread that calls `run`, which returns soon after `_ended` is set. `wanted`: False starts no
    thread."""

    def __init__(self, name: str, run: Callable[[], None], *, wanted: bool) -> None:
        self._wanted = wanted
        self._ended = threading.Event()
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, if it is wanted."""
        if self._wanted:
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Begin no more work, and wait at most `seconds` for the running one."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
