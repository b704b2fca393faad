"""Base class of decoders for formats of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE

from ...arrow.frame_slices import map_slices
from ...arrow.record_errors import ValueMisfit, build_or_reject, malformed_reject, reject_too_long
from ..common.pipeline import TOMBSTONE, Outcome, build_routes, build_row_spec, describe_errors
from ..json.headers import find_read_errors
from ..json.schema_frames import build_envelope
from ..masking import (
    NULL,
    EachRecordOpener,
    Image,
    JsonValueWriter,
    MaskedTables,
    MaskingDecoder,
    Object,
    OpenRecord,
    RoutedRecord,
    open_json_key,
    read_object,
    read_objects,
)
from ..options import MessageOptions
from .changes import MessageFrameDecoder
from .message import MAX_LAYOUTS, Message, MessageFormat, MessageLayout, MessageLayouts, read_message

# Access to values in messages, for masking.


class MessageOpener(EachRecordOpener):
    """`decoders.masking.EachRecordOpener` of messages of a format."""

    def __init__(self, form: Any, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._get_writer = lru_cache(MAX_LAYOUTS)(self.make_writer)

    def make_writer(self, layout: MessageLayout) -> Any:
        """The `ValueWriter` for values in unmasked messages of a layout."""
        raise NotImplementedError

    def find_table(self, record: RoutedRecord) -> str | None:
        table: str | None = self._form.find_table(record.value or b"", self._options.limits)
        return table

    def _read_message(self, value: bytes) -> tuple[Message, MessageLayout]:
        message = self._form.read(value, self._options.limits)
        layout = self._layouts.get_layout(message)
        if layout.error is not None or not message.changes:
            raise ValueMisfit(*astuple(layout.error or malformed_reject("it carries no row")))
        return message, layout


class JsonMessageOpener(MessageOpener):
    """`MessageOpener` of a JSON format (`json_format.JsonMessageFormat`)."""

    def make_writer(self, layout: MessageLayout) -> JsonValueWriter:
        return JsonValueWriter(self._form.make_row_reader(layout.unmasked_types()).readers)

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        """Unknown fields are dropped."""
        value = record.value or b""
        message, layout = self._read_message(value)
        whole = read_object(value)
        metadata = {name: token for name, token in whole.items() if name in self._form.metadata_fields}
        writer = self._get_writer(layout)
        images: list[Image] = []
        rows: dict[str, object] = {}
        for name, is_row in self._form.images(message.changes[0].op).items():
            token = whole.get(name, NULL)
            if bytes(token) != b"null":
                objects = read_objects(token)
                rows[name] = objects if bytes(token).startswith(b"[") else objects[0]
                required = None if is_row else layout.keys
                images += [Image(fields, writer, required=required) for fields in objects if fields is not None]
        key, of_key = open_json_key(record.key, writer, layout.keys)
        return OpenRecord([*images, *of_key], lambda: msgspec.json.encode(metadata | rows), key)

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The message without its SQL statement."""
        whole: Object = read_object(record.value or b"")
        return msgspec.json.encode({name: token for name, token in whole.items() if name in self._form.metadata_fields})


# The decoder.


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
            message = None if text is None else read_message(self.FORMAT, text, self._options.limits)
            if message is None or isinstance(message, Reject):
                continue
            layout = self._layouts.get_layout(message)
            if message.table == table and layout.error is None and layout.fingerprint == fingerprint:
                sequence = (self.FORMAT.order_elements if layout.has_order else 1) + 1
                spec = build_row_spec(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=layout.keys)
                spec = replace(spec, by_tx=self.FORMAT.by_tx, partial=layout.partial)
                return self._options.to_read_types(self._tables.masked_spec(spec))
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
        for index, error in (large | find_read_errors(raw)).items():
            out[index] = (None, None, None, str(error))
        return build_routes(out)

    def _route_message(self, text: bytes | None) -> Outcome:
        if text is None:
            return None, None, TOMBSTONE, None
        message = read_message(self._form, text, self._options.limits)
        if isinstance(message, Reject):
            return self._form.find_table(text, self._options.limits), None, None, str(message)
        if message.ignored:
            return None, None, message.ignored, None
        layout = self._layouts.get_layout(message)
        if layout.error is not None:
            return message.table, None, None, str(layout.error)
        return message.table, layout.fingerprint, None, None


# Envelope columns of the event log.


NOTHING = Message()


class MessageEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ENVELOPE, self._read_slice)

    def _read_slice(self, raw: pa.RecordBatch) -> pa.Table:
        outcomes = [
            NOTHING if text is None else read_message(self._form, text, self._options.limits)
            for text in raw.column("value").to_pylist()
        ]
        messages = [NOTHING if isinstance(one, Reject) else one for one in outcomes]
        errors = {i: one for i, one in enumerate(outcomes) if isinstance(one, Reject)}
        layouts = [self._layouts.get_layout(one) if one.table and one.changes else None for one in messages]
        images = {}
        for name in ("before", "after"):
            texts = [self._form.to_json(getattr(one, name)) for one in messages]
            images[name], bad = build_or_reject(
                lambda image_texts: pa.array(image_texts, pa.binary()).cast(pa.string()), texts, f"its {name} image"
            )
            errors = bad | errors
        elements = range(self._form.order_elements)
        orders = [[one.order[k] if one.order else None for one in messages] for k in elements]
        columns = {
            **images,
            "connector": pa.array([self._form.connector if one.table or one.db else None for one in messages], pa.string()),
            "db": pa.array([one.table.rpartition(".")[0] or one.db or None for one in messages], pa.string()),
            "table": pa.array([one.table or None for one in messages], pa.string()),
            "op": pa.array([one.changes[0].op if one.changes else None for one in messages], pa.string()),
            **{f"seq_{k + 1}": pa.array(order, pa.int64()) for k, order in enumerate(orders)},
            "tx": pa.array([one.tx for one in messages], pa.string()),
            "ts": null_out_of_range(pa.array([one.at for one in messages], pa.int64()).view(TIMESTAMP)),
            "schema_id": pa.array([layout.fingerprint or None if layout else None for layout in layouts], pa.string()),
            "error": describe_errors(errors, len(messages)),
        }
        return build_envelope(len(messages), columns)
