"""Base class of formats whose messages are JSON and whose rows are JSON objects."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.table import Column

from ...arrow.record_errors import UNREADABLE, RecordLimits, ValueMisfit
from ...arrow.text_values import TextReader
from ...arrow.value_readers import ValueReader, choose_objects
from ..json.schema_frames import refuse_depth
from ..json.type_names import to_text, to_texts
from .message import (
    BatchReader,
    ColumnType,
    ColumnTypes,
    Message,
    MessageFormat,
    MessageRows,
    ReaderOf,
    TypedRows,
    make_typed_rows,
    text_column_reader,
)

NULL = msgspec.Raw(b"null")


class MessageNames(msgspec.Struct, gc=False):
    """The fields of a message that name its table."""

    database: str | None = None
    table: str | None = None


_names = msgspec.json.Decoder(MessageNames).decode


class JsonMessageFormat(MessageFormat):
    """A JSON format. By default messages have no types, bytes are Base64, rows are in `data` and old rows in `old`;
    subclasses may differ. `texts_only`: all values are text."""

    texts_only = False
    metadata_fields: Collection[str]
    """Fields outside rows that contain no values of rows; they are stored for tables with private columns."""

    def message(self, text: bytes) -> Message:
        """The parsed message. Raises one of `arrow.record_errors.UNREADABLE`, such as `ValueMisfit`."""
        raise NotImplementedError

    def read(self, value: bytes, limits: RecordLimits) -> Message:
        refuse_depth(value, limits.depth)
        return self.message(value)

    def images(self, op: Op) -> Mapping[str, bool]:
        """The fields that contain rows in messages with this operation. True: rows that exist after it."""
        return {"data": op not in (Op.DELETE, Op.TRUNCATE), "old": False}

    def column(self, name: str, type_name: str) -> Column | None:  # noqa: ARG002 - messages have no types
        return None

    def find_table(self, value: bytes, limits: RecordLimits) -> str | None:  # noqa: ARG002 - other fields are skipped
        try:
            names = _names(value)
        except UNREADABLE:
            return None
        return f"{names.database}.{names.table}" if names.database and names.table else names.table or None

    def make_row_reader(self, columns: ColumnTypes) -> JsonMessageRows:
        return JsonMessageRows(columns, self.find_text_reader)

    def make_batch_reader(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> BatchReader | None:
        rows = make_typed_rows(columns, keys, self.find_text_reader, texts_only=self.texts_only)
        return None if rows is None else self.make_reader_of_layout(like, rows)

    def make_reader_of_layout(self, like: bytes, rows: TypedRows) -> BatchReader | None:  # noqa: ARG002 - for subclasses
        """The reader of messages that have the same layout as `like` and such rows; None to read them one by one."""
        return None

    def find_text_reader(self, column: ColumnType) -> TextReader:
        """The function that converts texts of a column to the type `sent`."""
        return _decode_base64 if pa.types.is_binary(column.sent) else text_column_reader(column)

    def to_json(self, image: Any) -> bytes | None:
        """See `MessageFormat.to_json`: images are JSON text."""
        text: bytes | None = image
        return text


def _decode_base64(texts: pa.Array) -> pa.Array:
    try:
        return pa.array([None if t is None else b64decode(t, validate=True) for t in texts.to_pylist()], pa.binary())
    except ValueError:
        raise ValueMisfit(RejectCode.MALFORMED, "holds text that is no Base64, which bytes are written in") from None


def read_image(raw: msgspec.Raw) -> bytes | None:
    """JSON text; None for null."""
    text = bytes(raw)
    return None if text == b"null" else text


def make_narrow_decoder(message: type[msgspec.Struct], **fields: Any) -> Callable[[bytes], Any]:
    """A decoder of messages whose fields have these types. Fields with a pair of type and default may be missing."""
    field_definitions = [(name, *wire) if isinstance(wire, tuple) else (name, wire) for name, wire in fields.items()]
    narrow = msgspec.defstruct(message.__name__, field_definitions, bases=(message,), gc=False, kw_only=True)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(narrow).decode
    return decode


def make_union(*values: str | None) -> Any:
    """The type of exactly these values."""
    return Literal[values]


# Readers of rows as JSON objects, generated for one layout of one table.


class JsonMessageRows(MessageRows):
    """`message.MessageRows` of JSON objects. A value may be text, or a number or boolean if that is as exact. An array or
    object is read as its JSON text."""

    def __init__(self, columns: ColumnTypes, reader: ReaderOf) -> None:
        self.readers = {name: _value_reader(reader, column) for name, column in columns.items()}
        self.columns = frozenset(self.readers)
        self._fields = choose_objects(self.readers)(self.readers)
        self.blank: Any = self._fields.empty()
        self.decode = msgspec.json.Decoder(self._fields.wire).decode

    def can_hold(self, row: bytes, names: Sequence[str]) -> bool:
        """See `MessageRows.can_hold`: a name without escapes occurs in the text as it is."""
        if b"\\" in row or not row.startswith(b"{"):
            return bool(names)
        return any(f'"{name}"'.encode() in row for name in names)

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        return self._fields.values(rows, name)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._fields.nodes[name].build(values)

    def text(self, value: Any) -> str | None:
        return to_text(value)


def _value_reader(reader: ReaderOf, column: ColumnType) -> ValueReader:
    read = column.adapt(ValueReader(column.sent, str, reader(column)))
    return ValueReader(column.wanted, msgspec.Raw, lambda values: read(to_texts(values)))
