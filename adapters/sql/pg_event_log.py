"""The event log as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pyarrow as pa

from replicator.ports.frames import Lane
from replicator.ports.sink import SinkCapabilities

from .pg_options import EventLogOptions
from .pg_sink import PostgresLanes
from .pg_state import read_state


class PostgresEventLog(PostgresLanes):
    """`ports.sink.Sink` for lanes whose plan is `domain.event_log.event_log_plan()`; options `dsn`, `schema` and `table`
    (default `cdc_raw.cdc_events`).

    Every lane appends to the one table, rows and position in one transaction. The table may be there already, with `headers`
    as jsonb and with columns of its own.
    """

    capabilities = SinkCapabilities(atomic_across_lanes=True, policies=frozenset({"event_log"}))
    frame = pa.Table

    def __init__(self, options: Mapping[str, object]) -> None:
        given = EventLogOptions.checked(options)
        super().__init__(given.dsn.get_secret_value(), lambda _: (given.schema_name, given.table), "event log")

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:
        """Remove the records of the topics that the lane has applied; other lanes keep theirs."""
        state = read_state(cursor, lane.pipeline, lane.id)
        topics = sorted({p.topic for p in state.position}) if state else []
        cursor.execute(
            f"DELETE FROM {relation} WHERE topic = ANY(%s)".replace("%", "%%").replace("%%s", "%s").encode(), (topics,)
        )
