"""Options of the source of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from replicator.domain.errors import ConfigProblem

from ....arrow.dms import Dialect
from ....delta.names import encode
from ....sql.pg_options import plain_dsn
from ..rows.options import RowsOptions

CHANGE, VERSION = "_change", "_snapshot"
"""Columns of the journal: what became of a row, and in which snapshot."""


class SnapshotsOptions(BaseModel):
    """`sources.<name>` of the configuration with `transport: snapshots`.

    `path` is the folder of the snapshots, called as the table. Instead, `dsn` is the database that is asked `every` so many
    seconds, `table` the table's name, and `query` what is asked, by default all of the table. `state`: the folder of what is
    kept between runs. `keys`: the columns by which rows are compared. `allow_empty`: whether a snapshot may be without rows.
    `files`: what the files are; where they are text, `schema` are its columns and their types, and `csv` how CSV is written.
    `batch_records` and `batch_bytes` bound one batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: Literal["rows"] = "rows"
    path: str | None = Field(None, min_length=1)
    dsn: Annotated[SecretStr, AfterValidator(plain_dsn)] | None = None
    table: str | None = Field(None, min_length=1)
    query: str | None = None
    every: float = Field(300, gt=0)
    state: str = Field(min_length=1)
    keys: tuple[str, ...]
    files: Literal["parquet", "csv", "jsonl"] = "parquet"
    columns: dict[str, str] = Field(default_factory=dict, alias="schema")
    csv: Dialect = Dialect()
    allow_empty: bool = False
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @model_validator(mode="after")
    def _one_place(self) -> SnapshotsOptions:
        asked = self.dsn is not None and self.table is not None and self.path is None
        if not asked and (self.path is None or self.dsn or self.table or self.query):
            raise ValueError("give either path, or dsn and table")
        return self

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table or Path(self.path or "").name

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return Path(self.state) / encode(self.name)

    def rows(self) -> RowsOptions:
        """How the journal is read."""
        return RowsOptions(
            path=str(self.journal),
            table=None,
            operation_column=CHANGE,
            sequence_columns=(VERSION,),
            batch_records=self.batch_records,
            batch_bytes=self.batch_bytes,
        )

    @classmethod
    def read(cls, options: Mapping[str, object]) -> SnapshotsOptions:
        """The options checked. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}".removeprefix(": ") for e in found)
            raise ConfigProblem(f"The options of a source of snapshots are not valid: {text}.") from None
