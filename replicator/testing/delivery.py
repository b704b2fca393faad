"""Delivers a history to an engine and a sink like the pipeline: in batches, with faults and repetitions. Counts
every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.errors import Retryable
from replicator.domain.policy.plan import CDC_APPLIED_AT, ApplyPlan, Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .fakes import FailAfterApply, FailBefore, Faulty
from .histories import BatchDelivery, History
from .model import Change, Outcome, Row, fold_changes
from .model_transforms import ModelRowTransforms

Plans = Callable[[str, TableSpec], ApplyPlan]
Arrival = tuple[datetime, tuple[Any, ...]]
"""When a change arrived, and the highest truncate of its write."""


class SinkTarget(Protocol):
    """A target system, empty at first. The author of an adapter defines it for the sink contract."""

    def open(self) -> Sink[Any]:
        """A sink for this target. A second call opens a second instance."""

    def rows(self, lane: Lane) -> Sequence[Row]:
        """The rows of the lane as its users read them: values by column name."""

    def close(self) -> None:
        """Remove the target with its content."""


def make_lane(policy: str, into: str = "items", lane_id: str = "", watermark: timedelta | None = None) -> Lane:
    """A lane for tests."""
    lane_id = lane_id or f"target.{into}"
    return Lane(lane_id, "testing", "shop", "public.items", "target", into, policy, watermark=watermark)


def make_retention_plans(retention: timedelta) -> Plans:
    """`plan_for` with this tombstone retention."""
    return lambda policy, table: plan_for(policy, table, retention=retention)


def make_watermark_plans(watermark: timedelta) -> Plans:
    """`plan_for` with this watermark."""
    return lambda policy, table: plan_for(policy, table, watermark)


@dataclass
class DeliveryRun:
    """Delivers a history through one lane of one sink.

    - `counts`: the changes of every delivery with an answer. `delivered`: their number. `repeated`: how many of
      them had been delivered before.
    - `rejects`: rows with `_error`.
    - `times`: the time of each batch, the last one for all remaining batches. Empty: writes have no time.
    """

    engine: Engine[Any]
    target: SinkTarget
    history: History
    policy: str
    plans: Plans = plan_for
    wanted: ModelRowTransforms | None = None
    lane: Lane = field(default_factory=lambda: make_lane("scd1"))
    counts: Counts = field(default_factory=Counts)
    delivered: int = 0
    repeated: int = 0
    rejects: list[Row] = field(default_factory=list)
    to_frame: Callable[[pa.Table], Any] = lambda frame: frame
    to_arrow: Callable[[Any], pa.Table] = lambda frame: frame
    times: Sequence[datetime] = ()
    arrived: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lane = make_lane(self.policy)
        self.table = self.history.source.versions[0]
        self.reached = 0
        self.at: datetime | None = None
        self._open_sink()

    def _open_sink(self) -> None:
        self.sink = Faulty(self.target.open())
        self.sink.prepare(self.lane, self.plan)

    @property
    def plan(self) -> ApplyPlan:
        """The plan for the current schema of the table."""
        return self.plans(self.policy, self.table)

    def run(self) -> None:
        """Deliver all batches and compare with the model after each. Then deliver everything again, which must
        change nothing."""
        try:
            for number, delivery in enumerate(self.history.deliveries):
                self.at = self.times[min(number, len(self.times) - 1)] if self.times else None
                self.deliver(delivery)
                self.compare_with_model()
            if self.history.cuts:
                self.deliver(BatchDelivery(0, len(self.history.events)))
        finally:
            self.sink.close()

    def compare_with_model(self) -> Counter[Outcome]:
        """Assert that the target equals the model now; returns the outcomes."""
        return assert_rows(
            self.target, self.lane, self.plan, self.history, self.reached, wanted=self.wanted, arrivals=self.arrived
        )

    def deliver(self, delivery: BatchDelivery) -> None:
        """Deliver one batch. If it overlaps the applied changes, the sink gets all of it or only the rest.

        With soft deletes and times, the sink gets only the rest. Otherwise a repeated upsert at or below the purged
        sequence could be folded into a later delete, and write a marked row.
        """
        start, end = min(delivery.start, self.reached), max(delivery.end, self.reached)
        changes = self._read_changes(start, end)
        keeps_order = self.history.shape.keeps_order
        open_positions = self.engine.frames.find_open_key_changes(changes) if keeps_order else Position()
        if open_positions:
            # The end, without the delete half of a key change whose create half is in the next batch.
            positions = {(p.partition, offset) for p, offset in open_positions.items()}
            end = next(i for i in range(start, end) if self._get_position(i) in positions)
            changes = self._read_changes(start, end)
        self.delivered += len(self.history.changes(start, end))
        self.repeated += len(self.history.changes(start, min(self.reached, end)))
        if (end - start) % 2 or (self.times and self.wanted is not None and self.wanted.soft_deletes):
            repeated, changes = self.engine.frames.split(changes, Span.below(self.history.position(self.reached)))
            self.counts += Counts(duplicate=self.engine.frames.count(repeated))
        if delivery.fault:
            self.sink.schedule("apply", FailBefore() if delivery.fault == "before" else FailAfterApply())
        writes = self._make_writes(changes, self.history.span(start, end))
        if self.at is not None:
            self.arrived += [(self.at, self._find_truncate(writes, number)) for number in range(self.reached, end)]
        for write in writes:
            self._apply_write(write)
        self.reached = max(self.reached, end)

    def _read_changes(self, start: int, end: int) -> Any:
        """The changes of the events [start, end), under the widest schema so far."""
        runs = self.history.runs(start, end)
        table = self.table
        for version, _ in runs:
            table = table.union(version)
        if table.column_names != self.table.column_names:
            self.table = table
            self.sink.prepare(self.lane, self.plan)
        parts = [self.to_frame(frame) for _, frame in runs] or [self.to_frame(self.history.frame((), table))]
        return self.engine.frames.concat(parts, table)

    def _get_position(self, number: int) -> tuple[int, int]:
        event = self.history.events[number]
        return event.partition, event.offset

    def _make_writes(self, changes: Any, span: Span) -> Sequence[Write[Any]]:
        """One write per segment."""
        if self.plan.row_transforms:
            shaped = self.engine.transform_rows(changes, self.plan)
            self.counts += shaped.counts
            self.rejects += self.to_arrow(shaped.rejects).to_pylist()
            changes = shaped.frame
        writes = []
        for segment, part in divide_segments(self.engine, changes, self.plan.table, span):
            folded = self.engine.fold(segment, self.plan)
            self.counts += folded.counts
            writes.append(Write(self.lane, self.plan, folded, part, at=self.at))
        return writes

    def _find_truncate(self, writes: Sequence[Write[Any]], number: int) -> tuple[Any, ...]:
        """The highest truncate of the write that has this event."""
        partition, offset = self._get_position(number)
        ends = ({p.partition: end for p, end in write.span.end.items()} for write in writes)
        own = next(write for write, end in zip(writes, ends, strict=True) if end.get(partition, 0) > offset)
        return own.folded.facts.truncated_at or ()

    def _apply_write(self, write: Write[Any]) -> None:
        """Apply until there is an answer. After a lost answer the sink is opened again."""
        before = len(self.rejects)
        try:
            applied = self.sink.apply([write], self._add_rejects)
        except Retryable as error:
            del self.rejects[before:]
            if "after" in str(error):
                self.sink.close()
                self._open_sink()
            applied = self.sink.apply([write], self._add_rejects)
        self.counts += applied[self.lane.id].counts

    def _add_rejects(self, lane: Lane, rows: Any) -> None:
        assert lane == self.lane
        self.rejects += self.to_arrow(rows).to_pylist()


def divide_segments(engine: Engine[Any], changes: Any, table: TableSpec, span: Span) -> list[tuple[Any, Span]]:
    """The segments of a batch, each with its span. Together their spans are the span of the batch."""
    *first, last = engine.frames.segments(changes, table)
    parts, at = [], span.start
    for segment in first:
        end = at.advanced_to(engine.frames.ends(segment))
        parts.append((segment, Span(at, end)))
        at = end
    return [*parts, (last, Span(at, span.end))]


def to_canonical(value: Any) -> Any:
    """A form of the value that is equal for equal values of all drivers."""
    match value:
        case Decimal():
            return str(value.normalize() if value else Decimal(0))
        case float():
            return repr(value + 0.0)
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case memoryview() | bytearray():
            return bytes(value)
        case list():
            return tuple(to_canonical(item) for item in value)
        case _:
            return value


def to_canonical_rows(rows: Sequence[Row], columns: Sequence[str]) -> Counter[str]:
    """The rows as a multiset."""
    return Counter(repr([to_canonical(row.get(name)) for name in columns]) for row in rows)


def assert_rows(
    target: SinkTarget,
    lane: Lane,
    plan: ApplyPlan,
    history: History,
    end: int | None = None,
    *,
    wanted: ModelRowTransforms | None = None,
    arrivals: Sequence[Arrival] = (),
) -> Counter[Outcome]:
    """Assert that the target equals the model after the events before `end`, in every column of every row. Returns
    the outcomes.

    `wanted`: the row transforms of the plan, for the model. `arrivals`: how the events arrived, if times matter.
    """
    table = history.table(end)
    changes = list_arrivals(history, end, arrivals)
    untracked = frozenset(plan.history.untracked) if plan.history else frozenset[str]()
    expected, outcomes = fold_changes(
        plan.policy,
        table.column_names,
        table.keys,
        changes,
        plan.watermark,
        untracked=untracked,
        wanted=wanted,
        retention=plan.retention,
        now=arrivals[-1][0] if arrivals else None,
    )
    columns = [c.name for c in plan.target if c.name != CDC_APPLIED_AT]
    due, stored = to_canonical_rows(expected, columns), to_canonical_rows(target.rows(lane), columns)
    missing, surplus = dict(due - stored), dict(stored - due)
    assert not missing and not surplus, f"columns {columns}\nmissing {missing}\nsurplus {surplus}"
    return outcomes


def list_arrivals(history: History, end: int | None, arrivals: Sequence[Arrival]) -> list[Change]:
    """The changes among the events before `end`, with their arrivals, if any."""
    events = history.events[:end]
    if not arrivals:
        return [e.change for e in events if e.change is not None]
    return [
        replace(e.change, arrived=at, truncated=truncated)
        for e, (at, truncated) in zip(events, arrivals, strict=True)
        if e.change is not None
    ]


def assert_equals_model(delivering: DeliveryRun) -> None:
    """Assert that the target equals the model, and that every change is accounted for."""
    assert delivering.reached == len(delivering.history.events)
    assert_accounts(delivering, delivering.compare_with_model())


def assert_accounts(delivering: DeliveryRun, outcomes: Counter[Outcome]) -> None:
    """Assert the relations between counts and outcomes in the docstring of `model`."""
    counts, history = delivering.counts, delivering.history
    assert counts.total == delivering.delivered, f"{counts} of {delivering.delivered} changes"
    assert counts.rejected == len(delivering.rejects)
    assert counts.applied <= outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
    retried = any(fault == "after" for _, _, fault in history.cuts)
    once = not retried and not delivering.repeated
    if not delivering.repeated:
        assert counts.filtered == outcomes[Outcome.FILTERED], f"{counts} and {dict(outcomes)}"
    if once and delivering.plan.watermark is not None:
        # Append folds nothing, so every outcome has its count.
        assert counts.rejected == outcomes[Outcome.REJECTED], f"{counts} and {dict(outcomes)}"
        assert counts.applied == outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
    pure = len(history.source.log) == len(history.events) and not outcomes[Outcome.REJECTED]
    if pure and once:
        assert counts.applied + counts.folded == outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
        assert counts.superseded + counts.duplicate == outcomes[Outcome.SUPERSEDED] + outcomes[Outcome.DUPLICATE]
