"""`DeltaRsSink` follows the contract of `ports.sink`, on a local disk."""

from itertools import count

import pytest
from support.delta_targets import DeltaTarget, PartitionedTarget
from support.partitioned_sink import choose_key_column, choose_value_column, make_moving_history
from support.variants import COMMIT_TESTS

from adapters.engines.local import LocalEngine
from replicator.testing.delivery import DeliveryRun, assert_equals_model
from replicator.testing.sink_contract import SinkContract
from replicator.testing.sink_row_transforms import SinkColumnVersions


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


class TestSequencesPerColumn(OnDisk, SinkColumnVersions):
    """A side table has the sequences."""


class Partitioned(OnDisk):
    """Tables with partitions; one in ten random histories is run."""

    one_in = 10
    always = COMMIT_TESTS

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", type(self).choice)

    @pytest.mark.parametrize("seed", range(5))
    def test_rows_move_between_partitions(self, seed):
        """Changes of keys and of values move the rows."""
        with self.target() as target:
            delivering = DeliveryRun(self.new_engine(), target, make_moving_history(seed), "scd1")
            delivering.run()
            assert_equals_model(delivering)


@pytest.mark.slow
class TestPartitionedByKey(Partitioned, SinkContract):
    """A change is searched only in the partitions of its batch."""

    choice = staticmethod(choose_key_column)


@pytest.mark.slow
class TestPartitionedByValue(Partitioned, SinkContract):
    """A change is searched in every partition."""

    choice = staticmethod(choose_value_column)


@pytest.mark.slow
class TestColumnsPartitionedByValue(OnDisk, SinkColumnVersions):
    """A change of one column moves a row to another partition."""

    one_in = 10

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", choose_value_column)
