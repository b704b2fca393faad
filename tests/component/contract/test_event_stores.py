"""Each event store follows the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.sinks.delta.event_store import DeltaEventStore
from adapters.sinks.postgres.event_store import PostgresEventStore
from replicator.testing.stores_contract import EventStoreContract, FakeEventStore


class TestFakeEventStore(EventStoreContract):
    def new_place(self) -> Any:
        return FakeEventStore()

    def new_store(self, place: Any) -> Any:
        return place


class TestDeltaEventStore(EventStoreContract):
    one_in = 2

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}" / "events" for number in count())

    def new_place(self) -> Any:
        return next(self.folders)

    def new_store(self, place: Any) -> Any:
        return DeltaEventStore({"path": str(place), "compact_every": 3})


@pytest.mark.postgres
class TestPostgresEventStore(EventStoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_dsn: str) -> None:
        self.dsn, self.numbers = postgres_dsn, count()

    def new_place(self) -> Any:
        return {"dsn": self.dsn, "schema": f"events {next(self.numbers)}"}

    def new_store(self, place: Any) -> Any:
        return PostgresEventStore(place)
