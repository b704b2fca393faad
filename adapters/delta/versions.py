"""What older versions of a Delta table still hold, and their end."""

from __future__ import annotations

from collections.abc import Callable

from deltalake import DeltaTable

from .folders import Folder
from .protocol import CLUSTERING

RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION, DEFAULT_LOG_RETENTION = "delta.logRetentionDuration", "interval 30 days"
NONE = "interval 0 seconds"
CHANGE_DATA, LOG = "_change_data", "_delta_log"
MARKS = "deletionVectors"


def held_by_versions(path: Folder, table: DeltaTable) -> str:
    """Where older versions of a table still hold what was removed, for people; empty where there are none."""
    kept = table.metadata().configuration.get(RETENTION, "7 days").removeprefix("interval ")
    return f"older versions of the Delta table {path} (its files are kept for {kept}, and then until it is vacuumed)"


def end_versions(path: Folder, table: DeltaTable, moved: Callable[[], None] = lambda: None) -> str:
    """Remove every file that the newest version does not need, and the log of the versions before it, with the statistics
    that name values. Readers of older versions fail from then on. Nothing is done for a table of which delta-rs does not
    know all files, or which it does not write: what ends these is told. `moved` is called when the table has got a version
    whose rows are the same, before an older one is gone."""
    if {MARKS, CLUSTERING} & {*(table.protocol().reader_features or ()), *(table.protocol().writer_features or ())}:
        return f"older versions of the Delta table {path}, which Spark alone can end: VACUUM delta.`{path}` RETAIN 0 HOURS"
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = table.metadata().configuration.get(LOG_RETENTION, DEFAULT_LOG_RETENTION)
    table.alter.set_table_properties({LOG_RETENTION: NONE})
    moved()
    try:
        table.create_checkpoint()
        table.cleanup_metadata()
    finally:
        table.alter.set_table_properties({LOG_RETENTION: before})
        moved()
    # Of the versions that are gone: delta-rs leaves them, also what Spark keeps of each version, statistics included.
    (path / CHANGE_DATA).clear()
    log = path / LOG
    for name in log.files():
        if name.endswith(".crc") and name[:20].isdigit() and int(name[:20]) < table.version():
            log.drop(name)
    return ""
