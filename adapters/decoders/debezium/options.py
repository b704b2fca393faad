"""The options of decoders of Debezium's events, checked on their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf

from replicator.domain.sequence import MAX_EPOCH
from replicator.domain.transform.columns import Mask

from ...arrow.out_of_range_values import OutOfRangeOptions
from ...arrow.record_limits import RecordLimits, find_table_entry

ReplicaIdentity = Literal["full", "default"]
PLACEHOLDER = "__debezium_unavailable_value"


def _to_tuple(value: object) -> object:
    return [value] if isinstance(value, str) else value


class DebeziumOptions(OutOfRangeOptions):
    """What every decoder of Debezium's events takes.

    `unavailable_value`: the connector's `unavailable.value.placeholder`, one or several; `hex:` as Debezium reads it.
    `epoch`: see `domain.sequence.with_epoch`. `schema`: per table (exact name or glob) the columns of events that carry no
    schema, as Arrow type names (see `declared`). `keys`: per table the key columns, instead of the message key's.
    `tombstones`: `delete` makes a null value a delete, and then the table is sequenced by (epoch, offset).
    `decimals`: what decimals in JSON text are, in events without a schema: digits (`text`), or Base64 of the unscaled value
    (`base64`); by default text that may be both is refused. `flattened`: records are rows that ExtractNewRecordState
    flattened. `replica_identity`: whether PostgreSQL's deletes hold the whole row (`full`) or the key (`default`), per table
    or for all; by default each record is judged by itself. `private`: per table the masks of columns whose values nobody
    is to get; a table without is there too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    unavailable_value: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = (PLACEHOLDER,)
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore", "delete"] | dict[str, Literal["ignore", "delete"]] = "ignore"
    decimals: Literal["text", "base64"] | None = None
    flattened: bool = False
    replica_identity: ReplicaIdentity | dict[str, ReplicaIdentity] | None = None
    private: dict[str, dict[str, InstanceOf[Mask]]] = Field(default_factory=dict)
    limits: RecordLimits = RecordLimits()

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return find_table_entry(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...] | None:
        """The configured key of `table`, if any."""
        return find_table_entry(self.keys, table) or None

    def replica_identity_of(self, table: str) -> ReplicaIdentity | None:
        """Whether the deletes of `table` hold the whole row, where that is said."""
        said = self.replica_identity
        return find_table_entry(said, table) if isinstance(said, dict) else said

    def deletes_by_tombstone(self, table: str) -> bool:
        """Whether a null value is a delete in `table`."""
        mode = self.tombstones if isinstance(self.tombstones, str) else find_table_entry(self.tombstones, table)
        return mode == "delete"

    @property
    def any_tombstone_deletes(self) -> bool:
        """Whether any table takes null values as deletes."""
        return self.tombstones == "delete" or (isinstance(self.tombstones, dict) and "delete" in self.tombstones.values())
