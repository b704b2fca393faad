"""Connect types of Avro types, with conversions of their values to the JSON of Connect's JsonConverter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

Mend: TypeAlias = Callable[[Any], Any]
"""Converts an Avro value to a value that can be written as JSON."""


@dataclass(frozen=True)
class ConnectType:
    """An Avro type and its Connect type.

    - `avro`: the type for reading, without names, defaults and logical types.
    - `connect`: the Connect schema.
    - `mend`: the conversion to JSON values, None if none is needed.
    - `nests`: items of arrays or maps in it are containers themselves.
    - `is_pair`: a record that is an entry of a map.
    """

    avro: Any
    connect: dict[str, Any]
    mend: Mend | None = None
    nests: bool = False
    is_pair: bool = False

    @property
    def is_container(self) -> bool:
        """True if a value can be much larger than its bytes."""
        return self.connect["type"] in ("struct", "array", "map")


def to_json_number(value: float) -> float | str:
    """The number, or its text if JSON has no such number."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - true for NaN


def array_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """The type of an array."""
    one = items.mend
    return ConnectType(
        {"type": "array", "items": items.avro},
        connect | {"items": items.connect},
        None if one is None else lambda values: [one(v) for v in values],
        items.nests or items.is_container,
    )


def map_type(items: ConnectType, connect: dict[str, Any]) -> ConnectType:
    """The type of a map with string keys."""
    one = items.mend
    return ConnectType(
        {"type": "map", "values": items.avro},
        connect | {"keys": {"type": "string", "optional": False}, "values": items.connect},
        None if one is None else lambda values: {k: one(v) for k, v in values.items()},
        items.nests or items.is_container,
    )


def pair_list_type(items: ConnectType, fields: Mapping[str, dict[str, Any]], connect: dict[str, Any]) -> ConnectType:
    """The type of a map with records as entries: an object if keys are strings, otherwise a list of pairs."""
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
    """The type of a record."""
    avro = mine | {"fields": [{"name": name, "type": node.avro} for name, node in fields.items()]}
    told = connect | {"fields": [node.connect | {"field": name} for name, node in fields.items()]}
    mends = [(name, node.mend) for name, node in fields.items() if node.mend is not None]

    def mend(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in mends:
            value[name] = one(value[name])
        return value

    return ConnectType(avro, told, mend if mends else None, any(node.nests for node in fields.values()), is_pair)
