"""MongoDB's events, whose images are documents in text, converted to row events with the declared columns.

A field missing in a whole document is NULL. An update without a document (`capture.mode=change_streams`) contains only
the fields that it set or removed. A change of a part of a column (`address.city`, a shortened array) cannot be applied
without the rest of the column. Such an update is rejected with the name of the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.plain_values import EPOCH
from replicator.domain.table import TableSpec

from ...arrow.record_errors import UNREADABLE, ValueMisfit, unreadable_reject
from ..json.schema_frames import split_record
from ..json.type_names import LIST
from ..options import DebeziumOptions
from .records import RouteProbe

CONNECTOR = "mongodb"
ID, KEY_FIELD = "_id", "id"
NULL = msgspec.Raw(b"null")
UNREAD = b"?"
"""Placeholder value of a rejected record."""


class TruncatedArray(msgspec.Struct, gc=False):
    """An array that an update shortened."""

    field: str


class UpdateDescription(msgspec.Struct, gc=False, rename="camel"):
    """The changes of an update. Nested field names contain dots."""

    updated_fields: str | None = None
    removed_fields: list[str] | None = None
    truncated_arrays: list[TruncatedArray] | None = None


class DocumentImages(RouteProbe, gc=False):
    """The fields that distinguish documents from rows, whose images are objects."""

    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


class DocumentEvent(msgspec.Struct, gc=False):
    """A change event of a document."""

    op: msgspec.Raw = NULL
    source: msgspec.Raw = NULL
    transaction: msgspec.Raw = NULL
    before: str | None = None
    after: str | None = None
    description: UpdateDescription | None = msgspec.field(default=None, name="updateDescription")
    patch: str | None = None


_event = msgspec.json.Decoder(DocumentEvent).decode
_probe = msgspec.json.Decoder(DocumentImages).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key = msgspec.json.Decoder(dict[str, str]).decode


def has_documents(values: pa.Array | pa.ChunkedArray, depth: int, *, default: bool = False) -> bool:
    """True if the records have documents of MongoDB. The first readable record decides, without one `default`."""
    for text in (value.as_py() for value in values if value.is_valid):
        try:
            event = _probe(split_record(text, depth)[1])
        except UNREADABLE:
            continue
        images = (bytes(event.before), bytes(event.after))
        return event.source is not None and event.source.connector == CONNECTOR and not any(i[:1] == b"{" for i in images)
    return default


def refuse_undeclared(table: str, declared: Mapping[str, str]) -> None:
    """Raise ConfigProblem for a collection whose columns or key are not declared."""
    if ID not in declared:
        fault = f"do not say which of their fields are columns: {ID!r} at least is needed" if declared else "carry no types"
        raise ConfigProblem(
            f"the documents of collection {table} {fault}",
            next_step=f"Add to this table's entry under `tables`: `schema: {{{ID}: string, ...}}`, the fields that are "
            "wanted with their Arrow types.",
        )


class DocumentConverter:
    """Converts events of documents to events of rows."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options, self._depth = options, options.limits.depth
        self._known: dict[str, dict[str, Convert]] = {}

    def to_rows(self, raw: pa.RecordBatch, table: TableSpec) -> tuple[pa.RecordBatch, dict[int, Reject]]:
        """The records of a table as row events without a schema, and errors of unreadable ones. Others stay as they
        are."""
        if table.name not in self._known:
            declared = self._options.columns_of(table.name) or {}
            self._known[table.name] = {name: make_converter(type_name) for name, type_name in declared.items()}
        values, keys, columns = raw.column("value"), raw.column("key"), self._known[table.name]
        if ID not in columns or not has_documents(values, self._depth, default=ID in table.keys):
            return raw, {}
        new_values, new_keys = list[Any](), list[Any]()
        errors: dict[int, Reject] = {}
        for index, (value, key) in enumerate(zip(values.to_pylist(), keys.to_pylist(), strict=True)):
            try:
                row: dict[str, Any] = {}
                payload = None if key is None else split_record(key, self._depth)[1]
                if payload is not None and set(_fields(payload)) == {KEY_FIELD}:
                    row = {ID: _convert(ID, _key(payload)[KEY_FIELD].encode(), columns[ID])}
                new_keys.append(msgspec.json.encode(row) if row else key)
                new_values.append(None if value is None else _to_row(split_record(value, self._depth)[1], row, columns))
            except (*UNREADABLE, OverflowError) as error:
                errors[index] = unreadable_reject(error)
                # The key may have been appended before the value failed.
                new_keys[index:] = [key]
                new_values.append(UNREAD)
        for name, column in (("value", new_values), ("key", new_keys)):
            raw = raw.set_column(raw.schema.get_field_index(name), name, pa.array(column, pa.binary()))
        return raw, errors


def _to_row(payload: bytes, key: dict[str, Any], columns: Mapping[str, Convert]) -> bytes:
    event = _event(payload)
    images: dict[str, dict[str, Any] | None] = {"before": None, "after": None}
    for side, text in (("before", event.before), ("after", event.after)):
        if text is not None:
            fields = _fields(text)
            images[side] = {
                n: _convert(n, bytes(fields[n]), convert) if n in fields else None for n, convert in columns.items()
            }
    if event.after is None and event.description is not None:
        updated = _fields(event.description.updated_fields or "{}")
        removed_fields = event.description.removed_fields or []
        for path in (*updated, *removed_fields, *(t.field for t in event.description.truncated_arrays or ())):
            column = path.partition(".")[0]
            if column in columns and not (path == column and (path in updated or path in removed_fields)):
                raise ValueMisfit(
                    RejectCode.INCOMPLETE,
                    f"its update says only what became of a part of column {column!r}; have whole documents sent with "
                    "`capture.mode=change_streams_update_full`",
                )
        values = {name: _convert(name, bytes(raw), columns[name]) for name, raw in updated.items() if name in columns}
        images["after"] = key | (values | {name: None for name in removed_fields if name in columns})
    elif event.after is None and event.patch is not None:
        raise ValueMisfit(
            RejectCode.MALFORMED,
            "it is an update as the oplog has it (patch), which connectors before 1.8 send; use "
            "`capture.mode=change_streams_update_full`",
        )
    metadata = {"op": event.op, "source": event.source, "transaction": event.transaction}
    return msgspec.json.encode(metadata | images)


def _convert(name: str, raw: bytes, convert: Callable[[bytes], Any]) -> Any:
    try:
        return convert(raw)
    except ValueMisfit as error:
        raise ValueMisfit(error.reject.code, f"column {name!r} {error.reject.sentence}") from None


# MongoDB's extended JSON (canonical, relaxed and version 1) as values of declared columns.
#
# | BSON | in a column of |
# | --- | --- |
# | ObjectId, symbol, UUID in text | string |
# | 32 and 64 bits, double, decimal128 | a number that can hold it; string |
# | date | timestamp, timestamp[us, UTC], string, or date32 if it is midnight in UTC |
# | binary | binary; string, as base64 |
# | document, array, regular expression and the rest | string, as its JSON; an array in a list of its type |
# | null, undefined | NULL |


DAY_MS = 86_400_000
NUMBER = re.compile(r"-?\d+(\.\d+)?(E[+-]?\d+)?\Z")

Convert = Callable[[bytes], Any]
"""Converts the JSON of one value to the form that a declared column reads. Raises ValueMisfit."""


@dataclass(frozen=True)
class Instant:
    """A date, in milliseconds since 1970."""

    ms: int

    @property
    def iso(self) -> str:
        """The date as text in UTC."""
        try:
            return (EPOCH + timedelta(milliseconds=self.ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        except OverflowError:
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a date outside the years 1 to 9999") from None


@dataclass(frozen=True)
class Base64Bytes:
    """Binary data as base64."""

    text: str


class Digits(str):
    """A decimal128 as text."""


def _date(date: Any) -> Instant:
    date = unwrap(date) if isinstance(date, dict) else date
    if isinstance(date, str):
        at = datetime.fromisoformat(date) - EPOCH
        return Instant((at.days * 86_400 + at.seconds) * 1000 + at.microseconds // 1000)
    return Instant(int(date))


def _double(double: Any) -> Any:
    if double in ("NaN", "Infinity", "-Infinity"):
        return str(double)
    number = float(double)
    if not isfinite(number):
        raise ValueError
    return number


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "$oid": str,
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": _double,
    "$numberDecimal": Digits,
    "$date": _date,
    "$binary": lambda binary: Base64Bytes(binary["base64"] if isinstance(binary, dict) else binary),
    "$uuid": str,
    "$symbol": str,
    "$undefined": lambda _: None,
}


def unwrap(value: Any) -> Any:
    """The value without the object that names its type. Documents, arrays and other values stay as they are."""
    if not isinstance(value, dict) or not value:
        return value
    name = next(iter(value))
    if name in WRAPPERS and len(value) == (2 if name == "$binary" and "$type" in value else 1):
        try:
            return WRAPPERS[name](value[name])
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ValueMisfit(RejectCode.MALFORMED, f"holds an invalid {name}") from None
    return value


def make_converter(type_name: str) -> Convert:
    """The converter for values of a column declared as `type_name` (see `schema.find_declared_reader`)."""
    name = re.sub(r"\s+", "", type_name.lower())
    if inner := LIST.match(name):
        convert_element = make_converter(inner[1])

        def convert_list(raw: bytes) -> Any:
            if unwrap(msgspec.json.decode(raw)) is None:
                return None
            return [convert_element(bytes(one)) for one in msgspec.json.decode(raw, type=list[msgspec.Raw])]

        return convert_list
    if name in ("string", "utf8"):
        return _text
    if name.startswith("timestamp"):
        return _scalar_converter(lambda value: value.iso if isinstance(value, Instant) else value)
    return _scalar_converter(SIMPLE.get(name, _number if name.startswith("decimal") else _to_integer))


def _number(value: Any) -> Any:
    """Decimals as JSON numbers, because their text might be read as Base64."""
    return msgspec.Raw(value.encode()) if isinstance(value, Digits) and NUMBER.match(value) else value


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _floating(value: Any) -> Any:
    if not isinstance(value, Digits):
        return value
    try:
        return _double(value)
    except ValueError:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a number that its type cannot hold") from None


def _day(value: Any) -> Any:
    if not isinstance(value, Instant):
        return value
    if value.ms % DAY_MS:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a date with a time of day; declare it as timestamp[us, UTC]")
    return value.ms // DAY_MS


SIMPLE: dict[str, Callable[[Any], Any]] = {
    "binary": lambda value: value.text if isinstance(value, Base64Bytes) else value,
    **dict.fromkeys(("float", "float32", "float64", "double"), _floating),
    **dict.fromkeys(("date", "date32", "date32[day]"), _day),
}


def _scalar_converter(to_scalar: Callable[[Any], Any]) -> Convert:
    def convert(raw: bytes) -> Any:
        value = to_scalar(unwrap(msgspec.json.decode(raw)))
        if isinstance(value, Instant | Base64Bytes | dict | list):
            kinds = {Instant: "a date", Base64Bytes: "binary data", dict: "a document", list: "an array"}
            raise ValueMisfit(RejectCode.MALFORMED, f"holds {kinds[type(value)]}, which its declared type cannot hold")
        return str(value) if isinstance(value, Digits) else value

    return convert


def _text(raw: bytes) -> str | None:
    value = unwrap(msgspec.json.decode(raw))
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, Instant):
        return value.iso
    if isinstance(value, Base64Bytes):
        return value.text
    whole = raw if isinstance(value, dict | list) else msgspec.json.encode(value)
    return msgspec.json.format(whole, indent=-1).decode()
