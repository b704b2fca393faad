"""Schemas in records (Kafka Connect's JSON form), the kinds of records that they announce, and the types of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import ConfigProblem, Reject, RejectCode

from ...arrow import decimals, temporal_values, value_readers
from ...arrow.record_errors import UNREADABLE, RecordLimits, ValueMisfit, malformed_reject
from ...arrow.text_values import make_text_reader
from ...arrow.value_readers import UNSET, ValueReader
from ..json import type_names
from ..json.schema_frames import find_frames, split_record
from ..json.type_names import to_texts

CONTROL = {
    "io.debezium.connector.common.Heartbeat": "heartbeat",
    "io.debezium.connector.common.TransactionMetadataValue": "transaction",
}
CONTROL_ENDINGS = {".SchemaChangeValue": "schema_change", ".MessageValue": "message", ".Notification": "notification"}
MAX_KEYS = 4096
STRUCT = "struct"
NESTED = (STRUCT, "array", "map")
SOURCE_NAMES = ("db", "schema", "table")
"""The names by which source blocks are compared without parsing (see `router.make_block_pattern`)."""


FLATTENED = malformed_reject(
    "it looks like a row flattened by ExtractNewRecordState; write `flattened: true` at the source, or take that transform "
    "out of the connector"
)
NO_ENVELOPE = malformed_reject("its schema is not that of a Debezium change event: it has no op, source and after")


class ConnectSchema(msgspec.Struct, frozen=True, gc=False):
    """A schema as in `org.apache.kafka.connect.json.JsonSchema`."""

    type: str
    optional: bool = False
    field: str | None = None
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: tuple[ConnectSchema, ...] | None = None
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None
    default: Any = UNSET

    def child(self, name: str) -> ConnectSchema | None:
        """The field of a struct with that name, if any."""
        return next((f for f in self.fields or () if f.field == name), None)

    def find_telling_columns(self) -> dict[str, bool]:
        """Columns of a row whose value can show that the connector received it, and did not fill it in.

        A connector fills in the default, NULL, or in NOT NULL columns 0, false or empty text
        (`JdbcValueConverters.convertValue`, and `replace.null.with.default` of Connect's converters). The flag is true
        for nullable columns, in which any value is proof. In others, only a value that is not 0, false or empty is.
        """
        plain = [f for f in self.fields or () if f.default is UNSET]
        return {f.field or "": f.optional for f in plain if f.optional or (f.name is None and f.type not in NESTED)}

    def defaults(self) -> dict[str, Any]:
        """The defaults of a row's columns, by name."""
        return {f.field or "": f.default for f in self.fields or () if f.default is not UNSET}

    @property
    def children(self) -> Iterator[ConnectSchema]:
        """The schemas directly below this one."""
        yield from self.fields or ()
        yield from (s for s in (self.items, self.keys, self.values) if s is not None)


@dataclass(frozen=True)
class MessageSchema:
    """The content of a message's schema: either `row` (a change event), `ignored` (a kind of control record) or
    `error`."""

    fingerprint: str
    row: ConnectSchema | None = None
    ignored: str | None = None
    error: Reject | None = None
    documents: bool = False
    """Images are documents in text, so `row` has no columns (see `documents`)."""
    plain_rows: bool = False
    """No row can contain bytes like the names in a source block: no nested objects, and no columns with these names."""


@dataclass(frozen=True, eq=False)
class KeySchema:
    """The fields of a message key, in order, and the fingerprint of its schema."""

    fingerprint: str
    names: tuple[str, ...] = ()
    struct: ConnectSchema | None = None
    error: Reject | None = None


def compute_fingerprint(raw: bytes) -> str:
    """A fingerprint that ignores white space and the order of keys."""
    canonical = msgspec.json.encode(msgspec.json.decode(raw), order="sorted")
    return sha256(canonical).hexdigest()[:16]


def read_message_schema(raw: bytes, limits: RecordLimits) -> MessageSchema:
    """The message schema of the JSON text `raw`. Never raises."""
    try:
        fingerprint = compute_fingerprint(raw)
        schema = msgspec.json.decode(raw, type=ConnectSchema)
    except UNREADABLE:
        return MessageSchema(
            sha256(raw).hexdigest()[:16], error=malformed_reject("its schema is not a Kafka Connect schema")
        )
    kind = find_schema_kind(schema.name or "")
    if kind:
        return MessageSchema(fingerprint, ignored=kind)
    row = schema.child("after") or schema.child("before")
    if not row or not schema.child("op") or not schema.child("source"):
        names = {f.field for f in schema.fields or ()}
        is_flattened = "__op" in names or "__deleted" in names or (schema.name and schema.name.endswith(".Value"))
        return MessageSchema(fingerprint, error=FLATTENED if is_flattened else NO_ENVELOPE)
    if row.type == "string":
        return MessageSchema(fingerprint, row, documents=True)
    error = _check_row(row, limits)
    plain = not any(_holds_object(f) or f.field in SOURCE_NAMES for f in row.fields or ())
    return MessageSchema(fingerprint, None if error else row, error=error, plain_rows=plain)


def find_schema_kind(name: str) -> str | None:
    """The kind of a control record from the name of its schema; None for other records."""
    return CONTROL.get(name) or next((kind for end, kind in CONTROL_ENDINGS.items() if name.endswith(end)), None)


@lru_cache(MAX_KEYS)
def read_key_schema(raw: bytes) -> KeySchema:
    """The key schema of the JSON text `raw`. Never raises."""
    try:
        schema = msgspec.json.decode(raw, type=ConnectSchema)
        names = tuple(f.field for f in schema.fields or () if f.field is not None)
        print_ = compute_fingerprint(raw)
    except UNREADABLE:
        return KeySchema("", error=malformed_reject("the schema of its key is not a Kafka Connect schema"))
    if schema.type != STRUCT or not names:
        return KeySchema("", error=malformed_reject("its key is not a struct of key columns"))
    return KeySchema(print_, names, schema)


def _check_row(row: ConnectSchema, limits: RecordLimits) -> Reject | None:
    names = [f.field for f in row.fields or ()]
    if row.type != STRUCT or not names or None in names:
        return malformed_reject("its schema describes a row without columns")
    if len(set(names)) < len(names):
        return malformed_reject("its schema names a column twice")
    if len(names) > limits.columns:
        return Reject(RejectCode.TOO_LARGE, f"its schema has {len(names)} columns, more than the {limits.columns} allowed")
    if _measure_depth(row, limits.depth) > limits.depth:
        return Reject(RejectCode.TOO_LARGE, f"its schema is nested deeper than the {limits.depth} levels allowed")
    return None


def _measure_depth(schema: ConnectSchema, depth: int) -> int:
    """Levels of `schema`, counted up to one more than `depth`."""
    if depth < 0:
        return 1
    return 1 + max((_measure_depth(child, depth - 1) for child in schema.children), default=0)


def _holds_object(schema: ConnectSchema) -> bool:
    if schema.type in (STRUCT, "map"):
        return schema.name != "io.debezium.data.VariableScaleDecimal"
    return any(_holds_object(child) for child in schema.children)


# Key columns that the message keys of a frame name.


NO_KEY = KeySchema("nokey")
NOT_JSON = KeySchema("", error=malformed_reject("its key is not JSON"))
NOT_AN_OBJECT = KeySchema("", error=malformed_reject("its key is not a JSON object of key columns"))
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_keys(keys: pa.Array, depth: int) -> list[KeySchema]:
    """The key schema of every record; `NO_KEY` for a null key. Without a schema, field names identify a key."""
    out = [NO_KEY] * len(keys)
    frames = find_frames(keys, depth)
    for group in frames.groups:
        if group.schema is not None:
            key_schemas = [read_key_schema(group.schema)] * (len(keys) if group.rows is None else len(group.rows))
        else:
            key_schemas = [_read_bare_key(payload) for payload in group.payloads()]
        if group.rows is None:
            return key_schemas
        for index, key in zip(group.rows, key_schemas, strict=True):
            out[index] = key
    for index in frames.errors:
        out[index] = NOT_JSON
    return out


def read_key(key: bytes, depth: int) -> KeySchema:
    """The key schema of one key."""
    try:
        schema, payload = split_record(key, depth)
    except UNREADABLE:
        return NOT_JSON
    return _read_bare_key(payload) if schema is None else read_key_schema(schema)


def _read_bare_key(payload: bytes) -> KeySchema:
    try:
        names = tuple(_fields(payload))
    except UNREADABLE:
        return NOT_AN_OBJECT
    return make_bare_key(names) if names else NOT_AN_OBJECT


@lru_cache(MAX_KEYS)
def make_bare_key(names: tuple[str, ...]) -> KeySchema:
    """The key schema of keys without a schema that have these fields."""
    return KeySchema(sha256(repr(names).encode()).hexdigest()[:16], names)


# All types of Kafka Connect and Debezium, and their columns (the table in the package's docstring).


MS, US, NS = 1_000, 1_000_000, 1_000_000_000

PHYSICAL: dict[str, Callable[[], ValueReader]] = {
    "int8": lambda: value_readers.integer_reader(pa.int8()),
    "int16": lambda: value_readers.integer_reader(pa.int16()),
    "int32": lambda: value_readers.integer_reader(pa.int32()),
    "int64": lambda: value_readers.integer_reader(pa.int64()),
    "float": lambda: value_readers.float_reader(pa.float32()),
    "float32": lambda: value_readers.float_reader(pa.float32()),
    "double": lambda: value_readers.float_reader(pa.float64()),
    "float64": lambda: value_readers.float_reader(pa.float64()),
    "boolean": value_readers.boolean_reader,
    "string": value_readers.text_reader,
    "bytes": value_readers.binary_reader,
}

LOGICAL: dict[tuple[str, str], Callable[[], ValueReader]] = {
    ("io.debezium.time.Date", "int32"): temporal_values.date_reader,
    ("org.apache.kafka.connect.data.Date", "int32"): temporal_values.date_reader,
    ("io.debezium.time.Time", "int32"): lambda: temporal_values.time_reader(MS),
    ("org.apache.kafka.connect.data.Time", "int32"): lambda: temporal_values.time_reader(MS),
    ("io.debezium.time.MicroTime", "int64"): lambda: temporal_values.time_reader(US),
    ("io.debezium.time.NanoTime", "int64"): lambda: temporal_values.time_reader(NS),
    ("io.debezium.time.Timestamp", "int64"): lambda: temporal_values.timestamp_reader(MS),
    ("org.apache.kafka.connect.data.Timestamp", "int64"): lambda: temporal_values.timestamp_reader(MS),
    ("io.debezium.time.MicroTimestamp", "int64"): lambda: temporal_values.timestamp_reader(US),
    ("io.debezium.time.NanoTimestamp", "int64"): lambda: temporal_values.timestamp_reader(NS),
    ("io.debezium.time.ZonedTimestamp", "string"): lambda: temporal_values.iso_timestamp_reader(temporal_values.UTC_US),
    ("io.debezium.time.IsoTimestamp", "string"): lambda: temporal_values.zulu_reader(
        temporal_values.iso_timestamp_reader(temporal_values.LOCAL_US)
    ),
    ("io.debezium.time.IsoDate", "string"): lambda: temporal_values.zulu_reader(temporal_values.iso_date_reader()),
    ("io.debezium.time.IsoTime", "string"): lambda: temporal_values.zulu_reader(temporal_values.iso_time_reader()),
    ("io.debezium.data.VariableScaleDecimal", STRUCT): decimals.variable_decimal_reader,
}
"""Logical types with their own reader. `DECIMAL` has one too. Other scalars have the reader of their physical type;
arrays, maps and structs are read by the readers of their items."""

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def find_schema_reader(schema: ConnectSchema, *, numeric: bool = False) -> ValueReader:
    """The reader of values with `schema`. `numeric`: decimals may be numbers. Raises ValueMisfit for an unknown type."""
    make_reader = LOGICAL.get((schema.name or "", schema.type))
    if make_reader:
        return make_reader()
    if schema.name == DECIMAL and schema.type == "bytes":
        parameters = schema.parameters or {}
        try:
            precision = parameters.get("connect.decimal.precision")
            return decimals.decimal_reader(
                None if precision is None else int(precision), int(parameters["scale"]), numeric=numeric
            )
        except (KeyError, ValueError):
            raise ValueMisfit(RejectCode.MALFORMED, "its schema has a decimal without a scale") from None
    if schema.type in PHYSICAL:
        return PHYSICAL[schema.type]()
    if schema.type == "array" and schema.items:
        return type_names.array_reader(find_schema_reader(schema.items, numeric=numeric))
    if schema.type == "map" and schema.keys and schema.values:
        return type_names.map_reader(find_schema_reader(schema.keys), find_schema_reader(schema.values, numeric=numeric))
    if schema.type == STRUCT and schema.fields:
        return type_names.struct_reader({f.field or "": find_schema_reader(f, numeric=numeric) for f in schema.fields})
    raise ValueMisfit(RejectCode.MALFORMED, f"its schema has a field of the unknown type {schema.type[:40]!r}")


def holds_decimals(schema: ConnectSchema) -> bool:
    """True if the schema has decimals, which records may hold as JSON numbers (`decimal.format=NUMERIC`)."""
    return schema.name == DECIMAL or any(holds_decimals(child) for child in schema.children)


# Declared columns, for events without a schema.
#
# A value may be JSON text, a number or a boolean for any declared type, as in the formats of `messages`. An array or
# object in a text column becomes its JSON text. A number in a date or time column has the unit of the declared type.


UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units per second."""
BASE64 = r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\z"
NUMBER = rf"\A{decimals.NUMBER.pattern}".replace(r"\Z", r"\z")
PRECISE = "`decimals: base64` if the connector has decimal.handling.mode=precise, its default"
DIGITS = "`decimals: text` if it has decimal.handling.mode=string"
AMBIGUOUS = f"holds text that may be a number, and Base64 as well; write at the source {PRECISE}, or {DIGITS}"
NOT_DIGITS = f"holds Base64, and the source says `decimals: text`; write there {PRECISE}"
NOT_BASE64 = f"holds text that is not Base64, and the source says `decimals: base64`; write there {DIGITS}"
NO_NUMBER = r"(?i)\A(?:infinity|nan)\z"
VARIABLE = r'\A\s*\{\s*"scale"\s*:'
"""The beginning of an `io.debezium.data.VariableScaleDecimal`, whose fields Connect writes in this order."""

MASKED_TYPE = "replicator.masked"
"""The type name of a column whose values are masked already. Values other than text were rejected then."""

Decimals = Literal["text", "base64"] | None
"""The meaning of decimals in JSON text. Without it, every text must be unambiguous."""


class VariableScale(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The object of an `io.debezium.data.VariableScaleDecimal`."""

    scale: int
    value: bytes


_variable = msgspec.json.Decoder(VariableScale).decode


def find_declared_reader(table: str, column: str, name: str, *, decimals_are: Decimals) -> ValueReader:
    """The reader for values of a declared column.

    Raises ConfigProblem for a name that is not an Arrow type, or a type that this format does not send.
    """
    type_name = type_names.normalize_name(name)
    if inner := type_names.LIST.match(type_name):
        return type_names.array_reader(find_declared_reader(table, column, inner[1], decimals_are=decimals_are))
    if type_name in OTHERS:
        return OTHERS[type_name]()
    try:
        arrow = type_names.find_type_reader(type_name).type
    except ValueMisfit:
        raise ConfigProblem(
            f"column {column!r} of table {table} is declared as {name!r}, which is no type this format can read",
            next_step="Use an Arrow type name such as int64, string, double, bool, binary, date32, time64[us], "
            "timestamp[ms], timestamp[us], timestamp[us, UTC], decimal(10,2) or list<string>.",
        ) from None
    if match := type_names.DECIMAL.match(type_name):
        return ValueReader(arrow, msgspec.Raw, partial(_read_decimals, arrow, int(match[2] or 0), decimals_are), "raw")
    # Numbers and booleans are read from the text of any JSON value.
    read = make_text_reader(arrow)
    placeholder = "raw" if pa.types.is_floating(arrow) else ""
    return ValueReader(arrow, msgspec.Raw, lambda values: read(to_texts(values)), placeholder)


def find_readers(table: str, columns: Mapping[str, str], *, decimals_are: Decimals) -> dict[str, ValueReader]:
    """The reader of each declared column."""
    return {name: find_declared_reader(table, name, kind, decimals_are=decimals_are) for name, kind in columns.items()}


def refuse_types(declared: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigProblem that names every declared column with an unreadable type."""
    problems: list[ConfigProblem] = []
    for table, columns in declared.items():
        for name, type_name in columns.items():
            try:
                find_declared_reader(table, name, type_name, decimals_are=None)
            except ConfigProblem as problem:
                problems.append(problem)
    if problems:
        raise ConfigProblem("; ".join(problem.sentence for problem in problems), next_step=problems[0].next_step)


def _build_texts(values: Sequence[Any]) -> pa.Array:
    """Text as it is, the number of a VariableScaleDecimal, and other values as their JSON text."""
    texts = to_texts(values)
    variable = pc.fill_null(pc.match_substring_regex(texts, VARIABLE), False)
    if not pc.any(variable).as_py():
        return texts
    numbers: list[str | None] = []
    for index in pc.indices_nonzero(variable).to_pylist():
        try:
            decimal = _variable(values[index])
        except msgspec.MsgspecError:  # It only begins like a VariableScaleDecimal.
            numbers.append(None)
        else:
            numbers.append(decimals.to_plain_text(decimals.parse_unscaled(decimal.value), decimal.scale))
    plain_texts = pc.replace_with_mask(texts, variable, pa.array(numbers, pa.string()))
    return pc.coalesce(plain_texts, texts)


def _read_decimals(arrow: pa.DataType, scale: int, decimals_are: Decimals, values: Sequence[Any]) -> pa.Array:
    """Decimals from JSON numbers, VariableScaleDecimals, numbers in text, and Base64 of the unscaled value. Text that may
    be a number or Base64 is refused unless `decimals_are` decides."""
    texts = _build_texts(values)
    in_text = pa.array([value is not None and bytes(value).startswith(b'"') for value in values], pa.bool_())
    is_base64 = pc.and_not(pc.match_substring_regex(texts, BASE64), pc.match_substring_regex(texts, NO_NUMBER))
    coded = pc.and_(in_text, pc.fill_null(is_base64, False))
    is_number = pc.fill_null(pc.match_substring_regex(texts, NUMBER), False)
    if decimals_are == "text":
        _raise_misfit(pc.and_not(coded, is_number), NOT_DIGITS)
        coded = pa.repeat(pa.scalar(False), len(texts))
    elif decimals_are == "base64":
        _raise_misfit(pc.and_not(in_text, coded), NOT_BASE64)
    else:
        _raise_misfit(pc.and_(coded, is_number), AMBIGUOUS)
    if not pc.any(coded).as_py():
        return decimals.from_text(texts, arrow)
    cells = zip(coded.to_pylist(), texts.to_pylist(), strict=True)
    numbers: list[int | None] = []
    for is_coded, text in cells:
        unscaled = msgspec.json.decode(f'"{text}"', type=bytes) if is_coded else None
        numbers.append(None if unscaled is None else decimals.parse_unscaled(unscaled) * 10 ** max(0, -scale))
    others = decimals.from_text(pc.if_else(coded, pa.scalar(None, pa.string()), texts), arrow)
    return pc.if_else(coded, decimals.from_unscaled(numbers, arrow), others)


def _raise_misfit(misfits: pa.Array, sentence: str) -> None:
    if pc.any(misfits).as_py():
        raise ValueMisfit(RejectCode.MALFORMED, sentence)


def _make_temporal_reader(arrow: pa.DataType, numeric: ValueReader | None, units: str = "") -> ValueReader:
    """Reader for dates and times: ISO 8601 text, and numbers if `numeric` can read them. Otherwise the error proposes the
    types `units`."""
    read = make_text_reader(arrow)

    def build(values: Sequence[Any]) -> pa.Array:
        numbers = [None if value is None or bytes(value).startswith(b'"') else bytes(value) for value in values]
        if numbers.count(None) == len(numbers):
            iso_texts = to_texts(values)
            if not (pa.types.is_timestamp(arrow) and arrow.tz):
                # The connector appends a Z to dates and times without a zone under `time.precision.mode=isostring`.
                iso_texts = pc.replace_substring_regex(iso_texts, "Z$", "")
            return read(iso_texts).cast(arrow)
        if numeric is None:
            raise ValueMisfit(
                RejectCode.MALFORMED, f"holds a number, and its declared type names no unit; declare {units}, as it is sent"
            )
        array = numeric.build([None if number is None else int(number) for number in numbers])
        texts = [value if number is None else None for value, number in zip(values, numbers, strict=True)]
        return array if texts.count(None) == len(texts) else pc.coalesce(array, build(texts))

    return ValueReader(arrow, msgspec.Raw, build, "raw", numeric.out_of_range_text if numeric is not None else None)


def _timestamp_reader(unit: str, arrow: pa.DataType) -> Callable[[], ValueReader]:
    return lambda: _make_temporal_reader(arrow, temporal_values.timestamp_reader(UNITS[unit], arrow))


def _time_reader(unit: str) -> Callable[[], ValueReader]:
    def make() -> ValueReader:
        reader = temporal_values.time_reader(UNITS[unit])
        return _make_temporal_reader(reader.type, reader)

    return make


OTHERS: Mapping[str, Callable[[], ValueReader]] = {
    **dict.fromkeys(("string", "utf8"), lambda: ValueReader(pa.string(), msgspec.Raw, _build_texts, "text")),
    MASKED_TYPE: value_readers.text_reader,
    "binary": value_readers.binary_reader,
    **dict.fromkeys(
        ("date", "date32", "date32[day]"), lambda: _make_temporal_reader(pa.date32(), temporal_values.date_reader())
    ),
    "time": lambda: _make_temporal_reader(pa.time64("us"), None, "time32[ms], time64[us] or time64[ns]"),
    **{f"time{32 if unit in ('s', 'ms') else 64}[{unit}]": _time_reader(unit) for unit in UNITS},
    "timestamp": lambda: _make_temporal_reader(
        temporal_values.LOCAL_US, None, "timestamp[ms], timestamp[us] or timestamp[ns]"
    ),
    **{f"timestamp[{unit}]": _timestamp_reader(unit, temporal_values.LOCAL_US) for unit in ("s", "ms", "us")},
    "timestamp[ns]": _timestamp_reader("ns", temporal_values.LOCAL_NS),
    "timestamptz": lambda: _make_temporal_reader(temporal_values.UTC_US, None, "timestamp[ms, UTC] or timestamp[us, UTC]"),
    **{f"timestamp[{unit}, utc]": _timestamp_reader(unit, temporal_values.UTC_US) for unit in ("s", "ms", "us")},
    **{f"timestamp[{unit}, tz=utc]": _timestamp_reader(unit, temporal_values.UTC_US) for unit in ("s", "ms", "us")},
}
"""Readers by declared type. The unit is the event's: `timestamp[ms]` reads milliseconds, the column has microseconds."""
