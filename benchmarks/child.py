"""One measured run of the daemon in a process of its own: `python -m benchmarks.child CONFIG OUT [--stages]`.

The program runs as `replicator run --until-caught-up` runs it, without the page. Hooks note when the first record came and
what each commit brought; they cost microseconds per batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# First, as in the program: it sets what Arrow's allocator reads when it is loaded.
from replicator import cli  # noqa: F401

# isort: split
from adapters.sources.kafka.reader import Reader
from replicator.application.lanes import Lanes
from replicator.wiring.configuration import read
from replicator.wiring.container import Container
from replicator.wiring.memory import settle

from . import stages, threads
from .raw import cpu_now


class Journal:
    """When the first record came, and every commit: time, lane, position (records below it), rows."""

    def __init__(self) -> None:
        self.began = self.cpu = self.cpu_end = 0.0
        self.threads: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.commits: list[tuple[float, str, int, int]] = []

    def listen(self) -> None:
        """Hook into the program."""
        take, settled = Reader._take, Lanes.settled

        def first(reader: Any, messages: Any, got: Any) -> Any:
            Reader._take = take  # type: ignore[method-assign]
            self.began, self.cpu, self.threads = time.monotonic(), cpu_now(), threads.cpu()
            return take(reader, messages, got)

        def noted(lanes: Any, run: Any, position: Any, counts: Any, newest: Any) -> None:
            settled(lanes, run, position, counts, newest)
            self.cpu_end = cpu_now()
            self.ended.update(threads.cpu())
            self.commits.append((time.monotonic(), run.lane.sink, sum(position.values()), counts.applied))

        Reader._take = first  # type: ignore[method-assign]
        Lanes.settled = noted  # type: ignore[method-assign]

    def report(self) -> dict[str, Any]:
        """Seconds and CPU seconds from the first record to the last commit, the steady rate, and what threads used.

        `steady` counts from the first commit on, so neither imports nor the creation of tables are in it.
        """
        first, last = self.commits[0], self.commits[-1]
        lanes = {lane for _, lane, _, _ in self.commits}
        begun = {lane: next(c for c in self.commits if c[1] == lane) for lane in lanes}
        late = max(begun.values())
        left = last[2] - late[2]
        return {
            "events": min(self._reached(lane) for lane in lanes),
            "seconds": last[0] - self.began,
            "cpu": self.cpu_end - self.cpu,
            "first_commit": first[0] - self.began,
            "steady": left / (last[0] - late[0]) if last[0] > late[0] else None,
            "commits": {lane: [c[3] for c in self.commits if c[1] == lane] for lane in sorted(lanes)},
            "threads": {k: v - self.threads.get(k, 0.0) for k, v in self.ended.items()},
            "peak_rss": _peak(),
        }

    def _reached(self, lane: str) -> int:
        return max(c[2] for c in self.commits if c[1] == lane)


def run(config: Path, *, measure_stages: bool) -> dict[str, Any]:
    """Run until caught up; what was measured. Raises when the run did not end well."""
    journal = Journal()
    journal.listen()
    timers = stages.install() if measure_stages else None
    container = Container(loaded=read(config, None, ()))
    supervisor = container.supervisor()
    settle()
    code = supervisor.run(once=True)
    if int(code) or not journal.commits:
        raise SystemExit(f"The run ended with code {int(code)}: {supervisor.problem}")
    return {**journal.report(), **({"stages": timers.report()} if timers else {})}


def _peak() -> int:
    """The highest resident memory of this process, in bytes. Unlike ru_maxrss it does not inherit the parent's."""
    lines: Iterable[str] = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", action="store_true")
    given = parser.parse_args()
    given.out.write_text(json.dumps(run(given.config, measure_stages=given.stages)))
    sys.exit(0)
