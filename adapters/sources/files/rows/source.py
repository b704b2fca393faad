"""The source for folders of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replicator.domain.errors import ConfigProblem

from ..check import ArchiveCheck
from ..file_format import FileFormat
from ..immutable.file_selection import Naming
from ..immutable.source import CSV, ImmutableFilesSource, read_dialect
from ..options import ArchiveOptions
from .file_names import SUFFIXES, find_table, first_offset, max_rows
from .row_formats import CsvRowFormat, JsonRowFormat, ParquetRowFormat

FILES = "files"


class RowsFilesSource(ImmutableFilesSource):
    """A `Source` over folders of rows (see the package), with `pyarrow.Table` as frames. Options of `ArchiveSource`,
    `files` (`csv`, `jsonl` or `parquet`), and `csv` (`CsvDialect`)."""

    naming: ClassVar[Naming] = Naming.for_tables(find_table, first_offset, max_rows)

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, FileFormat]:
        own: dict[str, Any] = dict(options)
        files = own.pop(FILES, None)
        if files not in SUFFIXES:
            raise ConfigProblem(f"The options of a source of files are not valid: {FILES}: must be {', '.join(SUFFIXES)}.")
        dialect = read_dialect(own.pop(CSV, None))
        own.pop("operation_column", None)
        own["transport"] = "archive"
        forms: dict[str, FileFormat] = {
            "csv": CsvRowFormat(dialect),
            "jsonl": JsonRowFormat(),
            "parquet": ParquetRowFormat(),
        }
        return ArchiveOptions.read(own), forms[str(files)]


class RowsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`, with the options of `RowsFilesSource`."""

    source = RowsFilesSource
