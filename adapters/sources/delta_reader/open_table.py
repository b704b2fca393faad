"""A Delta table that is read while others write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.errors import EnvironmentProblem

from ...delta.errors import first_line, is_damage, translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.latest_version import LatestTable
from ...delta.tables import has_table, open_table
from ...object_store.options import Storage


class SourceDeltaTable:
    """The table in the folder or at the object store URL `path`; `storage` has the access options. `missing`: the next
    step if there is no table. Not safe for use from several threads."""

    def __init__(self, path: str, missing: str, storage: Storage | None = None) -> None:
        self.root: Folder = Lake.at(path, storage).root
        self._missing = missing
        self._followed = LatestTable(self.root, self._open)
        self.log = self._followed.log

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raises EnvironmentProblem for errors in the table's log."""
        with translate_errors(self.root.name), _translate_damage(self.root):
            yield

    def newest(self) -> DeltaTable:
        """The newest version. Raises EnvironmentProblem if there is no table."""
        return self._followed.newest()

    def open_version(self, version: int) -> DeltaTable:
        """The table as of `version`."""
        return open_table(self.root, version)

    def _open(self) -> DeltaTable:
        if not has_table(self.root):
            raise EnvironmentProblem(f"There is no Delta table in {self.root}.", next_step=self._missing)
        return open_table(self.root)


@contextmanager
def _translate_damage(root: Folder) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        if not is_damage(error):
            raise
        raise EnvironmentProblem(
            f"The log of the Delta table {root} is damaged: {first_line(error)}",
            next_step="Restore its folder _delta_log from a copy.",
        ) from error
