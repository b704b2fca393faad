"""Waiting between attempts: longer each time, never for long, and never past a stop."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.ports.frames import Stop


@dataclass
class Backoff:
    """Exponential delays with jitter: attempt n waits between half and all of `first * 2**n`, at most `longest` seconds.

    Attempts are not bounded: whoever uses it decides when to give up. Not shared between threads.
    """

    first: float = 0.1
    longest: float = 5.0
    jitter: Callable[[], float] = random.random
    attempts: int = field(default=0, init=False)

    def reset(self) -> None:
        """Something worked: the next delay is short again."""
        self.attempts = 0

    def next_delay(self) -> float:
        """The seconds to wait now; each call is one attempt."""
        whole: float = min(self.longest, self.first * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return whole * (0.5 + self.jitter() / 2)

    def wait(self, stop: Stop) -> bool:
        """Sleep for `next_delay`, or until `stop`; True when the end was asked for."""
        return stop.wait(self.next_delay())
