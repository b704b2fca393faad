"""Keeps a table that is committed to thousands of times cheap to read and to merge into."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from .commits import WRITER
from .tables import FILE_BYTES

EVERY_COMMITS = 50
FEWEST_FILES = 16
SMALL_BYTES = FILE_BYTES // 4


class Upkeep:
    """Compacts the small files of one table now and then, in the lane's own turn, after its commit.

    Bounded: only files below the size that tables aim at are rewritten. Checkpoints and the clean-up of old log
    entries are done by delta-rs as part of a commit, by the table's own properties.
    """

    def __init__(self) -> None:
        self._commits = 0

    def after_commit(self, table: DeltaTable) -> None:
        """Count a commit; every 50th may compact. `table` is current afterwards."""
        self._commits += 1
        if self._commits % EVERY_COMMITS or not _is_scattered(table):
            return
        try:
            table.optimize.compact(target_size=FILE_BYTES, max_concurrent_tasks=1, writer_properties=WRITER)
        except CommitFailedError:
            # Somebody else rewrote the files first; the next turn looks again.
            table.update_incremental()


def _is_scattered(table: DeltaTable) -> bool:
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    return bool(sum(size < SMALL_BYTES for size in sizes) >= FEWEST_FILES)
