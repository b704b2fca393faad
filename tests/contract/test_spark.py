"""The Spark engine and its Delta sink keep the promises of their ports. One file, so that one process has one session."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from spark_case import OnSpark, engine

from adapters.sinks.delta_spark import DeltaSparkSink
from replicator.testing.delivery import Delivering, assert_equals_model
from replicator.testing.engine_contract import EngineContract
from replicator.testing.histories import random_history
from replicator.testing.sink_contract import KEYED, SinkContract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""


class TestSparkEngine(OnSpark, EngineContract):
    """`SparkEngine`."""


@dataclass
class SparkTarget:
    folder: Path

    def open(self):
        engine()
        return DeltaSparkSink({"path": str(self.folder)})

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class TestDeltaSparkSink(OnSpark, SinkContract):
    """`DeltaSparkSink`, on a local disk."""

    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.parent = tmp_path

    def new_target(self):
        return SparkTarget(self.parent / f"lake{next(self.numbers)}")

    def test_times_at_the_end_of_the_calendar(self):
        """Year 9999 comes back as it went, also to readers that are not Spark."""
        with self.target() as target:
            history = random_history(65, 1, keys=KEYED)
            delivering = Delivering(engine(), target, history, "scd1", to_frame=self.to_frame, to_arrow=self.to_arrow)
            delivering.run()
            assert_equals_model(delivering)
