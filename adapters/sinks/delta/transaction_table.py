"""The completeness watermarks of the tables in a lake, for readers, as a Delta table of the lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import Retryable
from replicator.domain.table import Column
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import Lane

from ...delta.errors import translate_errors
from ...delta.lake import Lake
from ...delta.tables import create_table, has_table, open_table

NAME = "of transactions"
SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string()),
        pa.field("source", pa.string()),
        pa.field("transaction", pa.string()),
        pa.field("ended_at", TIMESTAMP),
        pa.field("exact", pa.bool_()),
        pa.field("behind", pa.list_(pa.string())),
        pa.field("versions", pa.map_(pa.string(), pa.int64())),
        pa.field("updated_at", TIMESTAMP),
    ]
)
SHORT = "interval 1 hours"
SETTINGS = {"delta.logRetentionDuration": SHORT, "delta.deletedFileRetentionDuration": SHORT}
"""A row is rewritten up to once per second, so its old values are not kept for long."""
VACUUM_EVERY = 500


@dataclass(frozen=True, slots=True)
class PublishedTransaction:
    """A row.

    `versions`: the version of each table that has everything up to `transaction`. If `exact`, it has nothing of
    later transactions.
    """

    transaction: str | None = None
    ended_at: datetime | None = None
    exact: bool = False
    behind: tuple[str, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()

    def next_row(self, complete: CompletenessWatermark, versions: Mapping[str, int]) -> PublishedTransaction:
        """The next row. Without another transaction, the published one stays valid."""
        again = complete.transaction == self.transaction and (self.exact or not complete.exact)
        if complete.transaction is None or again:
            return replace(self, behind=complete.behind)
        tables = tuple(sorted(versions.items()))
        return PublishedTransaction(complete.transaction, complete.ended_at, complete.exact, complete.behind, tables)


class TransactionTable:
    """The Delta table `_replicator/transactions` of a lake, with one row per source, each in its own partition.

    A row is a `domain.transactions.CompletenessWatermark`. The writer of the table also writes the lanes of the
    source. Not safe for use from several threads.
    """

    def __init__(self, lake: Lake) -> None:
        self._path = lake.transactions
        self._table: DeltaTable | None = None
        self._rows: dict[tuple[str, str], PublishedTransaction] = {}

    def publish(self, pipeline: str, complete: CompletenessWatermark, versions: Mapping[str, int]) -> None:
        """Publishes the watermark of tables that are committed in these `versions`. Writes nothing if the row
        does not change."""
        with translate_errors(NAME):
            stored_row = self._read_row(pipeline, complete.source)
            row = (stored_row or PublishedTransaction()).next_row(complete, versions)
            if row != stored_row:
                self._write_row(pipeline, complete.source, row)

    def withdraw(self, lane: Lane) -> None:
        """Withdraws the watermark of the lane's source, because the lane is about to lack rows."""
        with translate_errors(NAME):
            self._rows.pop((lane.pipeline, lane.source), None)
            stored_row = self._read_row(lane.pipeline, lane.source) if has_table(self._path) else None
            row = PublishedTransaction(behind=tuple(sorted({lane.id, *(stored_row.behind if stored_row else ())})))
            if stored_row and row != stored_row:
                self._write_row(lane.pipeline, lane.source, row)

    def _read_row(self, pipeline: str, source: str) -> PublishedTransaction | None:
        key = (pipeline, source)
        if key not in self._rows and has_table(self._path):
            for row in self._open_table().to_pyarrow_table().to_pylist():
                versions = tuple(sorted(dict(row["versions"] or ()).items()))
                self._rows[row["pipeline"], row["source"]] = PublishedTransaction(
                    row["transaction"], row["ended_at"], row["exact"], tuple(row["behind"]), versions
                )
        return self._rows.get(key)

    def _open_table(self) -> DeltaTable:
        if self._table is None:
            if not has_table(self._path):
                columns = tuple(Column(field.name, field.type) for field in SCHEMA)
                create_table(self._path, "transactions", columns, settings=SETTINGS, partition_by=["pipeline", "source"])
            self._table = open_table(self._path)
        return self._table

    def _write_row(self, pipeline: str, source: str, row: PublishedTransaction) -> None:
        values = {"pipeline": pipeline, "source": source, **asdict(row), "updated_at": datetime.now(UTC)}
        where = f"pipeline = {_quote_text(pipeline)} AND source = {_quote_text(source)}"
        # After an error the content of the table is not known, so nothing is cached until the write succeeds.
        table, self._table = self._open_table(), None
        self._rows.pop((pipeline, source), None)
        try:
            write_deltalake(table, pa.Table.from_pylist([values], SCHEMA), mode="overwrite", predicate=where)
            if table.version() % VACUUM_EVERY == 0:
                table.vacuum(dry_run=False)
        except CommitFailedError as error:
            raise Retryable("another writer changed the table of transactions at the same time") from error
        self._table, self._rows[pipeline, source] = table, row


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
