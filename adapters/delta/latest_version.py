"""A Delta table whose newest version is asked for time and again, while others write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from deltalake import DeltaTable

from .folders import Folder
from .tables import open_table


class LatestTable:
    """The table in a folder, which `opens_condition` opens. Not safe for use from several threads."""

    def __init__(self, folder: Folder, opens: Callable[[], DeltaTable] | None = None) -> None:
        self.log = folder / "_delta_log"
        self._opens = opens or partial(open_table, folder)
        self._table: DeltaTable | None = None
        self.seen: tuple[str, object] = ("", None)
        """The commit that the table stands at, and what tells it from one that takes its place."""

    def newest(self) -> DeltaTable:
        """The table at its newest version: the same object, which moves on, unless the table that it was is gone, or the
        commit that it stands at was cleaned up. Who moves it says so by `set_current`, or it is opened anew."""
        table, self._table = self._table, None  # One that cannot be moved on is opened anew the next time.
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
        """This is the table now, right after a commit, or opened."""
        self._table, self.seen = table, self.commit(table.version())

    def commit(self, version: int) -> tuple[str, object]:
        """The commit of that version, and what tells it from one that takes its place."""
        name = commit_file_name(version)
        return name, self.log.stamp(name)

    def _is_unchanged(self, table: DeltaTable) -> bool:
        commit, stamp = self.seen
        return stamp is not None and commit == commit_file_name(table.version()) and self.log.stamp(commit) == stamp

    def release(self) -> None:
        """Open the table anew the next time: who has it may keep it as it is."""
        self._table = None


def commit_file_name(version: int) -> str:
    """The name of the file of a commit."""
    return f"{version:020}.json"
