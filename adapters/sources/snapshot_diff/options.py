"""Options of the source of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ...decoders.common.dms_rows import CsvDialect
from ...postgres.options import normalize_dsn
from ..journal.options import JournalOptions


class SnapshotsOptions(JournalOptions):
    """`sources.<name>` of the configuration with `transport: snapshots`.

    `path` is the folder of the snapshots, called as the table. Instead, `dsn` is the database that is asked `every` so many
    seconds, `table` the table's name, and `query` what is asked, by default all of the table. Rows are compared by `keys`.
    `allow_empty`: whether a snapshot may be without rows.
    `files`: what the files are; where they are text, `schema` are its columns and their types, and `csv` how CSV is written.
    `memory`: bytes that a snapshot may have once it is unpacked.
    Others: see `JournalOptions`.
    """

    path: str | None = Field(None, min_length=1)
    dsn: Annotated[SecretStr, AfterValidator(normalize_dsn)] | None = None
    table: str | None = Field(None, min_length=1)
    query: str | None = None
    every: float = Field(300, gt=0)
    files: Literal["parquet", "csv", "jsonl"] = "parquet"
    csv: CsvDialect = CsvDialect()
    allow_empty: bool = False
    memory: int = Field(1 << 30, ge=1)

    @model_validator(mode="after")
    def _check_location(self) -> SnapshotsOptions:
        asked = self.dsn is not None and self.table is not None and self.path is None
        if not asked and (self.path is None or self.dsn or self.table or self.query):
            raise ValueError("give either path, or dsn and table")
        return self

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table or Path(self.path or "").name

    @classmethod
    def read(cls, options: Mapping[str, object]) -> SnapshotsOptions:
        """The options checked. Raises ConfigProblem that names each wrong key."""
        return cls.from_options(options, "snapshots")
