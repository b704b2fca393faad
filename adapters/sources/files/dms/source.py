"""The source of DMS's folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.position import Position
from replicator.ports.frames import Stop

from ....arrow.dms import Dialect
from ..check import ArchiveCheck
from ..form import Form
from ..listing import ArchiveFile
from ..options import ArchiveOptions
from ..source import ArchiveSource
from .form import DmsRows, settles_in
from .names import named, table_of

CSV = "csv"


class DmsFilesSource(ArchiveSource):
    """A `Source` over the folders that AWS DMS writes (see the package); frames are `pyarrow.Table`. Options: those of
    `ArchiveSource`, and `csv` (`Dialect`).

    A file counts once nobody has written to it for `SETTLED_SECONDS`, and holds back later ones of its table until then.
    Keep at least the newest file of every table: without any, the table counts as gone.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._given: dict[str, ArchiveFile] = {}
        self._newest: dict[str, int] = {}
        super().__init__(options)

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, Form]:
        """See `ArchiveSource.read_options`."""
        own: dict[str, Any] = dict(options)
        try:
            dialect = Dialect.model_validate(own.pop(CSV, None) or {})
        except ValidationError as error:
            wrong = "; ".join(f"csv.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
            raise ConfigProblem(f"The options of a source of files are not valid: {wrong}.") from None
        own["transport"] = "archive"
        return ArchiveOptions.read(own), DmsRows(dialect)

    def run(self, start: Position, apply_batch: Any, stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the end of the files that there are now, once nobody writes to them."""
        if once:
            mine = {file.label for file in self._listed()}
            while (left := max((settles_in(f) for f in self._listed() if f.label in mine), default=0.0)) > 0:
                if stop.wait(min(left, 1.0)):
                    return
        super().run(start, apply_batch, stop, once=once)

    def _files(self) -> list[ArchiveFile]:
        """The complete files, of each table up to the first that is not. DataLoss for one that was given out before and has
        another size now, and for one that lies before others that were."""
        found = list(_complete(self._listed()))
        self._refuse_late([file for file in found if self._given and file.label not in self._given])
        for file in found:
            self._newest[table_of(file.path)] = named(file.path).first
            before = self._given.setdefault(file.label, file)
            if before.size != file.size:
                raise DataLoss(
                    f"{file.path} had {before.size} bytes when it was read, and has {file.size} now: DMS changes no file",
                    next_step="Where the table was loaded again, load it here too, with `replicator lanes resync LANE`.",
                )
        return found

    def _refuse_late(self, fresh: Iterable[ArchiveFile]) -> None:
        for file in fresh:
            table = table_of(file.path)
            if named(file.path).first < self._newest.get(table, -1):
                raise DataLoss(
                    f"{file.path} turned up after later files of table {table} had been read",
                    next_step="Load the table anew with `replicator lanes resync LANE` before the next start, which cannot "
                    "tell any more that the file was not read.",
                )


def _complete(files: Iterable[ArchiveFile]) -> Iterator[ArchiveFile]:
    behind: set[str] = set()
    for file in files:
        table = table_of(file.path)
        if table not in behind and settles_in(file) <= 0:
            yield file
        else:
            behind.add(table)


class DmsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`; the options of `DmsFilesSource`."""

    source = DmsFilesSource
