"""Compacts and vacuums tables with many commits, so that reads and merges stay cheap."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from replicator.domain.errors import Retryable
from replicator.ports.sink import CompactionResult, VacuumResult

from .commits import LostRace
from .errors import FileGone, first_line, is_gone, translate_errors
from .folders import Folder
from .table_writer import VACUUMED, DeltaRsTableWriter, SparkNeeded, TableWriter
from .tables import FILE_BYTES, has_table, open_table, refuse_newer

log = logging.getLogger(__name__)

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
        """When this process vacuumed tables: a vacuum that finds nothing makes no commit."""
        self.writer = writer or DeltaRsTableWriter()

    def after_commit(self, table: DeltaTable, number: int) -> None:
        """Called after the lane's commit `number`. May compact after every `every` commits. `table` is current
        afterwards."""
        if self._every and not number % self._every and _is_scattered(table):
            self._run_tolerant(table, lambda: self.writer.compact(table))
        if self.is_due(table):
            self.vacuum(table)

    def is_due(self, table: DeltaTable) -> bool:
        """True when the last vacuum in the table's log, by any instance, is old enough."""
        if not self._vacuum.every:
            return False
        last = max(self._looked.get(table.table_uri, 0), table.transaction_version(VACUUMED) or 0)
        return time.time() - last >= self._vacuum.every

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
    writer = writer or DeltaRsTableWriter()
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
        return VacuumResult((writer or DeltaRsTableWriter()).vacuum(open_table(path), seconds, dry_run=dry_run))


def _is_scattered(table: DeltaTable) -> bool:
    """True when compaction would save enough files, counted per partition."""
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], SMALL_BYTES))
    partitions = [name for name in small.column_names if name.startswith("partition.")]
    counts = Counter(zip(*(small[name].to_pylist() for name in partitions), strict=True)) if partitions else None
    spare = sum(count - 1 for count in counts.values()) if counts is not None else small.num_rows - 1
    return spare >= FEWEST_FILES - 1
