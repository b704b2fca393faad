"""Envelope columns of the event log."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.time_bounds import null_out_of_range
from replicator.ports.decoder import ENVELOPE

from ...arrow.frame_slices import split_frame
from ...arrow.record_errors import build_or_reject
from ..json.envelopes import build_envelope
from .changes import STAMP
from .layouts import MessageLayouts
from .message import Message, MessageFormat
from .options import MessageOptions
from .router import read_message

NOTHING = Message()


class MessageEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return pa.concat_tables([ENVELOPE.empty_table(), *map(self._read_slice, split_frame(raw))]).combine_chunks()

    def _read_slice(self, raw: pa.RecordBatch) -> pa.Table:
        found = [
            NOTHING if text is None else read_message(self._form, text, self._options.limits)
            for text in raw.column("value").to_pylist()
        ]
        messages = [NOTHING if isinstance(one, Reject) else one for one in found]
        errors = {i: one for i, one in enumerate(found) if isinstance(one, Reject)}
        layouts = [self._layouts.get_layout(one) if one.table and one.changes else None for one in messages]
        images = {}
        for name in ("before", "after"):
            texts = [self._form.to_json(getattr(one, name)) for one in messages]
            images[name], bad = build_or_reject(
                lambda some: pa.array(some, pa.binary()).cast(pa.string()), texts, f"its {name} image"
            )
            errors = bad | errors
        columns = {
            **images,
            "connector": pa.array([self._form.connector if one.table or one.db else None for one in messages], pa.string()),
            "db": pa.array([one.table.rpartition(".")[0] or one.db or None for one in messages], pa.string()),
            "table": pa.array([one.table or None for one in messages], pa.string()),
            "op": pa.array([_find_operation(one) for one in messages], pa.string()),
            **self._read_order(messages),
            "tx": pa.array([one.tx for one in messages], pa.string()),
            "ts": null_out_of_range(pa.array([one.at for one in messages], pa.int64()).view(STAMP)),
            "schema_id": pa.array([layout.fingerprint or None if layout else None for layout in layouts], pa.string()),
            "error": pa.array([str(errors[i]) if i in errors else None for i in range(len(messages))], pa.string()),
        }
        return build_envelope(len(messages), columns)

    def _read_order(self, messages: list[Message]) -> dict[str, pa.Array]:
        elements = range(self._form.order_elements)
        return {
            f"seq_{k + 1}": pa.array([one.order[k] if one.order else None for one in messages], pa.int64()) for k in elements
        }


def _find_operation(message: Message) -> Op | None:
    return message.changes[0].op if message.changes else None
