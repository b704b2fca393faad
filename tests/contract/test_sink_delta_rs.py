"""`DeltaRsSink` keeps the promises of `ports.sink`, on a local disk."""

import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from partitioned import Choice, by_key, by_value, moving_history, partitioned
from variants import COMMIT_TESTS

from adapters.engines.local import LocalEngine
from adapters.sinks.delta_rs import DeltaRsSink
from replicator.testing.delivery import Delivering, assert_equals_model
from replicator.testing.sink_columns import SinkColumns
from replicator.testing.sink_contract import SinkContract


@dataclass
class DeltaTarget:
    folder: Path

    def open(self):
        return DeltaRsSink({"path": str(self.folder)})

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class OnDisk:
    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.parent = tmp_path

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")

    def new_engine(self):
        return LocalEngine()


class TestDeltaRsSink(OnDisk, SinkContract):
    """`DeltaRsSink`."""


class TestSequencesPerColumn(OnDisk, SinkColumns):
    """Kept beside the target."""


@dataclass
class PartitionedTarget(DeltaTarget):
    choice: Choice
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def open(self):
        return partitioned(super().open(), self.choice, self.chosen)

    def rows(self, lane):
        return super().open().read(lane.into).to_pylist()


class Partitioned(OnDisk):
    """Tables with partitions; of the random histories one in ten is tried."""

    one_in = 10
    always = COMMIT_TESTS

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", type(self).choice)

    @pytest.mark.parametrize("seed", range(5))
    def test_rows_that_move(self, seed):
        """Rows go from partition to partition by changes of their keys and of their values."""
        with self.target() as target:
            delivering = Delivering(self.new_engine(), target, moving_history(seed), "scd1")
            delivering.run()
            assert_equals_model(delivering)


@pytest.mark.slow
class TestPartitionedByKey(Partitioned, SinkContract):
    """A change is looked for in the partitions of its batch alone."""

    choice = staticmethod(by_key)


@pytest.mark.slow
class TestPartitionedByValue(Partitioned, SinkContract):
    """A change is looked for in every partition."""

    choice = staticmethod(by_value)


@pytest.mark.slow
class TestColumnsPartitionedByValue(OnDisk, SinkColumns):
    """A row moves from partition to partition by a part of it."""

    one_in = 10

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", by_value)
