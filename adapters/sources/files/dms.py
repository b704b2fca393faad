"""Folders of files that AWS DMS writes to a bucket, CSV or Parquet, read as one topic per table.

**Names** (AWS, "Using Amazon S3 as a target"). Full load: `LOAD00000001.csv`, a hexadecimal number. Changes: their time,
`20211017-194324349.csv`. Both may end with `.gz`, or with `.parquet`. The table is `SCHEMA.TABLE` from the last two
folders above a file; date folders below them are ignored.

**Transaction files** (`CDC_TXN-20211017194324349.csv`) contain several tables: each row names its own. Such a file
follows all full loads. Later files wait until it is complete.

**Records.** One per row: topic `SCHEMA.TABLE`, partition 0, the row's bytes as value (for Parquet see `DmsParquetFormat`),
the file's time as time. Headers: `dms.kind` (`load` or `cdc`), and `dms.columns`, the first row of the file, if files
have a header row.

**Order.** A table's full load precedes its changes; changes are ordered by the time of their file, then by row. The
offset of a change is the file's time in milliseconds times 2**21, plus the row number. The offset of a full-load row is
the file's number times 2**32, plus the row number. Row numbers in a file start from 1 and include the header row. A file
that appears below delivered ones in the same run is a DataLoss that names it. A file that appears below the lanes'
positions while nothing runs looks like one that was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.position import TopicPartition

from ...decoders.common.row_files import (
    CDC,
    COLUMNS,
    DMS_ROW_BITS,
    FIRST_CHANGE,
    KIND,
    LOAD,
    LOAD_BITS,
    OF_LOAD,
    PARQUET_SEQUENCE,
    TRANSACTIONS,
    CsvDialect,
    escape_sign,
    to_sequence,
)
from ...event_log import build_raw
from ..file_options import FileSourceOptions, FilesSettings
from .file_list import ArchiveFile, FilePath, FilesLocation, find_files, refuse_name
from .file_reader import ArchiveRecord, FileFormat, Number
from .immutable import (
    CsvRowJoiner,
    ImmutableFilesSource,
    read_first_row,
    refuse_columns,
    slice_to_json,
    strip_line,
)

# Names of DMS files and folders.

ENDINGS = (".csv", ".csv.gz", ".parquet")
_ENDING = r"(?:\.csv(?:\.gz)?|\.parquet)"
_LOAD = re.compile(rf"LOAD0*([0-9A-Fa-f]{{1,7}}){_ENDING}")
_CDC = re.compile(rf"({TRANSACTIONS})?(\d{{8}})-?(\d{{6}})(\d{{3,6}}){_ENDING}")
_DATE = re.compile(r"\d{2}|\d{4}|\d{6}|\d{8}|\d{10}|\d{2,4}([_-]\d{2,4}){1,3}")
"""A date folder of DMS (`DatePartitionEnabled`), in any order and with any separator."""
CDC_BITS = DMS_ROW_BITS
"""Bits of the row number in a file of changes; for full loads see `LOAD_BITS`. DMS starts a new file of changes at 32 MB
by default. With two million rows per file, times fit until the year 2109."""


LISTED = 2**17
"""Cached names: folders are listed every second."""


class DmsFileName(NamedTuple):
    """A parsed file name.

    It has the kind, the offset before the first row, the limit for row numbers, and the time in milliseconds. A flag shows
    if the file contains transactions of several tables.
    """

    kind: str
    first: int
    most: int
    time: int | None
    of_transactions: bool = False


@lru_cache(LISTED)
def parse_name(path: FilePath) -> DmsFileName:
    """The parsed name of the file at `path`. Raises ConfigProblem for an unknown name."""
    if match := _LOAD.fullmatch(path.name):
        return DmsFileName(LOAD, int(match[1], 16) << LOAD_BITS, 1 << LOAD_BITS, None)
    if match := _CDC.fullmatch(path.name):
        try:
            at = datetime.strptime(match[2] + match[3], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            time = int(at.timestamp()) * 1000 + int(match[4][:3])
        except ValueError:
            time = 0
        if time << CDC_BITS >= FIRST_CHANGE:
            return DmsFileName(CDC, time << CDC_BITS, 1 << CDC_BITS, time, match[1] is not None)
    raise ConfigProblem(
        f"{path} is no file of AWS DMS: its name is neither like LOAD00000001.csv nor like 20211017-194324349.csv",
        next_step="Move it to another place, or let `path` of the source name DMS's own folders.",
    )


@lru_cache(LISTED)
def find_table(path: FilePath) -> str:
    """`SCHEMA.TABLE` from the last two folders above a file; for changes, date folders at the end are skipped. Empty for
    a transaction file, which contains several tables."""
    if path.name.startswith(TRANSACTIONS):
        return ""
    folders = list(path.absolute().parts[1:-1])
    while _CDC.fullmatch(path.name) and len(folders) > 2 and _DATE.fullmatch(folders[-1]):
        folders.pop()
    return ".".join(folders[-2:])


# The files of DMS in their order.


def list_files(path: FilesLocation, endings: tuple[str, ...]) -> list[ArchiveFile]:
    """See `FileFormat.files`: a table's full load before its changes, both in the order of their names.

    Raises ConfigProblem for a file with an unknown name, a DMS file with none of `endings`, and two files with one name of
    a table.
    """
    files = []
    for file in find_files(path, ENDINGS, deep=True):
        name, table = parse_name(file.path), TopicPartition(find_table(file.path), 0)
        files.append(replace(file, partition=table, first=name.first, most=name.most))
    files.sort(key=lambda file: (file.first, file.label))
    seen: dict[tuple[TopicPartition, int], ArchiveFile] = {}
    for file in files:
        refuse_name(file)
        if not file.name.endswith(endings):
            raise ConfigProblem(
                f"{file.path} is not in the source's format, whose files end with {', '.join(endings)}",
                next_step="Correct `format` of the source: dms_csv or dms_parquet; or move the file to another place.",
            )
        other = seen.setdefault((file.partition, file.first), file)
        if other is not file:
            raise ConfigProblem(
                f"{other.path} and {file.path} are of one table and one time: which comes first is not known",
                next_step="Rename one of them, or remove it where it is the same file.",
            )
    return files


# CSV files as lines. A row may span several lines; its number in the file defines its order.

Headers = list[tuple[str, bytes | None]]


class DmsCsvFormat(FileFormat):
    """`FileFormat` of CSV files in this dialect. Line ends can be part of values, so files are not divisible."""

    suffixes = (".csv", ".csv.gz")
    deep = True

    def __init__(self, dialect: CsvDialect) -> None:
        self._header, self._rows, self._transactions = dialect.header, CsvRowJoiner(dialect), TransactionRows(dialect)
        self._known: tuple[ArchiveFile, DmsFileName, Headers] | None = None

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        return list_files(path, self.suffixes)

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return self._rows.join_lines(stream, self.longest)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """Raises Fatal for a file with more rows than its offsets allow."""
        at = number()
        if self._known is None or self._known[0] != file:
            name = parse_name(file.path)
            headers: Headers = [(KIND, name.kind.encode())]
            if self._header and not name.of_transactions:
                headers.append((COLUMNS, self._rows.check_header(read_first_row(self, file), file)))
            self._known = (file, name, headers)
        _, name, headers = self._known
        if at == 1 and len(headers) > 1:
            return None
        refuse_full(file, at)
        topic, row = file.partition.topic, strip_line(line, first=at == 1)
        if name.of_transactions:
            parsed = self._transactions.parse_row(row)
            if isinstance(parsed, ValueError):
                return parsed
            topic, row = parsed
        return ArchiveRecord(topic, 0, file.first + at, name.time, headers, None, row)


def refuse_full(file: ArchiveFile, rows: int) -> None:
    """Raise Fatal for a file with more rows than its offsets allow."""
    if rows >= file.most:
        raise Fatal(f"{file.path} has more than {file.most - 1} rows", next_step="Cut it into files with later times.")


# Transaction files (`PreserveTransactions`, `CdcPath`): each row names its table.
#
# `operation,table_name,database_schema_name,field_value,...` (AWS, "Capturing data changes (CDC) including transaction
# order on the S3 target"). Such files have no header row.


class TransactionRow(NamedTuple):
    """A row of a transaction file: its table, and the row as in a file of that table."""

    table: str
    row: bytes


class TransactionRows:
    """Parses rows of such files."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._delimiter, self._quote = dialect.delimiter.encode(), (dialect.quote or "").encode()
        d, q = escape_sign(dialect.delimiter), escape_sign(dialect.quote) if dialect.quote else ""
        plain = f"[^{d}{q}\\r\\n]*"
        field = f"(?:{q}(?:[^{q}]|{q}{q})*{q}|{plain})" if q else plain
        self._begins = re.compile(f"({field}){d}({field}){d}({field})(?:{d}|$)".encode())

    def parse_row(self, row: bytes) -> TransactionRow | ValueError:
        """The row, or the reason why it is invalid."""
        match = self._begins.match(row)
        if match is None:
            return ValueError("it does not begin with an operation, a table and a schema")
        try:
            table, schema = (self._to_text(match[i]).decode() for i in (2, 3))
        except UnicodeDecodeError:
            return ValueError("the name of its table is not UTF-8")
        if not table or not schema:
            return ValueError("it does not say which table it is of")
        rest = row[match.end() :]
        return TransactionRow(f"{schema}.{table}", match[1] + self._delimiter + rest)

    def _to_text(self, field: bytes) -> bytes:
        quote = self._quote
        if not quote or not field.startswith(quote):
            return field
        return field[1:-1].replace(quote + quote, quote)


# Parquet files as records: each row is a JSON object with the types of its columns, for decoder `dms_parquet`.


class DmsParquetFormat(FileFormat):
    """`FileFormat` of Parquet files with the operation in `operation_column`."""

    suffixes = (".parquet",)
    deep = True

    def __init__(self, operation_column: str) -> None:
        self._operation = operation_column

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        return list_files(path, self.suffixes)

    def frame(self, file: ArchiveFile, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        name, count = parse_name(file.path), batch.num_rows
        refuse_full(file, first + count - 1)
        offsets = [file.first + first + row for row in range(count)]
        prefix, values = slice_to_json(batch)
        if name.kind == LOAD:
            ops = values.get(self._operation, [None] * count)
            values[self._operation] = [OF_LOAD if one in (None, "") else one for one in ops]
        records = [dict(zip(PARQUET_SEQUENCE, to_sequence(offset), strict=True)) for offset in offsets]
        for record, row in zip(records, zip(*values.values(), strict=True), strict=True):
            record.update(zip(values, row, strict=True))
        encode = msgspec.json.Encoder().encode
        texts = [prefix + encode(record) + b"}" for record in records]
        headers = [{"name": KIND, "value": name.kind.encode()}]
        return build_raw(file.partition, offsets, texts, millis=name.time, headers=headers)

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses unsupported column types, duplicate names and reserved names."""
        refuse_columns(file, schema, "Leave the column out in the mappings of the DMS task, or convert it there.")
        if set(PARQUET_SEQUENCE) & set(schema.names):
            raise ConfigProblem(f"{file.path} has a column {' or '.join(PARQUET_SEQUENCE)}, which are not free")


# The source for folders of DMS.

PARQUET = "dms_parquet"


class DmsFilesSource(ImmutableFilesSource):
    """A `Source` over folders of AWS DMS (see the package). Options of `ArchiveSource`,
    and `csv` (`CsvDialect`), or with `format: dms_parquet` `operation_column`."""

    model: ClassVar[type[FileSourceOptions]] = FilesSettings

    @staticmethod
    def make_format(options: FileSourceOptions) -> FileFormat:
        if options.format == PARQUET:
            return DmsParquetFormat(options.operation_column or "Op")
        return DmsCsvFormat(CsvDialect.from_settings(options.csv))
