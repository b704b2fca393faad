"""The event store: events that programs emit, in a Delta table that delta-rs writes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.events import (
    Aggregate,
    AggregateHead,
    AppendedEvent,
    Event,
    EventLimits,
    NewEvent,
    StoredEvents,
    find_heads,
    number_events,
    prepare_retry,
    select_new,
    sort_events,
)
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.domain.table import Column
from replicator.ports.frames import Lane, Write

from ...apply.lane_progress import drop_applied
from ...arrow.outbox_events import read_new_events
from ...delta.commits import WRITER, Attempt, Operation
from ...delta.errors import translate_error, translate_errors
from ...delta.folders import Folder, LocalFolder, sync_commit
from ...delta.options import LakeOptions
from ...delta.table_writer import TableMaintenance, TableWriter
from ...delta.tables import RANDOM_FOLDERS, STATISTICS, create_table, has_table, open_table, read_schema, refuse_unsafe
from ...sql.dialect import text_literal
from ...stores import EventStoreSettings
from .event_log import APPEND_ONLY
from .lane import PreparedCommit
from .lanes import LaneSink, refuse_options, refuse_policy

ATTEMPTS = 100
LONGEST_WAIT = 0.1
MOST_HEADS = 100_000


class DeltaEventStore:
    """`ports.stores.EventStore`; options: see `EventStoreSettings`, with `path`, the table's own folder.

    The first write creates the table. A commit is valid only directly after the snapshot in which ids and
    versions were read, so any number of writers can run. Heads of aggregates are cached as long as no other
    writer commits.
    """

    def __init__(self, options: EventStoreSettings | Mapping[str, Any], writer: TableWriter | None = None) -> None:
        lake_options = LakeOptions.from_settings(EventStoreSettings.read(options))
        self._path: Folder = lake_options.lake.root
        self._upkeep = TableMaintenance(lake_options.compact_every, writer)
        self._turn = threading.RLock()
        self._table: DeltaTable | None = None
        self._heads: dict[Aggregate, AggregateHead] = {}

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        if not events:
            return []
        with self._turn, translate_errors(NAME):
            for attempt in range(ATTEMPTS):
                try:
                    return self._attempt(events)
                except CommitFailedError:
                    self._drop_snapshot()
                    events = [prepare_retry(new) for new in events]
                    time.sleep(random.uniform(0, min(LONGEST_WAIT, 0.002 * 2**attempt)))  # noqa: S311 - only spreads writers
                except (DeltaError, OSError) as error:
                    self._drop_snapshot()
                    # The error leaves the result of the commit open: raise it unless all events are stored.
                    if not has_table(self._path):
                        raise translate_error(error, NAME) from error
                    stored_events = find_known_events(self._open_table(), [prepare_retry(new) for new in events], {}).stored
                    if any(new.event_id not in stored_events for new in events):
                        raise translate_error(error, NAME) from error
                    return [AppendedEvent(stored_events[new.event_id], is_new=True) for new in events]
        raise Retryable("other writers keep committing to the events")

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        with translate_errors(NAME):
            if not has_table(self._path):
                return []
            return read_events(self._open_table(), aggregate_type, aggregate_id, until, limit)

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        with translate_errors(NAME):
            if not has_table(self._path):
                return 0
            return read_heads(self._open_table(), {(aggregate_type, aggregate_id)})[aggregate_type, aggregate_id].version

    def close(self) -> None:
        with self._turn:
            self._drop_snapshot()

    def _attempt(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """One commit of all events on one snapshot. Raises CommitFailedError when another writer committed first."""
        table, self._table = self._table, None  # A failure makes it invalid.
        if table is None:
            self._heads = {}
            table = prepare_table(self._path)
        else:
            last_version = table.version()
            table.update_incremental()
            if table.version() != last_version:
                self._heads = {}
                check_table(table)
        before = table.version()
        stored_events = find_known_events(table, events, self._heads)
        appended_events = number_events(events, stored_events, datetime.now(UTC))
        new = select_new(appended_events)
        if new:
            transaction = next_transaction(table)
            self._write(table, events_to_rows(new), transaction)
            self._upkeep.after_commit(table, transaction.version)
        # The snapshot may already contain commits of others.
        alone = table.version() == before + bool(new) and len(stored_events.heads) < MOST_HEADS
        self._heads = {**stored_events.heads, **find_heads(new)} if alone else {}
        self._table = table
        return appended_events

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """Appends the rows in one durable commit to exactly this snapshot, which is current afterwards.

        Raises CommitFailedError when the snapshot is not the newest one.
        """
        properties = CommitProperties(max_commit_retries=0, app_transactions=[transaction])
        write_deltalake(table, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
        with translate_errors(NAME):  # An error here is not a failed commit.
            sync_table(self._path, table)

    def _open_table(self) -> DeltaTable:
        return check_table(open_table(self._path))

    def _drop_snapshot(self) -> None:
        self._table, self._heads = None, {}


# The Delta table: append-only, partitioned by the type of the aggregate.
#
# A writer commits on exactly the snapshot in which it read versions and ids. If another commit comes first, its
# commit fails, and it reads everything again. Each commit also carries the next transaction of one application.
# It stops writers that would append after another commit (Spark).

NAME = "events"
APP = "replicator/events"
TEXTS = pa.map_(pa.string(), pa.string())
COLUMNS = (
    *(Column(name, pa.string()) for name in ("event_id", "event_type", "aggregate_id", "aggregate_type")),
    Column("event_data", TEXTS),
    Column("metadata", TEXTS),
    Column("event_version", pa.int64()),
    Column("created_at", TIMESTAMP),
)
SCHEMA = pa.schema([(c.name, c.type) for c in COLUMNS])
MAPS = ("event_data", "metadata")
PARTITIONED_BY = ["aggregate_type"]
PROPERTIES = {
    APPEND_ONLY: "true",
    "delta.logRetentionDuration": "interval 365 days",
    RANDOM_FOLDERS: "true",
    STATISTICS: "event_id,aggregate_id,event_version,created_at",
}
MOST_NAMED = 100
"""The maximum of values in a condition. For more, all rows of the partitions are read and compared in this
process."""


def prepare_table(path: Folder) -> DeltaTable:
    """The table at its newest version; creates it if it does not exist. Raises ConfigProblem for another kind
    of table."""
    if not has_table(path):
        try:
            create_table(path, NAME, COLUMNS, settings=PROPERTIES, partition_by=PARTITIONED_BY)
        except DeltaError:
            if not has_table(path):  # Somebody else created it at the same time.
                raise
    return check_table(open_table(path))


def check_table(table: DeltaTable) -> DeltaTable:
    """The table. Raises ConfigProblem when it is not an event table, or is not append-only."""
    types = {f.name: f.type for f in read_schema(table)}
    if any(types.get(c.name) != c.type for c in COLUMNS) or table.metadata().partition_columns != PARTITIONED_BY:
        raise ConfigProblem(
            "the folder of the events holds another table", next_step="Name a folder of their own under `event_store`."
        )
    refuse_unsafe(table, NAME, COLUMNS)
    if table.metadata().configuration.get(APPEND_ONLY) != "true":
        raise ConfigProblem(
            "the table of the events may be rewritten",
            next_step=f"Set its property {APPEND_ONLY} to true, as at its creation.",
        )
    return table


def next_transaction(table: DeltaTable) -> Transaction:
    """The transaction of the commit after this snapshot."""
    return Transaction(APP, (table.transaction_version(APP) or 0) + 1)


def find_known_events(table: DeltaTable, events: Sequence[NewEvent], before: dict[Aggregate, AggregateHead]) -> StoredEvents:
    """The stored events and heads of the snapshot for these events. `before`: heads that are already known."""
    ids = {new.event_id for new in events if not new.has_new_id}
    stored: list[Event] = []
    if ids:
        condition = _in_condition("event_id", ids) if len(ids) <= MOST_NAMED else None
        wanted = pa.array(sorted(ids), pa.string())
        batches = [b.filter(pc.is_in(b["event_id"], wanted)) for b in _scan(table, SCHEMA.names, condition)]
        stored = rows_to_events(batches)
    missing = {new.aggregate for new in events} - before.keys()
    return StoredEvents({e.event_id: e for e in stored}, {**before, **read_heads(table, missing)})


def find_stored_ids(table: DeltaTable, ids: set[str]) -> set[str]:
    """The ids that the snapshot contains. It reads only the id column, from files that may contain one of them."""
    if not ids:
        return set()
    first, last = text_literal(min(ids)), text_literal(max(ids))
    where = _in_condition("event_id", ids) if len(ids) <= MOST_NAMED else f'"event_id" >= {first} AND "event_id" <= {last}'
    wanted = pa.array(sorted(ids), pa.string())
    batches = (b.filter(pc.is_in(b["event_id"], wanted)) for b in _scan(table, ["event_id"], where))
    return {event_id for batch in batches for event_id in batch["event_id"].to_pylist()}


def read_heads(table: DeltaTable, aggregates: set[Aggregate]) -> dict[Aggregate, AggregateHead]:
    """The head of each of these aggregates in the snapshot."""
    if not aggregates:
        return {}
    types, ids = {kind for kind, _ in aggregates}, {of for _, of in aggregates}
    where = _in_condition("aggregate_type", types)
    if len(ids) <= MOST_NAMED:
        where += f" AND {_in_condition('aggregate_id', ids)}"
    wanted = pa.array(sorted(ids), pa.string())
    columns = ["aggregate_type", "aggregate_id", "event_version", "created_at"]
    batches = [b.filter(pc.is_in(b["aggregate_id"], wanted)) for b in _scan(table, columns, where)]
    if not batches:
        return dict.fromkeys(aggregates, AggregateHead())
    last = pa.table(pa.Table.from_batches(batches)).group_by(columns[:2])
    rows = last.aggregate([("event_version", "max"), ("created_at", "max")]).to_pylist()
    heads = {
        (r["aggregate_type"], r["aggregate_id"]): AggregateHead(r["event_version_max"], r["created_at_max"]) for r in rows
    }
    return {aggregate: heads.get(aggregate, AggregateHead()) for aggregate in aggregates}


def read_events(
    table: DeltaTable, aggregate_type: str, aggregate_id: str | None, until: datetime | None, limit: int | None
) -> list[Event]:
    """See `ports.stores.EventStore.read`."""
    where = _in_condition("aggregate_type", {aggregate_type})
    if aggregate_id is not None:
        where += f" AND {_in_condition('aggregate_id', {aggregate_id})}"
    events = sort_events(rows_to_events(_scan(table, SCHEMA.names, where)))
    return [event for event in events if until is None or event.created_at <= until][:limit]


def events_to_rows(events: Iterable[Event]) -> pa.Table:
    """Events as rows of the table."""
    rows = [{name: getattr(event, name) for name in SCHEMA.names} for event in events]
    return pa.Table.from_pylist([row | {name: list(row[name].items()) for name in MAPS} for row in rows], SCHEMA)


def rows_to_events(batches: Iterable[pa.RecordBatch]) -> list[Event]:
    """Rows of the table as events."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return [Event(**row | {name: dict(row[name] or ()) for name in MAPS}) for row in rows]


def _scan(table: DeltaTable, columns: Sequence[str], where: str | None) -> Iterable[pa.RecordBatch]:
    reader = pa.RecordBatchReader.from_stream(table.scan(columns=list(columns), predicate=where))
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return (batch.select(columns).cast(schema) for batch in reader if batch.num_rows)


def _in_condition(column: str, values: set[str]) -> str:
    return f'"{column}" IN ({", ".join(text_literal(value) for value in sorted(values))})'


# Outbox events in the Delta table of the event store.
#
# The lanes number the events. Programs that emit their own events can write to the same store.

POLICIES = frozenset({"append"})


class DeltaEventLanes(LaneSink[pa.Table]):
    """`ports.sink.Sink` for lanes of outbox events over the event store; options of `DeltaEventStore`.

    All lanes, and all programs that emit events, append to one table. A commit has events, their versions and
    the lane's position. It is valid only directly after the snapshot in which ids and heads were read. It also
    carries the event store's transaction, which stops writers that append to a newer snapshot.

    Positions and locks are in the table's folder under `_replicator`. `reset` keeps the events: their ids
    identify them, so reading them again changes nothing.
    """

    policies = POLICIES
    frame = pa.Table

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        settings = EventStoreSettings.read(options)
        lake_options = LakeOptions.from_settings(settings)
        lake = lake_options.lake
        preparer = EventNumbering(lake.root, settings.limits)
        super().__init__(lake, lake_options, preparer, SyncedWriter(lake.root))

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Creates the store if it does not exist. Raises ConfigProblem for another kind of table."""
        refuse_policy(lane, plan, POLICIES)
        refuse_options(lane)
        with translate_errors(NAME):
            delta_lane = self.acquire_lane(lane)
            if not has_table(self._lake.root):
                prepare_table(self._lake.root)
                delta_lane.drop_snapshot()
            check_table(delta_lane.newest())


class EventNumbering:
    """`lane.CommitPreparer`: reads ids and heads in one snapshot, and assigns versions to new events."""

    def __init__(self, root: Folder, limits: EventLimits) -> None:
        self._root = root
        self._limits = limits
        self._heads: dict[Aggregate, AggregateHead] = {}
        self._seen: int | None = None

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> PreparedCommit:
        """Appends every event above the position whose id is not stored yet, as the next version of its aggregate."""
        frame, trimmed = drop_applied(write.folded.frame, write, state.position)
        events, rejects = read_new_events(frame, self._limits)
        stored_ids = find_stored_ids(snapshot, {one.event_id for one in events})
        missing = [one for one in events if one.event_id not in stored_ids]
        if self._seen != snapshot.version() or len(self._heads) > MOST_HEADS:
            self._heads = {}  # The heads are cached as long as no other writer commits.
        unknown = {one.aggregate for one in missing} - self._heads.keys()
        stored_events = StoredEvents(heads={**self._heads, **read_heads(snapshot, unknown)})
        new = select_new(number_events(missing, stored_events, datetime.now(UTC)))
        duplicates = trimmed + len(events) - len(new)
        counts = Counts(applied=len(new), duplicate=duplicates, rejected=rejects.num_rows)
        return PreparedCommit(self._append_operation(new) if new else None, state, counts, rejects)

    def clear(self, _: Lane, __: object, /) -> Operation | None:
        """See `sinks.delta.lane.CommitPreparer.clear`. All events stay, also events of other writers."""
        return None

    def _append_operation(self, events: Sequence[Event]) -> Operation:
        def append(snapshot: DeltaTable, attempt: Attempt) -> None:
            before, rows = snapshot.version(), events_to_rows(events)
            properties = attempt.with_transactions([next_transaction(snapshot)])
            write_deltalake(snapshot, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
            sync_table(self._root, snapshot)
            # The snapshot may already contain commits of others.
            alone = snapshot.version() == before + 1
            heads = self._heads if self._seen == before else {}
            self._heads, self._seen = ({**heads, **find_heads(events)}, before + 1) if alone else ({}, None)

        return append


class SyncedWriter(TableWriter):
    """Makes each commit durable before the next one. An emitted event must stay, and so must every commit
    before it."""

    def __init__(self, root: Folder) -> None:
        self._root = root

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        super().commit_nothing(snapshot, attempt)
        sync_table(self._root, snapshot)

    def compact(self, table: DeltaTable) -> None:
        before = table.version()
        super().compact(table)
        if table.version() != before:
            sync_table(self._root, table)


def sync_table(root: Folder, table: DeltaTable) -> None:
    """Returns when the commit of `table` is on the disk. An object store does this by itself."""
    if isinstance(root, LocalFolder):
        sync_commit(root, table.version())
