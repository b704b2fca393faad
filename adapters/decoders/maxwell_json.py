"""Maxwell's messages in JSON.

`{"database":"shop","table":"items","type":"update","ts":1700000000,"xid":7,"commit":true,"data":{"id":1,"name":"a"},
"old":{"name":"b"}}`

`data` is the row, or the deleted row; `old` has the columns that an update changed, with their old values. With
`output_nulls=false`, a column that only `old` has is NULL now. Source:
maxwells-daemon.io, "Maxwell's data format", and recorded messages.

**Tables** are `database.table`. **Types** are not in the messages: declare the columns (`schema:`). Numbers, booleans and
text are read as the declared type, an array or object as its JSON text, binary values as Base64. **The key** is the one
in the configuration, or `primary_key_columns` if Maxwell writes them (`output_primary_key_columns=true`).

| `type` | |
| --- | --- |
| insert, update, delete | changes; an update with a key column in `old` is a key change |
| bootstrap-insert | a read |
| bootstrap-start, bootstrap-complete | ignored |
| table-drop | ignored, and reported as a dropped table; its `ts` has milliseconds |
| table-create, table-alter, database-... | ignored: schema changes |

**Order** is that of the stream, the offset: `xid` and `xoffset` only order changes of one server. So all messages of a
table must be in one partition (`producer_partition_by`: database or table), or all messages of a key if keys never
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.ports.decoder import TABLE_DROPPED

from ..arrow.record_errors import UNREADABLE, ValueMisfit
from ..arrow.value_readers import UNSET
from .json.type_names import numbers_to_text
from .messages.decoder import MessageDecoder
from .messages.json_format import NULL, JsonMessageFormat, make_narrow_decoder, make_union, read_image
from .messages.message import BatchReader, Message, MessageChange, MessageContents, TypedRows, to_micros, to_micros_array
from .options import MaxwellOptions

OPS = {"insert": Op.CREATE, "update": Op.UPDATE, "delete": Op.DELETE, "bootstrap-insert": Op.READ}
DROP = "table-drop"
IGNORED = {
    **dict.fromkeys(("table-create", "table-alter", DROP), "schema_change"),
    **dict.fromkeys(("database-create", "database-alter", "database-drop"), "schema_change"),
    **dict.fromkeys(("bootstrap-start", "bootstrap-complete"), "bootstrap"),
    "heartbeat": "heartbeat",
}


class MaxwellRow(msgspec.Struct, gc=False):
    """A message with the fields that are used."""

    type: str
    database: str | None = None
    table: str | None = None
    ts: int | None = None
    xid: int | None = None
    data: msgspec.Raw = NULL
    old: msgspec.Raw = NULL
    primary_key_columns: tuple[str, ...] | None = None


_row = msgspec.json.Decoder(MaxwellRow).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


class MaxwellBatchReader(BatchReader):
    """`decoders.messages.message.BatchReader` of Maxwell: each message has one row."""

    def __init__(self, like: bytes, rows: TypedRows) -> None:
        one, self.rows = _row(like), rows
        self._keys = one.primary_key_columns
        types = {"type": make_union(*OPS), "database": make_union(one.database), "table": make_union(one.table)}
        self.decode = make_narrow_decoder(MaxwellRow, data=rows.row, old=(rows.old | None, None), **types)

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        return [OPS[one.type] if one.primary_key_columns == self._keys and not _has_gap(one) else None for one in messages]

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        return MessageContents(
            ops=ops,
            rows=[one.data for one in messages],
            olds=[one.old for one in messages],
            message_numbers=None,
            at=to_micros_array([one.ts for one in messages], 1_000_000),
            tx=numbers_to_text([one.xid for one in messages]),
        )


class MaxwellFormat(JsonMessageFormat):
    """`decoders.messages.message.MessageFormat` of Maxwell."""

    name, connector, order_elements = "maxwell_json", "mysql", 0
    metadata_fields = (
        *("database", "table", "type", "ts", "xid", "xoffset", "commit", "position", "gtid", "server_id", "thread_id"),
        *("schema_id", "primary_key_columns"),
    )

    def message(self, text: bytes) -> Message:
        flat = _row(text)
        if flat.type == DROP and flat.table and flat.database:
            return Message(f"{flat.database}.{flat.table}", TABLE_DROPPED, at=to_micros(flat.ts, 1000))
        if flat.type in IGNORED:
            return Message(ignored=IGNORED[flat.type])
        if flat.type not in OPS:
            raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"its type is none of {', '.join(OPS)}")
        row, old = read_image(flat.data), read_image(flat.old)
        if not flat.table or not flat.database or row is None:
            raise ValueMisfit(RejectCode.MALFORMED, "it lacks database, table or data")
        op = OPS[flat.type]
        return Message(
            table=f"{flat.database}.{flat.table}",
            changes=(MessageChange(op, _add_nulls(row, old) if op == Op.UPDATE and old else row, old),),
            keys=flat.primary_key_columns or (),
            at=to_micros(flat.ts, 1_000_000),
            tx=None if flat.xid is None else str(flat.xid),
            before=row if op == Op.DELETE else old,
            after=None if op == Op.DELETE else row,
        )

    def make_reader_of_layout(self, like: bytes, rows: TypedRows) -> MaxwellBatchReader:
        return MaxwellBatchReader(like, rows)


def _has_gap(one: Any) -> bool:
    """True for an update without some column, which may have become NULL (`_add_nulls`)."""
    return one.type == "update" and one.old is not None and UNSET in msgspec.structs.astuple(one.data)


def _add_nulls(row: bytes, old: bytes) -> bytes:
    """The row, with NULL in the columns that only `old` has: `output_nulls=false` leaves them out of `data`."""
    try:
        fields, old_fields = _fields(row) or {}, _fields(old) or {}
    except UNREADABLE:
        return row  # Rejected when it is decoded.
    missing = {name: NULL for name in old_fields if name not in fields}
    return msgspec.json.encode({**fields, **missing}) if missing else row


class MaxwellJsonDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of Maxwell's messages; `options` as in `decoders.options.MessageOptions`."""

    FORMAT = MaxwellFormat()
    OPTIONS = MaxwellOptions
