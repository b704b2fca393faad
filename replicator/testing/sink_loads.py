"""What a sink promises that takes the first rows of a target in parts (`ports.laying.Loads`); a part of
`sink_contract.SinkContract`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.plan import Counts
from replicator.ports.frames import Folded, Write
from replicator.ports.laying import Loads, PartsByKey
from replicator.ports.sink import Sink

from .contract import needs
from .delivery import lane_of
from .sink_base import SinkBase, full_disk, no_rejects, simple, writes
from .source import Statement

HISTORY = simple(
    *writes(0, 1, 2, 3, 4), Statement("delete", 0), *writes(1, 2, salt=5), Statement("delete", 3), *writes(3, salt=9)
)
MORE = simple(*HISTORY.statements, *writes(1, 5, salt=20), Statement("delete", 2))
POLICIES = ("scd1", "scd2")
NUMBER = 3


class SinkLoads(SinkBase):
    """The promises of `Loads`, of sinks that are one."""

    def loading(self, sink: Sink[Any]) -> Any:
        """The sink as a `Loads`; skips the running test where it is none."""
        needs(isinstance(sink, Loads), "the sink takes no rows in parts")
        return sink

    def parts(self, write: Write[Any], number: int = NUMBER) -> tuple[list[Folded[Any]], Counts]:
        """The rows of a write in parts by key, and what had been counted of it."""
        engine: Any = self.new_engine()
        needs(isinstance(engine, PartsByKey), "the engine parts no frames")
        parts = engine.apart(write.folded.frame, write.plan.table.keys, number)
        folded = [engine.fold(part, write.plan) for part in parts if part.num_rows]
        return folded, sum((part.counts for part in folded), write.folded.counts)

    def without_rows(self, write: Write[Any]) -> Write[Any]:
        """The write as `load` gets it."""
        engine = self.new_engine()
        return replace(write, folded=engine.fold(write.folded.frame.slice(0, 0), write.plan))

    def test_a_target_is_loaded_in_parts(self) -> None:
        """Under each policy it holds what the model says, under the state that one write of all rows leaves; every change is
        accounted for, and the lane goes on."""
        for policy in self.some(POLICIES):
            lane = lane_of(policy)
            with self.target() as target, TemporaryDirectory() as folder:
                sink = self.loading(target.open())
                write = self.write(HISTORY, 0, len(HISTORY.events), lane)
                sink.prepare(lane, write.plan)
                assert sink.loads(lane, write.plan)
                parts, counts = self.parts(write)
                assert len(parts) > 1
                applied = sink.load(self.without_rows(write), parts, no_rejects, Path(folder))
                assert (applied.counts + counts).total == len(HISTORY.changes())
                self.assert_holds(target, HISTORY, write)
                assert sink.state(lane) == self._whole(policy)
                rest = self.write(MORE, len(HISTORY.events), len(MORE.events), lane)
                self.put(sink, rest)
                self.assert_holds(target, MORE, rest)
                late = self.put(sink, write)
                assert late.counts.applied == 0
                sink.close()

    def _whole(self, policy: str) -> Any:
        """The state after one write of everything."""
        lane = lane_of(policy)
        with self.target() as target:
            sink = target.open()
            self.put(sink, self.write(HISTORY, 0, len(HISTORY.events), lane))
            state = sink.state(lane)
            sink.close()
            return state

    def test_only_an_empty_target_is_loaded(self) -> None:
        """Neither one with rows, nor one whose lane stands somewhere."""
        for policy in self.some(POLICIES):
            lane = lane_of(policy)
            with self.target() as target, TemporaryDirectory() as folder:
                sink = self.loading(target.open())
                write = self.write(HISTORY, 0, 4, lane)
                self.put(sink, write)
                assert not sink.loads(lane, write.plan)
                rest = self.write(HISTORY, 4, len(HISTORY.events), lane)
                with pytest.raises(DataLoss):
                    sink.load(self.without_rows(rest), self.parts(rest)[0], no_rejects, Path(folder))
                self.assert_holds(target, HISTORY, write, 4)
                sink.close()

    def test_a_load_that_fails_changes_nothing(self) -> None:
        """Neither where its rows end half way, nor where what it rejects cannot be kept; then it can be repeated."""
        lane = lane_of("scd1")
        with self.target() as target, TemporaryDirectory() as folder:
            sink = self.loading(target.open())
            write = self.write(HISTORY, 0, len(HISTORY.events), lane)
            sink.prepare(lane, write.plan)
            parts, _ = self.parts(write)
            with pytest.raises(Fatal, match="half way"):
                sink.load(self.without_rows(write), HalfWay(parts), full_disk, Path(folder))
            assert sink.state(lane) is None and not target.rows(lane)
            sink.load(self.without_rows(write), parts, no_rejects, Path(folder))
            self.assert_holds(target, HISTORY, write)
            sink.close()


class HalfWay:
    """Parts that end in an error."""

    def __init__(self, parts: list[Folded[Any]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Folded[Any]]:
        yield self._parts[0]
        raise Fatal("half way")
