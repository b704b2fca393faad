"""The options of the decoder, checked on their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem
from replicator.domain.sequence import MAX_EPOCH

T = TypeVar("T")

PLACEHOLDER = "__debezium_unavailable_value"


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Limits(BaseModel):
    """What one record may hold; beyond it the record is rejected TOO_LARGE. Limits of others are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    message_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    depth: int = Field(default=64, ge=2, le=500)
    columns: int = Field(default=4096, ge=1)


class Options(BaseModel):
    """What `DebeziumJsonDecoder` takes.

    `unavailable_value`: the connector's `unavailable.value.placeholder`, one or several; `hex:` as Debezium reads it.
    `epoch`: see `domain.sequence.with_epoch`. `schema`: per table (exact name or glob) the columns of events that carry no
    schema, as Arrow type names (see `declared`). `keys`: per table the key columns, instead of the message key's.
    `tombstones`: `delete` makes a null value a delete, and then the table is sequenced by (epoch, offset).
    `decimal_handling_mode`: how events without a schema write decimals: as text or numbers (`string`, `double`), or as
    base64 of the unscaled value (`precise`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    unavailable_value: Annotated[tuple[str, ...], BeforeValidator(_several)] = (PLACEHOLDER,)
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore", "delete"] | dict[str, Literal["ignore", "delete"]] = "ignore"
    decimal_handling_mode: Literal["string", "double", "precise"] = "string"
    limits: Limits = Limits()

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return _of(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...] | None:
        """The configured key of `table`, if any."""
        return _of(self.keys, table) or None

    def deletes_by_tombstone(self, table: str) -> bool:
        """Whether a null value is a delete in `table`."""
        mode = self.tombstones if isinstance(self.tombstones, str) else _of(self.tombstones, table)
        return mode == "delete"

    @property
    def any_tombstone_deletes(self) -> bool:
        """Whether any table takes null values as deletes."""
        return self.tombstones == "delete" or (isinstance(self.tombstones, dict) and "delete" in self.tombstones.values())


def _of(by_table: Mapping[str, T], table: str) -> T | None:
    """The entry of that exact name, else of the glob that matches and fixes most characters."""
    if table in by_table:
        return by_table[table]
    found = [glob for glob in by_table if fnmatchcase(table, glob)]
    return by_table[max(found, key=_fixed)] if found else None


def _fixed(glob: str) -> int:
    """How many characters a glob fixes; classes and wildcards fix none."""
    return len(re.sub(r"\[!?\]?[^]]*\]|[*?]", "", glob))


def read_options(options: Mapping[str, object]) -> Options:
    """The options, or ConfigProblem that names every wrong one without its value."""
    try:
        return Options.model_validate(dict(options))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)
        raise ConfigProblem(
            f"options of debezium_json: {said}", next_step="Correct them in the source's settings."
        ) from None
