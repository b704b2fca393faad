"""Checks a target database: it is reachable and new enough, and its role has the rights of a sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Lane
from replicator.ports.runtime import Diagnosis

from ...postgres import DEAD_LETTERS, OWN_SCHEMA
from ...postgres.connection import check_transport, choose_diagnosis, fetch_rows, run_checks
from ...postgres.names import has_relation, quote_name
from .lanes import refuse_other_writer

SKEW_SECONDS = 5.0
OLDEST = 150_000
RIGHTS = """
SELECT s.name, n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
       has_database_privilege(current_database(), 'CREATE')
FROM unnest(%s::text[]) AS s (name) LEFT JOIN pg_namespace n ON n.nspname = s.name"""
CLOSED_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p')
  AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
ORDER BY 1"""
BETWEEN_ROWS = """
SELECT t.relname, string_agg(c.what, ', ' ORDER BY c.what), bool_or(c.acts) FROM (
  SELECT conrelid AS relation, conname || ' (foreign key to ' || confrelid::regclass
         || CASE WHEN confdeltype <> 'a' OR confupdtype <> 'a' THEN ', with an action' ELSE '' END || ')' AS what,
         confdeltype <> 'a' OR confupdtype <> 'a' AS acts FROM pg_constraint WHERE contype = 'f'
  UNION ALL
  SELECT i.indrelid, x.relname || CASE WHEN i.indisexclusion THEN ' (exclusion)' ELSE ' (unique)' END, false
  FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid WHERE i.indisexclusion OR i.indisunique AND NOT i.indisprimary
) AS c JOIN pg_class t ON t.oid = c.relation JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = %s AND t.relname = ANY(%s) GROUP BY 1 ORDER BY 1"""
SERVER = """
SELECT current_user, current_database(), extract(epoch FROM clock_timestamp())::float8,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'"""


def check_dead_letters(name: str, options: Mapping[str, Any]) -> PostgresCheck:
    """`PostgresCheck` for the table of dead letters."""
    return PostgresCheck(name, {"schema": OWN_SCHEMA, **options, "targets": [DEAD_LETTERS]})


class PostgresCheck:
    """`ports.runtime.Check` for a target database.

    Options: `dsn`, `schema`, `targets` (the tables that lanes write), and `lanes` (the lanes with a table of
    their own).
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._dsn = str(options["dsn"])
        self._schema = str(options.get("schema", "public"))
        self._targets = list(options.get("targets", ()))
        self._lanes: Sequence[Lane] = options.get("lanes", ())

    def diagnose(self) -> Sequence[Diagnosis]:
        return list(run_checks(self._name, self._dsn, self._check_database))

    def _check_database(self, connection: psycopg.Connection) -> Iterator[Diagnosis]:
        began = time.time()
        user, database, clock, read_only = fetch_rows(connection, SERVER)[0]
        version = connection.info.server_version
        yield choose_diagnosis(
            self._name,
            version >= OLDEST,
            f"Database {database} on PostgreSQL {version // 10_000} answers to {user}.",
            f"The server is PostgreSQL {version // 10_000}; 15 or newer is needed, for MERGE.",
            "Upgrade the server.",
        )
        if read_only:
            yield Diagnosis("error", self._name, "The server takes no writes.", "Name the primary in `dsn`.")
        yield from check_transport(connection, self._name)
        skew = clock - (began + time.time()) / 2
        if abs(skew) <= SKEW_SECONDS:
            yield Diagnosis("ok", self._name, "Its clock agrees with this machine's.")
        else:
            ahead = "ahead of" if skew > 0 else "behind"
            sentence = f"Its clock is {abs(skew):.0f} s {ahead} this machine's, so ages and freshness are wrong by as much."
            yield Diagnosis("warning", self._name, sentence, "Have both machines follow a time server.")
        for schema, exists, may_create, may_create_schemas in fetch_rows(connection, RIGHTS, [self._schema, OWN_SCHEMA]):
            right, owner = (may_create, f"SCHEMA {schema}") if exists else (may_create_schemas, f"DATABASE {database}")
            later = "" if exists else ", which it makes at the first start"
            yield choose_diagnosis(
                self._name,
                right,
                f"Role {user} may create tables in schema {schema}{later}.",
                f"Role {user} may not create {'tables in ' if exists else ''}schema {schema}.",
                f"As its owner: GRANT CREATE{', USAGE' if exists else ''} ON {owner} TO {user};",
            )
        yield from self._check_tables(connection, user)

    def _check_tables(self, connection: psycopg.Connection, user: str) -> Iterator[Diagnosis]:
        """Checks the tables that exist: rights, other writers, and constraints that can refuse a row only because other
        rows are not written yet."""
        for (table,) in fetch_rows(connection, CLOSED_TABLES, self._schema, self._targets):
            full = f"{self._schema}.{table}"
            sentence = f"Role {user} may not read and write the existing table {full}."
            step = f"As its owner: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {full} TO {user};"
            yield Diagnosis("error", self._name, sentence, step)
        if has_relation(connection.cursor(), "_replicator.positions"):
            for lane in self._lanes:
                try:
                    refuse_other_writer(connection.cursor(), lane, quote_name(self._schema, lane.into))
                except ConfigProblem as problem:
                    yield Diagnosis("error", self._name, f"{lane.id}: {problem.sentence}.", problem.next_step)
        names = [lane.into for lane in self._lanes]
        for table, constraints, acts in fetch_rows(connection, BETWEEN_ROWS, self._schema, names):
            sentence = f"Table {self._schema}.{table} has constraints between rows, which can hold rows back: {constraints}."
            step = "Drop them unless the target needs them, or make foreign keys and unique constraints DEFERRABLE."
            actions = " Take the actions off the foreign keys: they change rows that no record has changed." if acts else ""
            yield Diagnosis("warning", self._name, sentence, f"{step}{actions} See docs/how-to/write-to-postgresql.md.")
