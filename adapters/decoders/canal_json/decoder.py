"""What Canal's messages say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode

from ...arrow import mysql
from ...arrow.json.faults import Unfit
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.json_form import NULL, JsonForm, image
from ...arrow.messages.message import Change, Message, micros

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
TRUNCATE, SCHEMA_CHANGE = "TRUNCATE", "schema change"
QUERIES = ("QUERY", "CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX")


class Flat(msgspec.Struct, gc=False):
    """A flat message; fields that are not named here do not count."""

    type: str
    database: str | None = None
    table: str | None = None
    isDdl: bool | None = None  # noqa: N815 - the field's own name
    data: msgspec.Raw = NULL
    old: msgspec.Raw = NULL
    mysqlType: dict[str, str] | None = None  # noqa: N815
    pkNames: tuple[str, ...] | None = None  # noqa: N815
    es: int | None = None


_flat = msgspec.json.Decoder(Flat).decode
_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Canal(JsonForm):
    """`messages.message.Form` of Canal."""

    name, connector, ordered = "canal_json", "mysql", 0

    def message(self, text: bytes) -> Message:
        """See `JsonForm.message`."""
        said = _flat(text)
        kind = said.type.upper()
        if kind != TRUNCATE and (said.isDdl or kind in QUERIES):
            return Message(ignored=SCHEMA_CHANGE)
        if not said.table or not said.database:
            raise Unfit(RejectCode.MALFORMED, "it names no database and table")
        data, old = image(said.data), image(said.old)
        return Message(
            table=f"{said.database}.{said.table}",
            changes=(Change(Op.TRUNCATE),) if kind == TRUNCATE else tuple(_changes(kind, data, old)),
            types=said.mysqlType or {},
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
