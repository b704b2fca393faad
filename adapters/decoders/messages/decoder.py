"""Base class of decoders for formats of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE

from ...arrow.frame_slices import map_slices
from ...arrow.record_errors import build_or_reject
from ...arrow.record_limits import reject_too_long
from ..common.pipeline import TOMBSTONE, Outcome, build_routes, build_row_spec, describe_errors
from ..json.headers import find_read_errors
from ..json.schema_frames import build_envelope
from ..masking import MaskedTables, MaskingDecoder
from ..options import MessageOptions
from .changes import STAMP
from .layouts import MessageLayouts
from .masking import JsonMessageOpener, MessageOpener
from .message import Message, MessageFormat, read_message
from .record_decoder import MessageFrameDecoder


class MessageDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` for a format of messages. `options` as in `MessageOptions`; raises ConfigProblem
    that names every wrong one."""

    FORMAT: ClassVar[MessageFormat]
    OPTIONS: ClassVar[type[MessageOptions]]
    OPENS: ClassVar[type[MessageOpener]] = JsonMessageOpener

    def __init__(self, options: MessageOptions | Mapping[str, object] | None = None) -> None:
        self._options = self.OPTIONS.read(options or {})
        self._layouts = MessageLayouts(self.FORMAT, self._options)
        super().__init__(
            self._options,
            routing=MessageRouter(self.FORMAT, self._options, self._layouts),
            decoding=MessageFrameDecoder(self.FORMAT, self._options, self._layouts),
            envelopes=MessageEnvelopes(self.FORMAT, self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=self.OPENS(self.FORMAT, self._options, self._layouts),
        )

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        for text in sample["value"].to_pylist():
            found = None if text is None else read_message(self.FORMAT, text, self._options.limits)
            if found is None or isinstance(found, Reject):
                continue
            layout = self._layouts.get_layout(found)
            if found.table == table and layout.error is None and layout.fingerprint == fingerprint:
                sequence = (self.FORMAT.order_elements if layout.has_order else 1) + 1
                spec = build_row_spec(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=layout.keys)
                return replace(self._options.to_read_types(self._tables.masked_spec(spec)), by_tx=self.FORMAT.by_tx)
        raise ConfigProblem(
            f"the messages of table {table} carry no types, and none are declared for it",
            next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their Arrow "
            "types.",
        )


# Routing of messages to tables.


class MessageRouter:
    """Routes frames of messages."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ROUTE, self._route_slice)

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        out = [self._route_message(text) for text in values.to_pylist()]
        for place, error in (large | find_read_errors(raw)).items():
            out[place] = (None, None, None, str(error))
        return build_routes(out)

    def _route_message(self, text: bytes | None) -> Outcome:
        if text is None:
            return None, None, TOMBSTONE, None
        found = read_message(self._form, text, self._options.limits)
        if isinstance(found, Reject):
            return self._form.find_table(text, self._options.limits), None, None, str(found)
        if found.ignored:
            return None, None, found.ignored, None
        layout = self._layouts.get_layout(found)
        if layout.error is not None:
            return found.table, None, None, str(layout.error)
        return found.table, layout.fingerprint, None, None


# Envelope columns of the event log.


NOTHING = Message()


class MessageEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ENVELOPE, self._read_slice)

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
            "error": describe_errors(errors, len(messages)),
        }
        return build_envelope(len(messages), columns)

    def _read_order(self, messages: list[Message]) -> dict[str, pa.Array]:
        elements = range(self._form.order_elements)
        return {
            f"seq_{k + 1}": pa.array([one.order[k] if one.order else None for one in messages], pa.int64()) for k in elements
        }


def _find_operation(message: Message) -> Op | None:
    return message.changes[0].op if message.changes else None
