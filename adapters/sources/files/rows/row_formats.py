"""Files of rows as lines, and their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Fatal, Reject, RejectCode
from replicator.domain.plain_values import format_count
from replicator.domain.time_bounds import FIRST_MS, LAST_MS

from ....decoders.common.csv_dialect import CsvDialect
from ....decoders.common.line_offsets import ROW_BITS
from ..archive_records import ArchiveRecord
from ..batch_builder import RecordColumns
from ..file_format import LONGEST, Number
from ..file_list import ArchiveFile, Place, find_files
from ..immutable.csv_rows import CsvRowJoiner
from ..immutable.text_files import read_first_row, strip_line
from ..immutable.typed_rows import refuse_columns, slice_to_json
from ..stable_files import refuse_name
from .csv_cells import CsvCellParser
from .file_names import SUFFIXES, find_table, first_offset, parse_number, refuse_unordered


class RowFileFormat:
    """Base class of `FileFormat`s for rows."""

    suffixes: tuple[str, ...]
    growing = False
    deep = True
    longest = LONGEST

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `FileFormat.files`: in the order of their numbers. Raises ConfigProblem if names define no order."""
        found = [file for file in find_files(path, self.suffixes, deep=True) if not file.name.startswith((".", "_"))]
        found.sort(key=lambda file: (parse_number(file.path).number, file.label))
        for file in found:
            refuse_name(file, find_table)
        refuse_unordered(found)
        return found

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return iter(stream)

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:  # noqa: ARG002
        """See `FileFormat.frame`: not used for text."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: no file of this format is Parquet."""

    def _empty_record(self, file: ArchiveFile, at: int) -> ArchiveRecord:
        """The record of line `at` without a value. Raises Fatal for a file with more lines than offsets allow."""
        if at >= 1 << ROW_BITS:
            raise Fatal(f"{file.path} has more than {(1 << ROW_BITS) - 1} lines", next_step="Cut it into several files.")
        time = file.stamp[1] // 1_000_000
        said = time if FIRST_MS <= time <= LAST_MS else None
        return ArchiveRecord(find_table(file.path), 0, first_offset(file.path) + at, said, None, None, None)


class JsonRowFormat(RowFileFormat):
    """`FileFormat` of JSON Lines."""

    suffixes: tuple[str, ...] = SUFFIXES["jsonl"]
    divisible = True

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | None:
        at = number()
        value = strip_line(line, first=at == 1).strip()
        return self._empty_record(file, at)._replace(value=value) if value else None


class CsvRowFormat(RowFileFormat):
    """`FileFormat` of CSV files with a header row in this dialect."""

    suffixes: tuple[str, ...] = SUFFIXES["csv"]
    divisible = False
    """Line ends can be part of values, so files must be read from the beginning."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._rows, self._cells, self._unsent = CsvRowJoiner(dialect), CsvCellParser(dialect), dialect.unsent_value
        self._known: tuple[ArchiveFile, Sequence[str] | Reject] | None = None

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return self._rows.join_lines(stream, self.longest)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | None:
        """See `FileFormat.record`: the header row and blank lines have no record."""
        at = number()
        row = strip_line(line, first=at == 1)
        if at == 1:
            self._read_names(file)
        if at == 1 or not row:
            return None
        found = self._read_row(file, row)
        if isinstance(found, Reject):
            return self._empty_record(file, at)._replace(headers=[(ERROR_HEADER, str(found).encode())], value=row)
        return self._empty_record(file, at)._replace(value=msgspec.json.encode(found))

    def _read_row(self, file: ArchiveFile, row: bytes) -> Mapping[str, str | None] | Reject:
        """The cells of a row by name, or the error."""
        names = self._read_names(file)
        if isinstance(names, Reject):
            return names
        cells = self._cells(row)
        if isinstance(cells, Reject):
            return cells
        if len(cells) != len(names):
            return Reject(RejectCode.MALFORMED, f"the row has {format_count(len(cells), 'column')}, expected: {len(names)}")
        return {name: cell for name, cell in zip(names, cells, strict=True) if cell is None or cell != self._unsent}

    def _read_names(self, file: ArchiveFile) -> Sequence[str] | Reject:
        """The names in the header row of a file."""
        if self._known is None or self._known[0] != file:
            self._known = file, self._parse_names(self._rows.check_header(read_first_row(self, file), file))
        return self._known[1]

    def _parse_names(self, header: bytes) -> Sequence[str] | Reject:
        found = self._cells(header)
        if isinstance(found, Reject):
            return Reject(found.code, f"its header row cannot be read: {found.sentence}")
        names = [name for name in found if name]
        if len(names) < len(found):
            return Reject(RejectCode.MALFORMED, "its header row has a column without a name")
        twice = len(set(names)) < len(names)
        return Reject(RejectCode.MALFORMED, "its header row names a column twice") if twice else names


class ParquetRowFormat(RowFileFormat):
    """`FileFormat` of Parquet files."""

    suffixes: tuple[str, ...] = SUFFIXES["parquet"]
    divisible = False

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | None:
        """See `FileFormat.record`: not used for Parquet."""

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: every row with the types of its columns."""
        prefix, columns = slice_to_json(chunk)
        encode, gathered = msgspec.json.Encoder().encode, RecordColumns()
        cells = zip(*columns.values(), strict=True) if columns else iter([()] * chunk.num_rows)
        for at, row in enumerate(cells, first):
            value = prefix + encode(dict(zip(columns, row, strict=True))) + b"}"
            gathered.add(self._empty_record(file, at)._replace(value=value))
        return gathered.to_batch()

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses unsupported column types and duplicate names."""
        refuse_columns(file, schema, "Leave the column out, or write it as another type.")
