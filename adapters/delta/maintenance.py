"""Keeps a table that is committed to thousands of times cheap to read and to merge into."""

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
from .old_versions import SparkNeeded
from .protocol import refuse_newer
from .table_writer import VACUUMED, DeltaRsTableWriter, TableWriter
from .tables import FILE_BYTES, has_table, open_table

log = logging.getLogger(__name__)

EVERY_COMMITS = 50
ATTEMPTS = 8
"""How often a compaction is begun again because others commit to the table."""
FEWEST_FILES = 16
SMALL_BYTES = FILE_BYTES // 4


@dataclass(frozen=True, slots=True)
class VacuumSchedule:
    """`every`: the seconds from one vacuum of a table to the next; 0 means that there is none. `retain`: for how many
    seconds it leaves files that the newest version does not need; by default as the table's properties say."""

    every: float = 0
    retain: float | None = None


class TableMaintenance:
    """Compacts the small files of a table now and then, and vacuums it, in the lane's own turn, after its commit.

    Bounded: only files below the size that tables aim at are rewritten. Checkpoints and the clean-up of old log
    entries are done by delta-rs as part of a commit, by the table's own properties.

    `every`: how many commits there are from one look at the files to the next; 0 means that there is none. `writer`:
    delta-rs by default. `vacuum`: by default there is none.
    """

    def __init__(
        self, every: int = EVERY_COMMITS, writer: TableWriter | None = None, vacuum: VacuumSchedule | None = None
    ) -> None:
        self._every = every
        self._vacuum = vacuum or VacuumSchedule()
        self._looked: dict[str, float] = {}
        """When tables were vacuumed here: a vacuum that finds nothing commits nothing."""
        self.writer = writer or DeltaRsTableWriter()

    def after_commit(self, table: DeltaTable, number: int) -> None:
        """After the commit of that number, of all there ever were: every so many-th may compact. `table` is current
        afterwards."""
        if self._every and not number % self._every and _is_scattered(table):
            self._run_tolerant(table, lambda: self.writer.compact(table))
        if self.is_due(table):
            self.vacuum(table)

    def is_due(self, table: DeltaTable) -> bool:
        """Whether the table is to be vacuumed now, as its log says when that was done last, by whomever of us."""
        last = max(self._looked.get(table.table_uri, 0), table.transaction_version(VACUUMED) or 0)
        return bool(self._vacuum.every) and time.time() - last >= self._vacuum.every

    def vacuum(self, table: DeltaTable) -> None:
        """Vacuum it, whether that is due or not. `table` is current afterwards."""
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
            # Somebody else rewrote the files first; the next turn looks again.
            table.update_incremental()
        except (DeltaError, OSError, FileGone) as error:
            if not is_gone(error):
                raise
            # The commit is there. A write that needs the file says so, if it is still missing then.
            log.warning("A table was not compacted, or not vacuumed: %s", first_line(error))
            table.update_incremental()


def compact_table(path: Folder, name: str, writer: TableWriter | None = None) -> CompactionResult | None:
    """Compact the table at `path` now, beside whoever writes it; None where there is none."""
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
    """Vacuum the table at `path` now, beside whoever writes it; None where there is none."""
    with translate_errors(name):
        if not has_table(path):
            return None
        seconds = None if retain is None else retain.total_seconds()
        return VacuumResult((writer or DeltaRsTableWriter()).vacuum(open_table(path), seconds, dry_run=dry_run))


def _is_scattered(table: DeltaTable) -> bool:
    """True when compaction would save enough files: those of one partition become few, whatever the others have."""
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], SMALL_BYTES))
    partitions = [name for name in small.column_names if name.startswith("partition.")]
    counts = Counter(zip(*(small[name].to_pylist() for name in partitions), strict=True)) if partitions else None
    spare = sum(count - 1 for count in counts.values()) if counts is not None else small.num_rows - 1
    return spare >= FEWEST_FILES - 1
