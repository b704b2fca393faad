"""Creates, opens, checks and widens the Delta tables of this project, and encodes the names of their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.change import OLD_KEY, UNCHANGED
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.expr import (
    AllOf,
    AnyOf,
    Call,
    Case,
    Cast,
    Coalesce,
    Col,
    Compare,
    Expr,
    IsNull,
    Lit,
    Not,
    SentValue,
)
from replicator.domain.policy.plan import ApplyPlan, Clause
from replicator.domain.table import Column, describe_rename

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
    columns that delta-rs cannot write exactly, and start with the columns `first`. Names are not
    encoded (see `stored_name`). `remark` is the table's description.
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
    for column in columns:
        if column.name in schema.names and not can_accept(schema.field(column.name).type, column.type):
            raise Fatal(
                f"column {column.name!r} of the existing table {name} has type {schema.field(column.name).type}, which "
                f"cannot take the source's {column.type}",
                next_step="Give the table another name with `into`, or rewrite the column to a type that fits.",
            )
    missing = [c for c in columns if c.name not in schema.names]
    names = {n.casefold(): n for n in schema.names}
    for column in missing:
        if column.name.casefold() in names:
            raise _case_only_error(name, column.name, names[column.name.casefold()])
    return pa.schema([pa.field(c.name, storage_type(c.type)) for c in missing])


def refuse_names(name: str, columns: tuple[Column, ...]) -> None:
    """Raises Fatal for a column name that is empty, contains NUL (where delta-rs would cut it), or differs from
    another only in case."""
    earlier_names: dict[str, str] = {}
    for column in columns:
        if not column.name:
            raise Fatal(f"table {name} has a column without a name", next_step="Name the column at the source.")
        if "\0" in column.name:
            raise Fatal(
                f"column {column.name!r} of table {name} has a NUL character in its name, which Delta Lake cannot keep",
                next_step=describe_rename(column.name),
            )
        folded_name = column.name.casefold()
        if folded_name in earlier_names:
            raise _case_only_error(name, column.name, earlier_names[folded_name])
        earlier_names[folded_name] = column.name


def refuse_unsafe(table: DeltaTable, name: str, columns: tuple[Column, ...]) -> None:
    """Raises Fatal when the settings of an existing table would lose rows or positions.

    That is: it forgets transactions, it has statistics of long decimals, or it requires values in columns that
    we do not fill. Raises ConfigProblem for a table of this program of another kind than `columns`.
    """
    settings, schema = table.metadata().configuration, read_schema(table)
    for kind, marks in OWN_KINDS.items():
        if marks <= set(schema.names) and not marks <= {c.name for c in columns}:
            raise ConfigProblem(
                f"the folder of table {name} is {kind}",
                next_step="Give the table another name with `into`, or move the other one.",
            )
    if FORGETS_TXN in settings:
        raise Fatal(
            f"table {name} has the property {FORGETS_TXN}: it would lose the position of its lane",
            next_step=f"Remove it in Spark: ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS_TXN}'). "
            "Or give the table another name with `into`.",
        )
    covered = columns_with_statistics(table)
    for field in schema:
        if field.name in covered and pa.types.is_decimal(field.type) and not has_exact_statistics(field.type):
            raise Fatal(
                f"column {field.name!r} of the existing table {name} has more than {EXACT_DECIMAL_DIGITS} digits "
                "with statistics, which delta-rs cannot write exactly: readers would miss rows",
                next_step=f"Leave the column out of the table property {STATISTICS}.",
            )
    filled = {c.name for c in stored_columns(columns, schema.names)}
    for field in schema:
        if not field.nullable and field.name not in filled:
            raise Fatal(
                f"column {field.name!r} of table {name} must not be null, and the source has no such column",
                next_step="Make the column nullable, or give the table another name with `into`.",
            )


def columns_with_statistics(table: DeltaTable) -> list[str]:
    """The columns with statistics, by the table's properties."""
    settings = table.metadata().configuration
    if STATISTICS in settings:
        return [part.strip().strip("`") for part in settings[STATISTICS].split(",")]
    names: list[str] = read_schema(table).names
    return names[: int(settings.get("delta.dataSkippingNumIndexedCols", STATISTICS_COLUMNS))]


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


# Column names.
#
# Spark refuses space , ; { } ( ) = tab and newline in the column names of a Delta table without column mapping,
# which delta-rs does not write. Such a character is stored as `_xHHHH_`. An underscore that looks like the start
# of such an escape is escaped, too. If an existing table has a column with the original name, that column is
# used.

_KEPT_APART = re.compile(r"[ ,;{}()\n\t=]|_(?=x[0-9A-F]{4}_)")
_ESCAPE = re.compile(r"_x([0-9A-F]{4})_")

Names = Mapping[str, str]


def stored_name(name: str) -> str:
    """`name` with `_xHHHH_` for every character that Delta readers refuse."""
    return _KEPT_APART.sub(lambda m: f"_x{ord(m[0]):04X}_", name)


def source_name(text: str) -> str:
    """The name that `stored_name` encoded as `text`."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def stored_names(names: Collection[str], existing_names: Collection[str] = ()) -> Names:
    """The names that are stored differently, with their stored names. `existing_names`: the columns of the table."""
    return {n: stored_name(n) for n in names if stored_name(n) != n and n not in existing_names}


def stored_columns(columns: tuple[Column, ...], existing_names: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns under their stored names."""
    names = stored_names([c.name for c in columns], existing_names)
    return tuple(replace(c, name=names.get(c.name, c.name)) for c in columns)


def to_stored_plan(plan: ApplyPlan) -> ApplyPlan:
    """The plan with the stored names of a new table."""
    return stored_plan(plan, stored_names(plan.table.column_names))


def stored_plan(plan: ApplyPlan, names: Names) -> ApplyPlan:
    """The plan with columns renamed by `names`."""

    def new(name: str) -> str:
        return names.get(name, name)

    def columns(of: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(replace(c, name=new(c.name)) for c in of)

    table, reconcile, history = plan.table, plan.reconcile, plan.history
    return replace(
        plan,
        table=replace(table, columns=columns(table.columns), keys=tuple(map(new, table.keys))),
        target=columns(plan.target),
        reconcile=replace(reconcile, identity=tuple(map(new, reconcile.identity))),
        merge_keys=tuple(map(new, plan.merge_keys)),
        clauses=tuple(_rename_clause(c, names) for c in plan.clauses),
        history=history
        and replace(history, tracked=tuple(map(new, history.tracked)), untracked=tuple(map(new, history.untracked))),
    )


def stored_frame(frame: pa.Table, names: Names) -> pa.Table:
    """A folded frame with columns renamed by `names`, also within `_unsent` and the old key."""
    if UNCHANGED in frame.column_names and frame[UNCHANGED].null_count < frame.num_rows:
        lists = [None if row is None else [names.get(n, n) for n in row] for row in frame[UNCHANGED].to_pylist()]
        frame = frame.set_column(frame.column_names.index(UNCHANGED), UNCHANGED, pa.array(lists, pa.list_(pa.string())))
    if OLD_KEY in frame.column_names:
        old_keys = frame[OLD_KEY].combine_chunks()
        fields = [f.with_name(names.get(f.name, f.name)) for f in old_keys.type]
        struct = pa.StructArray.from_arrays(old_keys.flatten(), fields=fields, mask=old_keys.is_null())
        frame = frame.set_column(frame.column_names.index(OLD_KEY), OLD_KEY, struct)
    return frame.rename_columns([names.get(n, n) for n in frame.column_names])


def _rename_clause(clause: Clause, names: Names) -> Clause:
    assign = tuple((names.get(name, name), _rename_expression(value, names)) for name, value in clause.assign)
    return replace(clause, when=_rename_expression(clause.when, names), assign=assign)


def _rename_expression(expr: Expr, names: Names) -> Expr:  # noqa: PLR0911  (a case each)
    match expr:
        case Col(side, name):
            return Col(side, names.get(name, name))
        case Lit():
            return expr
        case SentValue(name):
            return SentValue(names.get(name, name))
        case Compare(op, left, right):
            return Compare(op, _rename_expression(left, names), _rename_expression(right, names))
        case Coalesce(first, other):
            return Coalesce(_rename_expression(first, names), _rename_expression(other, names))
        case IsNull(operand) | Not(operand):
            return type(expr)(_rename_expression(operand, names))
        case AllOf(terms) | AnyOf(terms):
            return type(expr)(tuple(_rename_expression(t, names) for t in terms))
        case Call() | Cast() | Case():
            raise AssertionError(f"no policy has this: {expr}")


# The Delta protocol: tables that this program cannot write are refused.


READER, WRITER = 3, 7
IDENTITY_COLUMNS = 6
"""The writer version that includes identity columns without naming them."""

FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Table features with which delta-rs commits.

For any other feature it reports that another writer committed first, so such tables are refused earlier. This
also applies to Spark, where delta-rs widens, clears and compacts tables.
"""

CLUSTERING = "clustering"
CLUSTERED = frozenset({CLUSTERING, "domainMetadata"})
"""The features of liquid clustering: only Spark can write such tables."""


def is_clustered(table: DeltaTable) -> bool:
    """True when delta-rs cannot commit to the table because of its clustering."""
    return CLUSTERING in (table.protocol().writer_features or ())


def refuse_newer(table: DeltaTable, name: str, features: frozenset[str] = FEATURES) -> None:
    """Raises Fatal, with the reason, when the table's protocol or features (other than `features`) cannot be
    written."""
    protocol = table.protocol()
    unknown = sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - features)
    if unknown and CLUSTERED.issuperset(unknown):
        raise Fatal(
            f"table {name} has liquid clustering, which delta-rs cannot write. Nothing was written",
            next_step="Let `engine: spark` write it (`cluster_by`), or give the lane another table with `into`.",
        )
    if unknown:
        raise unwritable_error(name, f"the table feature{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}")
    if protocol.min_reader_version > READER:
        raise unwritable_error(name, f"reader version {protocol.min_reader_version}")
    if protocol.min_writer_version > WRITER or protocol.min_writer_version == IDENTITY_COLUMNS:
        raise unwritable_error(name, f"writer version {protocol.min_writer_version}")


def unwritable_error(name: str, feature: str) -> Fatal:
    """The error for a table that needs this feature."""
    return Fatal(
        f"table {name} has {feature} of the Delta protocol, which Replicator cannot write. Nothing was written",
        next_step="Update Replicator, or drop the feature from the table. Or give the lane another table with `into`.",
    )


class LatestTable:
    """Caches the newest version of a table that others write, opened with `opens`. Not safe for use from several
    threads."""

    def __init__(self, folder: Folder, opens: Callable[[], DeltaTable] | None = None) -> None:
        self.log = folder / "_delta_log"
        self._opens = opens or partial(open_table, folder)
        self._table: DeltaTable | None = None
        self.seen: tuple[str, object] = ("", None)
        """The last known commit, and a stamp that distinguishes it from a later file with the same name."""

    def newest(self) -> DeltaTable:
        """The table at its newest version.

        The same object is updated, unless the table was replaced or its last known commit was cleaned up. A
        caller that commits with it calls `set_current`; otherwise the table is opened again.
        """
        table, self._table = self._table, None  # If the update fails, the table is opened again next time.
        if table is None or not self._is_unchanged(table):
            table = self._opens()
        elif self.log.has_file(commit_file_name(table.version() + 1)):
            table.update_incremental()
        else:
            self._table = table
            return table
        self.set_current(table)
        return table

    def set_current(self, table: DeltaTable) -> None:
        """Stores the table after a commit, or after it was opened."""
        self._table, self.seen = table, self.commit(table.version())

    def commit(self, version: int) -> tuple[str, object]:
        """The commit of that version, and a stamp that distinguishes it from a later file with the same name."""
        name = commit_file_name(version)
        return name, self.log.stamp(name)

    def _is_unchanged(self, table: DeltaTable) -> bool:
        commit, stamp = self.seen
        return stamp is not None and commit == commit_file_name(table.version()) and self.log.stamp(commit) == stamp

    def release(self) -> None:
        """Opens the table again next time; the caller may keep the current object."""
        self._table = None


def commit_file_name(version: int) -> str:
    """The name of the file of a commit."""
    return f"{version:020}.json"
