"""Snapshots from queries of a database."""

from __future__ import annotations

from datetime import UTC, datetime

from replicator.domain.errors import ConfigProblem

from ...postgres.query import SnapshotQuery, table_query
from .options import SnapshotsOptions
from .snapshots import ReadSnapshot, Taken, to_storable

REMEDY = "Correct the query, or the rows in the database"


def snapshot_query(options: SnapshotsOptions) -> SnapshotQuery:
    """The query and its database."""
    if options.dsn is None or options.table is None:
        raise ConfigProblem("Snapshots of a database need 'dsn' and 'table'.")
    text = options.query or table_query(options.table)
    return SnapshotQuery(options.dsn.get_secret_value(), text, f"reading {options.table}")


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
