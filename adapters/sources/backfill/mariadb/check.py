"""Check of the source's MariaDB server: binlog, readers of the binlog, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Any

import pymysql

from replicator.domain.errors import ReplicatorError
from replicator.ports.runtime import Diagnosis

from .database import connect, fetch_rows, refuse_prepared, refuse_server, refuse_unread, translate_errors

START = "Start the server, or correct host and port in `database.dsn` of the source."
ANSWER_SECONDS = 10
TABLES = """
SELECT concat(t.table_schema, '.', t.table_name), EXISTS (
    SELECT 1 FROM information_schema.statistics s
    WHERE s.table_schema = t.table_schema AND s.table_name = t.table_name AND s.index_name = 'PRIMARY')
FROM information_schema.tables t WHERE t.table_type = 'BASE TABLE'"""


class MariaDbCheck:
    """`ports.runtime.Check`. Options: `dsn`, and `tables` with names and globs of the required tables."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._dsn = str(options["dsn"])
        self._wanted = tuple(options.get("tables", ()))

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            with translate_errors("looking at it"), closing(connect(self._dsn, ANSWER_SECONDS)) as connection:
                return list(self._check_server(connection))
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step or START)]

    def _check_server(self, connection: pymysql.Connection[Any]) -> Iterator[Diagnosis]:
        [(version, user)] = fetch_rows(connection, "SELECT version(), current_user()")
        yield Diagnosis("ok", self._name, f"The server {version} answers to {user}.")
        yield self._check_one(connection, refuse_server, "error", "The binlog holds whole rows.")
        yield self._check_one(connection, refuse_unread, "warning", "The binlog is being read.")
        yield self._check_one(connection, refuse_prepared, "warning", "No transaction was prepared before it was committed.")
        tables: dict[str, str] = dict(fetch_rows(connection, TABLES))
        for wanted in self._wanted:
            found = [name for name in tables if fnmatchcase(name, wanted)]
            if not found:
                sentence, step = (
                    f"No table of the server is called {wanted}.",
                    "Correct `match` under `tables`, or GRANT SELECT.",
                )
                yield Diagnosis("warning", self._name, sentence, step)
            for name in (name for name in found if tables[name] == "0"):
                sentence = f"Table {name} has no primary key."
                yield Diagnosis("warning", self._name, sentence, "Add one, or use `policy: append` for it.")

    def _check_one(
        self, connection: pymysql.Connection[Any], refuse: Callable[[pymysql.Connection[Any]], None], level: Any, fine: str
    ) -> Diagnosis:
        try:
            refuse(connection)
        except ReplicatorError as problem:
            return Diagnosis(level, self._name, problem.sentence, problem.next_step)
        return Diagnosis("ok", self._name, fine)
