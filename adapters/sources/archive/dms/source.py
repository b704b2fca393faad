"""The source of DMS's folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from replicator.domain.errors import ConfigProblem

from ..check import ArchiveCheck
from ..form import Form
from ..options import ArchiveOptions
from ..source import ArchiveSource
from .form import DmsRows

CSV = "csv"


class Dialect(BaseModel):
    """What of `csv` the transport has to know: whether files begin with the names of columns, and what quotes a value."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    header: bool = False
    quote: str | None = '"'


class DmsFilesSource(ArchiveSource):
    """A `Source` over the folders that AWS DMS writes (see the package); frames are `pyarrow.Table`. Options: those of
    `ArchiveSource`, and `csv` (`Dialect`).

    Files are read as an archive's are: again when they grow or appear, no row twice. Keep at least the newest file of every
    table: without any, the table counts as gone.
    """

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, Form]:
        """See `ArchiveSource.read_options`."""
        own: dict[str, Any] = dict(options)
        try:
            dialect = Dialect.model_validate(own.pop(CSV, None) or {})
        except ValidationError as error:
            wrong = "; ".join(f"csv.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
            raise ConfigProblem(f"The options of a source of files are not valid: {wrong}.") from None
        own["transport"] = "archive"
        return ArchiveOptions.read(own), DmsRows(header=dialect.header, quote=dialect.quote)


class DmsFilesCheck(ArchiveCheck):
    """`ports.diagnosis.Check`; the options of `DmsFilesSource`."""

    source = DmsFilesSource
