"""Options of the source for rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from replicator.domain.errors import ConfigProblem

from ...object_store.options import Storage


class RowsOptions(BaseModel):
    """`sources.<name>` in the configuration with `transport: delta` and `format: rows`.

    - `path`: the folder of the table, its `file://` URL, or `s3://BUCKET/KEY`; `storage` has the access options. On Spark
      `table` may name it as `catalog.schema.table`.
    - `changes`: its appended rows, or its change data feed.
    - `start_from`: `earliest` begins with all rows of the table at the first start, `latest` with the changes after it.
    - `operation_column`, `sequence_columns`: columns for the decoder. They are kept even if they are bookkeeping columns
      of a target.
    - `masked`: columns that are already masked in the table, which record headers mark.
    - `batch_records`, `batch_bytes`: limits of one batch. With `mode: batch` everything new is one batch, of at most
      `batch_bytes`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    transport: Literal["delta"] = "delta"
    format: Literal["rows"] = "rows"
    path: str | None = Field(None, min_length=1)
    storage: Storage | None = None
    table: str | None = Field(None, min_length=1)
    changes: Literal["appended", "feed"] = "appended"
    start_from: Literal["earliest", "latest"] = "earliest"
    operation_column: str | None = None
    sequence_columns: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    mode: Literal["stream", "batch"] = "stream"
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @model_validator(mode="after")
    def _check_table(self) -> RowsOptions:
        if (self.path is None) == (self.table is None):
            raise ValueError("give one of 'path' and 'table'")
        if self.changes == "feed" and (self.operation_column or self.sequence_columns):
            raise ValueError("the feed says operations and order itself: leave out operation_column and sequence_columns")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the decoder reads."""
        return (*((self.operation_column,) if self.operation_column else ()), *self.sequence_columns)

    @classmethod
    def read(cls, options: Mapping[str, object]) -> RowsOptions:
        """The validated options. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate({k: str(v) if k == "path" else v for k, v in options.items()})
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}".removeprefix(": ") for e in found)
            raise ConfigProblem(f"The options of a delta source of rows are not valid: {text}.") from None
