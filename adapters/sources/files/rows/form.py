"""Files of rows as lines, and the record of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Fatal, Reject, RejectCode
from replicator.domain.moments import FIRST_MS, LAST_MS

from ....arrow.dms import Dialect
from ....arrow.lines import ROW_BITS
from ..batches import Columns
from ..form import LONGEST, Number
from ..listing import ArchiveFile, Place, found_files
from ..once.csv import Rows
from ..once.settled import refuse_name
from ..once.text import first_row, text_of
from ..once.typed import refuse_columns, written
from ..records import Record
from .cells import CellsOf
from .names import SUFFIXES, first_of, numbered, refuse_unordered, table_of


class RowFiles:
    """What `Form`s of rows have in common."""

    suffixes: tuple[str, ...]
    growing = False
    deep = True
    longest = LONGEST

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `Form.files`: in the order of their numbers. ConfigProblem where names do not say it."""
        found = [file for file in found_files(path, self.suffixes, deep=True) if not file.name.startswith((".", "_"))]
        found.sort(key=lambda file: (numbered(file.path).number, file.label))
        for file in found:
            refuse_name(file, table_of)
        refuse_unordered(found)
        return found

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`."""
        return iter(stream)

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:  # noqa: ARG002
        """See `Form.frame`: there are none."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `Form.refuse`: no file of this form is one."""

    def _place(self, file: ArchiveFile, at: int) -> Record:
        """The record of line `at`, without a value. Fatal for a file with more lines than offsets have room for."""
        if at >= 1 << ROW_BITS:
            raise Fatal(f"{file.path} has more than {(1 << ROW_BITS) - 1} lines", next_step="Cut it into several files.")
        time = file.stamp[1] // 1_000_000
        said = time if FIRST_MS <= time <= LAST_MS else None
        return Record(table_of(file.path), 0, first_of(file.path) + at, said, None, None, None)


class JsonRows(RowFiles):
    """`Form` of JSON Lines."""

    suffixes: tuple[str, ...] = SUFFIXES["jsonl"]
    divisible = True

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | None:
        """See `Form.record`."""
        at = number()
        value = text_of(line, first=at == 1).strip()
        return self._place(file, at)._replace(value=value) if value else None


class CsvRows(RowFiles):
    """`Form` of CSV files with a header row in this dialect."""

    suffixes: tuple[str, ...] = SUFFIXES["csv"]
    divisible = False
    """What is a line end and what is part of a value, only who reads from the beginning can tell."""

    def __init__(self, dialect: Dialect) -> None:
        self._rows, self._cells, self._unsent = Rows(dialect), CellsOf(dialect), dialect.unsent_value
        self._known: tuple[ArchiveFile, Sequence[str] | Reject] | None = None

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """See `Form.lines`."""
        return self._rows.of(stream, self.longest)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | None:
        """See `Form.record`: the header row and blank lines stand for nothing."""
        at = number()
        row = text_of(line, first=at == 1)
        if at == 1:
            self._names(file)
        if at == 1 or not row:
            return None
        found = self._row(file, row)
        if isinstance(found, Reject):
            return self._place(file, at)._replace(headers=[(ERROR_HEADER, str(found).encode())], value=row)
        return self._place(file, at)._replace(value=msgspec.json.encode(found))

    def _row(self, file: ArchiveFile, row: bytes) -> Mapping[str, str | None] | Reject:
        """The cells of a row by name, or why it is none."""
        names = self._names(file)
        if isinstance(names, Reject):
            return names
        cells = self._cells(row)
        if isinstance(cells, Reject):
            return cells
        if len(cells) != len(names):
            return Reject(RejectCode.MALFORMED, f"the row has {len(cells)} columns, {len(names)} are expected")
        return {name: cell for name, cell in zip(names, cells, strict=True) if cell is None or cell != self._unsent}

    def _names(self, file: ArchiveFile) -> Sequence[str] | Reject:
        """What the header row of a file names."""
        if self._known is None or self._known[0] != file:
            self._known = file, self._named(self._rows.header(first_row(self, file), file))
        return self._known[1]

    def _named(self, header: bytes) -> Sequence[str] | Reject:
        found = self._cells(header)
        if isinstance(found, Reject):
            return Reject(found.code, f"its header row cannot be read: {found.sentence}")
        names = [name for name in found if name]
        if len(names) < len(found):
            return Reject(RejectCode.MALFORMED, "its header row has a column without a name")
        twice = len(set(names)) < len(names)
        return Reject(RejectCode.MALFORMED, "its header row names a column twice") if twice else names


class ParquetRows(RowFiles):
    """`Form` of Parquet files."""

    suffixes: tuple[str, ...] = SUFFIXES["parquet"]
    divisible = False

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> Record | None:
        """See `Form.record`: there are no lines."""

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """See `Form.frame`: every row with the types of its columns."""
        prefix, columns = written(chunk)
        encode, gathered = msgspec.json.Encoder().encode, Columns()
        cells = zip(*columns.values(), strict=True) if columns else iter([()] * chunk.num_rows)
        for at, row in enumerate(cells, first):
            value = prefix + encode(dict(zip(columns, row, strict=True))) + b"}"
            gathered.put(self._place(file, at)._replace(value=value))
        return gathered.frame()

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `Form.refuse`: for a type that rows do not have, and for two columns of one name."""
        refuse_columns(file, schema, "Leave the column out, or write it as another type.")
