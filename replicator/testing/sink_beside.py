"""Writes beside the stream: changes that were left out when it passed, for the suite of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from replicator.domain.errors import Fatal
from replicator.domain.plan import CDC_APPLIED_AT, EVENT_ID, ApplyPlan, Counts
from replicator.domain.policies import plan_for
from replicator.domain.position import Position, Span
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .contract import needs
from .delivery import Target, canonical_rows, lane_of
from .histories import History, scrambled
from .model import fold
from .sink_base import SIMPLE, SinkBase, full_disk, no_rejects, simple
from .source import Event, Statement

NOWHERE = Span(Position(), Position())


class LeftOut:
    """A history of which some events are left out when the stream passes them, and come beside it later."""

    def __init__(self, suite: SinkBase, target: Target, history: History, policy: str) -> None:
        self.suite, self.target, self.history = suite, target, history
        self.engine = suite.new_engine()
        self.lane: Lane = lane_of(policy)
        self.plan: ApplyPlan = plan_for(policy, history.table())
        self.sink: Sink[Any] = target.open()
        self.sink.prepare(self.lane, self.plan)
        self.arrived: list[Event] = []
        self.rejects: list[Any] = []
        self.counts = Counts()

    def pass_by(self, events: Sequence[Event], span: Span) -> None:
        """The stream, of whose records only some can be used."""
        self._apply(events, span, beside=False)

    def beside(self, events: Sequence[Event], reject: Any = None) -> None:
        """What was left out, at last."""
        self._apply(events, NOWHERE, beside=True, reject=reject)

    def write(self, events: Sequence[Event], span: Span, *, beside: bool) -> Write[Any]:
        """These changes, whichever they are, as one write."""
        frames = [self.suite.to_frame(self.history.frame([e], self.history.source.versions[e.version])) for e in events]
        empty = self.suite.to_frame(self.history.frame((), self.plan.table))
        changes = self.engine.unite(frames or [empty], self.plan.table)
        return Write(self.lane, self.plan, self.engine.fold(changes, self.plan), span, beside=beside)

    def _apply(self, events: Sequence[Event], span: Span, *, beside: bool, reject: Any = None) -> None:
        write = self.write(events, span, beside=beside)
        done = self.sink.apply(
            [write], reject or (lambda _, rows: self.rejects.extend(self.suite.to_arrow(rows).to_pylist()))
        )
        self.counts += write.folded.counts + done[self.lane.id].counts
        self.arrived += events

    def _rejected(self, _: Lane, rows: Any) -> None:
        self.rejects += self.suite.to_arrow(rows).to_pylist()

    def as_the_model(self) -> None:
        """The target holds what the model says of what came, in whatever order; every change is accounted for."""
        changes = [e.change for e in self.arrived if e.change is not None]
        table = self.plan.table
        expected, _ = fold(self.plan.policy, table.column_names, table.keys, changes)
        columns = [c.name for c in self.plan.target if c.name != CDC_APPLIED_AT]
        assert canonical_rows(self.target.rows(self.lane), columns) == canonical_rows(expected, columns)
        assert self.counts.total == len(changes)

    def as_if_nothing_had_been_left_out(self) -> None:
        """The same as the model says of all events in the order of the log."""
        table = self.plan.table
        events = sorted((e for e in self.history.events if e.change), key=lambda e: e.change.sequence if e.change else ())
        expected, _ = fold(self.plan.policy, table.column_names, table.keys, [e.change for e in events if e.change])
        # A record that was sent again is either of the two, whichever came first.
        columns = [c.name for c in self.plan.target if c.name not in (CDC_APPLIED_AT, EVENT_ID)]
        assert canonical_rows(self.target.rows(self.lane), columns) == canonical_rows(expected, columns)

    def states(self) -> Any:
        """Where the lane stands."""
        state = self.sink.state(self.lane)
        return state and (state.position, state.reached)


class SinkBeside(SinkBase):
    """Changes that were rejected when the stream passed them, and are applied at last."""

    @pytest.mark.parametrize("policy", ["scd1", "append", "scd2"])
    def test_changes_that_were_left_out_come_beside(self, policy: str) -> None:
        """Random histories, some records left out: those come later, in any order, in any pieces, some twice. In between the
        target is what the model says of what has come; at the end nothing is missing, and the lane stands where it did."""
        needs(policy in self.capabilities().policies, f"the sink does not know policy {policy}")

        @self.for_all(2, history=scrambled(("int", "composite")), seed=st.integers(0, 999))
        def check(history: History, seed: int) -> None:
            random = Random(seed)
            with self.target() as target:
                case = LeftOut(self, target, history, policy)
                try:
                    self._check(case, random)
                finally:
                    case.sink.close()

    def _check(self, case: LeftOut, random: Random) -> None:
        events = list(case.history.events)
        late = {i for i in range(len(events)) if random.random() < 0.3}
        middle = random.randrange(len(events) + 1)
        for start, end in ((0, middle), (middle, len(events))):
            kept = [events[i] for i in range(start, end) if i not in late]
            case.pass_by(kept, case.history.span(start, end))
        case.as_the_model()
        before = case.states()
        left = [events[i] for i in sorted(late)]
        random.shuffle(left)
        while left:
            size = random.randrange(1, len(left) + 1)
            case.beside(left[:size])
            if random.random() < 0.5:
                case.beside(left[:size])
            left = left[size:]
            case.as_the_model()
        case.as_if_nothing_had_been_left_out()
        assert case.states() == before

    @pytest.mark.parametrize("policy", ["scd1", "scd2"])
    def test_a_write_beside_that_fails_is_repeated(self, policy: str) -> None:
        """A delete that an attempt remembered before it died is applied by the next one, wherever the lane stands."""
        needs(policy in self.capabilities().policies, f"the sink does not know policy {policy}")
        shape = replace(SIMPLE, whole_moves=True)
        partial = (Statement("write", 1), Statement("write", 1, mask=3))
        # The last delete is applied before, so that deletes are looked up at all.
        kept = (Statement("write", 2), Statement("delete", 2))
        history = simple(Statement("write", 0), Statement("delete", 0), *partial, *kept)
        history = replace(history, shape=shape)
        events = list(history.events)
        first, delete, lost, lacking, *last = events
        with self.target() as target:
            case = LeftOut(self, target, history, policy)
            try:
                case.pass_by([first, *last], history.span(0, len(events)))
                passed = case.counts
                with pytest.raises(Fatal):
                    case.beside([delete, lacking], full_disk)
                case.arrived, case.counts = [first, *last], passed
                again = target.open()
                case.sink.close()
                case.sink = again
                again.prepare(case.lane, case.plan)
                case.beside([delete, lacking])
                assert [row["_offset"] for row in case.rejects] == [lacking.offset]
                case.as_the_model()
                assert case.counts.applied == passed.applied + 1
                case.beside([lost, lacking], no_rejects)
                case.as_the_model()
            finally:
                case.sink.close()
