"""A program that applies a history to a lake and kills itself with SIGKILL at a named point of its last batch.

    python delta_crash.py LAKE POINT BATCHES

LAKE: the options of the sink as JSON.

The points are calls of the adapter. The adapter has no code for them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from adapters.delta.commits import LaneLog, PositionFiles
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.side_tables import DeltaSideTables
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.policy.policies import plan_for
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.histories import History, make_random_history

POINTS: dict[str, tuple[type, str, bool]] = {
    "before the ledger": (DeltaSideTables, "record", False),
    "after the ledger": (DeltaSideTables, "record", True),
    "before the position file": (PositionFiles, "announce", False),
    "after the position file": (PositionFiles, "announce", True),
    "after the commit": (LaneLog, "commit", True),
    "before old positions go": (PositionFiles, "prune", False),
}
BATCH = 8


def make_history() -> History:
    """The same history in every process: updates, deletes, key changes and truncates of a keyed table."""
    return make_random_history(11, 60, keys=("int",))


def list_batches() -> list[tuple[int, int]]:
    """Start and end of each batch of the history."""
    size = len(make_history().events)
    return [(start, min(start + BATCH, size)) for start in range(0, size, BATCH)]


def apply_batch(sink: DeltaRsSink, start: int, end: int) -> None:
    """Applies one batch under scd1. The caller of the whole history checks rejects."""
    engine, past = LocalEngine(), make_history()
    table = past.table()
    plan = plan_for("scd1", table)
    changes = engine.frames.concat([frame for _, frame in past.runs(start, end)] or [past.frame((), table)], table)
    sink.prepare(make_lane("scd1"), plan)
    sink.apply([Write(make_lane("scd1"), plan, engine.fold(changes, plan), past.span(start, end))], lambda *_: None)


def die_at(point: str) -> None:
    """From now on, the process kills itself at the call named `point`."""
    owner, name, after = POINTS[point]
    original: Callable[..., Any] = getattr(owner, name)

    def kill(*args: Any, **options: Any) -> None:
        if after:
            original(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, kill)


def main(lake: str, point: str, count: int) -> None:
    """Applies `count` batches, the last one up to `point`."""
    sink = DeltaRsSink(json.loads(lake))
    for number, (start, end) in enumerate(list_batches()[:count], start=1):
        if number == count:
            die_at(point)
        apply_batch(sink, start, end)
    raise SystemExit(f"did not reach the point {point!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
