"""Caches the newest version of a Delta table that others write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from deltalake import DeltaTable

from .folders import Folder
from .tables import open_table


class LatestTable:
    """The table in a folder, opened with `opens`. Not safe for use from several threads."""

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
