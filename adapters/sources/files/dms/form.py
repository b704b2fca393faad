"""CSV files as lines: a row may go on over several of them, and its place in the file is its place in the order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from replicator.domain.errors import Fatal

from ....arrow.dms import COLUMNS, KIND, Dialect
from ..form import LONGEST, Number
from ..listing import ArchiveFile, Place
from ..once.csv import Rows
from ..once.text import first_row, text_of
from ..records import Record
from .listing import listed
from .names import Named, named, table_of
from .transactions import TransactionRows

Headers = list[tuple[str, bytes | None]]


class DmsRows:
    """`Form` of CSV files in this dialect."""

    suffixes: tuple[str, ...] = (".csv", ".csv.gz")
    longest = LONGEST
    growing = divisible = False
    """What is a line end and what is part of a value, only who reads from the beginning can tell."""
    deep = True

    def __init__(self, dialect: Dialect) -> None:
        self._header, self._rows, self._transactions = dialect.header, Rows(dialect), TransactionRows(dialect)
        self._known: tuple[ArchiveFile, str, Named, Headers] | None = None

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `Form.files` and `listing.listed`."""
        return listed(path, self.suffixes)

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`."""
        return self._rows.of(stream, self.longest)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | ValueError | None:
        """See `Form.record`. Fatal for a file with more rows than offsets have room for."""
        at = number()
        topic, name, headers = self._of(file)
        if at == 1 and len(headers) > 1:
            return None
        refuse_full(file, name, at)
        row = text_of(line, first=at == 1)
        if name.of_transactions:
            found = self._transactions.of(row)
            if isinstance(found, ValueError):
                return found
            topic, row = found
        return Record(topic, 0, name.first + at, name.time, headers, None, row)

    def frame(self, file: ArchiveFile, _: pa.RecordBatch, __: int) -> pa.RecordBatch:
        """See `Form.frame`: there are none."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `Form.refuse`: no file of this form is one."""

    def _of(self, file: ArchiveFile) -> tuple[str, Named, Headers]:
        """What the records of a file have in common."""
        if self._known is None or self._known[0] != file:
            name = named(file.path)
            headers: Headers = [(KIND, name.kind.encode())]
            if self._header and not name.of_transactions:
                headers.append((COLUMNS, self._rows.header(first_row(self, file), file)))
            self._known = (file, table_of(file.path), name, headers)
        return self._known[1:]


def refuse_full(file: ArchiveFile, name: Named, rows: int) -> None:
    """Fatal for a file with more rows than offsets have room for."""
    if rows >= name.most:
        raise Fatal(f"{file.path} has more than {name.most - 1} rows", next_step="Cut it into files with later times.")
