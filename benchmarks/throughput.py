"""Raw rate, every lane, and the Debezium JDBC sink, over the same topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import jdbc, lanes
from .servers import servers
from .topic import fill

NAMES = (*lanes.LANES, "jdbc")


def measure(events: int, only: Sequence[str], *, stages: bool) -> dict[str, Any]:
    """The figures of one run. The raw rate that counts is taken before and after everything else."""
    with servers(connect="jdbc" in only) as stack:
        filled = fill(stack.bootstrap_servers, events)
        figures: dict[str, Any] = {"events": events, "mean_bytes": filled.mean_bytes, "raw": {}, "lanes": {}}
        figures["raw"]["own settings, before"] = lanes.raw(stack, filled, "own")
        figures["raw"]["library defaults"] = lanes.raw(stack, filled, "library")
        for name in only:
            print(f"measuring {name}", flush=True)
            if name == "jdbc":  # noqa: SIM108
                found = jdbc.measure(stack, filled)
            else:
                found = lanes.measure(stack, name, filled, stages=stages)
            figures["lanes"][name] = {**found, "rate": found["events"] / found["seconds"]}
        figures["raw"]["own settings, after"] = lanes.raw(stack, filled, "own")
    return figures
