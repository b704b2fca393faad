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
from replicator.ports.decoder import TABLE_DROPPED

from ...arrow import mysql
from ...arrow.json.faults import Unfit
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.json_form import NULL, JsonForm, image, narrowed, only
from ...arrow.messages.message import Change, Message, ReadsMany, Said, Types, all_micros, micros
from ...arrow.messages.typed import TypedRows

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
MAX_TYPES = 1024
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
    pkNames: tuple[str, ...] | None = None  # noqa: N815
    es: int | None = None


_flat = msgspec.json.Decoder(Flat).decode
_said = msgspec.json.Decoder(dict[str, str] | None).decode
_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ManyRows(ReadsMany):
    """`messages.message.ReadsMany` of Canal: each has rows, and what all of them were before or nothing of that."""

    def __init__(self, like: bytes, rows: TypedRows) -> None:
        one, self.rows = _flat(like), rows
        row: Any = rows.row
        old: Any = rows.old
        self._types, self._keys = one.mysqlType, one.pkNames
        named = {"database": only(one.database), "table": only(one.table), "type": only(*OPS)}
        self.decode = narrowed(Flat, **named, data=list[row], old=(list[old] | None, None))

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        """See `ReadsMany.ops`."""
        return [OPS[one.type] if self._takes(one) else None for one in messages]

    def _takes(self, one: Any) -> bool:
        if one.isDdl or one.mysqlType != self._types or one.pkNames != self._keys or not one.data:
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
        return Message(
            table=f"{said.database}.{said.table}",
            changes=(Change(Op.TRUNCATE),) if kind == TRUNCATE else tuple(_changes(kind, data, old)),
            types=_types(bytes(said.mysqlType)),
            keys=said.pkNames or (),
            at=micros(said.es, 1000),
            before=data if kind == "DELETE" else old,
            after=None if kind == "DELETE" else data,
        )

    def type_of(self, said: str) -> pa.DataType:
        """See `Form.type_of`."""
        return mysql.arrow_of(said)

    def to_bytes(self, texts: Sequence[str | None]) -> pa.Array:
        """See `JsonForm.to_bytes`."""
        return pa.array([None if text is None else text.encode("latin-1") for text in texts], pa.binary())

    def together(self, like: bytes, rows: TypedRows) -> ManyRows:
        """See `JsonForm.together`."""
        return ManyRows(like, rows)


@lru_cache(MAX_TYPES)
def _types(text: bytes) -> Types:
    """Messages of a table say the same: they are read once. Raises one of `json.faults.UNREADABLE`."""
    return Types(_said(text) or {})


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
