"""Caches the newest versions of a table."""

from __future__ import annotations

from ..delta.folders import Folder
from ..delta.tables import LatestTable, open_table
from .table_version import TableVersion
from .version_diff import open_earlier

KEPT = 2
"""The newest version, and the one before, for readers that have not read the newest yet."""


class SnapshotCache:
    """Versions of the table in a folder. Not safe for use from several threads.

    Opening a version reads its log, so the newest one is updated in place, and facts about older ones are
    cached.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._followed = LatestTable(folder)
        self._known: dict[int, TableVersion] = {}

    def get_newest(self) -> TableVersion:
        """The newest version."""
        for one in self._known.values():
            if not one.preload():
                self._followed.release()
        table = self._followed.newest()
        found = self._known.get(int(table.version()))
        if found is None or found.table is not table:
            found = TableVersion(table, self._folder, self._known[max(self._known)] if self._known else None)
        # The table may have been replaced by another one.
        same = {n: one for n, one in self._known.items() if one.table_id == found.table_id and n <= found.number}
        self._known = {**same, found.number: found}
        return found

    def get_version(self, number: int) -> TableVersion:
        """An existing version."""
        if number not in self._known:
            self._known[number] = TableVersion(open_table(self._folder, number), self._folder)
        return self._known[number]

    def get_earlier(self, number: int) -> TableVersion | None:
        """A version before the newest; None when the table's log does not contain it any more."""
        found = self._known.get(number) or open_earlier(self._folder, number)
        if found is not None:
            self._known[number] = found
        return found

    def drop_older(self) -> None:
        """Drops all but the newest cached versions."""
        for number in sorted(self._known)[:-KEPT]:
            del self._known[number]
