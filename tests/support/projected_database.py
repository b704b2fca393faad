"""The contract of projectors for tables in a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from adapters.sinks.postgres.sink import PostgresSink
from support.projected_lake import ProjectedLake

TABLE = 'g%old"1'


class ProjectedDatabase(ProjectedLake):
    """Computes rows of a lake into a database. The schema's name needs quotes."""

    sink = "pg"
    keeps_versions = False

    @pytest.fixture(autouse=True)
    def _database(self, _folder: None, postgres_dsn: str) -> Iterator[None]:
        self.dsn = self.dsn_of_projectors = postgres_dsn
        self._sinks: list[PostgresSink] = []
        yield
        for one in self._sinks:
            one.close()

    def make_options(self) -> dict[str, Any]:
        """The options of another projector."""
        self._sinks.append(PostgresSink({"dsn": self.dsn_of_projectors, "schema": TABLE}))
        return {**self.options, "sinks": {**self.options["sinks"], "pg": self._sinks[-1].features}}

    def run_before_commit(self, projector: Any, meanwhile: Callable[[], object]) -> None:
        """Runs `meanwhile` before the transaction."""
        features = projector._features["pg"]

        def replace_rows(*given: Any) -> Any:
            meanwhile()
            return features.gold_tables.replace(*given)

        tables = replace(features.gold_tables, replace=replace_rows)
        projector._features["pg"] = replace(features, gold_tables=tables)

    def replace_rows(self, table: str, rows: pa.Table) -> None:
        if table != "sums":
            super().replace_rows(table, rows)
            return
        self._execute(f"CREATE SCHEMA IF NOT EXISTS {self._quote_table()}")
        self._execute(f"CREATE TABLE {self._quote_table(table)} (id bigint, city text, amount bigint, note text)")
        self._insert_rows(table, rows)

    def append_rows(self, table: str, rows: pa.Table) -> None:
        self._insert_rows(table, rows) if table == "sums" else super().append_rows(table, rows)

    def rows(self, table: str) -> pa.Table:
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(f"SELECT * FROM {self._quote_table(table)}".encode())
            names = [column.name for column in cursor.description or ()]
            columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        return pa.table(dict(zip(names, map(list, columns), strict=True)))

    def commits(self, table: str) -> int:
        return int(self._execute("SELECT max(number) FROM _replicator.refreshes")[0][0])

    def _is_made(self) -> bool:
        return bool(self._execute("SELECT 1 FROM pg_tables WHERE tablename = 'sums'"))

    def _quote_table(self, *table: str) -> str:
        return sql.Identifier(TABLE, *table).as_string(None)

    def _insert_rows(self, table: str, rows: pa.Table) -> None:
        into = f"{self._quote_table(table)} ({', '.join(rows.column_names)})".replace("%", "%%")
        insert = f"INSERT INTO {into} VALUES ({', '.join(['%s'] * rows.num_columns)})"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.cursor().executemany(insert.encode(), [tuple(row.values()) for row in rows.to_pylist()])

    def _execute(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
