"""What Maxwell's messages say."""

from __future__ import annotations

import msgspec

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode

from ...arrow.json.faults import Unfit
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.json_form import NULL, JsonForm, image
from ...arrow.messages.message import Change, Message, micros

OPS = {"insert": Op.CREATE, "update": Op.UPDATE, "delete": Op.DELETE, "bootstrap-insert": Op.READ}
IGNORED = {
    **dict.fromkeys(("table-create", "table-alter", "table-drop"), "schema change"),
    **dict.fromkeys(("database-create", "database-alter", "database-drop"), "schema change"),
    **dict.fromkeys(("bootstrap-start", "bootstrap-complete"), "bootstrap"),
    "heartbeat": "heartbeat",
}


class Row(msgspec.Struct, gc=False):
    """A message; fields that are not named here do not count."""

    type: str
    database: str | None = None
    table: str | None = None
    ts: int | None = None
    xid: int | None = None
    data: msgspec.Raw = NULL
    old: msgspec.Raw = NULL
    primary_key_columns: tuple[str, ...] | None = None


_row = msgspec.json.Decoder(Row).decode


class Maxwell(JsonForm):
    """`messages.message.Form` of Maxwell."""

    name, connector, ordered = "maxwell_json", "mysql", 0

    def message(self, text: bytes) -> Message:
        """See `JsonForm.message`."""
        said = _row(text)
        if said.type in IGNORED:
            return Message(ignored=IGNORED[said.type])
        if said.type not in OPS:
            raise Unfit(RejectCode.UNKNOWN_OPERATION, f"its type is none of {', '.join(OPS)}")
        row, old = image(said.data), image(said.old)
        if not said.table or not said.database or row is None:
            raise Unfit(RejectCode.MALFORMED, "it lacks database, table or data")
        op = OPS[said.type]
        return Message(
            table=f"{said.database}.{said.table}",
            changes=(Change(op, row, old),),
            keys=said.primary_key_columns or (),
            at=micros(said.ts, 1_000_000),
            tx=None if said.xid is None else str(said.xid),
            before=row if op == Op.DELETE else old,
            after=None if op == Op.DELETE else row,
        )


class MaxwellJsonDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of Maxwell's messages; `options` as in `messages.options.Options`."""

    FORM = Maxwell()
