"""Databases for tests of the source `query`: the same few statements on every server."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.pool import NullPool

from adapters.sources.query.database import parse_url
from adapters.sources.query.source import QuerySource
from replicator.domain.position import Position

SALES = [
    (1, "2019-11-11", "Robert", "323.00", "2019-11-11 12:00:05"),
    (2, "2019-11-11", "Lee", "500.00", "2019-11-11 16:11:46"),
    (3, "2019-11-12", "Robert", "136.00", "2019-11-12 10:23:54"),
    (4, "2019-11-13", "Lee", "211.00", "2019-11-13 11:33:27"),
]
"""The worked example: id, date, name, sales, modified."""
WHOLE_SECOND = re.compile(r"('\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)'")
"""SQLite compares times as text. SQLAlchemy writes them with all six digits."""
STAMP = {"mysql": "datetime(6)", "mariadb": "datetime(6)", "postgresql": "timestamp", "sqlite": "timestamp"}


class QueriedDatabase:
    """A database as its writer uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(parse_url(SecretStr(url)), poolclass=NullPool)
        self.kind = self.engine.dialect.name
        if self.kind == "sqlite":  # No test needs durable writes.
            sa.event.listen(self.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(
                    WHOLE_SECOND.sub(r"\1.000000'", statement) if self.kind == "sqlite" else statement
                )

    def put(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Inserts the rows, given by name."""
        if rows:
            columns = [sa.column(name) for name in rows[0]]
            with self.engine.begin() as connection:
                connection.execute(sa.insert(sa.table(table, *columns)), rows)

    def make_sales(self) -> None:
        stamp = STAMP[self.kind].replace("(6)", "")
        kind = f"id bigint PRIMARY KEY, date date, name varchar(32), sales decimal(7,2), modified {stamp} NOT NULL"
        self.run(f"CREATE TABLE sales ({kind})")
        self.add_sales(*SALES)

    def add_sales(self, *rows: tuple[Any, ...]) -> None:
        for one in rows:
            self.run(f"INSERT INTO sales VALUES {one!r}")


def make_query_source(asked: QueriedDatabase, folder: Path, **options: Any) -> QuerySource:
    given = {"dsn": asked.url, "table": "sales", "cursor_column": "modified", "keys": ("id",), "every": "1 millisecond"}
    return QuerySource({**given, "state": str(folder / "state"), **options})


def list_payloads(batch: Any) -> list[dict[str, Any]]:
    return [json.loads(value)["payload"] for value in batch.frame["value"].to_pylist()]


def read_once(one: QuerySource, start: Position | None = None) -> tuple[list[dict[str, Any]], Position]:
    """The remaining records after one more query, and the end position."""
    rows: list[dict[str, Any]] = []
    at = dict(start or {})

    def take(batch: Any) -> None:
        rows.extend(list_payloads(batch))
        at.update(batch.span.end)

    one.run(start or Position(), take, threading.Event(), once=True)
    return rows, Position(at)
