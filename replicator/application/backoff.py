"""Delays between attempts, with exponential backoff and jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.ports.frames import Stop


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
