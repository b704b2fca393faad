"""Old versions of a Delta table: their data, and their removal."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial

from deltalake import CommitProperties, DeltaTable

from replicator.domain.errors import Fatal

from .folders import Folder
from .protocol import CLUSTERING
from .tables import RANDOM_FOLDERS

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
    found = {MARKS, CLUSTERING} & {*(table.protocol().reader_features or ()), *(table.protocol().writer_features or ())}
    if found:
        what = "deletion vectors" if MARKS in found else "liquid clustering"
        raise SparkNeeded(
            f"the Delta table {table.table_uri} has {what}, so Spark alone can vacuum it",
            next_step=f"Use `engine: spark`, or run VACUUM delta.`{table.table_uri}` there.",
        )


def vacuum_files(
    table: DeltaTable, hours: int | None, done: CommitProperties | None = None, *, dry_run: bool = False
) -> int:
    """Deletes files that the newest version has not needed for `hours`; by default the table's properties
    decide.

    Returns the number of files. It also deletes files that the log does not name: those of failed attempts, and
    removed files that the log has already dropped. If the folder has files of others, it keeps unnamed files.
    """
    refuse_unknown_files(table)
    look = partial(table.vacuum, hours, enforce_retention_duration=False, dry_run=True)
    found = look(full=True)
    foreign = next((file for file in found if not _is_own(table, file)), None)
    if foreign is not None:
        log.warning(
            "The folder of the Delta table %s holds %s, which is not of this table: files that its log does not name stay.",
            table.table_uri,
            foreign,
        )
        found = look()
    if found and not dry_run:
        found = look(dry_run=False, full=foreign is None, commit_properties=done)
    return len(found)


def _is_own(table: DeltaTable, file: str) -> bool:
    random = table.metadata().configuration.get(RANDOM_FOLDERS) == "true"
    return bool(OWN_FILE.match(file) or (random and OWN_RANDOM_FILE.match(file)))


def describe_old_versions(path: Folder, table: DeltaTable) -> str:
    """A text for people about old versions of a table, which still contain deleted rows; empty when there are none."""
    kept = table.metadata().configuration.get(RETENTION, "7 days").removeprefix("interval ")
    return f"older versions of the Delta table {path} (its files are kept for {kept}, and then until it is vacuumed)"


def end_versions(path: Folder, table: DeltaTable, moved: Callable[[], None] = lambda: None) -> str:
    """Deletes every file that the newest version does not need, and the log of older versions with its
    statistics.

    Readers of older versions fail from then on. If delta-rs does not know all files of the table, nothing is
    deleted, and the result names the command that does it. `moved` is called after each new version with the
    same rows, before an old one is deleted.
    """
    try:
        vacuum_files(table, 0)
    except SparkNeeded:
        return f"older versions of the Delta table {path}, which Spark alone can end: VACUUM delta.`{path}` RETAIN 0 HOURS"
    before = table.metadata().configuration.get(LOG_RETENTION, DEFAULT_LOG_RETENTION)
    table.alter.set_table_properties({LOG_RETENTION: NONE})
    moved()
    try:
        table.create_checkpoint()
        table.cleanup_metadata()
    finally:
        table.alter.set_table_properties({LOG_RETENTION: before})
        moved()
    # delta-rs leaves change data and Spark's .crc files of deleted versions, which include statistics.
    (path / CHANGE_DATA).clear()
    commits = path / LOG
    for name in commits.files():
        if name.endswith(".crc") and name[:20].isdigit() and int(name[:20]) < table.version():
            commits.drop(name)
    return ""
