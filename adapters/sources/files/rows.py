"""Folders of files with rows (CSV, JSON Lines or Parquet), read as one topic per table, for decoder `rows`.

**Names.** The table has the name of the folder of a file. The digits at the end of a file's name, before its ending, are
its number (`000012.jsonl`, `employees-2024-01-05.csv`) or its time (12 or 14 digits, `20240105T103000.csv.gz`). They
order the files of a table. One file may have none and is the first. Names that begin with `.` or `_` are skipped.

**Records.** One per row: the topic is the table, the partition 0, the time the file's modification time. The value is a
JSON object. For JSON Lines it is the line. For CSV it has the text of each cell by its name in the header row. The text
that means NULL becomes null, and the text that means an unchanged value is left out. For Parquet it is the row with the
types of its columns, as in `transport: delta`.

**Order.** The offset is the file's number, or its time in seconds, times 2**30, plus the line number. Line numbers start
from 1 and include the header row. For changed, late and incomplete files see `immutable`, as for files of DMS.

An unreadable CSV row is a record with its bytes, and with the error in a header
(`replicator.domain.change.ERROR_HEADER`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import ConfigProblem, Fatal, Reject, RejectCode
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.plain_values import format_count
from replicator.domain.position import TopicPartition

from ...decoders.common.row_files import ROW_BITS, CsvDialect, escape_sign
from ..file_options import FileSourceOptions, FilesSettings, find_version_digits
from .file_list import ArchiveFile, FilePath, FilesLocation, find_files, refuse_name
from .file_reader import ArchiveRecord, FileFormat, Number, RecordColumns
from .immutable import (
    CsvRowJoiner,
    ImmutableFilesSource,
    read_first_row,
    refuse_columns,
    slice_to_json,
    strip_line,
)

# Names of files and folders with rows.

SUFFIXES = {"csv": (".csv", ".csv.gz"), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}
ENDINGS = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
MOST_DIGITS, MOST = 10, 1 << (63 - ROW_BITS)
TIMES = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
LISTED = 2**17
"""Cached names: folders are listed every second."""


class FileNumber(NamedTuple):
    """The order of a file in its table. `shape`: the widths of its digit groups, None without digits. Numbers of one
    group may have any width."""

    number: int
    shape: tuple[int, ...] | None


@lru_cache(LISTED)
def parse_number(path: FilePath) -> FileNumber:
    """The number of the file at `path`. Raises ConfigProblem for invalid digits."""
    parts = find_version_digits(path.name, ENDINGS)
    digits, widths = "".join(parts), tuple(map(len, parts))
    if not digits:
        return FileNumber(0, None)
    number: int | None = None
    if len(digits) in TIMES:
        with suppress(ValueError):
            number = int(datetime.strptime(digits, TIMES[len(digits)]).replace(tzinfo=UTC).timestamp())
    elif len(digits) <= MOST_DIGITS:
        number = int(digits)
    if number is None or not 0 <= number < MOST:
        raise ConfigProblem(
            f"The name of {path} ends in digits that are no number below {MOST:,} and no time",
            next_step="Name files like 000012.csv, 2024-01-05.csv or 20240105T103000.csv.",
        )
    return FileNumber(number, widths if len(parts) > 1 or len(digits) in TIMES else ())


def find_table(path: FilePath) -> str:
    """The folder of the file."""
    return path.absolute().parts[-2]


def refuse_unordered(files: Iterable[ArchiveFile]) -> None:
    """Raise ConfigProblem for two files of a table whose names do not define their order."""
    seen: dict[tuple[TopicPartition, int], ArchiveFile] = {}
    shapes: dict[TopicPartition, tuple[tuple[int, ...], ArchiveFile]] = {}
    for file in files:
        shape = parse_number(file.path).shape
        other = seen.setdefault((file.partition, file.first), file)
        if shape is not None:
            expected, first = shapes.setdefault(file.partition, (shape, file))
            other = first if expected != shape else other
        if other is not file:
            raise ConfigProblem(
                f"The names of {other.path} and {file.path} do not say which of them comes first",
                next_step="Let names of a table end in numbers, or in times with as many digits in each: 2024-01-05, not "
                "2024-1-5.",
            )


# Files of rows as lines, and their records.


class RowFileFormat(FileFormat):
    """Base class of `FileFormat`s for rows."""

    deep = True

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        """See `FileFormat.files`: in the order of their numbers. Raises ConfigProblem if names define no order."""
        files = []
        for file in find_files(path, self.suffixes, deep=True):
            if not file.name.startswith((".", "_")):
                table, first = TopicPartition(find_table(file.path), 0), parse_number(file.path).number << ROW_BITS
                files.append(replace(file, partition=table, first=first, most=1 << ROW_BITS))
        files.sort(key=lambda file: (file.first, file.label))
        for file in files:
            refuse_name(file)
        refuse_unordered(files)
        return files

    def _empty_record(self, file: ArchiveFile, at: int) -> ArchiveRecord:
        """The record of line `at` without a value. Raises Fatal for a file with more lines than offsets allow."""
        if at >= file.most:
            raise Fatal(f"{file.path} has more than {file.most - 1} lines", next_step="Cut it into several files.")
        time = file.stamp[1] // 1_000_000
        stamp = time if FIRST_MS <= time <= LAST_MS else None
        return ArchiveRecord(*file.partition, file.first + at, stamp, None, None, None)


class JsonRowFormat(RowFileFormat):
    """`FileFormat` of JSON Lines."""

    suffixes = SUFFIXES["jsonl"]
    divisible = True

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | None:
        at = number()
        value = strip_line(line, first=at == 1).strip()
        return self._empty_record(file, at)._replace(value=value) if value else None


class CsvRowFormat(RowFileFormat):
    """`FileFormat` of CSV files with a header row in this dialect. Line ends can be part of values, so files are not
    divisible."""

    suffixes = SUFFIXES["csv"]

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
        fields = self._read_row(file, row)
        if isinstance(fields, Reject):
            return self._empty_record(file, at)._replace(headers=[(ERROR_HEADER, str(fields).encode())], value=row)
        return self._empty_record(file, at)._replace(value=msgspec.json.encode(fields))

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
        cells = self._cells(header)
        if isinstance(cells, Reject):
            return Reject(cells.code, f"its header row cannot be read: {cells.sentence}")
        names = [name for name in cells if name]
        if len(names) < len(cells):
            return Reject(RejectCode.MALFORMED, "its header row has a column without a name")
        twice = len(set(names)) < len(names)
        return Reject(RejectCode.MALFORMED, "its header row names a column twice") if twice else names


class ParquetRowFormat(RowFileFormat):
    """`FileFormat` of Parquet files."""

    suffixes = SUFFIXES["parquet"]

    def frame(self, file: ArchiveFile, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: every row with the types of its columns."""
        prefix, columns = slice_to_json(batch)
        encode, gathered = msgspec.json.Encoder().encode, RecordColumns()
        cells = zip(*columns.values(), strict=True) if columns else iter([()] * batch.num_rows)
        for at, row in enumerate(cells, first):
            value = prefix + encode(dict(zip(columns, row, strict=True))) + b"}"
            gathered.add(self._empty_record(file, at)._replace(value=value))
        return gathered.to_batch()

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses unsupported column types and duplicate names."""
        refuse_columns(file, schema, "Leave the column out, or write it as another type.")


# CSV rows to texts of cells.

Cells = list[str | None]
NOT_UTF8 = Reject(RejectCode.MALFORMED, "the row holds bytes that are not UTF-8")
NOT_A_ROW = Reject(RejectCode.MALFORMED, "the row has quotes that do not stand around whole values")


class CsvCellParser:
    """Parses rows of a dialect (`adapters.decoders.common.row_files.CsvDialect`). The dialect's text for null is null only
    without quotes."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._delimiter, self._null = dialect.delimiter, dialect.null_value
        self._signs = tuple(sign for sign in (dialect.quote, dialect.escape) if sign)
        d, q, e = (escape_sign(sign) if sign else "" for sign in (dialect.delimiter, dialect.quote, dialect.escape))
        escaped = f"|{e}(?s:.)" if e else ""
        plain = f"(?P<plain>(?:[^{d}{e}]{escaped})*)"
        quoted = f"{q}(?P<quoted>(?:[^{q}{e}]|{q}{q}{escaped})*+){q}|(?!{q})" if q else ""
        self._cell = re.compile(f"(?:{quoted}{plain})(?P<more>{d}|\\Z)")
        self._double, self._quote = 2 * (dialect.quote or ""), dialect.quote or ""
        self._escaped = re.compile(f"{e}((?s:.))") if e else None

    def __call__(self, row: bytes) -> Cells | Reject:
        """The cells of a row without its line end, or the error."""
        try:
            text = row.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        if not any(sign in text for sign in self._signs):
            return [None if cell == self._null else cell for cell in text.split(self._delimiter)]
        cells: Cells = []
        at, more = 0, True
        while more:
            match = self._cell.match(text, at)
            if match is None:
                return NOT_A_ROW
            cells.append(self._parse_value(match))
            at, more = match.end(), bool(match["more"])
        return cells

    def _parse_value(self, match: re.Match[str]) -> str | None:
        quoted = match["quoted"] if self._quote else None
        if quoted is None:
            plain = match["plain"]
            if plain == self._null:
                return None
            return self._escaped.sub(r"\1", plain) if self._escaped else plain
        if self._escaped is None:
            return quoted.replace(self._double, self._quote)
        # From left to right: an escaped character is never half of a double quote.
        return re.sub(rf"{self._escaped.pattern}|{escape_sign(self._quote)}{{2}}", lambda m: m[1] or self._quote, quoted)


# The source for folders of rows.

FILES = "files"


class RowsFilesSource(ImmutableFilesSource):
    """A `Source` over folders of rows (see the package). Options of `ArchiveSource`,
    `files` (`csv`, `jsonl` or `parquet`), and `csv` (`CsvDialect`)."""

    model: ClassVar[type[FileSourceOptions]] = FilesSettings

    @staticmethod
    def make_format(options: FileSourceOptions) -> FileFormat:
        files = getattr(options, FILES)
        if files not in SUFFIXES:
            raise ConfigProblem(f"The options of a source of files are not valid: {FILES}: must be {', '.join(SUFFIXES)}.")
        forms: dict[str, FileFormat] = {
            "csv": CsvRowFormat(CsvDialect.from_settings(options.csv)),
            "jsonl": JsonRowFormat(),
            "parquet": ParquetRowFormat(),
        }
        return forms[str(files)]
