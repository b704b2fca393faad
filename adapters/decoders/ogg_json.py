"""Oracle GoldenGate's operations in JSON (the `json` formatter of GoldenGate for Big Data).

`{"table":"SHOP.ITEMS","op_type":"U","op_ts":"2024-02-29 10:00:00.123456","current_ts":"2024-02-29T10:00:01.000123",
"pos":"00000000020030003620","primary_keys":["ID"],"before":{"ID":1,"NAME":"b"},"after":{"ID":1,"NAME":"a"}}`

Source: Oracle, "Using the Pluggable Formatters".

**Tables** have the name in `table`. **Types** are not in the messages: declare the columns (`schema:`). Numbers, booleans
and text are read as the declared type, an array or object as its JSON text, binary values as Base64. **The key** is the
one in the configuration, or `primary_keys` if messages have it (`includePrimaryKeys=true`).

| `op_type` | |
| --- | --- |
| I, U, D | changes. A column missing in `after` of an update is unchanged. Another key in `before` is a key change |
| T | a truncate |

**Order** is `pos`, the position in the trail, a number of any length: usually the file and the offset in it, ten digits
each. So messages of a table may be in any partitions. Without `pos` the stream orders the messages of a table, which must
all be in one partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.plain_values import EPOCH

from ..arrow.record_errors import ValueMisfit
from .messages.decoder import MessageDecoder
from .messages.json_format import NULL, JsonMessageFormat, make_narrow_decoder, make_union, read_image
from .messages.message import BatchReader, Message, MessageContents, TypedRows, make_change
from .options import GoldenGateOptions

OPS = {"I": Op.CREATE, "U": Op.UPDATE, "D": Op.DELETE, "T": Op.TRUNCATE}
LOW = 10
"""Digits of a position in its second element: the first ten of 20 digits are the trail file."""
SHORT = LOW + 18
"""Digits up to which both elements fit in 64 bits."""
MOST = 100
"""Digits that are read; zeros may lead."""
BOUND = 2**63 * 10**LOW
"""The first position whose elements do not fit in 64 bits."""
MICROSECOND = timedelta(microseconds=1)


class GoldenGateOperation(msgspec.Struct, gc=False):
    """An operation with the fields that are used."""

    op_type: str
    table: str | None = None
    op_ts: str | None = None
    pos: str | int | None = None
    xid: str | None = None
    primary_keys: tuple[str, ...] | None = None
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


_operation = msgspec.json.Decoder(GoldenGateOperation).decode


class GoldenGateBatchReader(BatchReader):
    """`decoders.messages.message.BatchReader` of GoldenGate: each message has one row."""

    def __init__(self, like: bytes, rows: TypedRows) -> None:
        one, self.rows = _operation(like), rows
        self._keys, self._has_place = one.primary_keys, one.pos is not None
        image = (rows.row | None, None)
        self.decode = make_narrow_decoder(
            GoldenGateOperation, op_type=make_union(*OPS), table=make_union(one.table), before=image, after=image
        )

    def ops(self, messages: Sequence[Any]) -> list[Op | None]:
        return [OPS[one.op_type] if self._can_read(one) else None for one in messages]

    def _can_read(self, one: Any) -> bool:
        if one.primary_keys != self._keys or _read_row(one) is None:
            return False
        pos = one.pos
        if not self._has_place:
            return pos is None
        return isinstance(pos, str) and pos.isascii() and pos.isdigit() and len(pos) <= SHORT

    def read_contents(self, messages: Sequence[Any], ops: Sequence[Op]) -> MessageContents:
        olds = [self.rows.read_key(one.before) if op == Op.UPDATE else None for one, op in zip(messages, ops, strict=True)]
        orders: list[pa.Array] = []
        if self._has_place:
            digits = pc.utf8_lpad(pa.array([one.pos for one in messages], pa.string()), SHORT, "0")
            halves = ((0, SHORT - LOW), (SHORT - LOW, SHORT))
            orders = [pc.utf8_slice_codeunits(digits, *half).cast(pa.int64()) for half in halves]
        return MessageContents(
            ops=ops,
            rows=list(map(_read_row, messages)),
            olds=olds,
            message_numbers=None,
            at=pa.array([_to_micros(one.op_ts) for one in messages], pa.int64()),
            tx=pa.array([one.xid for one in messages], pa.string()),
            orders=orders,
        )


class GoldenGateFormat(JsonMessageFormat):
    """`decoders.messages.message.MessageFormat` of GoldenGate."""

    name, connector, order_elements, by_tx = "ogg_json", "oracle", 2, True
    metadata_fields = ("table", "op_type", "op_ts", "current_ts", "pos", "xid", "csn", "txind", "primary_keys")

    def message(self, text: bytes) -> Message:
        operation = _operation(text)
        if operation.op_type not in OPS:
            raise ValueMisfit(RejectCode.UNKNOWN_OPERATION, f"its op_type is none of {', '.join(OPS)}")
        if not operation.table:
            raise ValueMisfit(RejectCode.MALFORMED, "it names no table")
        op, before, after = OPS[operation.op_type], read_image(operation.before), read_image(operation.after)
        change = make_change(op, before, after)
        order: tuple[int, ...] = ()
        if operation.pos is not None:
            digits = str(operation.pos)
            number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= MOST else BOUND
            if number >= BOUND:
                raise ValueMisfit(RejectCode.NO_SEQUENCE, "its pos is not a number, or too large")
            order = divmod(number, 10**LOW)
        return Message(
            table=operation.table,
            changes=(change,),
            keys=operation.primary_keys or (),
            at=_to_micros(operation.op_ts),
            tx=operation.xid,
            order=order,
            before=before,
            after=after,
        )

    def images(self, op: Op) -> Mapping[str, bool]:
        return {"before": False, "after": op not in (Op.DELETE, Op.TRUNCATE)}

    def make_reader_of_layout(self, like: bytes, rows: TypedRows) -> GoldenGateBatchReader:
        return GoldenGateBatchReader(like, rows)


def _read_row(message: Any) -> Any:
    """The row of an operation; None for a truncate, too."""
    return message.before if message.op_type == "D" else message.after if message.op_type != "T" else None


def _to_micros(text: str | None) -> int | None:
    """The time of the operation; None if the text is not a time."""
    try:
        at = datetime.fromisoformat(text[:26]) if text else None
    except ValueError:
        return None
    return None if at is None else (at.replace(tzinfo=UTC) - EPOCH) // MICROSECOND


class OggJsonDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of GoldenGate's operations; `options` as in `decoders.options.MessageOptions`."""

    FORMAT = GoldenGateFormat()
    OPTIONS = GoldenGateOptions
