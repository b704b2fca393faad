"""What rules for columns cost: the same events from bytes to a Delta table, with rules and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.change import RAW
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.transform.columns import AddedColumn, ColumnRule, ColumnTransforms, Mask
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.ports.frames import Lane, Write
from replicator.settings.expressions import parse_expression

from .events import HEADERS, TABLE, Stream

TOPIC = "bench.public.rows"
AT = TopicPartition(TOPIC, 0)
MASK = Mask("hmac", b"of the benchmarks")
MASKED = ("name", "note")
TO_REACH = 0.8


@dataclass(frozen=True)
class Case:
    """What is measured: the shape of the lane, and what the decoder is told."""

    shape: RowTransforms = NO_ROW_TRANSFORMS
    private: Mapping[str, Mask] | None = None
    log: bool = False


COMPUTED = {
    "label": "upper(concat(version, '/', case when active then 'active' else 'away' end))",
    "score": "case when rating is null then 0 else coalesce(visits, 0) * 100 + round(rating * 1.19, 2) end",
}


def _entry(masked: Sequence[str] = (), computed: Mapping[str, str] = MappingProxyType({})) -> RowTransforms:
    made = tuple((name, AddedColumn(expression=parse_expression(text))) for name, text in computed.items())
    return RowTransforms(column_transforms=ColumnTransforms(tuple((name, ColumnRule(mask=MASK)) for name in masked), made))


CASES = {
    "plain": Case(),
    "plain, again: A/A control": Case(),
    "two masked, of an entry": Case(_entry(MASKED)),
    "two computed": Case(_entry((), COMPUTED)),
    "two masked, two computed": Case(_entry(MASKED, COMPUTED)),
    "two masked, of the table": Case(private=dict.fromkeys(MASKED, MASK)),
    "plain, with event log": Case(log=True),
    "two masked, with event log": Case(private=dict.fromkeys(MASKED, MASK), log=True),
}
BESIDE = {"two masked, with event log": "plain, with event log"}
"""What a case is compared with; the plain one by default."""


def measure(events: int, rounds: int, batch: int) -> dict[str, Any]:
    """Per case the seconds of each round: of the processor, and of the clock."""
    frames = _frames(events, batch)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, case in CASES.items():
            with TemporaryDirectory() as folder:
                began = time.process_time(), time.monotonic()
                rows = _run(case, frames, Path(folder))
                runs[name].append((time.process_time() - began[0], time.monotonic() - began[1]))
                if rows != events:
                    raise AssertionError(f"{name}: of {events} events {rows} were applied")
    return {"events": events, "runs": runs}


def show(figures: dict[str, Any]) -> None:
    """Print what `measure` found: the least of the rounds."""
    print(f"{'':30}{'CPU s':>8}{'seconds':>9}{'events/s':>10}   ratio")
    least = {name: tuple(min(column) for column in zip(*runs, strict=True)) for name, runs in figures["runs"].items()}
    for name, (cpu, seconds) in least.items():
        ratio = least[BESIDE.get(name, "plain")][0] / cpu
        print(f"{name:30}{cpu:8.2f}{seconds:9.2f}{figures['events'] / seconds:10,.0f}{ratio:8.2f}")


def _frames(events: int, batch: int) -> list[pa.Table]:
    headers = [{"name": name, "value": value} for name, value in HEADERS]
    rows = [
        {"topic": TOPIC, "partition": 0, "offset": at, "timestamp": stamp, "headers": headers, "key": key, "value": value}
        for at, (key, value, stamp) in enumerate(Stream(events).events())
    ]
    return [pa.Table.from_pylist(rows[start : start + batch], RAW) for start in range(0, events, batch)]


def _run(case: Case, frames: list[pa.Table], folder: Path) -> int:
    """The changes that were accounted for."""
    options = {"private": {TABLE: dict(case.private)}} if case.private else {}
    engine, decoder, lane = LocalEngine(), DebeziumJsonDecoder(options), _lane()
    sink, total = DeltaRsSink({"path": str(folder)}), 0
    for frame in frames:
        (run,) = engine.route(frame, decoder).slices
        table = decoder.learn(engine.frames.sample(run.frame), run.table, run.fingerprint)
        changes, _ = engine.decode(run, decoder, table)
        plan = plan_for("scd1", table, row_transforms=case.shape)
        sink.prepare(lane, plan)
        shaped = engine.transform_rows(changes, plan).frame if plan.row_transforms else changes
        if case.log:
            engine.log(frame, decoder).nbytes  # noqa: B018  (what is written of it is the same)
        start = frame["offset"][0].as_py()
        span = Span(Position({AT: start}), Position({AT: start + frame.num_rows}))
        folded = engine.fold(shaped, plan)
        outcome = sink.apply([Write(lane, plan, folded, span)], _no_rejects)[lane.id]
        total += folded.counts.total + outcome.counts.total
    sink.close()
    return total


def _lane() -> Lane:
    return Lane("lake.rows", "bench", "shop", TABLE, "lake", "rows", "scd1")


def _no_rejects(_: Lane, rows: Any) -> None:
    raise AssertionError(rows)
