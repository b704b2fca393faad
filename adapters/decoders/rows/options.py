"""The options of the decoder, checked on their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from ...arrow import options as common
from ...arrow.json.spelling import NAMES

OPERATION = "_op"
SEQUENCE = ("_version", "_order", "_row")
BEFORE = "_before"
"""What the records of `transport: delta` are called in."""


class Options(common.RowOptions):
    """What `RowsDecoder` takes: see the package, and `RowOptions` for what is not said there."""

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "create": ("c", "I"),
        "update": ("u", "U"),
        "delete": ("d", "D"),
        "read": ("r",),
    }

    operation_column: str = Field(OPERATION, min_length=1)
    sequence_columns: tuple[str, ...] = Field(SEQUENCE, min_length=1, max_length=4)

    @model_validator(mode="after")
    def _a_column_for_each(self) -> Options:
        if len({*self.sequence_columns, self.operation_column}) <= len(self.sequence_columns):
            raise ValueError("operation_column and sequence_columns name a column twice")
        return self

    @property
    def before(self) -> str | None:
        """The field with the values that an update changed, where records have one."""
        return BEFORE if self.sequence_columns == SEQUENCE else None


def read_options(options: Mapping[str, object]) -> Options:
    """The options, or ConfigProblem that names every wrong one without its value."""
    found = common.read_options(Options, options, "rows")
    common.refuse_types(found.declared, NAMES)
    return found
