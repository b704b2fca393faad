"""What the event log keeps of a message beside its bytes."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.moments import in_years
from replicator.ports.decoder import ENVELOPE

from ..json.envelopes import envelope
from ..json.faults import fit
from ..json.pieces import pieces
from .changes import STAMP
from .layouts import Layouts
from .message import Form, Message
from .options import Options
from .routing import read

NOTHING = Message()


class Envelopes:
    """Reads envelopes of any records; what cannot be read is null, and its `error` says why."""

    def __init__(self, form: Form, options: Options, layouts: Layouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return pa.concat_tables([ENVELOPE.empty_table(), *map(self._piece, pieces(raw))]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        found = [
            NOTHING if text is None else read(self._form, text, self._options.limits)
            for text in raw.column("value").to_pylist()
        ]
        messages = [NOTHING if isinstance(one, Reject) else one for one in found]
        errors = {i: one for i, one in enumerate(found) if isinstance(one, Reject)}
        layouts = [self._layouts.of(one) if one.table and one.changes else None for one in messages]
        images = {}
        for name in ("before", "after"):
            texts = [self._form.written(getattr(one, name)) for one in messages]
            images[name], bad = fit(lambda some: pa.array(some, pa.binary()).cast(pa.string()), texts, f"its {name} image")
            errors = bad | errors
        columns = {
            **images,
            "connector": pa.array([self._form.connector if one.table or one.db else None for one in messages], pa.string()),
            "db": pa.array([one.table.rpartition(".")[0] or one.db or None for one in messages], pa.string()),
            "table": pa.array([one.table or None for one in messages], pa.string()),
            "op": pa.array([_op(one) for one in messages], pa.string()),
            **self._order(messages),
            "tx": pa.array([one.tx for one in messages], pa.string()),
            "ts": in_years(pa.array([one.at for one in messages], pa.int64()).view(STAMP)),
            "schema_id": pa.array([layout.fingerprint or None if layout else None for layout in layouts], pa.string()),
            "error": pa.array([str(errors[i]) if i in errors else None for i in range(len(messages))], pa.string()),
        }
        return envelope(len(messages), columns)

    def _order(self, messages: list[Message]) -> dict[str, pa.Array]:
        elements = range(self._form.ordered)
        return {
            f"seq_{k + 1}": pa.array([one.order[k] if one.order else None for one in messages], pa.int64()) for k in elements
        }


def _op(message: Message) -> Op | None:
    return message.changes[0].op if message.changes else None
