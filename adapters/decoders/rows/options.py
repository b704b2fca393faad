"""The options of the decoder, checked on their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...arrow import text_values as texts
from ...arrow.value_readers import ValueReader
from ..common import row_options as common
from ..json.type_names import NAMES, find_reader

OPERATION = "_op"
SEQUENCE = ("_version", "_order", "_row")
BEFORE = "_before"
"""What the records of `transport: delta` are called in."""
OF_OFFSET = 2
"""Elements of a sequence that is made of the offset: with one, there would be no room for the epoch above large ones."""


class RowsDecoderOptions(common.RowOptions):
    """What `RowsDecoder` takes: see the package, and `RowOptions` for what is not said there. `sequence_columns`: none where
    the offset is the order. `inserts_only`: a row that says no operation is a new one. `text_values`: every value is text,
    as `adapters.arrow.text_values` reads it. `tombstones`: with `inserts_only` and without `sequence_columns`, `delete`
    makes a record without a value a delete of its key. `in_files`: offsets say where in files rows stand, and rejects do,
    too. `truncates`: per table the condition (`domain.policy.expr.Expr`) that holds for its truncates, which need not have a
    key."""

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
        """How many elements the sequence has."""
        return len(self.sequence_columns) or OF_OFFSET

    def find_reader(self, said: str) -> ValueReader:
        """How values of a column that is declared so are read."""
        return texts.text_value_reader(find_reader(said).type) if self.text_values else find_reader(said)

    @property
    def before_field(self) -> str | None:
        """The field with the values that an update changed, where records have one."""
        return BEFORE if self.sequence_columns == SEQUENCE else None


def read_options(options: Mapping[str, object]) -> RowsDecoderOptions:
    """The options, or ConfigProblem that names every wrong one without its value."""
    found = common.read_options(RowsDecoderOptions, options, "rows")
    if found.text_values:
        common.refuse_types(found.declared, texts.NAMES, lambda node: texts.find_text_reader(node.type) is not None)
    else:
        common.refuse_types(found.declared, NAMES)
    return found
