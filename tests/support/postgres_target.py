"""A PostgreSQL database as target of the sink contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql


@dataclass
class PostgresTarget:
    dsn: str
    sink: Callable[[Mapping[str, Any]], Any]
    schema: str = "mirror"

    def open(self):
        return self.sink({"dsn": self.dsn, "schema": self.schema})

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
