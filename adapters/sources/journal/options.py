"""Options of sources that write rows to a journal, a Delta table of their own, and read that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from replicator.domain.errors import ConfigProblem
from replicator.domain.transform.columns import Mask

from ...delta.lake import encode_name
from ..delta_table.options import RowsOptions
from .masking import RowMasker

CHANGE, VERSION = "_change", "_snapshot"
"""Columns of the journal: the operation, and the version of the read."""
T = TypeVar("T", bound="JournalOptions")


class JournalOptions(BaseModel):
    """Common options. `state`: the folder for state between runs. `keys`: the key columns. `schema`: declared columns
    with types. `private`: masks of columns. `batch_records`, `batch_bytes`: limits of one batch."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: Literal["rows"] = "rows"
    state: str = Field(min_length=1)
    keys: tuple[str, ...]
    columns: dict[str, str] = Field(default_factory=dict, alias="schema")
    private: dict[str, InstanceOf[Mask]] = Field(default_factory=dict)
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @property
    def name(self) -> str:
        """The name of the table and of the stream."""
        raise NotImplementedError

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return Path(self.state) / encode_name(self.name)

    def rows_options(self) -> RowsOptions:
        """The options for reading the journal."""
        return RowsOptions(
            path=str(self.journal),
            table=None,
            operation_column=CHANGE,
            sequence_columns=(VERSION,),
            masked=tuple(sorted(self.private)),
            batch_records=self.batch_records,
            batch_bytes=self.batch_bytes,
        )

    def row_masker(self) -> RowMasker:
        """The masker of rows."""
        return RowMasker(self.name, self.private, self.keys, self.columns)

    @classmethod
    def from_options(cls: type[T], options: Mapping[str, object], what: str) -> T:
        """The validated options of a source of `what`. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}".removeprefix(": ") for e in wrong)
            raise ConfigProblem(f"The options of a source of {what} are not valid: {text}.") from None
