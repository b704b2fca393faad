"""The source of DMS's folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..check import ArchiveCheck
from ..form import Form
from ..once.choice import Naming
from ..once.source import CSV, WrittenOnceSource, dialect_of
from ..options import ArchiveOptions
from .form import DmsRows
from .names import first_of, most_of, table_of
from .parquet import DmsParquet

PARQUET = "dms_parquet"


class DmsFilesSource(WrittenOnceSource):
    """A `Source` over the folders that AWS DMS writes (see the package); frames are `pyarrow.Table`. Options: those of
    `ArchiveSource`, and `csv` (`Dialect`); with `format: dms_parquet` instead `operation_column`."""

    naming: ClassVar[Naming] = Naming.of_tables(table_of, first_of, most_of)

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, Form]:
        """See `ArchiveSource.read_options`."""
        own: dict[str, Any] = dict(options)
        dialect = dialect_of(own.pop(CSV, None))
        operation = str(own.pop("operation_column", "") or "Op")
        own["transport"] = "archive"
        read = ArchiveOptions.read(own)
        return read, DmsParquet(operation) if read.format == PARQUET else DmsRows(dialect)


class DmsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`; the options of `DmsFilesSource`."""

    source = DmsFilesSource
