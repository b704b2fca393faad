"""What a measured run publishes through the port to metrics, with the time of each call."""

from __future__ import annotations

import time
from typing import Any

from dependency_injector import providers

from replicator.domain.policy.plan import Counts
from replicator.ports.runtime import LaneCommitted, Measurement, RecordsRead
from replicator.settings import Loaded
from replicator.wiring.container import Container
from replicator.wiring.process_setup import tune_collector

from . import threads
from .raw import cpu_now


class Journal:
    """Telemetry of one run: `began` when the first batch was read, and one entry of `commits` for each commit.

    Each call takes microseconds for a batch. A run is measured only by what every telemetry adapter is told, so that no
    change inside the program can break a measurement.
    """

    def __init__(self) -> None:
        self.began = self.cpu = self.cpu_end = 0.0
        self.threads: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.commits: list[tuple[float, str, Counts]] = []
        """Time, lane, what became of its changes."""

    def record(self, measured: Measurement) -> None:
        """See `ports.runtime.Telemetry`. The first records start the clock."""
        match measured:
            case RecordsRead(_, records) if records and not self.began:
                self.began, self.cpu, self.threads = time.monotonic(), cpu_now(), threads.cpu()
            case LaneCommitted(lane, counts):
                self.cpu_end = cpu_now()
                self.ended.update(threads.cpu())
                self.commits.append((time.monotonic(), lane, counts))

    def run(self, loaded: Loaded) -> None:
        """Run the pipeline until it is caught up, with this journal as its telemetry. Raises when it does not end well."""
        container = Container(loaded=loaded)
        container.telemetry.override(providers.Object(self))
        supervisor = container.supervisor()
        tune_collector()
        code = supervisor.run(once=True)
        if int(code) or not self.commits:
            raise SystemExit(f"The run ended with code {int(code)}: {supervisor.problem}")

    def report(self) -> dict[str, Any]:
        """Seconds and CPU seconds from the first batch to the last commit, the steady rate, and what threads used.

        `steady` counts from the first commit on, so neither imports nor the creation of tables are in it.
        """
        first, last = self.commits[0], self.commits[-1]
        lanes = sorted({lane for _, lane, _ in self.commits})
        begun = max(next(at for at, each, _ in self.commits if each == lane) for lane in lanes)
        later = sum(counts.total for at, lane, counts in self.commits if lane == last[1] and at > begun)
        return {
            "events": min(sum(c.total for _, each, c in self.commits if each == lane) for lane in lanes),
            "seconds": last[0] - self.began,
            "cpu": self.cpu_end - self.cpu,
            "first_commit": first[0] - self.began,
            "steady": later / (last[0] - begun) if last[0] > begun else None,
            "commits": {lane: [c.applied for _, each, c in self.commits if each == lane] for lane in lanes},
            "threads": {k: v - self.threads.get(k, 0.0) for k, v in self.ended.items()},
        }
