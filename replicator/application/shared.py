"""What the parts of one running pipeline have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic

from replicator.ports.engine import Engine
from replicator.ports.frames import F
from replicator.ports.telemetry import Telemetry

from .lanes import Clock, Lanes, monotonic
from .options import Options
from .rejects import Rejects


@dataclass(frozen=True)
class Shared(Generic[F]):
    """`stop`: the end was asked for; sources return, workers go on with what they have. `abandon`: workers let go too.
    `failures`: errors that concern the whole program; the first one decides."""

    engine: Engine[F]
    lanes: Lanes
    rejects: Rejects[F]
    telemetry: Telemetry
    options: Options
    stop: threading.Event = field(default_factory=threading.Event)
    abandon: threading.Event = field(default_factory=threading.Event)
    clock: Clock = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    failures: list[BaseException] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        """End the program because of `error`. A kill (no `Exception`) takes the workers along at once."""
        self.failures.append(error)
        self.stop.set()
        if not isinstance(error, Exception):
            self.abandon.set()
