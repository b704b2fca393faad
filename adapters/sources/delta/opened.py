"""A Delta table that is read on while others write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.errors import EnvironmentProblem

from ...delta.errors import first_line, is_damage, translating
from ...delta.folders import Folder
from ...delta.layout import Lake
from ...delta.storage import Storage
from ...delta.tables import exists, opened


class OpenedTable:
    """The table in the folder `path`, or at that URL of an object store, which `storage` says how to reach; `missing`: what
    to do when there is none. Not safe for use from several threads."""

    def __init__(self, path: str, missing: str, storage: Storage | None = None) -> None:
        self.root: Folder = Lake.at(path, storage).root
        self.log = self.root / "_delta_log"
        self._missing = missing
        self._table: DeltaTable | None = None
        self._stamp: object = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raises EnvironmentProblem for what is wrong with the table's log while it is read."""
        with translating(self.root.name), _undamaged(self.root):
            yield

    def newest(self) -> DeltaTable:
        """The table at its newest version; another object when the last one known is another's, or was cleaned up. Raises
        EnvironmentProblem when there is none."""
        table, stamp = self._table, self._stamp
        if table is None or stamp is None or self.log.stamp(entry(table.version())) != stamp:
            table = self._open()
        elif self.log.holds(entry(table.version() + 1)):
            table.update_incremental()
        else:
            return table
        self._table, self._stamp = table, self.log.stamp(entry(table.version()))
        return table

    def at(self, version: int) -> DeltaTable:
        """The table as it was in `version`."""
        return opened(self.root, version)

    def _open(self) -> DeltaTable:
        if not exists(self.root):
            raise EnvironmentProblem(f"There is no Delta table in {self.root}.", next_step=self._missing)
        return opened(self.root)


def entry(version: int) -> str:
    """The name of the file of a commit."""
    return f"{version:020}.json"


@contextmanager
def _undamaged(root: Folder) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        if not is_damage(error):
            raise
        raise EnvironmentProblem(
            f"The log of the Delta table {root} is damaged: {first_line(error)}",
            next_step="Restore its folder _delta_log from a copy.",
        ) from error
