"""The snapshots source: writes changes to its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.ports.frames import Stop
from replicator.ports.options import to_timedelta

from ...postgres.options import read_dsn
from ...postgres.query import SnapshotQuery, table_query
from ..journal.access import find_journal, make_rows_options
from ..journal.journal import StateFolder
from ..journal.source import FIRST_WITHIN, JournalRows, PacedPoller
from ..scan import open_scan
from .file_formats import find_snapshot_format
from .file_snapshots import SnapshotFolder
from .journal import SnapshotJournal
from .options import EVERY, SnapshotsSettings
from .snapshots import ReadSnapshot, Taken, to_storable


class SnapshotsSource(JournalRows):
    """A `Source` of snapshots in a folder, or of a query (see the package). Options of `SnapshotsSettings`, and those of the
    engine. Raises ConfigProblem if no key is configured."""

    def __init__(self, options: SnapshotsSettings | Mapping[str, Any]) -> None:
        own, scan = open_scan(options)
        read = SnapshotsSettings.read(own)
        if not read.keys:
            raise ConfigProblem(
                f"The key of {read.name} is unknown. It is needed to compare its snapshots.",
                next_step=f"Write a table with `match: {read.name}` and `keys`.",
            )
        self._intake = FolderPoller(read) if read.dsn is None else QuerySnapshotPoller(read)
        super().__init__(make_rows_options(read), str(find_journal(read)), scan)


class FolderPoller:
    """`JournalPoller` of files in a folder."""

    def __init__(self, options: SnapshotsSettings) -> None:
        self._path = options.path or ""
        self._folder = SnapshotFolder(
            self._path, StateFolder(Path(options.state), options.name).restart_step, find_snapshot_format(options)
        )
        self._journal = SnapshotJournal(options, self._folder)

    def begin(self) -> None:
        """Raises Retryable while the first snapshot may still be written, EnvironmentProblem if there is none."""
        if not self._journal.has_rows and not self._journal.take_next() and not self._journal.has_rows:
            if self._folder.seconds_until_stable({}) > 0:
                raise Retryable(f"The snapshot in {self._path} is still being written.")
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._path} yet.",
                next_step="Start again when there is one: a file, or a folder of them with _SUCCESS in it.",
            )
        self._journal.check_rules()

    def poll(self) -> None:
        self._journal.take_next()

    def catch_up(self, stop: Stop) -> None:
        """See `JournalPoller.catch_up`: includes recently written snapshots, when they are complete."""
        while (left := self._folder.seconds_until_stable(self._journal.known_versions())) > 0:
            if stop.wait(min(left, 1.0)):
                return
        while not stop.is_set() and self._journal.take_next():
            pass

    def waited_for(self) -> None:
        """See `JournalPoller`: waiting for files happens in the stream."""

    def close(self) -> None:
        """See `JournalPoller`."""


class QuerySnapshotPoller(PacedPoller):
    """`JournalPoller` of query results, each of which is a snapshot."""

    def __init__(self, options: SnapshotsSettings) -> None:
        self._name = options.name
        self._query = snapshot_query(options)
        self._journal = SnapshotJournal(options, QuerySnapshots(self._query, options.name))
        super().__init__(self._journal.take_next, to_timedelta(options.every or EVERY).total_seconds())

    def begin(self) -> None:
        """Raises Retryable while the first snapshot is being read, by this process or another one."""
        if not self._journal.has_rows:
            self._wait(FIRST_WITHIN)
        if not self._journal.has_rows:
            raise Retryable(
                f"The first snapshot of {self._name} is being read.",
                next_step="The program waits for it. If another command printed this, start `replicator run` first.",
            )
        self._journal.check_rules()

    def close(self) -> None:
        """See `JournalPoller`: ends all reads."""
        self._query.cancel()


REMEDY = "Correct the query, or the rows in the database"


def snapshot_query(options: SnapshotsSettings) -> SnapshotQuery:
    """The query and its database."""
    if options.dsn is None or options.table is None:
        raise ConfigProblem("Snapshots of a database need 'dsn' and 'table'.")
    text = options.query or table_query(options.table)
    return SnapshotQuery(read_dsn(options.dsn), text, f"reading {options.table}")


class QuerySnapshots:
    """`SnapshotProvider` of a query. Versions are the times of reading by the server's clock, in microseconds since 1970,
    or one above the previous version if that clock is behind."""

    is_numbered_here = True

    def __init__(self, query: SnapshotQuery, table: str) -> None:
        self._query, self._table = query, table

    def has_news(self, known: Taken) -> bool:
        """See `SnapshotProvider.has_news`: unknown before the query runs."""
        del known
        return True

    def read_next(self, taken: Taken) -> ReadSnapshot:
        """Raises the errors of `SnapshotQuery.read_rows`."""
        moment, rows = self._query.read_rows()
        read_at = datetime.fromtimestamp(moment // 1_000_000, UTC).isoformat()
        version = max(moment, max(taken, default=-1) + 1)
        return ReadSnapshot(f"{self._table} as read at {read_at}", version, to_storable(rows), remedy=REMEDY)
