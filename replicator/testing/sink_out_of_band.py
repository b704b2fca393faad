"""Out-of-band writes: changes that were left out of the stream and applied later, for the suite of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID, ApplyPlan, Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.policy.policy_names import POLICY_NAMES
from replicator.domain.position import Position, Span
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .contract import require
from .delivery import SinkTarget, make_lane, to_canonical_rows
from .histories import History, scrambled_histories
from .model import fold_changes
from .sink_base import SIMPLE, SinkBase, fail_on_rejects, make_history, refuse_rejects
from .source import SourceEvent, Statement

EMPTY_SPAN = Span(Position(), Position())


class OutOfBandRun:
    """A history with some events left out of the stream and applied out of band later."""

    def __init__(self, suite: SinkBase, target: SinkTarget, history: History, policy: str) -> None:
        self.suite, self.target, self.history = suite, target, history
        self.engine = suite.new_engine()
        self.lane: Lane = make_lane(policy)
        self.plan: ApplyPlan = plan_for(policy, history.table())
        self.sink: Sink[Any] = target.open()
        self.sink.prepare(self.lane, self.plan)
        self.arrived: list[SourceEvent] = []
        self.rejects: list[Any] = []
        self.counts = Counts()

    def apply_stream(self, events: Sequence[SourceEvent], span: Span) -> None:
        """The stream, of which only `events` are usable."""
        self._apply_events(events, span, out_of_band=False)

    def apply_out_of_band(self, events: Sequence[SourceEvent], reject: Any = None) -> None:
        """Apply events that were left out."""
        self._apply_events(events, EMPTY_SPAN, out_of_band=True, reject=reject)

    def write(self, events: Sequence[SourceEvent], span: Span, *, out_of_band: bool) -> Write[Any]:
        """The changes of these events as one write."""
        frames = [self.suite.to_frame(self.history.frame([e], self.history.source.versions[e.version])) for e in events]
        empty = self.suite.to_frame(self.history.frame((), self.plan.table))
        changes = self.engine.unite(frames or [empty], self.plan.table)
        return Write(self.lane, self.plan, self.engine.fold(changes, self.plan), span, out_of_band=out_of_band)

    def _apply_events(self, events: Sequence[SourceEvent], span: Span, *, out_of_band: bool, reject: Any = None) -> None:
        write = self.write(events, span, out_of_band=out_of_band)
        done = self.sink.apply(
            [write], reject or (lambda _, rows: self.rejects.extend(self.suite.to_arrow(rows).to_pylist()))
        )
        self.counts += write.folded.counts + done[self.lane.id].counts
        self.arrived += events

    def _add_rejects(self, _: Lane, rows: Any) -> None:
        self.rejects += self.suite.to_arrow(rows).to_pylist()

    def compare_with_model(self) -> None:
        """Assert that the target equals the model after the arrived changes, in any order, and that every change is
        accounted for."""
        changes = [e.change for e in self.arrived if e.change is not None]
        table = self.plan.table
        expected, _ = fold_changes(self.plan.policy, table.column_names, table.keys, changes)
        columns = [c.name for c in self.plan.target if c.name != CDC_APPLIED_AT]
        assert to_canonical_rows(self.target.rows(self.lane), columns) == to_canonical_rows(expected, columns)
        assert self.counts.total == len(changes)

    def compare_with_log_order(self) -> None:
        """Assert that the target equals the model after all events in log order."""
        table = self.plan.table
        events = sorted((e for e in self.history.events if e.change), key=lambda e: e.change.sequence if e.change else ())
        expected, _ = fold_changes(self.plan.policy, table.column_names, table.keys, [e.change for e in events if e.change])
        # Of a repeated record, the first to arrive gives the event id.
        columns = [c.name for c in self.plan.target if c.name not in (CDC_APPLIED_AT, EVENT_ID)]
        assert to_canonical_rows(self.target.rows(self.lane), columns) == to_canonical_rows(expected, columns)

    def list_states(self) -> Any:
        """The position and event times of the lane."""
        state = self.sink.state(self.lane)
        return state and (state.position, state.max_event_time)


class SinkOutOfBand(SinkBase):
    """Changes that were rejected in the stream and are applied later."""

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    def test_left_out_changes_are_applied_out_of_band(self, policy: str) -> None:
        """Random histories with some records left out, which arrive later, in any order and batches, some twice.

        In between the target equals the model of the arrived changes. At the end nothing is missing, and the
        position is the same.
        """
        require(policy in self.features().policies, f"the sink does not know policy {policy}")

        @self.for_all(2, history=scrambled_histories(("int", "composite")), seed=st.integers(0, 999))
        def check(history: History, seed: int) -> None:
            random = Random(seed)
            with self.target() as target:
                case = OutOfBandRun(self, target, history, policy)
                try:
                    self._check_run(case, random)
                finally:
                    case.sink.close()

    def _check_run(self, case: OutOfBandRun, random: Random) -> None:
        events = list(case.history.events)
        late = {i for i in range(len(events)) if random.random() < 0.3}
        middle = random.randrange(len(events) + 1)
        for start, end in ((0, middle), (middle, len(events))):
            kept = [events[i] for i in range(start, end) if i not in late]
            case.apply_stream(kept, case.history.span(start, end))
        case.compare_with_model()
        before = case.list_states()
        left = [events[i] for i in sorted(late)]
        random.shuffle(left)
        while left:
            size = random.randrange(1, len(left) + 1)
            case.apply_out_of_band(left[:size])
            if random.random() < 0.5:
                case.apply_out_of_band(left[:size])
            left = left[size:]
            case.compare_with_model()
        case.compare_with_log_order()
        assert case.list_states() == before

    @pytest.mark.parametrize("policy", ["scd1", "scd2"])
    def test_a_failed_out_of_band_write_is_repeated(self, policy: str) -> None:
        """A delete whose tombstone a failed attempt stored is applied by the next attempt, at any position of the
        lane."""
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        shape = replace(SIMPLE, whole_moves=True)
        partial = (Statement("write", 1), Statement("write", 1, mask=3))
        # The last delete is applied first, so that the sink looks up tombstones at all.
        kept = (Statement("write", 2), Statement("delete", 2))
        history = make_history(Statement("write", 0), Statement("delete", 0), *partial, *kept)
        history = replace(history, shape=shape)
        events = list(history.events)
        first, delete, lost, lacking, *last = events
        with self.target() as target:
            case = OutOfBandRun(self, target, history, policy)
            try:
                case.apply_stream([first, *last], history.span(0, len(events)))
                passed = case.counts
                with pytest.raises(Fatal):
                    case.apply_out_of_band([delete, lacking], fail_on_rejects)
                case.arrived, case.counts = [first, *last], passed
                again = target.open()
                case.sink.close()
                case.sink = again
                again.prepare(case.lane, case.plan)
                case.apply_out_of_band([delete, lacking])
                assert [row["_offset"] for row in case.rejects] == [lacking.offset]
                case.compare_with_model()
                assert case.counts.applied == passed.applied + 1
                case.apply_out_of_band([lost, lacking], refuse_rejects)
                case.compare_with_model()
            finally:
                case.sink.close()
