"""The event store: events that programs emit, in a Delta table that delta-rs writes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from replicator.domain.errors import Retryable
from replicator.domain.events import (
    Aggregate,
    AggregateHead,
    AppendedEvent,
    Event,
    NewEvent,
    find_heads,
    number_events,
    prepare_retry,
    select_new,
)

from ...delta.commits import WRITER
from ...delta.errors import translate_error, translate_errors
from ...delta.folders import Folder, LocalFolder, sync_commit
from ...delta.maintenance import TableMaintenance
from ...delta.options import LakeOptions
from ...delta.table_writer import TableWriter
from ...delta.tables import has_table, open_table
from . import event_table
from .event_table import NAME

ATTEMPTS = 100
LONGEST_WAIT = 0.1
MOST_HEADS = 100_000


class DeltaEventStore:
    """`ports.event_store.EventStore`; options `path` (the table's own folder), `storage` and `compact_every`.

    The first write creates the table. A commit is valid only directly after the snapshot in which ids and
    versions were read, so any number of writers can run. Heads of aggregates are cached as long as no other
    writer commits.
    """

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        said = LakeOptions.from_options(options)
        self._path: Folder = said.lake.root
        self._upkeep = TableMaintenance(said.compact_every, writer)
        self._turn = threading.RLock()
        self._table: DeltaTable | None = None
        self._heads: dict[Aggregate, AggregateHead] = {}
        self.looked_up: Callable[[], None] = lambda: None
        """Called between reading and committing; for tests of races."""

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
                    return self._check_landed(events, error)
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
            return event_table.read_events(self._open_table(), aggregate_type, aggregate_id, until, limit)

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        with translate_errors(NAME):
            if not has_table(self._path):
                return 0
            return event_table.read_heads(self._open_table(), {(aggregate_type, aggregate_id)})[
                aggregate_type, aggregate_id
            ].version

    def close(self) -> None:
        with self._turn:
            self._drop_snapshot()

    def _attempt(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """One commit of all events on one snapshot. Raises CommitFailedError when another writer committed first."""
        table = self._take_snapshot()
        before = table.version()
        known = event_table.find_known_events(table, events, self._heads)
        done = number_events(events, known, datetime.now(UTC))
        self.looked_up()
        new = select_new(done)
        if new:
            transaction = event_table.next_transaction(table)
            self._write(table, event_table.events_to_rows(new), transaction)
            self._upkeep.after_commit(table, transaction.version)
        # The snapshot may already contain commits of others.
        alone = table.version() == before + bool(new) and len(known.heads) < MOST_HEADS
        self._heads = {**known.heads, **find_heads(new)} if alone else {}
        self._table = table
        return done

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """Appends the rows in one durable commit to exactly this snapshot, which is current afterwards.

        Raises CommitFailedError when the snapshot is not the newest one.
        """
        properties = CommitProperties(max_commit_retries=0, app_transactions=[transaction])
        write_deltalake(table, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
        with translate_errors(NAME):  # An error here is not a failed commit.
            if isinstance(self._path, LocalFolder):
                sync_commit(self._path, table.version())

    def _check_landed(self, events: Sequence[NewEvent], error: Exception) -> Sequence[AppendedEvent]:
        """The stored events after an error that leaves the result of the commit open. Raises that error unless
        all are stored."""
        if not has_table(self._path):
            raise translate_error(error, NAME) from error
        stored = event_table.find_known_events(self._open_table(), [prepare_retry(new) for new in events], {}).stored
        if any(new.event_id not in stored for new in events):
            raise translate_error(error, NAME) from error
        return [AppendedEvent(stored[new.event_id], is_new=True) for new in events]

    def _take_snapshot(self) -> DeltaTable:
        """The newest snapshot. It is removed here, because a failure makes it invalid."""
        table, self._table = self._table, None
        if table is None:
            self._heads = {}
            return event_table.prepare_table(self._path)
        before = table.version()
        table.update_incremental()
        if table.version() != before:
            self._heads = {}
            event_table.check_table(table)
        return table

    def _open_table(self) -> DeltaTable:
        return event_table.check_table(open_table(self._path))

    def _drop_snapshot(self) -> None:
        self._table, self._heads = None, {}
