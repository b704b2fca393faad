"""The options of decoders of messages, checked on their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, InstanceOf

from replicator.domain.columns import Mask
from replicator.domain.sequence import MAX_EPOCH

from ..json.limits import Limits, of_table
from ..json.nodes import Node
from ..options import read_options as read
from ..options import refuse_types
from ..out_of_range import ReadsOutOfRange
from ..texts import NAMES, reader_of


class Options(ReadsOutOfRange):
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
    limits: Limits = Limits()

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return of_table(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...]:
        """The configured key of `table`, if any."""
        return of_table(self.keys, table) or ()


def read_options(options: Mapping[str, object], name: str) -> Options:
    """The options of the format `name`, or ConfigProblem that names every wrong one without its value."""
    found = read(Options, options, name)
    refuse_types(found.declared, f"{NAMES}, or list<string>", _has_text)
    return found


def _has_text(node: Node) -> bool:
    return reader_of(node.type) is not None or pa.types.is_list(node.type)
