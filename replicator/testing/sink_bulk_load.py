"""The promises of a sink with bulk loads (`ports.bulk_load.BulkLoads`); part of `sink_contract.SinkContract`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.policy.plan import Counts
from replicator.ports.bulk_load import BulkLoads, PartitionsByKey
from replicator.ports.frames import FoldedChanges, Write
from replicator.ports.sink import Sink

from .contract import require
from .delivery import SinkTarget, make_lane
from .sink_base import SinkBase, fail_on_rejects, make_history, make_writes, refuse_rejects, require_feature
from .source import Statement

HISTORY = make_history(
    *make_writes(0, 1, 2, 3, 4),
    Statement("delete", 0),
    *make_writes(1, 2, salt=5),
    Statement("delete", 3),
    *make_writes(3, salt=9),
)
MORE_HISTORY = make_history(*HISTORY.statements, *make_writes(1, 5, salt=20), Statement("delete", 2))
POLICIES = ("scd1", "scd2")
PARTITIONS = 3


class SinkBulkLoad(SinkBase):
    """The promises of `BulkLoads`, for sinks that have it."""

    def open_bulk_load(self, target: SinkTarget) -> tuple[Sink[Any], BulkLoads[Any]]:
        """A sink and its bulk load. Skips the running test if there is none."""
        sink = target.open()
        return sink, require_feature(sink.features.bulk_load, "the sink takes no rows in parts")

    def make_partitions(self, write: Write[Any], number: int = PARTITIONS) -> tuple[list[FoldedChanges[Any]], Counts]:
        """The rows of a write in partitions by key, and the counts of their folds."""
        engine: Any = self.new_engine()
        require(isinstance(engine, PartitionsByKey), "the engine parts no frames")
        parts = engine.partition_rows(write.folded.frame, write.plan.table.keys, number)
        folded = [engine.fold(part, write.plan) for part in parts if part.num_rows]
        return folded, sum((part.counts for part in folded), write.folded.counts)

    def remove_rows(self, write: Write[Any]) -> Write[Any]:
        """The write without rows, as `load` gets it."""
        engine = self.new_engine()
        return replace(write, folded=engine.fold(write.folded.frame.slice(0, 0), write.plan))

    def test_a_target_is_loaded_by_partition(self) -> None:
        """Under each policy the rows equal the model, and the state equals that of one write of all rows. Every
        change is accounted for, and the lane continues."""
        for policy in self.sample_cases(POLICIES):
            lane = make_lane(policy)
            with self.target() as target, TemporaryDirectory() as folder:
                sink, bulk_load = self.open_bulk_load(target)
                write = self.write(HISTORY, 0, len(HISTORY.events), lane)
                sink.prepare(lane, write.plan)
                assert bulk_load.loads(lane, write.plan)
                parts, counts = self.make_partitions(write)
                assert len(parts) > 1
                applied = bulk_load.load(self.remove_rows(write), parts, refuse_rejects, Path(folder))
                assert (applied.counts + counts).total == len(HISTORY.changes())
                self.assert_holds(target, HISTORY, write)
                assert sink.state(lane) == self._read_whole_state(policy)
                rest = self.write(MORE_HISTORY, len(HISTORY.events), len(MORE_HISTORY.events), lane)
                self.apply_write(sink, rest)
                self.assert_holds(target, MORE_HISTORY, rest)
                late = self.apply_write(sink, write)
                assert late.counts.applied == 0
                sink.close()

    def _read_whole_state(self, policy: str) -> Any:
        """The state after one write of everything."""
        lane = make_lane(policy)
        with self.target() as target:
            sink = target.open()
            self.apply_write(sink, self.write(HISTORY, 0, len(HISTORY.events), lane))
            state = sink.state(lane)
            sink.close()
            return state

    def test_only_an_empty_target_is_loaded(self) -> None:
        """Not a target with rows, or a lane with a position."""
        for policy in self.sample_cases(POLICIES):
            lane = make_lane(policy)
            with self.target() as target, TemporaryDirectory() as folder:
                sink, bulk_load = self.open_bulk_load(target)
                write = self.write(HISTORY, 0, 4, lane)
                self.apply_write(sink, write)
                assert not bulk_load.loads(lane, write.plan)
                rest = self.write(HISTORY, 4, len(HISTORY.events), lane)
                with pytest.raises(DataLoss):
                    bulk_load.load(self.remove_rows(rest), self.make_partitions(rest)[0], refuse_rejects, Path(folder))
                self.assert_holds(target, HISTORY, write, 4)
                sink.close()

    def test_a_load_that_fails_changes_nothing(self) -> None:
        """If its rows end half way, or its rejects cannot be stored. Then it can be repeated."""
        lane = make_lane("scd1")
        with self.target() as target, TemporaryDirectory() as folder:
            sink, bulk_load = self.open_bulk_load(target)
            write = self.write(HISTORY, 0, len(HISTORY.events), lane)
            sink.prepare(lane, write.plan)
            parts, _ = self.make_partitions(write)
            with pytest.raises(Fatal, match="half way"):
                bulk_load.load(self.remove_rows(write), FailingPartitions(parts), fail_on_rejects, Path(folder))
            assert sink.state(lane) is None and not target.rows(lane)
            bulk_load.load(self.remove_rows(write), parts, refuse_rejects, Path(folder))
            self.assert_holds(target, HISTORY, write)
            sink.close()


class FailingPartitions:
    """Partitions that end in an error."""

    def __init__(self, parts: list[FoldedChanges[Any]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[FoldedChanges[Any]]:
        yield self._parts[0]
        raise Fatal("half way")
