"""Hands a history to an engine and a sink as the pipeline does, batch by batch, with its faults and repetitions, and keeps
account of every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.errors import Retryable
from replicator.domain.plan import CDC_APPLIED_AT, ApplyPlan, Counts
from replicator.domain.policies import plan_for
from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .faults import FailAfterApply, FailBefore, Faulty
from .histories import Delivery, History
from .model import Change, Outcome, Row, fold
from .model_shapes import Wanted

Plans = Callable[[str, TableSpec], ApplyPlan]


class Target(Protocol):
    """One target system, empty at first: what an adapter's author gives the sink contract."""

    def open(self) -> Sink[Any]:
        """A sink on this target. Called again, a second instance on the same target."""

    def rows(self, lane: Lane) -> Sequence[Row]:
        """What the target holds for this lane, read as its users would: values by column name."""

    def close(self) -> None:
        """Take the target away, whatever is in it."""


def lane_of(policy: str, into: str = "items", lane_id: str = "", watermark: timedelta | None = None) -> Lane:
    """A lane for tests."""
    lane_id = lane_id or f"target.{into}"
    return Lane(lane_id, "testing", "shop", "public.items", "target", into, policy, watermark=watermark)


def keeping_deletes(retention: timedelta) -> Plans:
    """`plan_for` with this retention of deletes."""
    return lambda policy, table: plan_for(policy, table, retention=retention)


def under(watermark: timedelta) -> Plans:
    """`plan_for` with this watermark."""
    return lambda policy, table: plan_for(policy, table, watermark)


@dataclass
class Delivering:
    """One lane of one sink on its way through a history. `counts` covers every change in every delivery that was answered;
    `handed` is their number, `repeated` how many of them had been handed over before. `rejects` are rows with `_error`.
    `times`: when each batch is handed over, the last of them for all that are left; without, no time is told."""

    engine: Engine[Any]
    target: Target
    history: History
    policy: str
    plans: Plans = plan_for
    wanted: Wanted | None = None
    lane: Lane = field(default_factory=lambda: lane_of("scd1"))
    counts: Counts = field(default_factory=Counts)
    handed: int = 0
    repeated: int = 0
    rejects: list[Row] = field(default_factory=list)
    to_frame: Callable[[pa.Table], Any] = lambda frame: frame
    to_arrow: Callable[[Any], pa.Table] = lambda frame: frame
    times: Sequence[datetime] = ()
    arrived: list[datetime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lane = lane_of(self.policy)
        self.table = self.history.source.versions[0]
        self.reached = 0
        self.at: datetime | None = None
        self._open()

    def _open(self) -> None:
        self.sink = Faulty(self.target.open())
        self.sink.prepare(self.lane, self.plan)

    @property
    def plan(self) -> ApplyPlan:
        """The plan for the table as it is known now."""
        return self.plans(self.policy, self.table)

    def run(self) -> None:
        """All batches, compared with the model after each; then everything once more, which must change nothing."""
        try:
            for number, delivery in enumerate(self.history.deliveries):
                self.at = self.times[min(number, len(self.times) - 1)] if self.times else None
                self.deliver(delivery)
                self.as_the_model()
            if self.history.cuts:
                self.deliver(Delivery(0, len(self.history.events)))
        finally:
            self.sink.close()

    def as_the_model(self) -> Counter[Outcome]:
        """The target holds what the model says now; the outcomes."""
        return assert_rows(
            self.target, self.lane, self.plan, self.history, self.reached, wanted=self.wanted, came=self.arrived
        )

    def deliver(self, delivery: Delivery) -> None:
        """One batch. Of one that overlaps what was applied, the sink gets either the rest or the whole; the rest alone where
        marked rows age out, as an upsert that is sent again would be one at or below the floor (decision 27)."""
        start, end = min(delivery.start, self.reached), max(delivery.end, self.reached)
        changes = self._changes(start, end)
        end = self._settled(changes, start, end)
        changes = self._changes(start, end)
        self._account(start, end)
        if self.at is not None:
            self.arrived += [self.at] * (end - self.reached)
        if (end - start) % 2 or (self.times and self.wanted is not None and self.wanted.soft_deletes):
            changes, below = self.engine.after(changes, self.history.position(self.reached))
            self.counts += Counts(duplicate=below)
        if delivery.fault:
            self.sink.schedule("apply", FailBefore() if delivery.fault == "before" else FailAfterApply())
        for write in self._writes(changes, self.history.span(start, end)):
            self._apply(write)
        self.reached = max(self.reached, end)

    def _account(self, start: int, end: int) -> None:
        self.handed += len(self.history.changes(start, end))
        self.repeated += len(self.history.changes(start, min(self.reached, end)))

    def _changes(self, start: int, end: int) -> Any:
        """The changes of some events, under the widest schema seen so far."""
        runs = self.history.runs(start, end)
        known = self.table
        for version, _ in runs:
            known = known.union(version)
        if known.column_names != self.table.column_names:
            self.table = known
            self.sink.prepare(self.lane, self.plan)
        parts = [self.to_frame(frame) for _, frame in runs] or [self.to_frame(self.history.frame((), known))]
        return self.engine.unite(parts, known)

    def _settled(self, changes: Any, start: int, end: int) -> int:
        """Without the delete half of a key change whose create half is in the next batch."""
        held = self.engine.unsettled(changes) if self.history.shape.keeps_order else Position()
        if not held:
            return end
        places = {(p.partition, offset) for p, offset in held.items()}
        return next(i for i in range(start, end) if self._place(i) in places)

    def _place(self, number: int) -> tuple[int, int]:
        event = self.history.events[number]
        return event.partition, event.offset

    def _writes(self, changes: Any, span: Span) -> Sequence[Write[Any]]:
        """A write per segment; their spans touch, and together are the span of the batch."""
        segments = list(self.engine.segments(self._shaped(changes), self.plan.table))
        writes, at = [], span.start
        for segment in segments[:-1]:
            end = at.advanced_to(self.engine.ends(segment))
            writes.append(self._write(segment, Span(at, end)))
            at = end
        return [*writes, self._write(segments[-1], Span(at, span.end))]

    def _shaped(self, changes: Any) -> Any:
        if not self.plan.shape:
            return changes
        shaped = self.engine.shape(changes, self.plan)
        self.counts += shaped.counts
        self.rejects += self.to_arrow(shaped.rejects).to_pylist()
        return shaped.frame

    def _write(self, segment: Any, span: Span) -> Write[Any]:
        folded = self.engine.fold(segment, self.plan)
        self.counts += folded.counts
        return Write(self.lane, self.plan, folded, span, at=self.at)

    def _apply(self, write: Write[Any]) -> None:
        """Until it is answered; a lost answer is followed by a restart."""
        before = len(self.rejects)
        try:
            applied = self.sink.apply([write], self._reject)
        except Retryable as error:
            del self.rejects[before:]
            if "after" in str(error):
                self.sink.close()
                self._open()
            applied = self.sink.apply([write], self._reject)
        self.counts += applied[self.lane.id].counts

    def _reject(self, lane: Lane, rows: Any) -> None:
        assert lane == self.lane
        self.rejects += self.to_arrow(rows).to_pylist()


def canonical(value: Any) -> Any:
    """A value in a form that is equal exactly when the values are, whichever driver read them."""
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
            return tuple(canonical(item) for item in value)
        case _:
            return value


def canonical_rows(rows: Sequence[Row], columns: Sequence[str]) -> Counter[str]:
    """The rows as a multiset."""
    return Counter(repr([canonical(row.get(name)) for name in columns]) for row in rows)


def assert_rows(
    target: Target,
    lane: Lane,
    plan: ApplyPlan,
    history: History,
    end: int | None = None,
    *,
    wanted: Wanted | None = None,
    came: Sequence[datetime] = (),
) -> Counter[Outcome]:
    """The target holds what the model says of the events before `end`: every column of every row. Returns the outcomes.
    `wanted`: the shape of the plan, as the model says it. `came`: when the events came, where time is told."""
    table = history.table(end)
    changes = arrivals(history, end, came)
    untracked = frozenset(plan.history.untracked) if plan.history else frozenset[str]()
    expected, outcomes = fold(
        plan.policy,
        table.column_names,
        table.keys,
        changes,
        plan.watermark,
        untracked=untracked,
        wanted=wanted,
        retention=plan.retention,
        now=came[-1] if came else None,
    )
    columns = [c.name for c in plan.target if c.name != CDC_APPLIED_AT]
    due, found = canonical_rows(expected, columns), canonical_rows(target.rows(lane), columns)
    missing, surplus = dict(due - found), dict(found - due)
    assert not missing and not surplus, f"columns {columns}\nmissing {missing}\nsurplus {surplus}"
    return outcomes


def arrivals(history: History, end: int | None, came: Sequence[datetime]) -> list[Change]:
    """The changes among the events before `end`, with the moments at which they came, where these are told."""
    events = history.events[:end]
    times: Sequence[datetime | None] = came or [None] * len(events)
    return [replace(e.change, arrived=at) for e, at in zip(events, times, strict=True) if e.change is not None]


def assert_equals_model(delivering: Delivering) -> None:
    """The target holds what the model says, and every change is accounted for."""
    assert delivering.reached == len(delivering.history.events)
    assert_accounts(delivering, delivering.as_the_model())


def assert_accounts(delivering: Delivering, outcomes: Counter[Outcome]) -> None:
    """The identities in the docstring of `model`."""
    counts, history = delivering.counts, delivering.history
    assert counts.total == delivering.handed, f"{counts} of {delivering.handed} changes"
    assert counts.rejected == len(delivering.rejects)
    assert counts.applied <= outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
    retried = any(fault == "after" for _, _, fault in history.cuts)
    once = not retried and not delivering.repeated
    if not delivering.repeated:
        assert counts.filtered == outcomes[Outcome.FILTERED], f"{counts} and {dict(outcomes)}"
    if once and delivering.plan.watermark is not None:
        # Under append nothing is folded, so every outcome has its count.
        assert counts.rejected == outcomes[Outcome.REJECTED], f"{counts} and {dict(outcomes)}"
        assert counts.applied == outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
    pure = len(history.source.log) == len(history.events) and not outcomes[Outcome.REJECTED]
    if pure and once:
        assert counts.applied + counts.folded == outcomes[Outcome.APPLIED], f"{counts} and {dict(outcomes)}"
        assert counts.superseded + counts.duplicate == outcomes[Outcome.SUPERSEDED] + outcomes[Outcome.DUPLICATE]
