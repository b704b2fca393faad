"""Raw rate, every lane, and the Debezium JDBC sink, over the same topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import jdbc, lanes
from .report import AGAIN
from .servers import servers
from .topic import fill

NAMES = (*lanes.LANES, "jdbc")


def measure(events: int, only: Sequence[str]) -> dict[str, Any]:
    """The figures of one run. The raw rate that counts is taken before and after everything else. The first lane runs once
    more at the end: its two rates are equal but for the noise of the machine."""
    with servers(connect="jdbc" in only) as stack:
        filled = fill(stack.bootstrap_servers, events)
        figures: dict[str, Any] = {"events": events, "mean_bytes": filled.mean_bytes, "raw": {}, "lanes": {}}
        figures["raw"]["own settings, before"] = lanes.raw(stack, filled, "own")
        figures["raw"]["library defaults"] = lanes.raw(stack, filled, "library")
        for name in (*only, only[0]):
            print(f"measuring {name}", flush=True)
            found = jdbc.measure(stack, filled) if name == "jdbc" else lanes.measure(stack, name, filled)
            shown = f"{name}{AGAIN}" if name in figures["lanes"] else name
            figures["lanes"][shown] = {**found, "rate": found["events"] / found["seconds"]}
        figures["raw"]["own settings, after"] = lanes.raw(stack, filled, "own")
    return figures
