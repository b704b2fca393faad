"""Creates, opens and widens the Delta tables of this project."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import Column, describe_rename

from .column_names import stored_columns
from .folders import Folder
from .types import EXACT_DECIMAL_DIGITS, can_accept, has_exact_statistics, storage_type

STATISTICS = "delta.dataSkippingStatsColumns"
STATISTICS_COLUMNS = 32
FILE_SIZE = "delta.targetFileSize"
FILE_BYTES = 32 * 1024 * 1024
"""A merge rewrites every file that contains one of its rows, so files are smaller than for append-only tables."""
RANDOM_FOLDERS = "delta.randomizeFilePrefixes"
"""With it, Spark writes no row values into file paths.

delta-rs spells a path with a value outside ASCII differently when it removes Spark's file. The file would stay,
and its rows would be duplicates.
"""
FORGETS_TXN = "delta.setTransactionRetentionDuration"
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
DELETION_VECTORS = "delta.enableDeletionVectors"
ON = "true"
OWN_KINDS = {
    "an event log": {"event_id", "topic", "partition", "offset", "ingested_at"},
    "a dead-letter store": {"event_id", "lane", "stage", "code", "sentence", "key_hash"},
    "a store of events": {"event_id", "aggregate_type", "aggregate_id", "event_version"},
}
"""Tables of this program that are not mirrors, with the columns that identify each kind."""


def has_table(path: Folder) -> bool:
    """True when there is a Delta table at `path`."""
    return path.has_table()


def open_table(path: Folder, version: int | None = None) -> DeltaTable:
    """The table at `path`, at its newest version by default."""
    return DeltaTable(path.uri, version=version, storage_options=path.options)


def read_schema(table: DeltaTable) -> pa.Schema:
    """The table's columns with the Arrow types that delta-rs reads; binary and text without view types."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(f.name, storage_type(f.type), f.nullable) for f in schema])


def create_table(
    path: Folder,
    name: str,
    columns: tuple[Column, ...],
    *,
    settings: dict[str, str],
    partition_by: list[str],
    first: Collection[str] = (),
    remark: str | None = None,
) -> None:
    """Creates the table at `path` as version 0. All columns are nullable, with the stored types of `types`.

    It has no deletion vectors and no type widening, so that every engine can write it. Statistics leave out
    columns that delta-rs cannot write exactly, and start with the columns `first`. Names are not encoded (see
    `column_names`). `remark` is the table's description.
    """
    refuse_names(name, columns)
    schema = pa.schema([pa.field(c.name, storage_type(c.type)) for c in columns])
    DeltaTable.create(
        path.uri,
        schema,
        mode="ignore",
        name=name,
        description=remark,
        partition_by=partition_by or None,
        configuration={
            STATISTICS: statistics_columns(schema, partition_by, first),
            FILE_SIZE: str(FILE_BYTES),
            **settings,
        },
        storage_options=path.options,
    )


def find_missing_columns(table: DeltaTable, name: str, columns: tuple[Column, ...]) -> pa.Schema:
    """The columns of `columns` that `table` lacks, with stored names and types.

    Existing columns keep their types. Raises Fatal when one of them cannot store its values.
    """
    schema = read_schema(table)
    columns = stored_columns(columns, schema.names)
    refuse_names(name, columns)
    _refuse_types(schema, name, columns)
    missing = [c for c in columns if c.name not in schema.names]
    known = {n.casefold(): n for n in schema.names}
    for column in missing:
        if column.name.casefold() in known:
            raise _case_only_error(name, column.name, known[column.name.casefold()])
    return pa.schema([pa.field(c.name, storage_type(c.type)) for c in missing])


def refuse_names(name: str, columns: tuple[Column, ...]) -> None:
    """Raises Fatal for a column name that is empty, contains NUL (where delta-rs would cut it), or differs from
    another only in case."""
    seen: dict[str, str] = {}
    for column in columns:
        if not column.name:
            raise Fatal(f"table {name} has a column without a name", next_step="Name the column at the source.")
        if "\0" in column.name:
            raise Fatal(
                f"column {column.name!r} of table {name} has a NUL character in its name, which Delta Lake cannot keep",
                next_step=describe_rename(column.name),
            )
        folded = column.name.casefold()
        if folded in seen:
            raise _case_only_error(name, column.name, seen[folded])
        seen[folded] = column.name


def refuse_unsafe(table: DeltaTable, name: str, columns: tuple[Column, ...]) -> None:
    """Raises Fatal when the settings of an existing table would lose rows or positions.

    That is: it forgets transactions, it has statistics of long decimals, or it requires values in columns that
    we do not fill.
    """
    settings = table.metadata().configuration
    _refuse_own(read_schema(table), name, columns)
    if FORGETS_TXN in settings:
        raise Fatal(
            f"table {name} has the property {FORGETS_TXN}: it would lose the position of its lane",
            next_step=f"Remove it in Spark: ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS_TXN}'). "
            "Or give the table another name with `into`.",
        )
    schema = read_schema(table)
    _refuse_statistics(table, name)
    filled = {c.name for c in stored_columns(columns, schema.names)}
    for field in schema:
        if not field.nullable and field.name not in filled:
            raise Fatal(
                f"column {field.name!r} of table {name} must not be null, and the source has no such column",
                next_step="Make the column nullable, or give the table another name with `into`.",
            )


def _refuse_own(schema: pa.Schema, name: str, columns: tuple[Column, ...]) -> None:
    """Raises ConfigProblem for a table of this program of another kind than `columns`."""
    for kind, marks in OWN_KINDS.items():
        if marks <= set(schema.names) and not marks <= {c.name for c in columns}:
            raise ConfigProblem(
                f"the folder of table {name} is {kind}",
                next_step="Give the table another name with `into`, or move the other one.",
            )


def _refuse_types(schema: pa.Schema, name: str, columns: tuple[Column, ...]) -> None:
    for column in columns:
        if column.name in schema.names and not can_accept(schema.field(column.name).type, column.type):
            raise Fatal(
                f"column {column.name!r} of the existing table {name} has type {schema.field(column.name).type}, which "
                f"cannot take the source's {column.type}",
                next_step="Give the table another name with `into`, or rewrite the column to a type that fits.",
            )


def columns_with_statistics(table: DeltaTable) -> list[str]:
    """The columns with statistics, by the table's properties."""
    settings = table.metadata().configuration
    if STATISTICS in settings:
        return [part.strip().strip("`") for part in settings[STATISTICS].split(",")]
    names: list[str] = read_schema(table).names
    return names[: int(settings.get("delta.dataSkippingNumIndexedCols", STATISTICS_COLUMNS))]


def _refuse_statistics(table: DeltaTable, name: str) -> None:
    covered = columns_with_statistics(table)
    for field in read_schema(table):
        if field.name in covered and pa.types.is_decimal(field.type) and not has_exact_statistics(field.type):
            raise Fatal(
                f"column {field.name!r} of the existing table {name} has more than {EXACT_DECIMAL_DIGITS} digits "
                "with statistics, which delta-rs cannot write exactly: readers would miss rows",
                next_step=f"Leave the column out of the table property {STATISTICS}.",
            )


def can_have_statistics(field: pa.Field) -> bool:
    """True when readers may safely skip files by the column, and the statistics property can spell its name."""
    return field.name.replace("_", "a").isalnum() and field.name.isascii() and has_exact_statistics(field.type)


def statistics_columns(schema: pa.Schema, partition_by: list[str], first: Collection[str]) -> str:
    """The columns with statistics: `first`, then others up to the limit. Partition columns are left out, as
    files do not contain them."""
    plain = [f.name for f in schema if f.name not in partition_by and can_have_statistics(f)]
    ours = [n for n in plain if n.startswith("_cdc_seq_")]
    theirs = sorted((n for n in plain if n not in ours), key=lambda n: n not in first)
    return ",".join(theirs[: STATISTICS_COLUMNS - len(ours)] + ours)


def _case_only_error(name: str, column: str, other: str) -> Fatal:
    return Fatal(
        f"columns {other!r} and {column!r} of table {name} differ in case only, which Delta Lake cannot keep",
        next_step=describe_rename(column),
    )
