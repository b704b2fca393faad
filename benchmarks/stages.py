"""Where time goes by stage: wraps functions of the program, each counted without what runs inside it."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STAGES: tuple[tuple[str, str], ...] = (
    ("consume", "adapters.sources.kafka.reader:Reader.gather"),
    ("raw frame: headers", "adapters.sources.kafka.frames:_headers"),
    ("raw frame", "adapters.sources.kafka.reader:record_batch"),
    ("raw frame", "adapters.sources.kafka.reader:_payload"),
    ("consume: offsets", "adapters.sources.kafka.reader:Reader._move"),
    ("route", "adapters.engines.local.engine:LocalEngine.route"),
    ("decode", "adapters.engines.local.engine:LocalEngine.decode"),
    ("decode: pieces", "adapters.arrow.debezium.decode:pieces"),
    ("decode: framing", "adapters.arrow.debezium.decode:frames"),
    ("decode: msgspec", "adapters.arrow.debezium.records:ChangeReader.changes"),
    ("decode: order", "adapters.arrow.debezium.changes:Block._ordered"),
    ("decode: images", "adapters.arrow.debezium.changes:Block._images"),
    ("decode: columns", "adapters.arrow.debezium.changes:Block._column"),
    ("decode: times", "adapters.arrow.debezium.changes:Block._times"),
    ("decode: moved", "adapters.arrow.debezium.changes:Block._moved"),
    ("decode: unsent", "adapters.arrow.debezium.changes:Block._unsent_column"),
    ("decode: back in order", "adapters.arrow.debezium.decode:in_order"),
    ("decode: block", "adapters.arrow.debezium.changes:Block.build"),
    ("unite", "adapters.engines.local.engine:LocalEngine.unite"),
    ("unsettled", "adapters.engines.local.engine:LocalEngine.unsettled"),
    ("segments", "adapters.engines.local.engine:LocalEngine.segments"),
    ("fold: last per key", "adapters.engines.local.fold:_last_per_key"),
    ("fold", "adapters.engines.local.engine:LocalEngine.fold"),
    ("after/before/within", "adapters.engines.local.engine:LocalEngine.after"),
    ("after/before/within", "adapters.engines.local.engine:LocalEngine.before"),
    ("event log frame", "adapters.engines.local.engine:LocalEngine.log"),
    ("joining batches", "replicator.application.delivery:joined"),
    ("to_rows", "adapters.delta.mirror:to_rows"),
    ("to_rows", "adapters.sql.pg_write:to_rows"),
    ("conform", "adapters.delta.mirror:fit"),
    ("conform", "adapters.delta.event_log:fit"),
    ("conform", "adapters.sql.pg_write:Writing._fitting"),
    ("stage, rest", "adapters.delta.mirror:Mirror.stage"),
    ("related rows", "adapters.delta.mirror:related_rows"),
    ("delta merge", "adapters.delta.merge:_merge"),
    ("delta append", "adapters.delta.merge:write_deltalake"),
    ("delta empty commit", "adapters.delta.commits:write_deltalake"),
    ("delta position file", "adapters.delta.positions:Positions.announce"),
    ("delta position file", "adapters.delta.positions:Positions.prune"),
    ("delta state", "adapters.delta.commits:LaneLog.state"),
    ("delta upkeep", "adapters.delta.upkeep:Upkeep.after_commit"),
    ("copy: encode", "adapters.sql.pg_copy:csv_bytes"),
    ("copy: send and wait", "adapters.sql.pg_write:copy_bisecting"),
    ("pg analyze", "adapters.sql.pg_target:Target.analyze"),
    ("pg merge", "adapters.sql.pg_write:Writing._merged"),
    ("pg begin and lock", "adapters.sql.pg_sink:PostgresLanes._locked_states"),
    ("pg commit", "adapters.sql.pg_sink:PostgresLanes._commit"),
    ("pg write, rest", "adapters.sql.pg_write:Writing.apply"),
    ("sink apply, rest", "replicator.application.delivery:Delivery._commit"),
    ("waiting for a sink", "replicator.application.handover:Slot.put"),
    ("waiting for batches", "replicator.application.handover:Slot.take"),
    ("pipeline, rest", "replicator.application.pipeline:Pipeline.apply_batch"),
)


@dataclass
class Timers:
    """Per stage: calls, seconds, and CPU seconds of the calling thread (what a library does in threads of its own is in
    the seconds only)."""

    calls: dict[str, int] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    _open: threading.local = field(default_factory=threading.local)

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, counted under `stage`."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            stack = self._open.__dict__.setdefault("stack", [])
            inside = [0.0, 0.0]
            stack.append(inside)
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                stack.pop()
                if stack:
                    stack[-1][0] += wall
                    stack[-1][1] += cpu
                self._add(stage, wall - inside[0], cpu - inside[1])

        return timed

    def _add(self, stage: str, wall: float, cpu: float) -> None:
        self.calls[stage] = self.calls.get(stage, 0) + 1
        self.wall[stage] = self.wall.get(stage, 0.0) + wall
        self.cpu[stage] = self.cpu.get(stage, 0.0) + cpu

    def report(self) -> dict[str, Any]:
        """Stages in the order of `STAGES`, and those whose function is not there any more."""
        names = dict.fromkeys(name for name, _ in STAGES if name in self.calls)
        return {
            "stages": {n: {"calls": self.calls[n], "wall": self.wall[n], "cpu": self.cpu[n]} for n in names},
            "missing": self.missing,
        }


def install() -> Timers:
    """Wrap every function of `STAGES`; functions that are not there are listed as missing."""
    timers = Timers()
    for stage, place in STAGES:
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        try:
            owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
            setattr(owner, name, timers.wrap(stage, getattr(owner, name)))
        except (ImportError, AttributeError):
            timers.missing.append(place)
    return timers
