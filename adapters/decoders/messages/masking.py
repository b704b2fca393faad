"""Access to values in messages, for masking."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple
from typing import Any

import msgspec

from ...arrow.record_errors import ValueMisfit, malformed_reject
from ..masking import (
    NULL,
    EachRecordOpener,
    Image,
    JsonValueWriter,
    Object,
    OpenRecord,
    RoutedRecord,
    ValueWriter,
    open_json_key,
    read_object,
    read_objects,
)
from ..options import MessageOptions
from .layouts import MessageLayout, MessageLayouts
from .message import Message

MAX_WRITES = 4096


class MessageOpener(EachRecordOpener):
    """`decoders.masking.EachRecordOpener` of messages of a format."""

    def __init__(self, form: Any, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._writes: dict[MessageLayout, ValueWriter] = {}

    def make_writer(self, rows: Any, names: Collection[str]) -> ValueWriter:
        """The writer for values that `rows` reads (from `MessageFormat.make_row_reader`), for columns of these names."""
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

    def _get_writer(self, layout: MessageLayout) -> ValueWriter:
        if layout not in self._writes:
            if len(self._writes) >= MAX_WRITES:
                self._writes.clear()
            types = layout.unmasked_types()
            self._writes[layout] = self.make_writer(self._form.make_row_reader(types), types)
        return self._writes[layout]


class JsonMessageOpener(MessageOpener):
    """`MessageOpener` of a JSON format (`json_format.JsonMessageFormat`)."""

    def make_writer(self, rows: Any, names: Collection[str]) -> JsonValueWriter:
        return JsonValueWriter(rows, names)

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        """Unknown fields are dropped."""
        value = record.value or b""
        message, layout = self._read_message(value)
        whole = read_object(value)
        kept = {name: token for name, token in whole.items() if name in self._form.metadata_fields}
        images: list[Image] = []
        rows: dict[str, object] = {}
        for name, role in self._form.images(message.changes[0].op).items():
            token = whole.get(name, NULL)
            if bytes(token) != b"null":
                found = read_objects(token)
                rows[name] = found if bytes(token).startswith(b"[") else found[0]
                images += [Image(fields, role) for fields in found if fields is not None]
        return OpenRecord(images, self._get_writer(layout), layout.keys, lambda: msgspec.json.encode(kept | rows))

    def open_key(self, key: bytes, of: OpenRecord) -> OpenRecord | None:
        return open_json_key(key, of)

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The message without its SQL statement."""
        said: Object = read_object(record.value or b"")
        return msgspec.json.encode({name: token for name, token in said.items() if name in self._form.metadata_fields})
