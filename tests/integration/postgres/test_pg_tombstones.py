"""The tombstone ledger on its own keeps the promises of its port."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.engines.local import LocalEngine
from adapters.sql.pg_sink import PostgresLanes
from adapters.sql.pg_tombstones import PostgresTombstoneLedger
from replicator.ports.engine import Engine
from replicator.testing.sink_contract import LedgerContract

pytestmark = pytest.mark.postgres


class TestPostgresTombstoneLedger(LedgerContract):
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn: str):
        self.lanes = PostgresLanes(postgres_dsn, lambda lane: ("mirror", lane.into), "test")
        yield
        self.lanes.close()

    def new_ledger(self) -> PostgresTombstoneLedger:
        return PostgresTombstoneLedger(self.lanes)

    def new_engine(self) -> Engine[Any]:
        return LocalEngine()
