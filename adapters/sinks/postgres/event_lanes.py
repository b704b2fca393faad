"""Outbox events in the event store of a PostgreSQL database.

The lanes number the events. Programs that emit their own events can write to the same store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.errors import UniqueViolation

from replicator.domain.errors import ConfigProblem, DataLoss, Retryable
from replicator.domain.events import NewEvent
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.domain.position import Position
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import SinkFeatures

from ...apply.lane_progress import advance_position
from ...apply.redelivery import drop_applied, is_applied, refuse_gap
from ...arrow.outbox_events import read_new_events
from ...postgres.errors import translate_error
from ...postgres.event_table import EventTable
from ...postgres.lane_state import parse_state, write_schema_versions
from ...postgres.names import check_table, quote_name
from ...stores import EventStoreSettings
from .event_store import locate_events
from .gold import describe_inputs
from .lanes import PostgresLanes, collect_completes, to_applied
from .writer import PendingStatements, WriteOutcome

POLICIES = frozenset({"append"})
ATTEMPTS = 10


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
        stands = self.state(lane) is not None
        with self.session.transaction("preparing the event store") as cursor:
            cursor.execute("BEGIN")
            if stands and not self._events.read_columns(cursor):
                raise DataLoss(
                    f"table {schema}.{table} does not exist any more, so the rows of lane {lane.id} are lost",
                    next_step=f"Load it again with `replicator lanes resync {lane.id}`.",
                )
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
            texts, _ = self._lock_states(cursor, [write.lane for write in writes], careful=False)
            states = {w.lane.id: parse_state(texts[w.lane.id], w.lane.pipeline, w.lane.id) or LaneState() for w in writes}
            outcomes: list[tuple[Lane, WriteOutcome]] = []
            asked: list[tuple[WriteOutcome, list[NewEvent]]] = []
            for write in writes:
                outcome, events = self._read_new_events(write, states[write.lane.id])
                states[write.lane.id] = outcome.state
                outcomes.append((write.lane, outcome))
                asked.append((outcome, events))
            for lane, outcome in outcomes:
                for rows in outcome.rejects:
                    reject(lane, rows)
            done = iter(self._events.append(cursor, [event for _, events in asked for event in events]))
            for outcome, events in asked:
                new = sum(next(done).is_new for _ in events)
                outcome.counts += Counts(applied=new, duplicate=len(events) - new)
            self._commit(PendingStatements(cursor), outcomes, collect_completes(writes))
        return to_applied(outcomes)

    def _read_new_events(self, write: Write[pa.Table], before: LaneState) -> tuple[WriteOutcome, list[NewEvent]]:
        """The outcome of a write without its events, and the events."""
        refuse_gap(write, before)
        if is_applied(write, before):
            return WriteOutcome(before, Counts(duplicate=write.folded.rows)), []
        rows, trimmed = drop_applied(write.folded.frame, Position() if write.out_of_band else before.position)
        events, rejects = read_new_events(rows, self._limits)
        counts = Counts(duplicate=trimmed, rejected=rejects.num_rows)
        return WriteOutcome(advance_position(before, write), counts, [rejects] if rejects.num_rows else []), events

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:
        """Does nothing: all events stay, also events of other writers."""
