"""Changes to a table besides the rows of a batch, and their implementation by delta-rs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.schema import Field

from replicator.domain.policy.plan import ApplyPlan, DeleteHorizon

from ..sql.dialect import DELTA_RS
from ..sql.reconcile import purged_condition
from .commits import WRITER, Attempt, Operation, append_nothing
from .merge import delete_where, remove_key
from .old_versions import vacuum_files
from .protocol import FEATURES
from .tables import FILE_BYTES

VACUUMED = "replicator-vacuum"
"""A transaction in a table's log. Its version is the time of our last vacuum, in seconds since 1970."""
HOUR = 3600


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A new column of a table, and its current name.

    `emptied`: its values are removed; with `while_null`, only in rows where that column is NULL.
    """

    was: str
    field: pa.Field
    emptied: bool = False
    while_null: str = ""


class TableWriter(Protocol):
    """Changes an existing table. The given snapshot is current afterwards."""

    features: frozenset[str]
    """The table features with which it commits."""

    def add_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        """Adds nullable columns of stored types (`types`)."""

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str]) -> None:
        """Sets properties that every writer supports."""

    def rewrite(self, table: DeltaTable, columns: Sequence[TargetColumn]) -> None:
        """Rewrites every row with these columns, which fit all values, in one commit."""

    def replace_with(
        self, source: DeltaTable, columns: Sequence[TargetColumn], partitions: Sequence[str] | None = None
    ) -> Operation:
        """A `commits.Operation` that replaces a table's columns and rows by these columns of `source` and its
        rows.

        `partitions`: the new partition columns; by default those of `source`.
        """

    def mark_deletes(self, table: DeltaTable) -> bool:
        """Marks deleted rows from now on; False when this writer cannot do that."""

    def cluster(self, table: DeltaTable, columns: Sequence[str]) -> bool:
        """Clusters rows by these columns, which have statistics, from now on; False when this writer cannot do
        that."""

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        """A `commits.Operation` that changes no row."""

    def remove_purged(self, plan: ApplyPlan, gone: DeleteHorizon) -> Operation:
        """A `commits.Operation` that deletes the marked rows whose tombstones are purged."""

    def remove_key(self, row: pa.Table) -> Operation:
        """A `commits.Operation` that deletes the rows with the key in `row`, also from the files."""

    def compact(self, table: DeltaTable) -> None:
        """Rewrites small files as fewer large ones.

        Raises `deltalake.exceptions.CommitFailedError` or `commits.LostRace` when another writer committed
        first.
        """

    def vacuum(self, table: DeltaTable, retain: float | None, *, dry_run: bool = False) -> int | None:
        """Deletes files in the table's folder that the newest version has not needed for `retain` seconds.

        Seconds are rounded up to whole hours; by default the table's properties decide. Returns the number of
        files, None when it is not known. Raises `old_versions.SparkNeeded` when this writer does not know all
        files of the table.
        """


class DeltaRsTableWriter:
    """`TableWriter` by delta-rs."""

    features = FEATURES
    compacted = WRITER
    """The properties of compacted files."""

    def add_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        added = DeltaSchema.from_arrow(columns)
        table.alter.add_columns([Field(f.name, f.type, nullable=True) for f in added.fields])

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str]) -> None:
        table.alter.set_table_properties(dict(properties))

    def rewrite(self, table: DeltaTable, columns: Sequence[TargetColumn]) -> None:
        """Rows are streamed through memory."""
        overwrite_table(table, table, columns)

    def replace_with(
        self, source: DeltaTable, columns: Sequence[TargetColumn], partitions: Sequence[str] | None = None
    ) -> Operation:
        """Rows are streamed through memory."""
        return lambda snapshot, attempt: overwrite_table(snapshot, source, columns, attempt.properties, partitions)

    def mark_deletes(self, _: DeltaTable, /) -> bool:
        """False: delta-rs would add unrelated features."""
        return False

    def cluster(self, _: DeltaTable, __: Sequence[str], /) -> bool:
        """False: delta-rs cannot cluster."""
        return False

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        append_nothing(snapshot, attempt)

    def remove_purged(self, plan: ApplyPlan, gone: DeleteHorizon) -> Operation:
        return delete_where(purged_condition(plan, DELTA_RS, gone))

    def remove_key(self, row: pa.Table) -> Operation:
        return remove_key(row)

    def compact(self, table: DeltaTable) -> None:
        table.optimize.compact(target_size=FILE_BYTES, max_concurrent_tasks=1, writer_properties=self.compacted)

    def vacuum(self, table: DeltaTable, retain: float | None, *, dry_run: bool = False) -> int | None:
        done = CommitProperties(app_transactions=[Transaction(VACUUMED, int(time.time()))])
        return vacuum_files(table, to_hours(retain), done, dry_run=dry_run)


def to_hours(retain: float | None) -> int | None:
    """Seconds as whole hours, rounded up."""
    return None if retain is None else math.ceil(retain / HOUR)


def _column_values(batch: pa.RecordBatch, kept: TargetColumn) -> pa.Array:
    if kept.emptied and not kept.while_null:
        return pa.nulls(len(batch), kept.field.type)
    values = pc.cast(batch[kept.was], kept.field.type)
    return pc.if_else(pc.is_null(batch[kept.while_null]), None, values) if kept.emptied else values


def overwrite_table(
    table: DeltaTable,
    source: DeltaTable,
    columns: Sequence[TargetColumn],
    properties: CommitProperties | None = None,
    partitions: Sequence[str] | None = None,
) -> None:
    """Gives `table` these columns and the rows of `source`, in one commit. Rows are streamed through memory.

    `partitions`: the new partition columns; by default those of `source`.
    """
    schema = pa.schema([kept.field for kept in columns])
    rows = pa.RecordBatchReader.from_stream(source.scan())
    batches = (pa.record_batch([_column_values(batch, kept) for kept in columns], schema=schema) for batch in rows)
    write_deltalake(
        table,
        pa.RecordBatchReader.from_batches(schema, batches),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=(source.metadata().partition_columns if partitions is None else list(partitions)) or None,
        target_file_size=FILE_BYTES,
        writer_properties=WRITER,
        commit_properties=properties,
    )
