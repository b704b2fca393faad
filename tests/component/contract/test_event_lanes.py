"""Each sink that writes lanes of the event store follows the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.local import LocalEngine
from adapters.sinks.delta.event_store import DeltaEventLanes, DeltaEventStore
from adapters.sinks.postgres.event_store import PostgresEventLanes, PostgresEventStore
from replicator.testing.event_lanes_contract import EventLanesContract

LIMITS = {"limits": {"message_bytes": 1500}}


class InProcess(EventLanesContract):
    def new_engine(self) -> Any:
        return LocalEngine()


class TestDeltaEventLanes(InProcess):
    one_in = 2

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}" / "events" for number in count())

    def new_place(self) -> Any:
        return {"path": str(next(self.folders)), "compact_every": 3}

    def new_sink(self, place: Any) -> Any:
        return DeltaEventLanes({**place, **LIMITS})

    def new_store(self, place: Any) -> Any:
        return DeltaEventStore(place)


@pytest.mark.postgres
class TestPostgresEventLanes(InProcess):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: Any) -> None:
        self.new_dsn = postgres_server.database

    def new_place(self) -> Any:
        return {"dsn": self.new_dsn(), "schema": "stored events"}

    def new_sink(self, place: Any) -> Any:
        return PostgresEventLanes({**place, **LIMITS})

    def new_store(self, place: Any) -> Any:
        return PostgresEventStore(place)
