"""The source of folders of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replicator.domain.errors import ConfigProblem

from ..check import ArchiveCheck
from ..form import Form
from ..once.choice import Naming
from ..once.source import CSV, WrittenOnceSource, dialect_of
from ..options import ArchiveOptions
from .form import CsvRows, JsonRows, ParquetRows
from .names import SUFFIXES, first_of, most_of, table_of

FILES = "files"


class RowsFilesSource(WrittenOnceSource):
    """A `Source` over folders of rows (see the package); frames are `pyarrow.Table`. Options: those of `ArchiveSource`,
    `files` (`csv`, `jsonl` or `parquet`), and `csv` (`Dialect`)."""

    naming: ClassVar[Naming] = Naming.of_tables(table_of, first_of, most_of)

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, Form]:
        """See `ArchiveSource.read_options`."""
        own: dict[str, Any] = dict(options)
        files = own.pop(FILES, None)
        if files not in SUFFIXES:
            raise ConfigProblem(f"The options of a source of files are not valid: {FILES}: must be {', '.join(SUFFIXES)}.")
        dialect = dialect_of(own.pop(CSV, None))
        own.pop("operation_column", None)
        own["transport"] = "archive"
        forms: dict[str, Form] = {"csv": CsvRows(dialect), "jsonl": JsonRows(), "parquet": ParquetRows()}
        return ArchiveOptions.read(own), forms[str(files)]


class RowsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`; the options of `RowsFilesSource`."""

    source = RowsFilesSource
