"""Every store of dead letters keeps the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from servers.kafka import Broker

from adapters.sinks.delta.dead_letters import DeltaDeadLetters
from adapters.sinks.kafka import KafkaDeadLetters
from adapters.sinks.postgres.dead_letters import PostgresDeadLetters
from replicator.testing.fakes import FakeDeadLetters
from replicator.testing.stores_contract import DeadLetterContract


class TestFakeDeadLetters(DeadLetterContract):
    def new_place(self) -> Any:
        return FakeDeadLetters()

    def new_store(self, place: Any) -> Any:
        return place


class TestDeltaDeadLetters(DeadLetterContract):
    one_in = 3

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}" / "dead_letters" for number in count())

    def new_place(self) -> Any:
        return next(self.folders)

    def new_store(self, place: Any) -> Any:
        return DeltaDeadLetters({"path": str(place)})


@pytest.mark.postgres
class TestPostgresDeadLetters(DeadLetterContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_dsn: str) -> None:
        self.dsn, self.numbers = postgres_dsn, count()

    def new_place(self) -> Any:
        number = next(self.numbers)
        # Every other place is another pipeline's in the same table.
        return {"dsn": self.dsn, "schema": f"letters{number // 2}", "pipeline": f"p{number}"}

    def new_store(self, place: Any) -> Any:
        return PostgresDeadLetters(place)


@pytest.mark.stack
class TestKafkaDeadLetters(DeadLetterContract):
    one_in = 3
    always = {name for name in dir(DeadLetterContract) if name.startswith("test_")} - {"test_dead_letters_are_filtered"}
    """But for filters, which take a reading each: `process/cli/test_dead_letters.py` lists and removes some of them."""

    @pytest.fixture(autouse=True)
    def _broker(self, broker: Broker) -> None:
        self.broker, self.numbers = broker, count()

    def new_place(self) -> Any:
        number = next(self.numbers)
        # Every other place is another pipeline's in the same topic.
        topic = f"letters-{uuid4()}" if number % 2 == 0 else self.place["topic"]
        self.place = {"bootstrap_servers": self.broker.address, "topic": topic, "pipeline": f"p{number}"}
        return self.place

    def new_store(self, place: Any) -> Any:
        return KafkaDeadLetters(place)
