"""Options of the rows decoder, with validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...arrow import text_values as texts
from ...arrow.value_readers import ValueReader
from ..common import row_options as common
from ..json.type_names import NAMES, find_type_reader

OPERATION = "_op"
SEQUENCE = ("_version", "_order", "_row")
BEFORE = "_before"
"""Field names in records of `transport: delta`."""
OF_OFFSET = 2
"""Elements of a sequence made of the offset: in a single one, large offsets would leave no room for the epoch."""


class RowsDecoderOptions(common.RowOptions):
    """Options of `RowsDecoder`: see the package, and `RowOptions` for the inherited ones.

    - `sequence_columns`: empty if offsets order the rows.
    - `inserts_only`: a row without an operation is a create.
    - `text_values`: every value is text, read by `adapters.arrow.text_values`.
    - `tombstones`: `delete` makes a record without a value a delete of its key. Requires `inserts_only` and no
      `sequence_columns`.
    - `in_files`: offsets encode positions in files, which rejects then name.
    - `truncates`: for each table the condition (`domain.policy.expr.Expr`) of its truncates, which need no key.
    """

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "create": ("c", "I", "INSERT"),
        "update": ("u", "U", "UPDATE", "UPSERT"),
        "delete": ("d", "D", "DELETE"),
        "read": ("r",),
    }

    operation_column: str = Field(OPERATION, min_length=1)
    sequence_columns: tuple[str, ...] = Field(SEQUENCE, max_length=4)
    inserts_only: bool = False
    tombstones: Literal["ignore", "delete"] | dict[str, Literal["ignore", "delete"]] = "ignore"
    text_values: bool = False
    in_files: bool = False
    truncates: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_sequence_columns(self) -> RowsDecoderOptions:
        if len({*self.sequence_columns, self.operation_column}) <= len(self.sequence_columns):
            raise ValueError("operation_column and sequence_columns name a column twice")
        modes = self.tombstones if isinstance(self.tombstones, dict) else {"": self.tombstones}
        if "delete" in modes.values() and (self.sequence_columns or not self.inserts_only):
            raise ValueError("tombstones: delete needs rows that are all new ones, in the order of their offsets")
        return self

    @property
    def elements(self) -> int:
        """The number of elements in the sequence."""
        return len(self.sequence_columns) or OF_OFFSET

    def find_column_reader(self, said: str) -> ValueReader:
        """The reader for values of a column with this declared type."""
        return texts.text_value_reader(find_type_reader(said).type) if self.text_values else find_type_reader(said)

    @property
    def before_field(self) -> str | None:
        """The field with the old values of an update, if records have one."""
        return BEFORE if self.sequence_columns == SEQUENCE else None


def read_options(options: Mapping[str, object]) -> RowsDecoderOptions:
    """The validated options. Raises ConfigProblem that names every wrong option without its value."""
    found = common.read_options(RowsDecoderOptions, options, "rows")
    if found.text_values:
        common.refuse_types(found.declared, texts.NAMES, lambda node: texts.find_text_reader(node.type) is not None)
    else:
        common.refuse_types(found.declared, NAMES)
    return found
