"""The options of decoders of messages, checked on their own."""

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
    """`schema`: per table (exact name or glob) columns and their types, which go before those of the messages: all columns
    that are wanted, or, without those of the key, some. `keys`: per table its key, likewise. `epoch`: see
    `domain.sequence.with_epoch`. `private`: per table the masks of columns whose values nobody is to get; a table without is
    there too."""

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
    """The options of the format `name`, or ConfigProblem that names every wrong one without its value."""
    found = read(MessageOptions, options, name)
    refuse_types(found.declared, f"{NAMES}, or list<string>", has_text_reader)
    return found


def has_text_reader(node: ValueReader) -> bool:
    """Whether a column of these values may be named in `declared`: one with a text form, or a list."""
    return find_text_reader(node.type) is not None or pa.types.is_list(node.type)
