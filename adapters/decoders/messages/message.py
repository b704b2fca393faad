"""Messages, independent of their format, and the layouts of their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import FIRST_US, LAST_US, ReadMode
from replicator.domain.table import Column, TableSpec

from ...arrow.record_errors import (
    FAILURES,
    UNREADABLE,
    Build,
    RecordLimits,
    ValueMisfit,
    build_or_reject,
    malformed_reject,
    unreadable_reject,
)
from ...arrow.temporal_values import make_lenient
from ...arrow.text_values import TextReader, make_text_reader
from ...arrow.value_readers import NULL, UNSET, StructObjectReader, ValueReader, choose_objects, make_nullable
from ..json.schema_frames import hint_by_names
from ..json.type_names import find_type_reader, to_texts, type_name
from ..masking import MaskedTables
from ..options import MessageOptions


class MessageContents(NamedTuple):
    """Contents of consecutive messages.

    - `rows`, `olds`: values of the types `TypedRows.row` and `old`; None for a missing old image.
    - `message_numbers`: the message of each row; None if each message has one row.
    - `at`: microseconds since 1970.
    - `orders`: order elements; empty if the stream orders the messages.
    """

    ops: Sequence[Op]
    rows: Sequence[Any]
    olds: Sequence[Any]
    message_numbers: Sequence[int] | None
    at: pa.Array
    tx: pa.Array
    orders: Sequence[pa.Array] = ()


class MessageChange(NamedTuple):
    """One row of a message and its old image, as the format decodes them. None for a missing one; a truncate has none."""

    op: Op
    row: Any = None
    old: Any = None


def make_change(op: Op, before: Any, after: Any) -> MessageChange:
    """The change of a message with the images before and after it. Raises ValueMisfit if the row is missing."""
    if op == Op.TRUNCATE:
        return MessageChange(op)
    row = before if op == Op.DELETE else after
    if row is None:
        raise ValueMisfit(RejectCode.MALFORMED, f"it has no image {'before' if op == Op.DELETE else 'after'}")
    return MessageChange(op, row, before if op == Op.UPDATE else None)


class ColumnTypeNames(dict[str, str]):
    """Columns and their types, in order, with a cached hash. Readers of many messages of one table share one object."""

    __slots__ = ("_hash", "_pairs")

    def __init__(self, types: Mapping[str, str]) -> None:
        super().__init__(types)
        self._pairs = tuple(self.items())
        self._hash = hash(self._pairs)

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ColumnTypeNames) and self._pairs == other._pairs)


NO_TYPES = ColumnTypeNames({})


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of one table, or an `ignored` one, which may name a table too.

    - `types`: columns and their types, if the message has them.
    - `keys`: the key columns, if the message has them.
    - `at`: event time in microseconds since 1970.
    - `order`: sequence elements from the source; empty if the stream orders the messages.
    - `before`, `after`: images for `MessageFormat.to_json`.
    - `db`: the database, if no table is named.
    """

    table: str = ""
    ignored: str = ""
    changes: Sequence[MessageChange] = ()
    types: ColumnTypeNames = NO_TYPES
    keys: tuple[str, ...] = ()
    at: int | None = None
    tx: str | None = None
    order: tuple[int, ...] = ()
    before: Any = None
    after: Any = None
    db: str = ""


class MessageRows(Protocol):
    """Reads columns of rows of one layout, row by row."""

    columns: Collection[str]
    """The columns that it can read."""
    blank: Any
    """The decoded form of a row without values."""
    decode: Any
    """Decodes a `MessageChange`'s row for the other methods. Raises one of `arrow.record_errors.UNREADABLE`."""

    def can_hold(self, row: Any, names: Sequence[str]) -> bool:
        """True if a row of a `MessageChange` may have one of these columns. Checked without decoding; True if unknown."""
        ...

    def values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET if it is missing, None if it is null."""
        ...

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column as an Arrow array; None is null. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def text(self, value: Any) -> str | None:
        """The text of a value, for comparing values of one column. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...


class BatchReader(Protocol):
    """Reads many messages of one layout at once, with their rows."""

    rows: TypedRows
    decode: Any
    """Decodes a message for the other methods. Raises one of `arrow.record_errors.UNREADABLE` for an invalid message, and
    for one of another table."""

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        """The operations of messages. None for a message with another layout, without rows, or with rows that
        `read_contents` does not support."""
        ...

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        """The contents of messages with these operations."""
        ...


class MessageFormat(Protocol):
    """A format of messages. Pure."""

    name: str
    """The name of the format in the config."""
    connector: str
    """The value of the metadata field `connector`: the kind of database that the changes are from."""
    order_elements: int
    """The number of sequence elements that a message has in `Message.order`; 0 if only the offset orders messages."""
    by_tx: bool = False
    """True if only the transaction id shows which changes belong together, and the database may check keys late (see
    `TableSpec.by_tx`). An old image then has every column that was sent. If false, it has only the columns that changed."""

    def read(self, value: bytes, limits: RecordLimits) -> Message:
        """The parsed message. Raises one of `arrow.record_errors.UNREADABLE`, such as `ValueMisfit`."""
        ...

    def column(self, name: str, type_name: str) -> Column | None:
        """The column for a type name in messages; None for an unknown type."""
        ...

    def find_table(self, value: bytes, limits: RecordLimits) -> str | None:
        """The table that a message names, even if the message is otherwise unreadable. Never fails."""
        ...

    def make_row_reader(self, columns: ColumnTypes) -> MessageRows:
        """The reader of these columns."""
        ...

    def make_batch_reader(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> BatchReader | None:
        """A reader for batches of messages that have the same layout as `like` and rows with these columns, as in
        `make_row_reader`. None if messages must be read one by one."""
        ...

    def to_json(self, image: Any) -> bytes | None:
        """`Message.before` or `after` as JSON text. Never fails."""
        ...


def read_message(form: MessageFormat, value: bytes, limits: RecordLimits) -> Message | Reject:
    """The parsed message, or the error."""
    try:
        return form.read(value, limits)
    except UNREADABLE as error:
        return hint_by_names(unreadable_reject(error), value, form.name)


def to_micros(count: int | None, each: int) -> int | None:
    """`count` times `each` microseconds since 1970; None outside the years 1 to 9999."""
    if count is None or not FIRST_US <= count * each <= LAST_US:
        return None
    return count * each


def to_micros_array(counts: Sequence[int | None], each: int) -> pa.Array:
    """`to_micros` of every count."""
    try:
        numbers = pa.array(counts, pa.int64())
    except OverflowError:
        return pa.array([to_micros(count, each) for count in counts], pa.int64())
    inside = pc.and_(pc.greater_equal(numbers, -(-FIRST_US // each)), pc.less_equal(numbers, LAST_US // each))
    return pc.multiply(pc.if_else(inside, numbers, pa.scalar(None, pa.int64())), each)


# Rows of many messages as columns, read with a type that is generated for their layout, so that msgspec creates the
# values.
#
# The result equals that of `json_format.JsonMessageRows`, which reads value by value. Rows that do not fit the generated
# type are left to it.


class ColumnType(NamedTuple):
    """The type of a column: in its layout (`sent`), as wanted, and its name in messages, if any. `declared`: the type is
    from the configuration. `reading`: the treatment of values out of range."""

    sent: pa.DataType
    wanted: pa.DataType
    type_name: str = ""
    declared: bool = False
    reading: ReadMode = "reject"

    def adapt(self, node: ValueReader) -> Build:
        """`node.build` with this treatment, and with the wanted type."""
        return make_lenient(node, self.reading).with_type(self.wanted).build


ColumnTypes = Mapping[str, ColumnType]
ReaderOf = Callable[[ColumnType], TextReader]
"""Returns the function that converts texts of a column to the type `sent`. Raises TypeError if there is none."""


def text_column_reader(column: ColumnType) -> TextReader:
    """The reader of a column from its texts; lists are JSON arrays."""
    if pa.types.is_list(column.sent):
        node: Any = find_type_reader(type_name(column.sent))
        decode = msgspec.json.Decoder(node.wire).decode
        return lambda texts: node.build([None if text is None else decode(text) for text in texts.to_pylist()])
    return make_text_reader(column.sent)


_values = msgspec.structs.astuple


class ColumnValues(NamedTuple):
    """A column of some rows. Missing values (`unset`) and invalid values (`bad`) are null; both are listed by index."""

    array: pa.Array
    unset: Sequence[int] = ()
    bad: Sequence[int] = ()


class TypedColumn:
    """Reads the values of one column in three steps: msgspec's type (`wire`), numbers or text, wanted type."""

    def __init__(self, column: ColumnType, reader: ReaderOf, *, texts_only: bool) -> None:
        sent = self._sent = column.sent
        as_text = texts_only or pa.types.is_string(sent) or pa.types.is_temporal(sent) or pa.types.is_binary(sent)
        self.wire: Any = str if as_text else int if pa.types.is_integer(sent) else msgspec.Raw
        read = (lambda numbers: numbers) if self.wire is int else reader(column)
        self._build = column.adapt(ValueReader(sent, self.wire, read))

    def to_column_values(self, values: Sequence[Any]) -> ColumnValues:
        """The values as numbers or text."""
        try:
            return ColumnValues(self._read_plain(values))
        except FAILURES:
            unset = [index for index, value in enumerate(values) if value is UNSET]
            array, bad = build_or_reject(self._read_plain, [None if value is UNSET else value for value in values], "")
            return ColumnValues(array, unset, list(bad))

    def to_wanted(self, plain: pa.Array) -> ColumnValues:
        """The values with the wanted type."""
        try:
            return ColumnValues(self._build(plain))
        except FAILURES:
            array, bad = build_or_reject(lambda items: self._build(pa.array(items, plain.type)), plain.to_pylist(), "")
            return ColumnValues(array, (), list(bad))

    def _read_plain(self, values: Sequence[Any]) -> pa.Array:
        if self.wire is msgspec.Raw:
            return to_texts([None if value == NULL else value for value in values])
        return pa.array(values, self._sent if self.wire is int else pa.string())


class TypedRows:
    """Reads rows of one layout. `row` and `old` are msgspec types of a row and of an old row, which has only the key."""

    def __init__(self, types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> None:
        self.columns = {name: TypedColumn(column, reader, texts_only=texts_only) for name, column in types.items()}
        numbers = {name: number for number, name in enumerate(types)}
        self._keys = [numbers[key] for key in keys if key in numbers]
        self.row = _make_struct({name: column.wire for name, column in self.columns.items()})
        self.old = _make_struct({name: self.columns[name].wire for name in keys if name in self.columns})
        self._nothing = self.old()

    def values(self, rows: Sequence[Any]) -> Mapping[str, ColumnValues]:
        """The values of every column, as numbers or text."""
        columns: Sequence[Sequence[Any]] = list(zip(*map(_values, rows), strict=True)) if rows else [()] * len(self.columns)
        return {name: of.to_column_values(values) for (name, of), values in zip(self.columns.items(), columns, strict=True)}

    def read_key(self, row: Any) -> Any:
        """The key of a row as an `old` object; None for None."""
        if row is None:
            return None
        values = _values(row)
        return self.old(*[values[number] for number in self._keys])

    def find_key_changes(self, rows: Sequence[Any], olds: Sequence[Any]) -> list[int]:
        """Indices of rows whose key changed, by `olds`, in which None is a missing image."""
        indices = []
        for index in [index for index, old in enumerate(olds) if old is not None and old != self._nothing]:
            old_key, row = _values(olds[index]), _values(rows[index])
            pairs = zip(old_key, self._keys, strict=True)
            if any(value is not UNSET and value != row[number] for value, number in pairs):
                indices.append(index)
        return indices


def make_typed_rows(types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> TypedRows | None:
    """The reader for rows of these columns; None if their names cannot be field names of a type."""
    if choose_objects(types) is not StructObjectReader or not types:
        return None
    return TypedRows(types, keys, reader, texts_only=texts_only)


def _make_struct(wires: Mapping[str, Any]) -> Any:
    fields = [
        (f"f{number}", make_nullable(wire), msgspec.field(default=UNSET, name=name))
        for number, (name, wire) in enumerate(wires.items())
    ]
    return msgspec.defstruct("Fields", fields, gc=False)


# Layouts of rows: declared columns, or the columns in messages.


log = structlog.get_logger(__name__)

MAX_LAYOUTS = MAX_TOLD = 4096
UNTYPED = malformed_reject(
    "it does not say the types of its columns, and its table declares none: write `schema: {id: int64, ...}` for the table"
)

KEYLESS_TRUNCATE = malformed_reject(
    "it is a truncate that does not say the key of its table: write `keys: [...]` for it, and have them in its `schema:`"
)


@dataclass(frozen=True, eq=False)
class MessageLayout:
    """The columns of a table and its key, or an error.

    - `fingerprint`: distinguishes layouts of a table.
    - `has_order`: messages contain their position in the source's log.
    - `type_names`: the types of columns in messages.
    - `declared`: columns whose types are in the configuration.
    - `masked`: types of masked columns.
    - `readings`: treatment of values out of range, by column.
    - `partial`: of deletes that have only the key.
    """

    fingerprint: str = ""
    columns: tuple[Column, ...] = ()
    keys: tuple[str, ...] = ()
    error: Reject | None = None
    has_order: bool = False
    type_names: Mapping[str, str] = field(default_factory=dict)
    declared: Collection[str] = ()
    masked: Mapping[str, pa.DataType] = field(default_factory=dict)
    readings: Mapping[str, ReadMode] = field(default_factory=dict)
    partial: bool = False

    def column_types(self, table: TableSpec) -> ColumnTypes:
        """The types of the columns of `table` in messages, with the wanted types."""
        types = self.unmasked_types() | {name: ColumnType(kind, kind) for name, kind in self.masked.items()}
        return {c.name: types[c.name]._replace(wanted=c.type) for c in table.columns if c.name in types}

    def unmasked_types(self) -> dict[str, ColumnType]:
        """The types of columns in unmasked messages."""
        type_names, declared, modes = self.type_names, self.declared, self.readings
        return {
            c.name: ColumnType(c.type, c.type, type_names.get(c.name, ""), c.name in declared, modes.get(c.name, "reject"))
            for c in self.columns
        }


KEYLESS = MessageLayout(error=KEYLESS_TRUNCATE)


class MessageLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, form: MessageFormat, options: MessageOptions) -> None:
        self._form, self._options = form, options
        self._private = MaskedTables(options.private)
        self._get_layout = lru_cache(MAX_LAYOUTS)(self.read_layout)
        self._get_partial_layout = lru_cache(MAX_LAYOUTS)(self.to_partial_layout)
        self._told: set[tuple[str, str]] = set()

    def get_layout(self, message: Message) -> MessageLayout:
        """The layout of a message's rows."""
        layout = self._get_layout(message.table, message.types, message.keys, bool(message.order))
        has_key = layout.keys and set(layout.keys) <= {column.name for column in layout.columns}
        if layout.error is None and not has_key and message.changes:
            # Messages with other operations share the cached layout.
            is_truncate = all(change.op == Op.TRUNCATE for change in message.changes)
            return KEYLESS if is_truncate else layout
        if has_key and len(layout.columns) == len(layout.keys) and all(c.op == Op.DELETE for c in message.changes):
            return self._get_partial_layout(layout)
        return layout

    @staticmethod
    def to_partial_layout(layout: MessageLayout) -> MessageLayout:
        """The layout of deletes with nothing but the key."""
        return replace(layout, fingerprint=f"{layout.fingerprint}.key", partial=True)

    def read_layout(
        self, table: str, types: ColumnTypeNames, message_keys: tuple[str, ...], has_order: bool
    ) -> MessageLayout:
        """The layout of messages of a table with these types and keys. `has_order`: see `Message.order`."""
        declared = self._options.columns_of(table)
        keys = self._options.keys_of(table) or message_keys
        if not declared and not types:
            return MessageLayout(error=UNTYPED)
        columns = self._find_columns(table, keys, types)
        if isinstance(columns, Reject):
            return MessageLayout(error=columns)
        missing = [key for key in keys if key not in {column.name for column in columns}]
        if missing and keys == message_keys:
            return MessageLayout(
                error=malformed_reject(f"its key has a column {missing[0]!r}, which is not among its columns")
            )
        parts: list[object] = [[[c.name, str(c.type), *filter(None, [c.text_kind])] for c in columns], keys]
        if self._form.order_elements and not has_order:
            parts.append("offset")
            if self._is_first(table, "order"):
                log.warning("messages without a place in their source's log: their offsets order them", table=table)
        fingerprint = sha256(msgspec.json.encode(parts)).hexdigest()[:16]
        masks = self._private.get_masks(table)
        masked = {c.name: self._private.masked_column(table, c).type for c in columns if c.name in masks}
        return MessageLayout(
            fingerprint,
            columns,
            keys,
            has_order=has_order,
            type_names=types,
            declared=frozenset(declared or ()),
            masked=masked,
            readings={c.name: self._options.reading_of(table, c.name) for c in columns if c.name not in keys},
        )

    def _find_columns(self, table: str, keys: Sequence[str], sent: Mapping[str, str]) -> tuple[Column, ...] | Reject:
        """The declared columns, and those in messages. Declared types take precedence. If the key is declared, only
        declared columns are used; otherwise the other columns in messages are added."""
        declared = self._options.columns_of(table) or {}
        columns = [Column(name, find_type_reader(type_name).type) for name, type_name in declared.items()]
        others = {name: type_name for name, type_name in sent.items() if name not in declared}
        if declared and set(keys) <= declared.keys():
            if others and self._is_first(table, "schema"):
                log.info(
                    "columns are left out: `schema:` of the table names its key, and not these",
                    table=table,
                    columns=list(others)[:20],
                    next_step="Leave the key out of `schema:` to have all columns, with the types of the messages.",
                )
            return tuple(columns)
        most = self._options.limits.columns
        if len(sent) > most:
            return Reject(RejectCode.TOO_LARGE, f"it has {len(sent)} columns, more than the {most} allowed")
        for name, sent_type in others.items():
            column = self._form.column(name, sent_type)
            if column is None:
                # Read as text, so that one column does not cause the rejection of all rows.
                column = Column(name, pa.string(), source_type=sent_type)
                if self._is_first(table, f"type of {name}"):
                    log.warning(
                        "a column's type is not known: it is read as text",
                        table=table,
                        column=name,
                        type=sent_type[:60] or "not said",
                        next_step=f"`schema: {{{name}: TYPE}}` of the table gives it another type.",
                    )
            columns.append(column)
        return tuple(columns)

    def _is_first(self, table: str, subject: str) -> bool:
        """True if this was not logged before."""
        if (table, subject) in self._told or len(self._told) >= MAX_TOLD:
            return False
        self._told.add((table, subject))
        return True
