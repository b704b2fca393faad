"""Changes to a table besides the rows of a batch: columns and properties, compaction, and the removal of old versions."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field

from replicator.domain.errors import Fatal, Retryable
from replicator.domain.policy.plan import ApplyPlan, DeleteHorizon
from replicator.ports.sink import CompactionResult, VacuumResult

from ..apply.column_versions import rename_columns
from ..arrow.decimals import cast_digits
from ..sql.dialect import DELTA_RS
from ..sql.reconcile import purged_condition
from .commits import WRITER, Attempt, LostRace, Operation, append_nothing
from .errors import FileGone, first_line, is_gone, translate_errors
from .folders import Folder
from .merge import delete_where, remove_key
from .tables import CLUSTERING, FEATURES, FILE_BYTES, RANDOM_FOLDERS, has_table, open_table, refuse_newer

VACUUMED = "replicator-vacuum"
"""A transaction in a table's log. Its version is the time of our last vacuum, in seconds since 1970."""
HOUR = 3600


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A new column of a table, and its current name.

    - `emptied`: its values are removed; with `while_null`, only in rows where that column is NULL.
    - `renamed`: the new names of columns that its values name; None for a removed column.
    """

    old_name: str
    field: pa.Field
    emptied: bool = False
    while_null: str = ""
    renamed: Mapping[str, str | None] = field(default_factory=dict)


class TableWriter:
    """Changes an existing table, by delta-rs. The given snapshot is current afterwards."""

    features: frozenset[str] = FEATURES
    """The table features with which it commits."""
    compacted = WRITER
    """The properties of compacted files."""

    def add_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        """Adds nullable columns of stored types (`types`)."""
        delta_schema = DeltaSchema.from_arrow(columns)
        table.alter.add_columns([Field(f.name, f.type, nullable=True) for f in delta_schema.fields])

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str]) -> None:
        """Sets properties that every writer supports."""
        table.alter.set_table_properties(dict(properties))

    def rewrite(self, table: DeltaTable, columns: Sequence[TargetColumn]) -> None:
        """Rewrites every row with these columns, which fit all values, in one commit. Rows are streamed through memory."""
        overwrite_table(table, table, columns)

    def replace_with(
        self, source: DeltaTable, columns: Sequence[TargetColumn], partitions: Sequence[str] | None = None
    ) -> Operation:
        """A `commits.Operation` that replaces a table's columns and rows by these columns of `source` and its
        rows, which are streamed through memory.

        `partitions`: the new partition columns; by default those of `source`.
        """
        return lambda snapshot, attempt: overwrite_table(snapshot, source, columns, attempt.properties, partitions)

    def mark_deletes(self, _: DeltaTable, /) -> bool:
        """Marks deleted rows from now on; False when this writer cannot do that. delta-rs would add unrelated features."""
        return False

    def cluster(self, _: DeltaTable, __: Sequence[str], /) -> bool:
        """Clusters rows by these columns, which have statistics, from now on; False when this writer cannot do
        that."""
        return False

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        """A `commits.Operation` that changes no row."""
        append_nothing(snapshot, attempt)

    def remove_purged(self, plan: ApplyPlan, horizon: DeleteHorizon) -> Operation:
        """A `commits.Operation` that deletes the marked rows whose tombstones are purged."""
        return delete_where(purged_condition(plan, DELTA_RS, horizon))

    def remove_key(self, row: pa.Table) -> Operation:
        """A `commits.Operation` that deletes the rows with the key in `row`, also from the files."""
        return remove_key(row)

    def compact(self, table: DeltaTable) -> None:
        """Rewrites small files as fewer large ones.

        Raises `deltalake.exceptions.CommitFailedError` or `commits.LostRace` when another writer committed
        first.
        """
        table.optimize.compact(target_size=FILE_BYTES, max_concurrent_tasks=1, writer_properties=self.compacted)

    def vacuum(self, table: DeltaTable, retain: float | None, *, dry_run: bool = False) -> int | None:
        """Deletes files in the table's folder that the newest version has not needed for `retain` seconds.

        Seconds are rounded up to whole hours; by default the table's properties decide. Returns the number of
        files, None when it is not known. Raises `SparkNeeded` when this writer does not know all
        files of the table.
        """
        properties = CommitProperties(app_transactions=[Transaction(VACUUMED, int(time.time()))])
        return vacuum_files(table, to_hours(retain), properties, dry_run=dry_run)


def to_hours(retain: float | None) -> int | None:
    """Seconds as whole hours, rounded up."""
    return None if retain is None else math.ceil(retain / HOUR)


def _column_values(batch: pa.RecordBatch, column: TargetColumn) -> pa.Array:
    if column.emptied and not column.while_null:
        return pa.nulls(len(batch), column.field.type)
    values = cast_digits(batch[column.old_name], column.field.type)
    values = rename_columns(values, column.renamed) if column.renamed else values
    return pc.if_else(pc.is_null(batch[column.while_null]), None, values) if column.emptied else values


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
    schema = pa.schema([column.field for column in columns])
    rows = pa.RecordBatchReader.from_stream(source.scan())
    batches = (pa.record_batch([_column_values(batch, column) for column in columns], schema=schema) for batch in rows)
    write_deltalake(
        table,
        pa.RecordBatchReader.from_batches(schema, batches),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=(source.metadata().partition_columns if partitions is None else list(partitions)) or None,
        target_file_size=FILE_BYTES,
        writer_properties=WRITER,
        # If delta-rs retried after a compaction, the compacted rows would stay besides the new ones.
        commit_properties=properties or CommitProperties(max_commit_retries=0),
    )


# Old versions of a Delta table: their data, and their removal.

RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION, DEFAULT_LOG_RETENTION = "delta.logRetentionDuration", "interval 30 days"
NONE = "interval 0 seconds"
CHANGE_DATA, LOG = "_change_data", "_delta_log"
MARKS = "deletionVectors"
OWN_FILE = re.compile(rf"(?:{CHANGE_DATA}/)?(?:[^/]+=[^/]*/)*[^/]+\.parquet\Z")
OWN_RANDOM_FILE = re.compile(rf"(?:{CHANGE_DATA}/)?\w\w/[^/]+\.parquet\Z")
"""For a table with random folders."""

log = logging.getLogger(__name__)


class SparkNeeded(Fatal):
    """delta-rs does not know all files of a table, so it deletes none."""


def refuse_unknown_files(table: DeltaTable) -> None:
    """Raises SparkNeeded for a table with deletion vectors or liquid clustering."""
    features = {MARKS, CLUSTERING} & {*(table.protocol().reader_features or ()), *(table.protocol().writer_features or ())}
    if features:
        feature = "deletion vectors" if MARKS in features else "liquid clustering"
        raise SparkNeeded(
            f"the Delta table {table.table_uri} has {feature}, so Spark alone can vacuum it",
            next_step=f"Use `engine: spark`, or run VACUUM delta.`{table.table_uri}` there.",
        )


def vacuum_files(
    table: DeltaTable, hours: int | None, properties: CommitProperties | None = None, *, dry_run: bool = False
) -> int:
    """Deletes files that the newest version has not needed for `hours`; by default the table's properties
    decide.

    Returns the number of files. It also deletes files that the log does not name: those of failed attempts, and
    removed files that the log has already dropped. If the folder has files of others, it keeps unnamed files.
    """
    refuse_unknown_files(table)
    look = partial(table.vacuum, hours, enforce_retention_duration=False, dry_run=True)
    files = look(full=True)
    has_random_folders = table.metadata().configuration.get(RANDOM_FOLDERS) == "true"
    own = (OWN_FILE, OWN_RANDOM_FILE) if has_random_folders else (OWN_FILE,)
    foreign = next((file for file in files if not any(pattern.match(file) for pattern in own)), None)
    if foreign is not None:
        log.warning(
            "The folder of the Delta table %s holds %s, which is not of this table: files that its log does not name stay.",
            table.table_uri,
            foreign,
        )
        files = look()
    if files and not dry_run:
        files = look(dry_run=False, full=foreign is None, commit_properties=properties)
    return len(files)


def describe_old_versions(path: Folder, table: DeltaTable) -> str:
    """A text for people about old versions of a table, which still contain deleted rows; empty when there are none."""
    retention = table.metadata().configuration.get(RETENTION, "7 days").removeprefix("interval ")
    return f"older versions of the Delta table {path} (its files are kept for {retention}, and then until it is vacuumed)"


def end_versions(path: Folder, table: DeltaTable, after_commit: Callable[[], None] = lambda: None) -> str:
    """Deletes every file that the newest version does not need, and the log of older versions with its
    statistics.

    Readers of older versions fail from then on. Files that the log does not name stay for an hour: another writer may
    be about to commit them. If delta-rs does not know all files of the table, nothing is deleted, and the result names
    the command that does it. `after_commit` is called after each new version with the same rows, before an old one is
    deleted.
    """
    table.update_incremental()
    try:
        vacuum_files(table, 1)
    except SparkNeeded:
        return f"older versions of the Delta table {path}, which Spark alone can end: VACUUM delta.`{path}` RETAIN 0 HOURS"
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    before = table.metadata().configuration.get(LOG_RETENTION, DEFAULT_LOG_RETENTION)
    table.alter.set_table_properties({LOG_RETENTION: NONE})
    after_commit()
    try:
        table.create_checkpoint()
        table.cleanup_metadata()
    finally:
        table.alter.set_table_properties({LOG_RETENTION: before})
        after_commit()
    # delta-rs leaves change data and Spark's .crc files of deleted versions, which include statistics.
    (path / CHANGE_DATA).clear()
    commits = path / LOG
    for name in commits.files():
        if name.endswith(".crc") and name[:20].isdigit() and int(name[:20]) < table.version():
            commits.drop(name)
    return ""


# Compacts and vacuums tables with many commits, so that reads and merges stay cheap.

EVERY_COMMITS = 50
ATTEMPTS = 8
"""How often a compaction is repeated after commits of others."""
FEWEST_FILES = 16
SMALL_BYTES = FILE_BYTES // 4


@dataclass(frozen=True, slots=True)
class VacuumSchedule:
    """When to vacuum.

    `every`: the seconds between two vacuums of a table; 0: never. `retain`: how many seconds to keep files that
    the newest version does not need; by default the table's properties decide.
    """

    every: float = 0
    retain: float | None = None


class TableMaintenance:
    """Compacts the small files of a table from time to time, and vacuums it, after a commit of the lane.

    Only files below the target size are rewritten. delta-rs writes checkpoints and cleans up the log during
    commits, by the table's properties.

    - `every`: the number of commits between two checks of the files; 0: never.
    - `writer`: by default delta-rs.
    - `vacuum`: by default never.
    """

    def __init__(
        self, every: int = EVERY_COMMITS, writer: TableWriter | None = None, vacuum: VacuumSchedule | None = None
    ) -> None:
        self._every = every
        self._vacuum = vacuum or VacuumSchedule()
        self._looked: dict[str, float] = {}
        """When tables were vacuumed: a vacuum that finds nothing makes no commit, and reading the log takes time."""
        self.writer = writer or TableWriter()

    def after_commit(self, table: DeltaTable, number: int) -> None:
        """Called after the lane's commit `number`. May compact after every `every` commits. `table` is current
        afterwards."""
        if self._every and not number % self._every and _is_scattered(table):
            self._run_tolerant(table, lambda: self.writer.compact(table))
        if self.is_due(table):
            self.vacuum(table)

    def is_due(self, table: DeltaTable) -> bool:
        """True when the last vacuum in the table's log, by any instance, is old enough."""
        path, latest = table.table_uri, time.time() - self._vacuum.every
        if self._vacuum.every and self._looked.get(path, 0) <= latest:
            self._looked[path] = max(self._looked.get(path, 0), table.transaction_version(VACUUMED) or 0)
            return self._looked[path] <= latest
        return False

    def vacuum(self, table: DeltaTable) -> None:
        """Vacuums the table, due or not. `table` is current afterwards."""
        retain = self._vacuum.retain
        try:
            self._run_tolerant(table, lambda: self.writer.vacuum(table, retain))
        except SparkNeeded as refused:
            log.warning("%s", refused)
        self._looked[table.table_uri] = time.time()

    @staticmethod
    def _run_tolerant(table: DeltaTable, act: Callable[[], object]) -> None:
        try:
            act()
        except (CommitFailedError, LostRace):
            # Somebody else rewrote the files first; the next turn tries again.
            table.update_incremental()
        except (DeltaError, OSError, FileGone) as error:
            if not is_gone(error):
                raise
            # The lane's commit succeeded. A write that needs the file will raise, if the file is still missing.
            log.warning("A table was not compacted, or not vacuumed: %s", first_line(error))
            table.update_incremental()


def compact_table(path: Folder, name: str, writer: TableWriter | None = None) -> CompactionResult | None:
    """Compacts the table at `path` now, in parallel to its writers; None when there is no table."""
    writer = writer or TableWriter()
    with translate_errors(name):
        for _ in range(ATTEMPTS):
            if not has_table(path):
                return None
            table = open_table(path)
            refuse_newer(table, name, writer.features)
            before = len(table.file_uris())
            try:
                writer.compact(table)
            except (CommitFailedError, LostRace):
                continue
            return CompactionResult(before, len(table.file_uris()))
    raise Retryable(
        f"other writers keep committing to table {name}", next_step="Repeat the command when fewer changes come."
    )


def vacuum_table(
    path: Folder, name: str, retain: timedelta | None, *, dry_run: bool, writer: TableWriter | None = None
) -> VacuumResult | None:
    """Vacuums the table at `path` now, in parallel to its writers; None when there is no table."""
    with translate_errors(name):
        if not has_table(path):
            return None
        seconds = None if retain is None else retain.total_seconds()
        return VacuumResult((writer or TableWriter()).vacuum(open_table(path), seconds, dry_run=dry_run))


def _is_scattered(table: DeltaTable) -> bool:
    """True when compaction would save enough files, counted per partition."""
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], SMALL_BYTES))
    partitions = [name for name in small.column_names if name.startswith("partition.")]
    counts = Counter(zip(*(small[name].to_pylist() for name in partitions), strict=True)) if partitions else None
    spare = sum(count - 1 for count in counts.values()) if counts is not None else small.num_rows - 1
    return spare >= FEWEST_FILES - 1
