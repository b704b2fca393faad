"""Canal's flat messages in JSON (also those of DTS and of Flink's `canal-json`).

`{"data":[{"id":"1","name":"a"}],"old":null,"type":"INSERT","database":"shop","table":"items","mysqlType":{"id":"bigint",
"name":"varchar(10)"},"pkNames":["id"],"isDdl":false,"es":1700000000000,"ts":1700000000123,"id":7}`

A message has one or more rows. `data[i]` is the row, or the deleted row. `old[i]` has the columns that an update changed,
with their old values. All values are text. Sources: the class `FlatMessage` of alibaba/canal, and recorded messages.

**Tables** are `database.table`. **Types** come from `mysqlType` (`adapters.decoders.common.mysql_types`). Binary values
are ISO-8859-1 text with one character per byte. A column without a type, or with an unknown one, is text. The
configuration may declare columns (`schema:`), all or some, and must do so if messages have no types. **The key** is
`pkNames`, or the one in the configuration.

**Labels.** Canal's RowsLogBuffer sends enum and set values from the binlog as numbers, with `sqlType` 4 (INTEGER) and -7
(BIT); a full load sends text. TiCDC does the same, and lists the labels only with `content-compatible=true`.

| `type` | |
| --- | --- |
| INSERT, UPDATE, DELETE | changes; an update with another value of a key column in `old` is a key change |
| TRUNCATE | a truncate; it has no columns and no key, so the table must declare both |
| ERASE | ignored, and reported as a dropped table if the message names one; needs no declared columns |
| with `isDdl`, and QUERY | ignored |

**Order** is that of the stream: the offset, then the row in its message. `es` has only seconds, and `id` counts messages
of one server. So all messages of a table must be in one partition, or all messages of a key if keys never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import format_count
from replicator.domain.table import Column
from replicator.ports.decoder import TABLE_DROPPED

from ..arrow.record_errors import UNREADABLE, ValueMisfit
from ..arrow.text_values import TextReader
from ..arrow.value_readers import StructObjectReader, choose_objects
from .common import mysql_types
from .messages.decoder import MessageDecoder
from .messages.json_format import NULL, JsonMessageFormat, make_narrow_decoder, make_union, read_image
from .messages.message import (
    BatchReader,
    ColumnType,
    ColumnTypeNames,
    Message,
    MessageChange,
    MessageContents,
    TypedRows,
    text_column_reader,
    to_micros,
    to_micros_array,
)
from .options import CanalOptions

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
MAX_TYPES = 1024
UNTYPED = ""
"""The type of a column that is missing in `mysqlType`."""
SENT_AS: dict[int | None, str] = {
    **dict.fromkeys((-7, -6, -5, 2, 3, 4, 5), mysql_types.NUMBERED),
    **dict.fromkeys((-16, -15, -9, -1, 1, 12, 2005), mysql_types.LABELLED),
}
"""The form of enum and set values by their `java.sql.Types` number: numbers, or text."""
TRUNCATE, DROP, SCHEMA_CHANGE = "TRUNCATE", "ERASE", "schema_change"
QUERIES = ("QUERY", "CREATE", "ALTER", DROP, "RENAME", "CINDEX", "DINDEX")


class FlatMessage(msgspec.Struct, gc=False):
    """A flat message with the fields that are used."""

    type: str
    database: str | None = None
    table: str | None = None
    isDdl: bool | None = None  # noqa: N815 - the field's own name
    data: msgspec.Raw = NULL
    old: msgspec.Raw = NULL
    mysqlType: msgspec.Raw = NULL  # noqa: N815
    sqlType: msgspec.Raw = NULL  # noqa: N815
    pkNames: tuple[str, ...] | None = None  # noqa: N815
    es: int | None = None


_flat = msgspec.json.Decoder(FlatMessage).decode
_texts_by_name = msgspec.json.Decoder(dict[str, str | None] | None).decode
_codes = msgspec.json.Decoder(dict[str, int | None] | None).decode
_named_rows = msgspec.json.Decoder(list[dict[str, msgspec.Raw] | None]).decode
_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


class CanalBatchReader(BatchReader):
    """`decoders.messages.message.BatchReader` of Canal: messages with rows, and an old image for all of them or none."""

    def __init__(self, like: bytes, rows: TypedRows) -> None:
        one, self.rows = _flat(like), rows
        row: Any = rows.row
        old: Any = rows.old
        self._types, self._keys = one.mysqlType, one.pkNames
        self._sql_types, self._labels = one.sqlType, _message_labels(one)
        types = {"database": make_union(one.database), "table": make_union(one.table), "type": make_union(*OPS)}
        self.decode = make_narrow_decoder(FlatMessage, **types, data=list[row], old=(list[old] | None, None))

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        return [OPS[one.type] if self._can_read(one) else None for one in messages]

    def _can_read(self, one: Any) -> bool:
        if one.isDdl or one.mysqlType != self._types or one.pkNames != self._keys or not one.data:
            return False
        if one.sqlType != self._sql_types and self._labels:
            try:
                if _message_labels(one) != self._labels:
                    return False
            except UNREADABLE:
                return False
        return one.old is None or len(one.old) == len(one.data)

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        numbers = None
        if any(len(one.data) > 1 for one in messages):
            numbers = [index for index, one in enumerate(messages) for _ in one.data]
        return MessageContents(
            ops=ops,
            rows=[row for one in messages for row in one.data],
            olds=[old for one in messages for old in one.old or repeat(None, len(one.data))],
            message_numbers=numbers,
            at=to_micros_array([one.es for one in messages], 1000),
            tx=pa.nulls(len(messages), pa.string()),
        )


class CanalFormat(JsonMessageFormat):
    """`decoders.messages.message.MessageFormat` of Canal."""

    name, connector, order_elements = "canal_json", "mysql", 0
    metadata_fields = ("id", "database", "table", "pkNames", "isDdl", "type", "es", "ts", "gtid", "sqlType", "mysqlType")
    texts_only = True

    def message(self, text: bytes) -> Message:
        flat = _flat(text)
        kind = flat.type.upper()
        if kind == DROP and flat.table and flat.database:
            return Message(f"{flat.database}.{flat.table}", TABLE_DROPPED, at=to_micros(flat.es, 1000))
        if kind != TRUNCATE and (flat.isDdl or kind in QUERIES):
            return Message(ignored=SCHEMA_CHANGE)
        if not flat.table or not flat.database:
            raise ValueMisfit(RejectCode.MALFORMED, "it names no database and table")
        data, old = read_image(flat.data), read_image(flat.old)
        types, labels = _read_types(bytes(flat.mysqlType))[0], _message_labels(flat)
        types = _mark_labels(types, labels) if labels else types
        changes = (MessageChange(Op.TRUNCATE),) if kind == TRUNCATE else _read_changes(kind, data, old)
        return Message(
            table=f"{flat.database}.{flat.table}",
            changes=changes,
            types=_add_other_columns(types, data) if types and data is not None else types,
            keys=flat.pkNames or (),
            at=to_micros(flat.es, 1000),
            before=data if kind == "DELETE" else old,
            after=None if kind == "DELETE" else data,
        )

    def column(self, name: str, type_name: str) -> Column | None:
        arrow = mysql_types.to_arrow_type(type_name)
        return None if arrow is None else Column(name, arrow, source_type=mysql_types.to_source_type(type_name))

    def find_text_reader(self, column: ColumnType) -> TextReader:
        own = mysql_types.find_mysql_reader(column.type_name, column.sent, declared=column.declared)
        return own or (mysql_types.to_latin_bytes if pa.types.is_binary(column.sent) else text_column_reader(column))

    def make_reader_of_layout(self, like: bytes, rows: TypedRows) -> CanalBatchReader:
        return CanalBatchReader(like, rows)


@lru_cache(MAX_TYPES)
def _read_types(text: bytes) -> tuple[ColumnTypeNames, tuple[str, ...]]:
    """The types of a message, and its columns with labels. Cached, because messages of a table repeat them. Raises one of
    `arrow.record_errors.UNREADABLE`."""
    types = ColumnTypeNames({name: kind or UNTYPED for name, kind in (_texts_by_name(text) or {}).items()})
    return types, tuple([name for name, kind in types.items() if mysql_types.parse_type(kind).name in mysql_types.LABELS])


def _message_labels(message: Any) -> tuple[tuple[str, str], ...]:
    """The columns of a message that have labels, with the form of their values."""
    labelled = _read_types(bytes(message.mysqlType))[1]
    codes = (_codes(message.sqlType) or {}) if labelled else {}
    return tuple([(name, SENT_AS.get(codes.get(name), "")) for name in labelled])


@lru_cache(MAX_TYPES)
def _mark_labels(types: ColumnTypeNames, labels: tuple[tuple[str, str], ...]) -> ColumnTypeNames:
    return ColumnTypeNames(types | {name: types[name] + form for name, form in labels})


def _add_other_columns(types: ColumnTypeNames, data: bytes) -> ColumnTypeNames:
    """The types, with columns of rows that are missing in `mysqlType`."""
    try:
        _strict_decoder(types)(data)
    except msgspec.MsgspecError:
        names = dict.fromkeys(name for row in _named_rows(data) if row is not None for name in row)
        return _add_names(types, tuple([name for name in names if name not in types]))
    return types


@lru_cache(MAX_TYPES)
def _strict_decoder(types: ColumnTypeNames) -> Any:
    """Reads rows, and fails for a row with a column that is not in `types`."""
    if choose_objects(types) is not StructObjectReader:
        return _refuse_rows
    fields = [(f"f{n}", msgspec.Raw, msgspec.field(default=NULL, name=name)) for n, name in enumerate(types)]
    row: Any = msgspec.defstruct("Row", fields, gc=False, forbid_unknown_fields=True)
    return msgspec.json.Decoder(list[row | None] | None).decode


def _refuse_rows(data: bytes) -> None:  # noqa: ARG001 - rows with such names are read in the slower way
    raise msgspec.ValidationError


@lru_cache(MAX_TYPES)
def _add_names(types: ColumnTypeNames, names: tuple[str, ...]) -> ColumnTypeNames:
    return ColumnTypeNames(types | dict.fromkeys(names, UNTYPED)) if names else types


def _read_changes(kind: str, data: bytes | None, old: bytes | None) -> tuple[MessageChange, ...]:
    if kind not in OPS:
        types = ", ".join((*OPS, TRUNCATE))
        raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"its type is none of {types}")
    rows = [] if data is None else [read_image(row) for row in _rows(data)]
    olds = list(repeat(None, len(rows))) if old is None else [read_image(row) for row in _rows(old)]
    if len(olds) != len(rows) or None in rows:
        raise ValueMisfit(RejectCode.MALFORMED, f"it has {format_count(len(rows), 'row')}, and {len(olds)} of before")
    return tuple([MessageChange(OPS[kind], row, before) for row, before in zip(rows, olds, strict=True)])


class CanalJsonDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of Canal's flat messages; `options` as in `decoders.options.MessageOptions`."""

    FORMAT = CanalFormat()
    OPTIONS = CanalOptions
