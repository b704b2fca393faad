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
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import RejectCode

from ...arrow import decimals, temporal_values, value_readers
from ...arrow.decimals import cast_digits
from ...arrow.record_errors import ValueMisfit
from ...arrow.value_readers import NULL, UNSET, ValueReader, choose_objects, make_element

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
    return next(make_name(arrow) for applies, make_name in _FAMILIES if applies(arrow))


def find_type_reader(declared: object) -> ValueReader:
    """The reader for values of the named type. Raises ValueMisfit for an unknown name."""
    if isinstance(declared, str):
        return _find_named(declared)
    if isinstance(declared, dict) and len(declared) == 1:
        [(kind, inner)] = declared.items()
        if kind == "list":
            return array_reader(find_type_reader(inner))
        if kind == "struct" and isinstance(inner, dict) and inner:
            return struct_reader({str(name): find_type_reader(one) for name, one in inner.items()})
        if kind == "map" and isinstance(inner, list) and len(inner) == 2:
            return map_reader(find_type_reader(inner[0]), find_type_reader(inner[1]))
    raise _unknown_type_error(declared)


def normalize_name(name: str) -> str:
    """The name of a type as in `SCALARS`: in lower case, with spaces only before `utc` and `tz`."""
    return re.sub(r"\s*([,<>()\[\]:=])\s*", r"\1", name.strip().lower()).replace(",utc", ", utc").replace(",tz", ", tz")


def _find_named(name: str) -> ValueReader:
    type_name = normalize_name(name)
    if type_name in SCALARS:
        return SCALARS[type_name]()
    if inner := LIST.match(type_name):
        return array_reader(_find_named(inner[1]))
    match = DECIMAL.match(type_name)
    arrow = decimals.decimal_type(int(match[1]), int(match[2] or 0)) if match and int(match[1]) else None
    if arrow is None:
        raise _unknown_type_error(name)
    return decimals.decimal_text_reader(arrow)


def _unknown_type_error(declared: object) -> ValueMisfit:
    return ValueMisfit(RejectCode.MALFORMED, f"{str(declared)[:60]!r} is no type that can be read")


# Columns of arrays, maps and structs: elements are flattened, built as columns, and nested again.


def array_reader(items: ValueReader) -> ValueReader:
    """Reader of a JSON array as a list column; elements may be null."""
    arrow = pa.list_(items.type)

    def build(values: Sequence[Any]) -> pa.Array:
        flat = [x for v in values if v is not None for x in v]
        flat = [None if x == NULL else x for x in flat] if items.wire is msgspec.Raw else flat
        return pa.ListArray.from_arrays(_list_offsets(values), items.build(flat), type=arrow)

    one: Any = make_element(items.wire)
    return ValueReader(arrow, list[one], build, _placeholder_form("list", items))


def map_reader(keys: ValueReader, items: ValueReader) -> ValueReader:
    """Reader of a Connect map: an object if its keys are strings, otherwise an array of [key, value] pairs."""
    arrow = pa.map_(keys.type, items.type)
    as_object = keys.wire is str

    def build(values: Sequence[Any]) -> pa.Array:
        pairs = [p for v in values if v is not None for p in (v.items() if as_object else v)]
        flat_keys, flat_items = keys.build([k for k, _ in pairs]), items.build([x for _, x in pairs])
        return pa.MapArray.from_arrays(_list_offsets(values), flat_keys, flat_items, type=arrow)

    one: Any = make_element(items.wire)
    key: Any = keys.wire
    wire: Any = dict[str, one] if as_object else list[tuple[key, one]]
    return ValueReader(arrow, wire, build, _placeholder_form("map", items) if as_object else "")


def struct_reader(fields: dict[str, ValueReader]) -> ValueReader:
    """Reader of a JSON object as a struct column; missing fields are null."""
    reader = choose_objects(fields)(fields)
    arrow = pa.struct([(name, node.type) for name, node in fields.items()])

    def build(values: Sequence[Any]) -> pa.Array:
        empty = reader.empty()
        full = [empty if v is None else v for v in values]
        columns = []
        for name, node in reader.nodes.items():
            field = [None if v is UNSET else v for v in reader.values(full, name)]
            columns.append(node.build(field))
        nulls = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=nulls)

    return ValueReader(arrow, reader.wire, build)


def _placeholder_form(kind: str, items: ValueReader) -> str:
    """The form of the placeholder for a missing value in a collection, from its form in the elements."""
    if items.wire is msgspec.Raw:
        return f"{kind}:raw"
    if items.placeholder in ("text", "bytes"):
        return f"{kind}:{items.placeholder}"
    return f"{kind}:int" if pa.types.is_integer(items.type) else ""


def _list_offsets(values: Sequence[Any]) -> pa.Array:
    """Offsets of a list array; a null offset marks a null list."""
    lengths = [0 if v is None else len(v) for v in values]
    ends = [0, *accumulate(lengths)]
    starts = [None if v is None else start for v, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())


# Rows as JSON objects with the types of their columns, so that every value survives exactly.


SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

Plain = Callable[[Any], Any]


@dataclass(frozen=True)
class TypedRowLayout:
    """The columns of rows, with their names in the source."""

    schema: pa.Schema

    @cached_property
    def prefix(self) -> bytes:
        """The bytes at the start of every record."""
        types = msgspec.json.encode({field.name: type_name(field.type) for field in self.schema})
        return b'{"schema":' + types + b',"payload":'


def to_json_values(column: pa.ChunkedArray, arrow: pa.DataType) -> list[Any]:
    """The values of a column in JSON form."""
    values: list[Any] = cast_digits(column, _json_ready_type(arrow)).to_pylist()
    if t.is_floating(arrow) and pc.all(pc.is_finite(column)).as_py() is not False:
        return values
    plain = _find_converter(arrow)
    return values if plain is None else [None if v is None else plain(v) for v in values]


def _json_ready_type(arrow: pa.DataType) -> pa.DataType:
    """`arrow` with string for values that JSON does not have."""
    if t.is_decimal(arrow) or t.is_date(arrow) or t.is_timestamp(arrow) or t.is_time(arrow):
        return pa.string()
    if t.is_list(arrow):
        return pa.list_(_json_ready_type(arrow.value_type))
    if t.is_struct(arrow):
        return pa.struct([field.with_type(_json_ready_type(field.type)) for field in arrow])
    return pa.map_(_json_ready_type(arrow.key_type), _json_ready_type(arrow.item_type)) if t.is_map(arrow) else arrow


def _find_converter(arrow: pa.DataType) -> Plain | None:
    """The remaining conversion of values that are not null, if any."""
    if t.is_floating(arrow):
        return lambda value: SPECIAL.get(str(value), value)
    if t.is_list(arrow):
        inner = _find_converter(arrow.value_type)
        return inner and (lambda value: [_convert_or_null(inner, one) for one in value])
    if t.is_struct(arrow):
        fields = {field.name: plain for field in arrow if (plain := _find_converter(field.type))}
        return (lambda value: {k: _convert_or_null(fields.get(k), v) for k, v in value.items()}) if fields else None
    if not t.is_map(arrow):
        return None
    keys, items = _find_converter(arrow.key_type), _find_converter(arrow.item_type)
    is_object = t.is_string(_json_ready_type(arrow.key_type)) and not t.is_decimal(arrow.key_type)

    def pairs(value: Any) -> Iterator[tuple[Any, Any]]:
        return ((_convert_or_null(keys, k), _convert_or_null(items, v)) for k, v in value)

    return lambda value: dict(pairs(value)) if is_object else list(pairs(value))


def _convert_or_null(plain: Plain | None, value: Any) -> Any:
    return value if plain is None or value is None else plain(value)


# Texts of JSON values.


QUOTE = b'"'
CONTROLS = bytes(range(32))
"""Bytes that JSON strings may not contain unescaped. Values with such bytes are converted one by one, and refused."""
MOST = 2**30


def to_text(value: Any) -> str | None:
    """The text of a JSON value: strings without quotes and escapes, other values as written. None for null."""
    if value is None or value is UNSET:
        return None
    raw = bytes(value)
    if not raw.startswith(b'"'):
        return raw.decode()
    text: str = msgspec.json.decode(raw, type=str)
    return text


def to_texts(values: Sequence[Any]) -> pa.Array:
    """`to_text` of all values; None for null. Converts all at once: most texts are simply the bytes between quotes."""
    present = [value for value in values if value is not None]
    data = b"".join(present)
    if not present or len(data) > MOST or len(data.translate(None, CONTROLS)) < len(data):
        return _to_texts_one_by_one(values)
    tokens = build_binary_array(data, values, whole=len(present) == len(values))
    quoted = pc.starts_with(tokens, pattern=QUOTE)
    try:
        unquoted = pc.if_else(quoted, pc.binary_slice(tokens, 1, -1), tokens).cast(pa.string())
    except pa.ArrowInvalid:
        return _to_texts_one_by_one(values)
    if b"\\" not in data:
        return unquoted
    escaped = pc.fill_null(pc.match_substring(tokens, b"\\"), False)
    texts = [to_text(values[index]) for index in pc.indices_nonzero(escaped).to_pylist()]
    return pc.replace_with_mask(unquoted, escaped, pa.array(texts, pa.string()))


def build_binary_array(data: bytes, values: Sequence[Any], *, whole: bool) -> pa.Array:
    """An array of values whose concatenated bytes are `data`; None is null. `whole`: no value is None."""
    sizes = map(len, values) if whole else [0 if value is None else len(value) for value in values]
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    valid = None if whole else pa.array([value is not None for value in values]).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(values), [valid, offsets, pa.py_buffer(data)])


def _to_texts_one_by_one(values: Sequence[Any]) -> pa.Array:
    return pa.array([to_text(value) for value in values], pa.string())


def numbers_to_text(numbers: Sequence[int | None]) -> pa.Array:
    """Integers as decimal digits."""
    try:
        return pa.array(numbers, pa.int64()).cast(pa.string())
    except OverflowError:
        return pa.array([None if number is None else str(number) for number in numbers], pa.string())
