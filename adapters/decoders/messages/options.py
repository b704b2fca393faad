"""Options of decoders of messages, with validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, InstanceOf

from replicator.domain.sequence import MAX_EPOCH
from replicator.domain.transform.columns import Mask

from ...arrow.out_of_range_values import OutOfRangeOptions
from ...arrow.record_limits import RecordLimits, find_table_entry
from ...arrow.text_values import NAMES, find_text_reader
from ...arrow.value_readers import ValueReader
from ..common.row_options import read_options as read
from ..common.row_options import refuse_types


class MessageOptions(OutOfRangeOptions):
    """Options of a decoder of messages.

    - `schema`: for each table (exact name or glob) columns and their types, which take precedence over those in messages.
      With the key columns these are all columns; without them, the other columns in messages are added.
    - `keys`: for each table its key.
    - `epoch`: see `domain.sequence.EPOCH_SHIFT`.
    - `private`: for each table the masks of its masked columns; tables without masks are included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore"] | dict[str, Literal["ignore"]] = "ignore"
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    private: dict[str, dict[str, InstanceOf[Mask]]] = Field(default_factory=dict)
    limits: RecordLimits = RecordLimits()

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return find_table_entry(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...]:
        """The configured key of `table`, if any."""
        return find_table_entry(self.keys, table) or ()


def read_options(options: Mapping[str, object], name: str) -> MessageOptions:
    """The validated options of the format `name`. Raises ConfigProblem that names wrong options, not their values."""
    found = read(MessageOptions, options, name)
    refuse_types(found.declared, f"{NAMES}, or list<string>", has_text_reader)
    return found


def has_text_reader(node: ValueReader) -> bool:
    """True if the type may be used in `declared`: one with a text form, or a list."""
    return find_text_reader(node.type) is not None or pa.types.is_list(node.type)
