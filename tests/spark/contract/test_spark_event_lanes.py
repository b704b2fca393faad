"""Sinks that are the store of events keep the contract over Spark's frames."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.spark_case import OPTIONS, OnSpark

from adapters.sinks.delta.event_store import DeltaEventStore
from adapters.sinks.delta.spark.sink import SparkEventStore
from adapters.sinks.delta.spark.sink import open_spark_event_lanes as open_delta_lanes
from adapters.sinks.postgres.event_store import PostgresEventStore
from adapters.sinks.postgres.spark.sink import open_spark_event_lanes as open_postgres_lanes
from replicator.testing.event_lanes_contract import EventLanesContract

LIMITS = {"limits": {"message_bytes": 1500}}


@pytest.mark.long
class TestDeltaLanesOnSpark(OnSpark, EventLanesContract):
    """Of two programs that emit beside a lane one is Spark."""

    racing = 4

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}" / "events" for number in count())
        self.turn = count()

    def new_place(self) -> Any:
        return {"path": str(next(self.folders)), "compact_every": 3}

    def new_sink(self, place: Any) -> Any:
        return open_delta_lanes({**place, **LIMITS, **OPTIONS})

    def new_store(self, place: Any) -> Any:
        return SparkEventStore({**place, **OPTIONS}) if next(self.turn) % 2 == 0 else DeltaEventStore(place)


@pytest.mark.long
@pytest.mark.postgres
class TestPostgresLanesOnSpark(OnSpark, EventLanesContract):
    racing = 4

    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: Any) -> None:
        self.new_dsn = postgres_server.database

    def new_place(self) -> Any:
        return {"dsn": self.new_dsn(), "schema": "stored events"}

    def new_sink(self, place: Any) -> Any:
        return open_postgres_lanes({**place, **LIMITS, **OPTIONS})

    def new_store(self, place: Any) -> Any:
        return PostgresEventStore(place)
