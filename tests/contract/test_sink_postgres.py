"""`PostgresSink` keeps the promises of `ports.sink`, on a real server."""

from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import PostgresSink
from replicator.testing.sink_contract import SinkContract

pytestmark = pytest.mark.postgres


@dataclass
class PostgresTarget:
    dsn: str
    schema: str = "mirror"

    def open(self):
        return PostgresSink({"dsn": self.dsn, "schema": self.schema})

    def rows(self, lane):
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(self.schema, lane.into))
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(query)
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for schema in (self.schema, "_replicator"):
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


class TestPostgresSink(SinkContract):
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn):
        self.dsn = postgres_dsn

    def new_target(self):
        return PostgresTarget(self.dsn)

    def new_engine(self):
        return LocalEngine()
