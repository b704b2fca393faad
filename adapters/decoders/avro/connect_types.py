"""What a type of an Avro schema stands for, and how its values become those that Connect's JsonConverter writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

Mend: TypeAlias = Callable[[Any], Any]
"""Makes of a value that Avro gives one that is written as JSON."""


@dataclass(frozen=True)
class ConnectType:
    """`avro`: the type as it is read: without names, defaults and logical types. `connect`: Connect's schema of it. `mend`:
    None where values are written as they are. `nests`: items of arrays or maps in it are containers themselves. `is_pair`:
    a record that is an entry of a map."""

    avro: Any
    connect: dict[str, Any]
    mend: Mend | None = None
    nests: bool = False
    is_pair: bool = False

    @property
    def is_container(self) -> bool:
        """Whether a value may be much larger than its bytes."""
        return self.connect["type"] in ("struct", "array", "map")


def to_json_number(value: float) -> float | str:
    """A number, or the text that stands for one that JSON does not know."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - so is NaN told


def array_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """A list."""
    one = items.mend
    return ConnectType(
        {"type": "array", "items": items.avro},
        connect | {"items": items.connect},
        None if one is None else lambda values: [one(v) for v in values],
        items.nests or items.is_container,
    )


def map_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """A map with keys of text."""
    one = items.mend
    return ConnectType(
        {"type": "map", "values": items.avro},
        connect | {"keys": {"type": "string", "optional": False}, "values": items.connect},
        None if one is None else lambda values: {k: one(v) for k, v in values.items()},
        items.nests or items.is_container,
    )


def pair_list_type(items: ConnectType, fields: Mapping[str, dict[str, Any]], connect: dict[str, Any]) -> ConnectType:
    """A map whose entries are records: an object where keys are text, else a list of pairs."""
    keys, values = ({k: v for k, v in fields[name].items() if k != "field"} for name in ("key", "value"))
    one = items.mend or (lambda entry: entry)

    def as_object(entries: Any) -> Any:
        return {e["key"]: e["value"] for e in map(one, entries)}

    def as_pairs(entries: Any) -> Any:
        return [[e["key"], e["value"]] for e in map(one, entries)]

    avro = {"type": "array", "items": items.avro}
    mend = as_object if keys["type"] == "string" else as_pairs
    return ConnectType(avro, connect | {"keys": keys, "values": values}, mend, nests=True)


def record_type(
    mine: dict[str, Any], fields: Mapping[str, ConnectType], connect: dict[str, Any], *, is_pair: bool
) -> ConnectType:
    """A struct."""
    avro = mine | {"fields": [{"name": name, "type": node.avro} for name, node in fields.items()]}
    told = connect | {"fields": [node.connect | {"field": name} for name, node in fields.items()]}
    mends = [(name, node.mend) for name, node in fields.items() if node.mend is not None]

    def mend(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in mends:
            value[name] = one(value[name])
        return value

    return ConnectType(avro, told, mend if mends else None, any(node.nests for node in fields.values()), is_pair)
