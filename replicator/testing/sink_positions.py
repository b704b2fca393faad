"""The promises of a sink for positions, repetitions and rejects; part of `sink_contract.SinkContract`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replicator.domain.change import ERROR
from replicator.domain.errors import DataLoss, Fatal, Reject, RejectCode, Retryable
from replicator.domain.position import Span

from .contract import require
from .delivery import make_lane
from .faults import FailAfterApply, Faulty
from .histories import History
from .sink_base import IDENTITY, SIMPLE, SinkBase, fail_on_rejects, make_history, make_writes, move_position
from .source import Statement, StreamShape


class SinkPositions(SinkBase):
    """Positions, repetitions, rejects."""

    def test_state_needs_nothing(self) -> None:
        """`state` of a lane that was never prepared is None."""
        with self.target() as target:
            sink = target.open()
            assert sink.state(make_lane("scd1")) is None
            sink.close()

    def test_state_is_committed_with_the_rows(self) -> None:
        """After `apply`, another instance reads position, highest sequence and identity."""
        history = make_history(*make_writes(0, 1, 2))
        with self.target() as target:
            sink = target.open()
            write = self.write(history, 0, 3)
            applied = self.apply_write(sink, write)
            sink.close()
            state = target.open().state(write.lane)
            assert state is not None
            assert applied.position == state.position == history.position(3)
            assert state.max_sequence == write.folded.facts.highest
            assert dict(state.identity) == IDENTITY
            assert state.rule == write.plan.rule

    def test_empty_write_advances_position(self) -> None:
        """A write without rows commits its position and changes nothing else."""
        history = make_history(*make_writes(0), Statement("skip"), *make_writes(1))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 1))
            empty = replace(self.write(history, 1, 1), span=Span(history.position(1), move_position(history.position(1), 5)))
            assert self.apply_write(sink, empty).counts.total == 0
            state = sink.state(empty.lane)
            assert state is not None
            assert state.position == empty.span.end
            self.assert_holds(target, history, empty, 1)
            sink.close()

    def test_stale_write_advances_position(self) -> None:
        """A write whose rows are all known commits its position, too."""
        history = make_history(*make_writes(0, 1), Statement("resend", salt=1))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 2))
            write = self.write(history, 2, 4)
            counts = self.apply_write(sink, write).counts
            state = sink.state(write.lane)
            assert state is not None
            assert state.position == history.position(4)
            assert counts.applied == 0
            assert counts.total == 2
            self.assert_holds(target, history, write)
            sink.close()

    def test_redelivery(self) -> None:
        """An applied span changes nothing. Only the new part of an overlapping span is applied, and the overlap counts
        as duplicate."""
        history = make_history(*make_writes(0, 1, 2, 3))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 3))
            again = self.apply_write(sink, self.write(history, 0, 2))
            assert again.counts.duplicate == again.counts.total == 2
            assert again.position == history.position(3)
            overlapping = self.write(history, 1, 4)
            assert self.apply_write(sink, overlapping).counts.applied == 1
            self.assert_holds(target, history, overlapping)
            sink.close()

    def test_redelivery_under_append(self) -> None:
        """The same for rows without a key."""
        history = make_history(*make_writes(0, 1, 2, 3), shape=StreamShape(key="none", blocks=True))
        lane = make_lane("append")
        with self.target() as target:
            sink = target.open()
            for start, end in ((0, 3), (0, 2), (1, 4), (0, 4)):
                self.apply_write(sink, self.write(history, start, end, lane))
            self.assert_holds(target, history, self.write(history, 0, 4, lane))
            sink.close()

    def test_gap_is_refused(self) -> None:
        """A span that starts after the applied position raises DataLoss, and changes nothing."""
        history = make_history(*make_writes(0, 1, 2))
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(history, 0, 1))
            late = self.write(history, 2, 3)
            with pytest.raises(DataLoss):
                self.apply_write(sink, late)
            state = sink.state(late.lane)
            assert state is not None
            assert state.position == history.position(1)
            self.assert_holds(target, history, late, 1)
            sink.close()

    def test_new_partition_begins_anywhere(self) -> None:
        """A partition that is new to the lane is no gap, wherever it starts."""
        history = make_history(*make_writes(0, 1, 2, 3, 4), shape=replace(SIMPLE, partitions=3))
        with self.target() as target:
            sink = target.open()
            first = self.write(history, 0, 1)
            met = [p for p, end in first.span.end.items() if first.span.start[p] < end]
            self.apply_write(sink, replace(first, span=first.span.only(met)))
            rest = self.write(history, 1, 5)
            assert len([p for p in rest.span.end if p not in met]) == 2
            self.apply_write(sink, rest)
            self.assert_holds(target, history, rest)
            sink.close()

    def test_fail_after_apply_then_retry(self) -> None:
        """If the answer of `apply` was lost, a retry by a new instance applies nothing twice."""
        history = make_history(*make_writes(0, 1), Statement("delete", 0))
        for lane in (make_lane("scd1"), make_lane("append", "log")):
            with self.target() as target:
                sink = Faulty(target.open(), {"apply": [FailAfterApply()]})
                write = self.write(history, 0, 3, lane)
                with pytest.raises(Retryable):
                    self.apply_write(sink, write)
                sink.close()
                again = target.open()
                counts = self.apply_write(again, write).counts
                assert counts.applied == 0
                assert counts.total == write.folded.rows
                self.assert_holds(target, history, write)
                again.close()

    def test_rejects_are_durable_first(self) -> None:
        """Rejects are reported before the commit. If they cannot be stored, nothing is applied."""
        self._check_rejects_first("scd1")

    def test_rejects_of_a_history_are_durable_first(self) -> None:
        """The same under `scd2`."""
        require("scd2" in self.features().policies, "the sink does not know policy scd2")
        self._check_rejects_first("scd2")

    def _check_rejects_first(self, policy: str) -> None:
        history, end = self._make_incomplete()
        with self.target() as target:
            sink = target.open()
            write = self.write(history, 0, end, make_lane(policy))
            sink.prepare(write.lane, write.plan)
            with pytest.raises(Fatal, match="disk full"):
                sink.apply([write], fail_on_rejects)
            state = sink.state(write.lane)
            assert state is None or not state.position
            seen: list[Any] = []
            counts = sink.apply([write], lambda lane, rows: seen.append((sink.state(lane), rows)))[write.lane.id].counts
            ((before, rows),) = seen
            assert before == state
            assert counts.rejected == 1
            (error,) = self.to_arrow(rows)[ERROR].to_pylist()
            assert Reject.parse(error).code == RejectCode.INCOMPLETE
            self.assert_holds(target, history, write)
            sink.close()

    def _make_incomplete(self) -> tuple[History, int]:
        partial = Statement("write", 0, salt=3, mask=1)
        history = make_history(partial, *make_writes(1, 2), shape=replace(SIMPLE, unseen=True))
        return history, len(history.events)
