"""Options of the snapshots source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ...decoders.common.csv_dialect import CsvDialect
from ...postgres.options import normalize_dsn
from ..journal.options import JournalOptions


class SnapshotsOptions(JournalOptions):
    """`sources.<name>` in the configuration with `transport: snapshots`.

    - `path`: the folder of the snapshots, with the name of the table.
    - `dsn`, instead of `path`: the database. It is queried again after each `every` seconds. `table`: the table's name.
      `query`: by default the whole table.
    - `keys`: the columns for comparisons.
    - `allow_empty`: snapshots may have no rows.
    - `files`: the format of the files. For text, `schema` has its columns and types, and `csv` the CSV dialect.
    - `memory`: the most bytes of an unpacked snapshot.
    - Others: see `JournalOptions`.
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
            raise ValueError("set either path, or dsn and table")
        return self

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.table or Path(self.path or "").name

    @classmethod
    def read(cls, options: Mapping[str, object]) -> SnapshotsOptions:
        """The validated options. Raises ConfigProblem that names each wrong key."""
        return cls.from_options(options, "snapshots")
