"""The event store: events that programs emit, as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from replicator.domain.errors import ConfigProblem, Retryable
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
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import SinkFeatures

from ...apply.lane_progress import advance_position, drop_applied, is_applied, refuse_gap
from ...arrow.outbox_events import read_new_events
from ...postgres import EVENTS_TABLE
from ...postgres.connection import PostgresSession
from ...postgres.errors import translate_error
from ...postgres.lane_state import parse_state, write_schema_versions
from ...postgres.names import TableLocation, check_table, quote_name, read_dsn
from ...stores import EventStoreSettings
from .gold import EVENT_MAPS, describe_inputs
from .lanes import PostgresLanes, collect_completes, missing_table_error, to_applied
from .writer import PendingStatements, WriteOutcome

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
EVERYTHING = "replicator events: all"
"""The lock of all aggregates. A transaction that locks some aggregates shares it; one with too many takes it
exclusively."""
MOST_LOCKS = 500
"""The maximum of aggregates that a transaction locks one by one: a server has room for a few thousand locks."""
REFUSAL = "events are appended only"


class EventTable:
    """The event table `name` in `schema`. Every call is part of the transaction of its cursor.

    Writers of one aggregate wait for each other with transaction locks. The table's unique index refuses
    writers without these locks (`psycopg.errors.UniqueViolation`).
    """

    def __init__(self, schema: str, name: str) -> None:
        self._schema, self._name = schema, name
        self.relation = sql.Identifier(schema, name)

    def append(self, cursor: psycopg.Cursor, events: Sequence[NewEvent]) -> list[AppendedEvent]:
        """The appended events, in order: see `ports.stores.EventStore.append`."""
        aggregates = sorted({new.aggregate for new in events})
        # The locks last until the transaction ends. All writers use the same order, so that they cannot deadlock.
        if len(aggregates) > MOST_LOCKS:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (EVERYTHING,))
        else:
            lock = "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(%s::text[]) AS name"
            cursor.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", (EVERYTHING,))
            cursor.execute(lock, ([f"replicator events {kind}\n{of}" for kind, of in aggregates],))
        query = sql.SQL("SELECT {} FROM {} WHERE event_id = ANY(%s)").format(column_list(), self.relation)
        by_id = {e.event_id: e for e in rows_to_events(cursor.execute(query, ([new.event_id for new in events],)))}
        appended_events = number_events(events, StoredEvents(by_id, self._read_heads(cursor, aggregates)), datetime.now(UTC))
        placeholders = sql.SQL(", ").join(sql.Placeholder() * len(NAMES))
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self.relation, column_list(), placeholders)
        rows = [
            [Jsonb(dict(getattr(event, name))) if name in EVENT_MAPS else getattr(event, name) for name in NAMES]
            for event in select_new(appended_events)
        ]
        if rows:
            cursor.executemany(insert, rows)
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
        if columns and not set(NAMES) <= columns:
            raise ConfigProblem(
                f"the table {self._schema}.{self._name} does not contain events",
                next_step="Name a schema or a table of their own under `event_store`.",
            )
        if columns:
            return
        definitions = sql.SQL(", ").join(sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in TYPES.items())
        guard = sql.Identifier(self._schema, f"{self._name}_append_only")
        parts = {"schema": sql.Identifier(self._schema), "table": self.relation, "columns": definitions, "guard": guard}
        for statement in (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            "CREATE TABLE {table} ({columns}, UNIQUE (aggregate_type, aggregate_id, event_version))",
            "CREATE INDEX ON {table} (aggregate_type, created_at)",
            "CREATE OR REPLACE FUNCTION {guard}() RETURNS trigger LANGUAGE plpgsql AS "
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


def rows_to_events(rows: psycopg.Cursor[Any]) -> list[Event]:
    """Rows of these columns as events."""
    return [Event(**dict(zip(NAMES, row, strict=True))) for row in rows]


ORDER = 'created_at, aggregate_type COLLATE "C", aggregate_id COLLATE "C", event_version'
ATTEMPTS = 10


class PostgresEventStore:
    """`ports.stores.EventStore`; options: see `EventStoreSettings`, with `dsn`.

    The first write creates the schema and the table if they do not exist. A trigger of the table refuses
    updates and deletes. Writers of one aggregate wait for each other: see `EventTable`.
    """

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        place = locate_events(EventStoreSettings.read(options))
        self._table = EventTable(place.schema, place.table)
        self._session = PostgresSession(place.dsn, "events")
        self._is_ready = False

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """See `ports.stores.EventStore.append`. The commit is durable with any `synchronous_commit` of the
        server."""
        for _ in range(ATTEMPTS if events else 0):
            try:
                with self._session.transaction("storing events") as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute("SET LOCAL synchronous_commit = on")
                    if not self._is_ready:
                        self._table.ensure(cursor)
                    appended_events = self._table.append(cursor, events)
                    cursor.execute("COMMIT")
            except UniqueViolation:
                continue  # Another writer just stored an event with this id; the next attempt reads it.
            except psycopg.Error as error:
                raise translate_error(error, "storing events") from error
            self._is_ready = True
            return appended_events
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
        query = sql.SQL(
            "SELECT {} FROM {} WHERE aggregate_type = %s AND (%s::text IS NULL OR aggregate_id = %s) "
            "AND (%s::timestamptz IS NULL OR created_at <= %s) ORDER BY " + ORDER + " LIMIT %s"
        ).format(column_list(), self._table.relation)
        values = (aggregate_type, aggregate_id, aggregate_id, until, until, limit)
        with self._session.transaction("reading events") as cursor:
            cursor.execute("BEGIN")
            return rows_to_events(cursor.execute(query, values)) if self._table.read_columns(cursor) else []

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        with self._session.transaction("reading events") as cursor:
            cursor.execute("BEGIN")
            return (
                self._table.read_head(cursor, (aggregate_type, aggregate_id)).version
                if self._table.read_columns(cursor)
                else 0
            )

    def close(self) -> None:
        self._session.close()


def locate_events(options: EventStoreSettings) -> TableLocation:
    """The table of the store."""
    if options.dsn is None:
        raise options.refuse("dsn is missing")
    schema, table = options.schema_name or EVENTS_TABLE[0], options.table or EVENTS_TABLE[1]
    return TableLocation(read_dsn(options.dsn), schema, table, events=True)


# Outbox events in the event store of a PostgreSQL database.
#
# The lanes number the events. Programs that emit their own events can write to the same store.

POLICIES = frozenset({"append"})


class PostgresEventLanes(PostgresLanes):
    """`ports.sink.Sink` for lanes of outbox events over the table of the event store; options of `PostgresEventStore`.

    One transaction writes the events of all writes of a call, their versions, and the positions of the lanes.
    It locks the store's aggregates before it reads ids and versions, as every emitter of events does. `reset`
    keeps the events: their ids identify them, so reading them again changes nothing.
    """

    policies = POLICIES
    frame = pa.Table
    has_record_positions = False

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        settings = EventStoreSettings.read(options)
        self._limits = settings.limits
        self._place = place = locate_events(settings)
        self._events = EventTable(place.schema, place.table)
        super().__init__(place.dsn, lambda _: (place.schema, place.table), "event store")

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, projection_inputs=describe_inputs(self._place))

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Creates the store if it does not exist.

        Raises ConfigProblem for another kind of table, and DataLoss if the lane has a position but the table is
        gone.
        """
        if plan.policy not in POLICIES:
            raise ConfigProblem(
                f"the event store does not support policy {plan.policy!r} of lane {lane.id}",
                next_step=f"Use policy append ({lane.config_line}).",
            )
        schema, table = self._find_table(lane)
        check_table(schema, "schema")
        check_table(table)
        self._ensure_own_tables()
        self._lanes.acquire(lane, quote_name(schema, table))
        has_state = self.state(lane) is not None
        with self.session.transaction("preparing the event store") as cursor:
            cursor.execute("BEGIN")
            if has_state and not self._events.read_columns(cursor):
                raise missing_table_error(lane, f"{schema}.{table}")
            self._events.ensure(cursor)
            write_schema_versions(cursor, lane, plan.versions)
            cursor.execute("COMMIT")

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        self._ensure_transactions(writes)
        for _ in range(ATTEMPTS if writes else 0):
            try:
                return self._store_events(writes, reject)
            except UniqueViolation:
                continue  # Another writer just stored an event with this id; the next attempt reads it.
            except psycopg.Error as error:
                raise translate_error(error, "storing events of an outbox") from error
        if writes:
            raise Retryable("other writers keep storing events of these ids")
        return {}

    def _store_events(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        with self.session.transaction("storing events of an outbox") as cursor:
            self._lanes.reacquire(write.lane for write in writes)
            texts, _ = self._lock_states(cursor, [write.lane for write in writes], isolate=False)
            states = {w.lane.id: parse_state(texts[w.lane.id], w.lane.pipeline, w.lane.id) or LaneState() for w in writes}
            outcomes: list[tuple[Lane, WriteOutcome]] = []
            new_events: list[tuple[WriteOutcome, list[NewEvent]]] = []
            for write in writes:
                before = states[write.lane.id]
                refuse_gap(write, before)
                outcome, events = WriteOutcome(before, Counts(duplicate=write.folded.rows)), list[NewEvent]()
                if not is_applied(write, before):
                    rows, trimmed = drop_applied(write.folded.frame, write, before.position)
                    events, bad = read_new_events(rows, self._limits)
                    counts = Counts(duplicate=trimmed, rejected=bad.num_rows)
                    outcome = WriteOutcome(advance_position(before, write), counts, [bad] if bad.num_rows else [])
                states[write.lane.id] = outcome.state
                outcomes.append((write.lane, outcome))
                new_events.append((outcome, events))
            for lane, outcome in outcomes:
                for rows in outcome.rejects:
                    reject(lane, rows)
            appended_events = iter(self._events.append(cursor, [event for _, events in new_events for event in events]))
            for outcome, events in new_events:
                new = sum(next(appended_events).is_new for _ in events)
                outcome.counts += Counts(applied=new, duplicate=len(events) - new)
            self._commit(PendingStatements(cursor), outcomes, collect_completes(writes))
        return to_applied(outcomes)

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:
        """Does nothing: all events stay, also events of other writers."""
