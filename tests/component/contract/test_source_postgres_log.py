"""`PostgresLogSource` follows the contract of `ports.source`."""

import psycopg
import pytest
from support.recorded_log import TIMES, LogStream

from adapters.postgres.event_log_reader import INDEX
from replicator.testing.source_contract import SourceContract

pytestmark = pytest.mark.postgres


class TestPostgresLogSource(SourceContract):
    """`PostgresLogSource`."""

    odd_times = TIMES

    # `test_pg_log_read.py` reads all records in one batch.
    @pytest.fixture(
        autouse=True,
        params=[
            pytest.param((1, False), marks=pytest.mark.slow),
            (6, True),
            pytest.param((1000, False), marks=pytest.mark.long),
        ],
    )
    def database(self, postgres_dsn, request):
        self.dsn = postgres_dsn
        self.batch_records, self.indexed = request.param

    def new_stream(self):
        stream = LogStream("", self.batch_records, dsn=self.dsn)
        if self.indexed:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE INDEX ON cdc_raw.cdc_events {INDEX}")
        return stream
