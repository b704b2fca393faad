"""What Canal's messages say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.table import Column
from replicator.ports.decoder import TABLE_DROPPED

from ...arrow import mysql
from ...arrow.json.faults import Unfit
from ...arrow.json.objects import StructObjects, kind_for
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.json_form import NULL, JsonForm, image, narrowed, only
from ...arrow.messages.message import Change, Message, ReadsMany, Said, Types, all_micros, micros
from ...arrow.messages.typed import ColumnType, TypedRows, read_texts
from ...arrow.texts import Read

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
MAX_TYPES = 1024
UNTYPED = ""
"""The type of a column that rows have and `mysqlType` lacks: it is not known."""
SENT_AS: dict[int | None, str] = {
    **dict.fromkeys((-7, -6, -5, 2, 3, 4, 5), mysql.NUMBERED),
    **dict.fromkeys((-16, -15, -9, -1, 1, 12, 2005), mysql.LABELLED),
}
"""What a number of `java.sql.Types` says of an enum or set: its values are numbers, or text."""
TRUNCATE, DROP, SCHEMA_CHANGE = "TRUNCATE", "ERASE", "schema change"
QUERIES = ("QUERY", "CREATE", "ALTER", DROP, "RENAME", "CINDEX", "DINDEX")


class Flat(msgspec.Struct, gc=False):
    """A flat message; fields that are not named here do not count."""

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


_flat = msgspec.json.Decoder(Flat).decode
_said = msgspec.json.Decoder(dict[str, str | None] | None).decode
_codes = msgspec.json.Decoder(dict[str, int | None] | None).decode
_named_rows = msgspec.json.Decoder(list[dict[str, msgspec.Raw] | None]).decode
_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ManyRows(ReadsMany):
    """`messages.message.ReadsMany` of Canal: each has rows, and what all of them were before or nothing of that."""

    def __init__(self, like: bytes, rows: TypedRows) -> None:
        one, self.rows = _flat(like), rows
        row: Any = rows.row
        old: Any = rows.old
        self._types, self._keys = one.mysqlType, one.pkNames
        self._sql_types, self._labels = one.sqlType, _labels(one)
        named = {"database": only(one.database), "table": only(one.table), "type": only(*OPS)}
        self.decode = narrowed(Flat, **named, data=list[row], old=(list[old] | None, None))

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        """See `ReadsMany.ops`."""
        return [OPS[one.type] if self._takes(one) else None for one in messages]

    def _takes(self, one: Any) -> bool:
        if one.isDdl or one.mysqlType != self._types or one.pkNames != self._keys or not one.data:
            return False
        if one.sqlType != self._sql_types and self._labels and _labels(one) != self._labels:
            return False
        return one.old is None or len(one.old) == len(one.data)

    def said(self, messages: Sequence[Any], ops: Sequence[Op]) -> Said:
        """See `ReadsMany.said`."""
        of = None
        if any(len(one.data) > 1 for one in messages):
            of = [place for place, one in enumerate(messages) for _ in one.data]
        return Said(
            ops=ops,
            rows=[row for one in messages for row in one.data],
            olds=[old for one in messages for old in one.old or repeat(None, len(one.data))],
            of=of,
            at=all_micros([one.es for one in messages], 1000),
            tx=pa.nulls(len(messages), pa.string()),
        )


class Canal(JsonForm):
    """`messages.message.Form` of Canal."""

    name, connector, ordered = "canal_json", "mysql", 0
    kept = ("id", "database", "table", "pkNames", "isDdl", "type", "es", "ts", "gtid", "sqlType", "mysqlType")
    texts_only = True

    def message(self, text: bytes) -> Message:
        """See `JsonForm.message`."""
        said = _flat(text)
        kind = said.type.upper()
        if kind == DROP and said.table and said.database:
            return Message(f"{said.database}.{said.table}", TABLE_DROPPED, at=micros(said.es, 1000))
        if kind != TRUNCATE and (said.isDdl or kind in QUERIES):
            return Message(ignored=SCHEMA_CHANGE)
        if not said.table or not said.database:
            raise Unfit(RejectCode.MALFORMED, "it names no database and table")
        data, old = image(said.data), image(said.old)
        types = _types(said)
        return Message(
            table=f"{said.database}.{said.table}",
            changes=(Change(Op.TRUNCATE),) if kind == TRUNCATE else tuple(_changes(kind, data, old)),
            types=_with_others(types, data) if types and data is not None else types,
            keys=said.pkNames or (),
            at=micros(said.es, 1000),
            before=data if kind == "DELETE" else old,
            after=None if kind == "DELETE" else data,
        )

    def column(self, name: str, said: str) -> Column | None:
        """See `Form.column`."""
        arrow = mysql.arrow_of(said)
        return None if arrow is None else Column(name, arrow, source_type=mysql.source_type_of(said))

    def reader(self, column: ColumnType) -> Read:
        """See `JsonForm.reader`."""
        own = mysql.reader_of(column.said, column.sent, declared=column.declared)
        return own or (mysql.latin_bytes if pa.types.is_binary(column.sent) else read_texts(column))

    def together(self, like: bytes, rows: TypedRows) -> ManyRows:
        """See `JsonForm.together`."""
        return ManyRows(like, rows)


@lru_cache(MAX_TYPES)
def _said_types(text: bytes) -> tuple[Types, tuple[str, ...]]:
    """The types of a message, and the columns among them that have labels. Messages of a table say the same: they are read
    once. Raises one of `json.faults.UNREADABLE`."""
    types = Types({name: said or UNTYPED for name, said in (_said(text) or {}).items()})
    return types, tuple([name for name, said in types.items() if mysql.parse(said).name in mysql.LABELS])


def _types(message: Flat) -> Types:
    """The types of a message's columns. Raises as `_said_types`."""
    types, labels = _said_types(bytes(message.mysqlType))[0], _labels(message)
    return _marked(types, labels) if labels else types


def _labels(message: Any) -> tuple[tuple[str, str], ...]:
    """The columns of a message that have labels, and in which form it has their values."""
    labelled = _said_types(bytes(message.mysqlType))[1]
    codes = (_codes(message.sqlType) or {}) if labelled else {}
    return tuple([(name, SENT_AS.get(codes.get(name), "")) for name in labelled])


@lru_cache(MAX_TYPES)
def _marked(types: Types, labels: tuple[tuple[str, str], ...]) -> Types:
    return Types(types | {name: types[name] + form for name, form in labels})


def _with_others(types: Types, data: bytes) -> Types:
    """Types with the columns of rows that `mysqlType` lacks."""
    try:
        _strict(types)(data)
    except msgspec.MsgspecError:
        names = dict.fromkeys(name for row in _named_rows(data) if row is not None for name in row)
        return _plus(types, tuple([name for name in names if name not in types]))
    return types


@lru_cache(MAX_TYPES)
def _strict(types: Types) -> Any:
    """Reads rows, and fails where one has a column that is not in `types`."""
    if kind_for(types) is not StructObjects:
        return _refuse
    fields = [(f"f{n}", msgspec.Raw, msgspec.field(default=NULL, name=name)) for n, name in enumerate(types)]
    row: Any = msgspec.defstruct("Row", fields, gc=False, forbid_unknown_fields=True)
    return msgspec.json.Decoder(list[row | None] | None).decode


def _refuse(data: bytes) -> None:  # noqa: ARG001 - rows of such names are read by the slower way
    raise msgspec.ValidationError


@lru_cache(MAX_TYPES)
def _plus(types: Types, names: tuple[str, ...]) -> Types:
    return Types(types | dict.fromkeys(names, UNTYPED)) if names else types


def _changes(kind: str, data: bytes | None, old: bytes | None) -> list[Change]:
    if kind not in OPS:
        known = ", ".join((*OPS, TRUNCATE))
        raise Unfit(RejectCode.UNKNOWN_OPERATION, f"its type is none of {known}")
    rows = [] if data is None else [image(row) for row in _rows(data)]
    olds = list(repeat(None, len(rows))) if old is None else [image(row) for row in _rows(old)]
    if len(olds) != len(rows) or None in rows:
        raise Unfit(RejectCode.MALFORMED, f"it has {len(rows)} rows, and {len(olds)} of before")
    return [Change(OPS[kind], row, before) for row, before in zip(rows, olds, strict=True)]


class CanalJsonDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of Canal's flat messages; `options` as in `messages.options.Options`."""

    FORM = Canal()
