"""Events that programs emit, in a Delta table that delta-rs writes."""

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
from replicator.domain.events import Aggregate, Appended, Event, Head, NewEvent, again, fresh, heads_of, numbered

from . import event_table
from .commits import WRITER
from .durable import sync_commit
from .errors import translated, translating
from .event_table import NAME
from .folders import Folder, LocalFolder
from .options import LakeOptions
from .table_writer import TableWriter
from .tables import exists, opened
from .upkeep import Upkeep

ATTEMPTS = 100
LONGEST_WAIT = 0.1
MOST_HEADS = 100_000


class DeltaEventStore:
    """`ports.event_store.EventStore`; options `path`, the table's own folder, `storage` and `compact_every`. Makes the
    table when it is first written to.

    A commit is refused unless it is the next one after the snapshot in which ids and versions were looked up, so writers of
    any number may race. Heads of aggregates are remembered as long as nobody else commits.
    """

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        said = LakeOptions.checked(options)
        self._path: Folder = said.lake.root
        self._upkeep = Upkeep(said.compact_every, writer)
        self._turn = threading.RLock()
        self._table: DeltaTable | None = None
        self._heads: dict[Aggregate, Head] = {}
        self.looked_up: Callable[[], None] = lambda: None
        """Called between looking up and committing; for tests of races."""

    def append(self, events: Sequence[NewEvent]) -> Sequence[Appended]:
        """See `ports.event_store.EventStore.append`."""
        if not events:
            return []
        with self._turn, translating(NAME):
            for attempt in range(ATTEMPTS):
                try:
                    return self._attempt(events)
                except CommitFailedError:
                    self._forget()
                    events = [again(new) for new in events]
                    time.sleep(random.uniform(0, min(LONGEST_WAIT, 0.002 * 2**attempt)))  # noqa: S311 - only spreads writers
                except (DeltaError, OSError) as error:
                    self._forget()
                    return self._landed(events, error)
        raise Retryable("other writers keep committing to the events")

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """See `ports.event_store.EventStore.read`."""
        with translating(NAME):
            if not exists(self._path):
                return []
            return event_table.read(self._opened(), aggregate_type, aggregate_id, until, limit)

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """See `ports.event_store.EventStore.version`."""
        with translating(NAME):
            if not exists(self._path):
                return 0
            return event_table.heads(self._opened(), {(aggregate_type, aggregate_id)})[aggregate_type, aggregate_id].version

    def close(self) -> None:
        """See `ports.event_store.EventStore.close`; nothing is held."""
        with self._turn:
            self._forget()

    def _attempt(self, events: Sequence[NewEvent]) -> Sequence[Appended]:
        """One commit, of all of them, on one snapshot. CommitFailedError when somebody else committed first."""
        table = self._current()
        before = table.version()
        known = event_table.known(table, events, self._heads)
        done = numbered(events, known, datetime.now(UTC))
        self.looked_up()
        new = fresh(done)
        if new:
            transaction = event_table.next_transaction(table)
            self._write(table, event_table.rows_of(new), transaction)
            self._upkeep.after_commit(table, transaction.version)
        # Beside our commit the snapshot may have others by now.
        alone = table.version() == before + bool(new) and len(known.heads) < MOST_HEADS
        self._heads = {**known.heads, **heads_of(new)} if alone else {}
        self._table = table
        return done

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """Append the rows in one commit, durably, to exactly this snapshot, which is current afterwards; CommitFailedError
        when it is not the newest any more."""
        properties = CommitProperties(max_commit_retries=0, app_transactions=[transaction])
        write_deltalake(table, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
        with translating(NAME):  # Not to be taken for a commit that failed.
            if isinstance(self._path, LocalFolder):
                sync_commit(self._path, table.version())

    def _landed(self, events: Sequence[NewEvent], error: Exception) -> Sequence[Appended]:
        """What became of events after an error that does not tell: that error, unless they are all there."""
        if not exists(self._path):
            raise translated(error, NAME) from error
        stored = event_table.known(self._opened(), [again(new) for new in events], {}).stored
        if any(new.event_id not in stored for new in events):
            raise translated(error, NAME) from error
        return [Appended(stored[new.event_id], is_new=True) for new in events]

    def _current(self) -> DeltaTable:
        """The newest snapshot. Given away: after a failure it is void."""
        table, self._table = self._table, None
        if table is None:
            self._heads = {}
            return event_table.prepared(self._path)
        before = table.version()
        table.update_incremental()
        if table.version() != before:
            self._heads = {}
            event_table.checked(table)
        return table

    def _opened(self) -> DeltaTable:
        return event_table.checked(opened(self._path))

    def _forget(self) -> None:
        self._table, self._heads = None, {}
