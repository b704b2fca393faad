"""Keeps a table that is committed to thousands of times cheap to read and to merge into."""

from __future__ import annotations

import logging
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from .commits import LostRace
from .errors import first_line, is_gone
from .table_writer import DeltaRsTableWriter, TableWriter
from .tables import FILE_BYTES

log = logging.getLogger(__name__)

EVERY_COMMITS = 50
FEWEST_FILES = 16
SMALL_BYTES = FILE_BYTES // 4


class Upkeep:
    """Compacts the small files of one table now and then, in the lane's own turn, after its commit.

    Bounded: only files below the size that tables aim at are rewritten. Checkpoints and the clean-up of old log
    entries are done by delta-rs as part of a commit, by the table's own properties.

    `every`: how many commits there are from one look at the files to the next; 0 means that there is none. `writer`:
    delta-rs by default.
    """

    def __init__(self, every: int = EVERY_COMMITS, writer: TableWriter | None = None) -> None:
        self._every = every
        self.writer = writer or DeltaRsTableWriter()

    def after_commit(self, table: DeltaTable, number: int) -> None:
        """After the commit of that number, of all there ever were: every so many-th may compact. `table` is current
        afterwards."""
        if not self._every or number % self._every or not _is_scattered(table):
            return
        try:
            self.writer.compact(table)
        except (CommitFailedError, LostRace):
            # Somebody else rewrote the files first; the next turn looks again.
            table.update_incremental()
        except (DeltaError, OSError) as error:
            if not is_gone(error):
                raise
            # The commit is there. A write that needs the file says so, if it is still missing then.
            log.warning("Small files were not compacted: %s", first_line(error))
            table.update_incremental()


def _is_scattered(table: DeltaTable) -> bool:
    """True when compaction would save enough files: those of one partition become few, whatever the others have."""
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], SMALL_BYTES))
    partitions = [name for name in small.column_names if name.startswith("partition.")]
    counts = Counter(zip(*(small[name].to_pylist() for name in partitions), strict=True)) if partitions else None
    spare = sum(count - 1 for count in counts.values()) if counts is not None else small.num_rows - 1
    return spare >= FEWEST_FILES - 1
