"""A lane that starts from a checkpoint continues as if it had applied every change, in every kind of target."""

from __future__ import annotations

import pytest
from support.delta_targets import DeltaTarget, PartitionedTarget
from support.partitioned_sink import choose_key_column
from support.postgres_target import PostgresTarget
from support.restored_targets import RestoresFromLake, choose_first_column

from adapters.sinks.postgres.sink import PostgresSink
from replicator.testing.restore_contract import RestoreContract


class TestIntoLake(RestoresFromLake, RestoreContract):
    """The target is a lake, written in process."""

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")


class TestIntoPartitions(RestoresFromLake, RestoreContract):
    """The target has other partitions than the checkpoint."""

    unsupported_text = ""

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", choose_first_column)


class TestFromPartitions(RestoresFromLake, RestoreContract):
    """Checkpoints from before checkpoints were plain lakes, whatever their lane's options."""

    case_names = ("scd1",)

    def new_lake(self):
        folder = self.parent / f"snapshot{next(self.numbers)}"
        return PartitionedTarget(folder, choose_key_column), folder

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")


@pytest.mark.usefixtures("dsn_of_class")
class TestIntoPostgres(RestoresFromLake, RestoreContract):
    """The target is a database."""

    pytestmark = pytest.mark.postgres
    unsupported_text = "a\0b"

    def new_target(self):
        return PostgresTarget(self.dsn, PostgresSink)
