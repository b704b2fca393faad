"""`PostgresSink` keeps the promises of `ports.sink`, on a real server."""

import psycopg
import pytest
from postgres_target import PostgresTarget

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import PostgresSink
from replicator.testing.sink_columns import SinkColumns
from replicator.testing.sink_contract import SinkContract
from replicator.testing.sink_shapes import SinkShapes

pytestmark = pytest.mark.postgres


class OnPostgres:
    def new_target(self):
        return PostgresTarget(self.dsn, PostgresSink)

    def new_engine(self):
        return LocalEngine()


class TestPostgresSink(OnPostgres, SinkContract):
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn):
        self.dsn = postgres_dsn


class TestSequencesPerColumn(OnPostgres, SinkColumns):
    """Kept beside the target."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn):
        self.dsn = postgres_dsn


class TestPostgresInEnglish(OnPostgres, SinkShapes):
    """In a database in which `a` comes before `B`: what is ordered by text is ordered by its bytes all the same."""

    @pytest.fixture(autouse=True)
    def database(self, postgres_server):
        self.dsn = postgres_server.database(language="en-US")
        with psycopg.connect(self.dsn) as connection:
            assert connection.execute("SELECT 'a' < 'B'").fetchone() == (True,)
