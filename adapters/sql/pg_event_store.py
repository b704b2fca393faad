"""Events that programs emit, as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb
from pydantic import Field

from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.events import Appended, Event, Head, Known, NewEvent, fresh, numbered

from .pg_connection import Session
from .pg_errors import translated
from .pg_options import ServerOptions

TYPES = {
    "event_id": "text PRIMARY KEY",
    "event_type": "text NOT NULL",
    "aggregate_id": "text NOT NULL",
    "aggregate_type": "text NOT NULL",
    "event_data": "jsonb NOT NULL",
    "metadata": "jsonb NOT NULL",
    "event_version": "bigint NOT NULL CHECK (event_version > 0)",
    "created_at": "timestamptz NOT NULL",
}
NAMES = tuple(TYPES)
MAPS = ("event_data", "metadata")
ORDER = 'created_at, aggregate_type COLLATE "C", aggregate_id COLLATE "C", event_version'
ATTEMPTS = 10
REFUSAL = "events are appended only"


class EventOptions(ServerOptions):
    """`schema` and `table` of the events."""

    schema_name: str = Field("events", alias="schema", min_length=1, max_length=63)
    table: str = Field("events", min_length=1, max_length=50)


class PostgresEventStore:
    """`ports.event_store.EventStore`; options `dsn`, `schema` and `table`. Makes schema and table when it first writes,
    unless they are there; a trigger of the table refuses updates and deletes.

    Writers of one aggregate wait for each other, by a lock of the transaction; those that do not ask for the lock are
    refused by the table's unique index.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        said = EventOptions.checked(options)
        self._schema, self._name = said.schema_name, said.table
        self._relation = sql.Identifier(said.schema_name, said.table)
        self._session = Session(said.dsn.get_secret_value(), "events")
        self._made = False

    def append(self, events: Sequence[NewEvent]) -> Sequence[Appended]:
        """See `ports.event_store.EventStore.append`; committed, whatever the server's `synchronous_commit` says."""
        for _ in range(ATTEMPTS if events else 0):
            try:
                with self._session.transaction("storing events") as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute("SET LOCAL synchronous_commit = on")
                    self._make(cursor)
                    done = self._append(cursor, events)
                    cursor.execute("COMMIT")
            except UniqueViolation:
                continue  # An id of another aggregate, or a writer of its own: seen by the next look.
            except psycopg.Error as refused:
                raise translated(refused, "storing events") from refused
            self._made = True
            return done
        if events:
            raise Retryable("other writers keep storing events of these ids")
        return []

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """See `ports.event_store.EventStore.read`."""
        query = sql.SQL(
            "SELECT {} FROM {} WHERE aggregate_type = %s AND (%s::text IS NULL OR aggregate_id = %s) "
            "AND (%s::timestamptz IS NULL OR created_at <= %s) ORDER BY " + ORDER + " LIMIT %s"
        ).format(_names(), self._relation)
        values = (aggregate_type, aggregate_id, aggregate_id, until, until, limit)
        with self._session.transaction("reading events") as cursor:
            cursor.execute("BEGIN")
            return _events(cursor.execute(query, values)) if self._columns(cursor) else []

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """See `ports.event_store.EventStore.version`."""
        with self._session.transaction("reading events") as cursor:
            cursor.execute("BEGIN")
            return self._head(cursor, (aggregate_type, aggregate_id)).version if self._columns(cursor) else 0

    def close(self) -> None:
        """See `ports.event_store.EventStore.close`."""
        self._session.close()

    def _append(self, cursor: psycopg.Cursor, events: Sequence[NewEvent]) -> list[Appended]:
        # In one order, so that two writers wait for each other in one direction.
        aggregates = sorted({new.aggregate for new in events})
        for kind, of in aggregates:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"replicator events {kind}\n{of}",))
        query = sql.SQL("SELECT {} FROM {} WHERE event_id = ANY(%s)").format(_names(), self._relation)
        stored = {e.event_id: e for e in _events(cursor.execute(query, ([new.event_id for new in events],)))}
        done = numbered(events, Known(stored, {a: self._head(cursor, a) for a in aggregates}), datetime.now(UTC))
        places = sql.SQL(", ").join(sql.Placeholder() * len(NAMES))
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self._relation, _names(), places)
        if new := fresh(done):
            cursor.executemany(insert, [_row(event) for event in new])
        return done

    def _head(self, cursor: psycopg.Cursor, aggregate: tuple[str, str]) -> Head:
        query = sql.SQL(
            "SELECT event_version, created_at FROM {} WHERE aggregate_type = %s AND aggregate_id = %s "
            "ORDER BY event_version DESC LIMIT 1"
        ).format(self._relation)
        found = cursor.execute(query, aggregate).fetchone()
        return Head(*found) if found else Head()

    def _make(self, cursor: psycopg.Cursor) -> None:
        """Unless it is there: a role that may only write must not be asked to create."""
        if self._made:
            return
        there = self._columns(cursor)
        if not there:
            # Two that begin at once would both find nothing.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('replicator events'))")
            there = self._columns(cursor)
        if not there:
            self._create(cursor)
        elif not set(NAMES) <= there:
            raise ConfigProblem(
                f"the table {self._schema}.{self._name} is not one of events",
                next_step="Name a schema or a table of their own under `event_store`.",
            )

    def _create(self, cursor: psycopg.Cursor) -> None:
        columns = sql.SQL(", ").join(sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in TYPES.items())
        guard = sql.Identifier(self._schema, f"{self._name}_append_only")
        parts = {"schema": sql.Identifier(self._schema), "table": self._relation, "columns": columns, "guard": guard}
        for statement in (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            "CREATE TABLE {table} ({columns}, UNIQUE (aggregate_type, aggregate_id, event_version))",
            "CREATE INDEX ON {table} (aggregate_type, created_at)",
            "CREATE FUNCTION {guard}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = '0A000'; END $$",
            "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION {guard}()",
        ):
            cursor.execute(sql.SQL(statement).format(**parts))

    def _columns(self, cursor: psycopg.Cursor) -> set[str]:
        """Of the table; none when it is not there. By a query, as the server remembers what names stood for before."""
        query = (
            "SELECT attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
            "JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped"
        )
        return {name for (name,) in cursor.execute(query, (self._schema, self._name)).fetchall()}


def _names() -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, NAMES))


def _row(event: Event) -> list[Any]:
    return [Jsonb(dict(getattr(event, name))) if name in MAPS else getattr(event, name) for name in NAMES]


def _events(rows: psycopg.Cursor[Any]) -> list[Event]:
    return [Event(**dict(zip(NAMES, row, strict=True))) for row in rows]
