"""Lanes that begin with a snapshot go on as if they had applied everything, in whatever target."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from partitioned import by_key
from postgres_target import PostgresTarget
from test_sink_delta_rs import DeltaTarget, PartitionedTarget

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import PostgresSink
from replicator.testing.seeds_contract import SeedsContract


class FromLake:
    """The lake that is begun with."""

    numbers = count(1)
    one_in = 3

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path):
        self.parent = tmp_path

    def new_lake(self):
        folder = self.parent / f"snapshot{next(self.numbers)}"
        return DeltaTarget(folder), folder

    def lake_engine(self):
        return LocalEngine()

    def new_engine(self):
        return LocalEngine()


class TestIntoLake(FromLake, SeedsContract):
    """Written in process."""

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")


class TestIntoPartitions(FromLake, SeedsContract):
    """Whose rows lie otherwise."""

    unkept = ""

    def new_target(self):
        return PartitionedTarget(self.parent / f"lake{next(self.numbers)}", by_first)


def by_first(plan):
    """By the key, or by a text that a test names."""
    return ["v"] if [*plan.table.column_names] == ["id", "v"] else by_key(plan)


class TestFromPartitions(FromLake, SeedsContract):
    """Of before snapshots were plain lakes, whatever their lane was told."""

    kinds = ("scd1",)

    def new_lake(self):
        folder = self.parent / f"snapshot{next(self.numbers)}"
        return PartitionedTarget(folder, by_key), folder

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")


class TestIntoPostgres(FromLake, SeedsContract):
    """A database."""

    pytestmark = pytest.mark.postgres
    unkept = "a\0b"

    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn: str):
        self.dsn = postgres_dsn

    def new_target(self):
        return PostgresTarget(self.dsn, PostgresSink)
