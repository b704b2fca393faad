"""The dead letters as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from replicator.domain.errors import ConfigProblem
from replicator.ports.stores import ALL_DEAD_LETTERS, OPEN, DeadLetter, DeadLetterFeatures, DeadLetterFilter, DeadLetterGroup

from ...postgres import DEAD_LETTERS, OWN_SCHEMA
from ...postgres.connection import PostgresSession
from ...postgres.names import has_relation, read_dsn
from ...stores import DeadLetterSettings

TABLE = DEAD_LETTERS
TYPES = {
    "record": "bytea",
    "key": "bytea",
    "first_seen": "timestamptz NOT NULL",
    "last_seen": "timestamptz NOT NULL",
    "timestamp": "timestamptz",
    "attempts": "bigint NOT NULL",
    "partition": "integer NOT NULL",
    "offset": "bigint NOT NULL",
    "headers": "text",
}
NAMES = tuple(field.name for field in fields(DeadLetter))
IDENTITY = ("pipeline", "event_id", "lane")
MERGED = {"event_id", "lane", "first_seen", "last_seen", "attempts"}


class PostgresDeadLetters:
    """`ports.stores.DeadLetters`; options: see `DeadLetterSettings`, with `dsn`.

    The first write creates the schema and the table if they do not exist.
    """

    def __init__(self, options: DeadLetterSettings | Mapping[str, Any]) -> None:
        settings = DeadLetterSettings.read(options)
        if settings.dsn is None:
            raise DeadLetterSettings.refuse("dsn is missing")
        self._pipeline = settings.pipeline
        self._schema = settings.schema_name or OWN_SCHEMA
        self._relation = sql.Identifier(self._schema, TABLE)
        self._session = PostgresSession(read_dsn(settings.dsn), "dead letters")
        self._is_ready = False

    @property
    def features(self) -> DeadLetterFeatures:
        return DeadLetterFeatures()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """See `ports.stores.DeadLetters.write`. The commit is durable with any `synchronous_commit` of
        the server."""
        if not letters:
            return
        names = sql.SQL(", ").join(map(sql.Identifier, ("pipeline", *NAMES)))
        values = sql.SQL(", ").join(sql.Placeholder() * (len(NAMES) + 1))
        again = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in NAMES if name not in MERGED
        )
        statement = sql.SQL(
            "INSERT INTO {} AS t ({}) VALUES ({}) ON CONFLICT (pipeline, event_id, lane) DO UPDATE SET {}, "
            "last_seen = greatest(t.last_seen, excluded.last_seen), attempts = t.attempts + excluded.attempts"
        ).format(self._relation, names, values, again)
        # All writers use the same order, so that they cannot deadlock.
        rows: list[tuple[Any, ...]] = []
        for letter in sorted(letters, key=lambda letter: (letter.event_id, letter.lane)):
            # The server's text cannot contain a zero byte.
            own = (v.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(v, str) else v for v in astuple(letter))
            rows.append((self._pipeline, *own))
        self._execute("writing dead letters", statement, rows)

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        # The conditions that the server can check. Globs are checked in this process.
        conditions: list[sql.SQL] = [sql.SQL("pipeline = %s")]
        values: list[Any] = [self._pipeline]
        for condition, value in (
            ("event_id = ANY(%s)", sorted(which.events) or None),
            ("last_seen < %s", which.before),
            ("code = %s", which.code),
            ("state = %s", which.state),
        ):
            if value is not None:
                conditions.append(sql.SQL(condition))
                values.append(value)
        query = sql.SQL('SELECT {} FROM {} WHERE {} ORDER BY last_seen DESC, event_id COLLATE "C", lane COLLATE "C"').format(
            sql.SQL(", ").join(map(sql.Identifier, NAMES)), self._relation, sql.SQL(" AND ").join(conditions)
        )
        with self._session.transaction("reading dead letters") as cursor:
            cursor.execute("BEGIN")
            if not self._has_table(cursor):
                return []
            with cursor.connection.cursor("letters", row_factory=class_row(DeadLetter)) as rows:
                rows.execute(query, values)
                return list(islice(filter(which.is_match, rows), limit))

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        query = sql.SQL(
            'SELECT source, "table", lane, count(*) FROM {} WHERE pipeline = %s AND state = %s GROUP BY 1, 2, 3'
        ).format(self._relation)
        with self._session.transaction("counting dead letters") as cursor:
            cursor.execute("BEGIN")
            if not self._has_table(cursor):
                return {}
            rows = cursor.execute(query, (self._pipeline, OPEN)).fetchall()
        return {DeadLetterGroup(source, table, lane): count for source, table, lane, count in rows}

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        statement = sql.SQL("UPDATE {} SET state = %s WHERE " + AS_READ).format(self._relation)
        self._execute("marking dead letters", statement, [(state, *self._letter_key(letter)) for letter in letters])

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        statement = sql.SQL("DELETE FROM {} WHERE " + AS_READ).format(self._relation)
        self._execute("removing dead letters", statement, [self._letter_key(letter) for letter in letters])

    def close(self) -> None:
        self._session.close()

    def _letter_key(self, letter: DeadLetter) -> tuple[Any, ...]:
        return (self._pipeline, letter.event_id, letter.lane, letter.attempts)

    def _execute(self, doing: str, statement: sql.Composed, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        with self._session.transaction(doing) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SET LOCAL synchronous_commit = on")
            if not self._is_ready:
                self._ensure_table(cursor)
            cursor.executemany(statement, rows)
            cursor.execute("COMMIT")
        self._is_ready = True

    def _ensure_table(self, cursor: psycopg.Cursor) -> None:
        """Creates the table if it does not exist. A role that may only write never runs a CREATE."""
        if not self._has_table(cursor):
            # Two processes that start together would both create the table.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('replicator dead letters'))")
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
            columns: list[sql.Composable] = [
                sql.SQL("{} " + TYPES.get(name, "text NOT NULL")).format(sql.Identifier(name)) for name in NAMES
            ]
            columns = [sql.SQL("pipeline text NOT NULL"), *columns, sql.SQL(f"PRIMARY KEY ({', '.join(IDENTITY)})")]
            cursor.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._relation, sql.SQL(", ").join(columns)))
        query = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        names = {name for (name,) in cursor.execute(query, (self._schema, TABLE)).fetchall()}
        if not {"pipeline", *NAMES} <= names:
            raise ConfigProblem(
                f"the table {self._schema}.{TABLE} is not one of dead letters",
                next_step="Name a schema of their own under `dead_letters`.",
            )

    def _has_table(self, cursor: psycopg.Cursor) -> bool:
        return has_relation(cursor, self._relation.as_string(cursor))


AS_READ = "pipeline = %s AND event_id = %s AND lane = %s AND attempts = %s"
