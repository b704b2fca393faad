"""Backfills applied by Spark beside the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from support.backfilled_table import LANES, BackfilledTable
from support.small_spark import SMALL

from adapters.engines.spark import SparkEngine
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.sinks.postgres.spark.sink import PostgresSparkSink
from adapters.sources.backfill import JournalSource
from adapters.spark.frames import from_arrow
from replicator.application.operations.backfill import BackfilledSource
from replicator.domain.position import Position
from replicator.ports.frames import Batch, Stop
from replicator.testing.fakes import FakeSource

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

OPTIONS = {"spark": SMALL}


class OnSpark(FakeSource):
    """The log in memory, as frames of Spark."""

    def run(self, start: Position, consume_batch: Callable[[Batch[Any]], None], stop: Stop, *, once: bool) -> None:
        super().run(start, _travelling(consume_batch), stop, once=once)

    def read(self, start: Position, until: Position, consume_batch: Callable[[Batch[Any]], None], stop: Stop) -> None:
        super().read(start, until, _travelling(consume_batch), stop)


def _travelling(consume_batch: Callable[[Batch[DataFrame]], None]) -> Callable[[Batch[pa.Table]], None]:
    def travel(batch: Batch[pa.Table]) -> None:
        consume_batch(replace(batch, frame=from_arrow(SparkEngine(OPTIONS).spark, batch.frame)))

    return travel


@dataclass
class SparkWorld(BackfilledTable):
    """The pipeline on Spark; its targets are read in this process."""

    def engine(self) -> SparkEngine:
        return SparkEngine(OPTIONS)

    def writers(self) -> dict[str, Any]:
        lake = DeltaSparkSink({"path": str(self.folder / "lake"), **OPTIONS})
        return {"lake": lake, "pg": PostgresSparkSink({"dsn": self.dsn, "schema": "mirror", **OPTIONS})}

    def source(self) -> BackfilledSource[Any]:
        size = self.random.choice([10_000, 1 << 20])
        return BackfilledSource(
            OnSpark(self.pieces), JournalSource({"state": str(self.folder / "kept"), "batch_bytes": size, **OPTIONS})
        )


@pytest.mark.long
def test_second_backfill_updates_the_targets(postgres_dsn: str, tmp_path: Path) -> None:
    """With changes that the stream delivers, and deletes that it does not."""
    world = SparkWorld(postgres_dsn, tmp_path, Random(3), piece_rows=15)
    assert world.backfill().rows == 40
    world.check()
    with world.change_unseen():
        world.execute("DELETE FROM items WHERE id < 10")
        world.execute("UPDATE items SET note = 'unseen' WHERE id BETWEEN 10 AND 15")
    world.execute("UPDATE items SET note = 'seen' WHERE id BETWEEN 14 AND 20")
    outcome = world.backfill()
    assert (outcome.deleted, outcome.rows, len(outcome.deletes_of)) == (9, 31, len(LANES))
    world.check()
