"""The source for folders of DMS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..check import ArchiveCheck
from ..file_format import FileFormat
from ..immutable.file_selection import Naming
from ..immutable.source import CSV, ImmutableFilesSource, read_dialect
from ..options import ArchiveOptions
from .csv_format import DmsCsvFormat
from .file_names import find_table, first_offset, max_rows
from .parquet_format import DmsParquetFormat

PARQUET = "dms_parquet"


class DmsFilesSource(ImmutableFilesSource):
    """A `Source` over folders of AWS DMS (see the package), with `pyarrow.Table` as frames. Options of `ArchiveSource`,
    and `csv` (`CsvDialect`), or with `format: dms_parquet` `operation_column`."""

    naming: ClassVar[Naming] = Naming.for_tables(find_table, first_offset, max_rows)

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, FileFormat]:
        own: dict[str, Any] = dict(options)
        dialect = read_dialect(own.pop(CSV, None))
        operation = str(own.pop("operation_column", "") or "Op")
        own["transport"] = "archive"
        read = ArchiveOptions.read(own)
        return read, DmsParquetFormat(operation) if read.format == PARQUET else DmsCsvFormat(dialect)


class DmsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`, with the options of `DmsFilesSource`."""

    source = DmsFilesSource
