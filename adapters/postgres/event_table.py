"""The event table of an event store in PostgreSQL, in the transaction of the appending writer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from replicator.domain.errors import ConfigProblem
from replicator.domain.events import (
    Aggregate,
    AggregateHead,
    AppendedEvent,
    Event,
    NewEvent,
    StoredEvents,
    number_events,
    select_new,
)

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
EVERYTHING = "replicator events: all"
"""The lock of all aggregates. A transaction that locks some aggregates shares it; one with too many takes it
exclusively."""
MOST_LOCKS = 500
"""The maximum of aggregates that a transaction locks one by one: a server has room for a few thousand locks."""
REFUSAL = "events are appended only"


class EventTable:
    """The table `name` in `schema`. Every call is part of the transaction of its cursor.

    Writers of one aggregate wait for each other with transaction locks. The table's unique index refuses
    writers without these locks (`psycopg.errors.UniqueViolation`).
    """

    def __init__(self, schema: str, name: str) -> None:
        self._schema, self._name = schema, name
        self.relation = sql.Identifier(schema, name)

    def append(self, cursor: psycopg.Cursor, events: Sequence[NewEvent]) -> list[AppendedEvent]:
        """The appended events, in order: see `ports.stores.EventStore.append`."""
        aggregates = sorted({new.aggregate for new in events})
        _lock_aggregates(cursor, aggregates)
        query = sql.SQL("SELECT {} FROM {} WHERE event_id = ANY(%s)").format(column_list(), self.relation)
        by_id = {e.event_id: e for e in rows_to_events(cursor.execute(query, ([new.event_id for new in events],)))}
        appended_events = number_events(events, StoredEvents(by_id, self._read_heads(cursor, aggregates)), datetime.now(UTC))
        placeholders = sql.SQL(", ").join(sql.Placeholder() * len(NAMES))
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self.relation, column_list(), placeholders)
        if new := select_new(appended_events):
            cursor.executemany(insert, [_to_row(event) for event in new])
        return appended_events

    def read_head(self, cursor: psycopg.Cursor, aggregate: Aggregate) -> AggregateHead:
        """The head of the aggregate."""
        return self._read_heads(cursor, [aggregate]).get(aggregate, AggregateHead())

    def _read_heads(self, cursor: psycopg.Cursor, aggregates: Sequence[Aggregate]) -> dict[Aggregate, AggregateHead]:
        query = sql.SQL(
            "SELECT a.kind, a.id, h.event_version, h.created_at FROM unnest(%s::text[], %s::text[]) AS a(kind, id) "
            "CROSS JOIN LATERAL (SELECT event_version, created_at FROM {} WHERE aggregate_type = a.kind "
            "AND aggregate_id = a.id ORDER BY event_version DESC LIMIT 1) AS h"
        ).format(self.relation)
        heads = cursor.execute(query, ([kind for kind, _ in aggregates], [of for _, of in aggregates]))
        return {(kind, of): AggregateHead(version, at) for kind, of, version, at in heads.fetchall()}

    def ensure(self, cursor: psycopg.Cursor) -> None:
        """Creates schema and table if they do not exist. A role that may only write never runs a CREATE.

        Raises ConfigProblem for another kind of table.
        """
        columns = self.read_columns(cursor)
        if not columns:
            # Two processes that start together would both create the table.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('replicator events'))")
            columns = self.read_columns(cursor)
        if not columns:
            self._create(cursor)
        elif not set(NAMES) <= columns:
            raise ConfigProblem(
                f"the table {self._schema}.{self._name} does not contain events",
                next_step="Name a schema or a table of their own under `event_store`.",
            )

    def _create(self, cursor: psycopg.Cursor) -> None:
        columns = sql.SQL(", ").join(sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in TYPES.items())
        guard = sql.Identifier(self._schema, f"{self._name}_append_only")
        parts = {"schema": sql.Identifier(self._schema), "table": self.relation, "columns": columns, "guard": guard}
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

    def read_columns(self, cursor: psycopg.Cursor) -> set[str]:
        """The columns of the table; empty when it does not exist. By a query, because the server caches name
        look-ups."""
        query = (
            "SELECT attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
            "JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped"
        )
        return {name for (name,) in cursor.execute(query, (self._schema, self._name)).fetchall()}


def column_list() -> sql.Composed:
    """The columns, in order."""
    return sql.SQL(", ").join(map(sql.Identifier, NAMES))


def _lock_aggregates(cursor: psycopg.Cursor, aggregates: Sequence[Aggregate]) -> None:
    """Locks these aggregates until the transaction ends. All writers use the same order, so that they cannot
    deadlock."""
    if len(aggregates) > MOST_LOCKS:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (EVERYTHING,))
        return
    cursor.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", (EVERYTHING,))
    names = [f"replicator events {kind}\n{of}" for kind, of in aggregates]
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(%s::text[]) AS name", (names,))


def _to_row(event: Event) -> list[Any]:
    return [Jsonb(dict(getattr(event, name))) if name in MAPS else getattr(event, name) for name in NAMES]


def rows_to_events(rows: psycopg.Cursor[Any]) -> list[Event]:
    """Rows of these columns as events."""
    return [Event(**dict(zip(NAMES, row, strict=True))) for row in rows]
