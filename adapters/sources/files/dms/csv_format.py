"""CSV files as lines. A row may span several lines; its number in the file defines its order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from replicator.domain.errors import Fatal

from ....decoders.common.csv_dialect import CsvDialect
from ....decoders.common.dms_rows import COLUMNS, KIND
from ..archive_records import ArchiveRecord
from ..file_format import LONGEST, Number
from ..file_list import ArchiveFile, Place
from ..immutable.csv_rows import CsvRowJoiner
from ..immutable.text_files import read_first_row, strip_line
from .file_list import list_files
from .file_names import DmsFileName, find_table, parse_name
from .transaction_files import TransactionRows

Headers = list[tuple[str, bytes | None]]


class DmsCsvFormat:
    """`FileFormat` of CSV files in this dialect."""

    suffixes: tuple[str, ...] = (".csv", ".csv.gz")
    longest = LONGEST
    growing = divisible = False
    """Line ends can be part of values, so files must be read from the beginning."""
    deep = True

    def __init__(self, dialect: CsvDialect) -> None:
        self._header, self._rows, self._transactions = dialect.header, CsvRowJoiner(dialect), TransactionRows(dialect)
        self._known: tuple[ArchiveFile, str, DmsFileName, Headers] | None = None

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `FileFormat.files` and `file_list.list_files`."""
        return list_files(path, self.suffixes)

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return self._rows.join_lines(stream, self.longest)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """Raises Fatal for a file with more rows than its offsets allow."""
        at = number()
        topic, name, headers = self._common_fields(file)
        if at == 1 and len(headers) > 1:
            return None
        refuse_full(file, name, at)
        row = strip_line(line, first=at == 1)
        if name.of_transactions:
            found = self._transactions.parse_row(row)
            if isinstance(found, ValueError):
                return found
            topic, row = found
        return ArchiveRecord(topic, 0, name.first + at, name.time, headers, None, row)

    def frame(self, file: ArchiveFile, _: pa.RecordBatch, __: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: not used for text."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: no file of this format is Parquet."""

    def _common_fields(self, file: ArchiveFile) -> tuple[str, DmsFileName, Headers]:
        """The common fields of all records of a file."""
        if self._known is None or self._known[0] != file:
            name = parse_name(file.path)
            headers: Headers = [(KIND, name.kind.encode())]
            if self._header and not name.of_transactions:
                headers.append((COLUMNS, self._rows.check_header(read_first_row(self, file), file)))
            self._known = (file, find_table(file.path), name, headers)
        return self._known[1:]


def refuse_full(file: ArchiveFile, name: DmsFileName, rows: int) -> None:
    """Raise Fatal for a file with more rows than its offsets allow."""
    if rows >= name.most:
        raise Fatal(f"{file.path} has more than {name.most - 1} rows", next_step="Cut it into files with later times.")
