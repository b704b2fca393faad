"""`PostgresSink` keeps the promises of `ports.sink`, on a real server."""

import pytest
from postgres_target import PostgresTarget

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import PostgresSink
from replicator.testing.sink_contract import SinkContract

pytestmark = pytest.mark.postgres


class TestPostgresSink(SinkContract):
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn):
        self.dsn = postgres_dsn

    def new_target(self):
        return PostgresTarget(self.dsn, PostgresSink)

    def new_engine(self):
        return LocalEngine()
