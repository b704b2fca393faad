"""Type names in records and in the configuration, and the readers of their values.

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
| map | `{"map": [K, V]}` | object, or array of pairs if keys are not text |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types as t

from replicator.domain.errors import RejectCode

from ...arrow import decimals, temporal_values, value_readers
from ...arrow.record_errors import ValueMisfit
from ...arrow.value_readers import ValueReader
from . import nested_values

Spelt: TypeAlias = str | dict[str, Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LOCAL, UTC, NANOS = temporal_values.LOCAL_US, temporal_values.UTC_US, temporal_values.LOCAL_NS
SCALARS: dict[str, Callable[[], ValueReader]] = {
    **{name: partial(value_readers.integer_reader, pa.type_for_alias(name)) for name in INTEGERS},
    "int": lambda: value_readers.integer_reader(pa.int32()),
    "bigint": lambda: value_readers.integer_reader(pa.int64()),
    **dict.fromkeys(("float", "float32"), lambda: value_readers.float_reader(pa.float32())),
    **dict.fromkeys(("double", "float64"), lambda: value_readers.float_reader(pa.float64())),
    **dict.fromkeys(("bool", "boolean"), value_readers.boolean_reader),
    **dict.fromkeys(("string", "utf8"), value_readers.text_reader),
    "binary": value_readers.binary_reader,
    **dict.fromkeys(("date", "date32", "date32[day]"), temporal_values.iso_date_reader),
    **dict.fromkeys(("time", "time64[us]"), temporal_values.iso_time_reader),
    **dict.fromkeys(("timestamp", "timestamp[ms]", "timestamp[us]"), lambda: temporal_values.iso_timestamp_reader(LOCAL)),
    "timestamp[ns]": lambda: temporal_values.iso_timestamp_reader(NANOS),
    **dict.fromkeys(
        ("timestamp[us, utc]", "timestamp[us, tz=utc]", "timestamptz"), lambda: temporal_values.iso_timestamp_reader(UTC)
    ),
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
    (t.is_list, lambda a: {"list": type_name(a.value_type)}),
    (t.is_struct, lambda a: {"struct": {field.name: type_name(field.type) for field in a}}),
    (t.is_map, lambda a: {"map": [type_name(a.key_type), type_name(a.item_type)]}),
)


def type_name(arrow: pa.DataType) -> Spelt:
    """The name of an Arrow type, for all types of Delta tables. Timestamps are in microseconds."""
    return next(of(arrow) for applies, of in _FAMILIES if applies(arrow))


def find_type_reader(said: object) -> ValueReader:
    """The reader for values of the named type. Raises ValueMisfit for an unknown name."""
    if isinstance(said, str):
        return _find_named(said)
    if isinstance(said, dict) and len(said) == 1:
        [(kind, inner)] = said.items()
        if kind == "list":
            return nested_values.array_reader(find_type_reader(inner))
        if kind == "struct" and isinstance(inner, dict) and inner:
            return nested_values.struct_reader({str(name): find_type_reader(one) for name, one in inner.items()})
        if kind == "map" and isinstance(inner, list) and len(inner) == 2:
            return nested_values.map_reader(find_type_reader(inner[0]), find_type_reader(inner[1]))
    raise _unknown_type_error(said)


def _find_named(name: str) -> ValueReader:
    wanted = re.sub(r"\s*([,<>()\[\]:=])\s*", r"\1", name.strip().lower()).replace(",utc", ", utc").replace(",tz", ", tz")
    if wanted in SCALARS:
        return SCALARS[wanted]()
    if inner := LIST.match(wanted):
        return nested_values.array_reader(_find_named(inner[1]))
    found = DECIMAL.match(wanted)
    arrow = decimals.decimal_type(int(found[1]), int(found[2] or 0)) if found and int(found[1]) else None
    if arrow is None:
        raise _unknown_type_error(name)
    return decimals.decimal_text_reader(arrow)


def _unknown_type_error(said: object) -> ValueMisfit:
    return ValueMisfit(RejectCode.MALFORMED, f"{str(said)[:60]!r} is no type that can be read")
