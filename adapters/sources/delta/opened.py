"""A Delta table that is read on while others write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.errors import EnvironmentProblem

from ...delta.errors import first_line, is_damage, translating
from ...delta.layout import local_folder
from ...delta.tables import exists


class OpenedTable:
    """The table in the folder `path`; `missing`: what to do when there is none. Not safe for use from several threads."""

    def __init__(self, path: str, missing: str) -> None:
        self.root = local_folder(path)
        self._missing = missing
        self._table: DeltaTable | None = None
        self._stamp: tuple[int, int] | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raises EnvironmentProblem for what is wrong with the table's log while it is read."""
        with translating(self.root.name), _undamaged(self.root):
            yield

    def newest(self) -> DeltaTable:
        """The table at its newest version; another object when the last one known is another's, or was cleaned up. Raises
        EnvironmentProblem when there is none."""
        table, stamp = self._table, self._stamp
        if table is None or stamp is None or self._stamp_of(table.version()) != stamp:
            table = self._open()
        elif self.entry(table.version() + 1).exists():
            table.update_incremental()
        self._table, self._stamp = table, self._stamp_of(table.version())
        return table

    def at(self, version: int) -> DeltaTable:
        """The table as it was in `version`."""
        return DeltaTable(str(self.root), version=version)

    def entry(self, version: int) -> Path:
        """The file of a commit."""
        return self.root / "_delta_log" / f"{version:020}.json"

    def _stamp_of(self, version: int) -> tuple[int, int] | None:
        try:
            found = self.entry(version).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _open(self) -> DeltaTable:
        if not exists(self.root):
            raise EnvironmentProblem(f"There is no Delta table in {self.root}.", next_step=self._missing)
        return DeltaTable(str(self.root))


@contextmanager
def _undamaged(root: Path) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        if not is_damage(error):
            raise
        raise EnvironmentProblem(
            f"The log of the Delta table {root} is damaged: {first_line(error)}",
            next_step="Restore its folder _delta_log from a copy.",
        ) from error


def on_disk(root: Path, path: str) -> str:
    """Paths in a log are URLs, most often relative to the table."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else str(root / unquote(path))
