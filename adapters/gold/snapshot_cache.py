"""The newest versions of a table, kept for who asks for them again."""

from __future__ import annotations

from ..delta.folders import Folder
from ..delta.latest_version import LatestTable
from ..delta.tables import open_table
from .table_version import TableVersion
from .version_diff import open_earlier

KEPT = 2
"""The newest, and for those that did not look at it yet the one before."""


class SnapshotCache:
    """Versions of the table in a folder. Opening one reads its log, so the newest is gone on from, and what was asked of
    the versions before it is kept. Not safe for use from several threads."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._followed = LatestTable(folder)
        self._known: dict[int, TableVersion] = {}

    def get_newest(self) -> TableVersion:
        """The version that is the newest one now."""
        for one in self._known.values():
            if not one.preload():
                self._followed.release()
        table = self._followed.newest()
        found = self._known.get(int(table.version()))
        if found is None or found.table is not table:
            found = TableVersion(table, self._folder, self._known[max(self._known)] if self._known else None)
        # Another table may have taken the place of the one that was there.
        same = {n: one for n, one in self._known.items() if one.table_id == found.table_id and n <= found.number}
        self._known = {**same, found.number: found}
        return found

    def get_version(self, number: int) -> TableVersion:
        """A version that there is."""
        if number not in self._known:
            self._known[number] = TableVersion(open_table(self._folder, number), self._folder)
        return self._known[number]

    def get_earlier(self, number: int) -> TableVersion | None:
        """A version before the newest; None where the table's log does not reach back to it any more."""
        found = self._known.get(number) or open_earlier(self._folder, number)
        if found is not None:
            self._known[number] = found
        return found

    def drop_older(self) -> None:
        """Forget all but the newest of those that are known."""
        for number in sorted(self._known)[:-KEPT]:
            del self._known[number]
