"""Types as text: how a record or a configuration names the type of a column, and how values of it are read.

| Arrow | spelt | value in JSON |
| --- | --- | --- |
| int8 ... int64, uint8 ... uint64 | the same | number |
| float32, float64 | the same | number, or `"NaN"`, `"Infinity"`, `"-Infinity"` |
| bool, string | the same | true or false, text |
| binary | the same | base64 |
| decimal | `decimal(10,2)` | text (a number is read too) |
| date32 | the same | `"2024-02-29"` |
| timestamp without zone | `timestamp[us]` | `"2024-02-29 23:59:59.123456"` |
| timestamp with zone | `timestamp[us, UTC]` | `"2024-02-29 23:59:59.123456Z"` |
| time64 | `time64[us]` | `"23:59:59.123456"` |
| list, struct | `{"list": T}`, `{"struct": {NAME: T, ...}}` | array, object |
| map | `{"map": [K, V]}` | object, or array of pairs where keys are no text |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.errors import RejectCode

from . import decimals, nested, nodes, temporal
from .faults import Unfit
from .nodes import Node

Spelt: TypeAlias = str | dict[str, Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LOCAL, UTC, NANOS = temporal.LOCAL_US, temporal.UTC_US, temporal.LOCAL_NS
SCALARS: dict[str, Callable[[], Node]] = {
    **{name: partial(nodes.integer, pa.type_for_alias(name)) for name in INTEGERS},
    "int": lambda: nodes.integer(pa.int32()),
    "bigint": lambda: nodes.integer(pa.int64()),
    **dict.fromkeys(("float", "float32"), lambda: nodes.floating(pa.float32())),
    **dict.fromkeys(("double", "float64"), lambda: nodes.floating(pa.float64())),
    **dict.fromkeys(("bool", "boolean"), nodes.boolean),
    **dict.fromkeys(("string", "utf8"), nodes.text),
    "binary": nodes.binary,
    **dict.fromkeys(("date", "date32", "date32[day]"), temporal.iso_date),
    **dict.fromkeys(("time", "time64[us]"), temporal.iso_time),
    **dict.fromkeys(("timestamp", "timestamp[ms]", "timestamp[us]"), lambda: temporal.iso_timestamp(LOCAL)),
    "timestamp[ns]": lambda: temporal.iso_timestamp(NANOS),
    **dict.fromkeys(("timestamp[us, utc]", "timestamp[us, tz=utc]", "timestamptz"), lambda: temporal.iso_timestamp(UTC)),
}
DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+)(?:,(-?\d+))?\)\Z")
LIST = re.compile(r"list<(?:item:|element:)?(.+)>\Z")
NAMES = "int64, string, double, bool, binary, date32, timestamp[us], timestamp[us, UTC], decimal(10,2) or list<string>"
_FAMILIES: tuple[tuple[Callable[[Any], bool], Callable[[Any], Spelt]], ...] = (
    (t.is_integer, str),
    (t.is_float32, lambda _: "float32"),
    (t.is_float64, lambda _: "float64"),
    (t.is_boolean, lambda _: "bool"),
    (t.is_string, lambda _: "string"),
    (t.is_binary, lambda _: "binary"),
    (t.is_decimal, lambda a: f"decimal({a.precision},{a.scale})"),
    (t.is_date32, lambda _: "date32"),
    (t.is_timestamp, lambda a: "timestamp[us, UTC]" if a.tz else "timestamp[us]"),
    (t.is_time64, lambda _: "time64[us]"),
    (t.is_list, lambda a: {"list": spelt(a.value_type)}),
    (t.is_struct, lambda a: {"struct": {field.name: spelt(field.type) for field in a}}),
    (t.is_map, lambda a: {"map": [spelt(a.key_type), spelt(a.item_type)]}),
)


def spelt(arrow: pa.DataType) -> Spelt:
    """How `arrow` is spelt: the types of Delta tables. Timestamps count microseconds."""
    return next(of(arrow) for applies, of in _FAMILIES if applies(arrow))


def node_of(said: object) -> Node:
    """How values of a type that is spelt so are read. Raises Unfit for what spells none."""
    if isinstance(said, str):
        return _named(said)
    if isinstance(said, dict) and len(said) == 1:
        [(kind, inner)] = said.items()
        if kind == "list":
            return nested.array(node_of(inner))
        if kind == "struct" and isinstance(inner, dict) and inner:
            return nested.struct({str(name): node_of(one) for name, one in inner.items()})
        if kind == "map" and isinstance(inner, list) and len(inner) == 2:
            return nested.mapping(node_of(inner[0]), node_of(inner[1]))
    raise _unknown(said)


def _named(name: str) -> Node:
    wanted = re.sub(r"\s*([,<>()\[\]:=])\s*", r"\1", name.strip().lower()).replace(",utc", ", utc").replace(",tz", ", tz")
    if wanted in SCALARS:
        return SCALARS[wanted]()
    if inner := LIST.match(wanted):
        return nested.array(_named(inner[1]))
    found = DECIMAL.match(wanted)
    arrow = decimals.decimal_type(int(found[1]), int(found[2] or 0)) if found and int(found[1]) else None
    if arrow is None:
        raise _unknown(name)
    return decimals.decimal_text(arrow)


def _unknown(said: object) -> Unfit:
    return Unfit(RejectCode.MALFORMED, f"{str(said)[:60]!r} is no type that can be read")
