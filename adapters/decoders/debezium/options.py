"""Options of decoders for Debezium's events, with validation."""

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
    """Options that all decoders of Debezium's events share.

    - `unavailable_value`: the connector's `unavailable.value.placeholder`, one or several; `hex:` as in Debezium.
    - `epoch`: see `domain.sequence.EPOCH_SHIFT`.
    - `schema`: for each table (exact name or glob) the columns of events without a schema, as Arrow type names (see
      `types.find_declared_reader`).
    - `keys`: for each table the key columns, instead of those in the message key.
    - `tombstones`: with `delete`, a null value is a delete and the table is ordered by (epoch, offset).
    - `decimals`: the form of decimals in JSON text without a schema: digits (`text`) or Base64 of the unscaled value
      (`base64`). By default, ambiguous text is refused.
    - `flattened`: records are rows from ExtractNewRecordState.
    - `replica_identity`: PostgreSQL's deletes contain the whole row (`full`) or the key (`default`), for each table or
      for all. By default each record is examined.
    - `private`: for each table the masks of its masked columns; tables without masks are included.
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
        """The configured replica identity of `table`, if any."""
        said = self.replica_identity
        return find_table_entry(said, table) if isinstance(said, dict) else said

    def deletes_by_tombstone(self, table: str) -> bool:
        """True if a null value is a delete in `table`."""
        mode = self.tombstones if isinstance(self.tombstones, str) else find_table_entry(self.tombstones, table)
        return mode == "delete"

    @property
    def any_tombstone_deletes(self) -> bool:
        """True if a null value is a delete in any table."""
        return self.tombstones == "delete" or (isinstance(self.tombstones, dict) and "delete" in self.tombstones.values())
