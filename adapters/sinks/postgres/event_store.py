"""The event store: events that programs emit, as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import UniqueViolation

from replicator.domain.errors import Retryable
from replicator.domain.events import AppendedEvent, Event, NewEvent

from ...postgres.connection import PostgresSession
from ...postgres.default_names import EVENTS_TABLE
from ...postgres.errors import translate_error
from ...postgres.event_table import EventTable, column_list, rows_to_events
from ...postgres.options import TableLocation, read_dsn
from ...stores import EventStoreSettings

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
        self._made = False

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """See `ports.stores.EventStore.append`. The commit is durable with any `synchronous_commit` of the
        server."""
        for _ in range(ATTEMPTS if events else 0):
            try:
                with self._session.transaction("storing events") as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute("SET LOCAL synchronous_commit = on")
                    if not self._made:
                        self._table.ensure(cursor)
                    done = self._table.append(cursor, events)
                    cursor.execute("COMMIT")
            except UniqueViolation:
                continue  # Another writer just stored an event with this id; the next attempt reads it.
            except psycopg.Error as refused:
                raise translate_error(refused, "storing events") from refused
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
