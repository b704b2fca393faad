"""Where messages have values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple
from typing import Any

import msgspec

from ..json.faults import Unfit, malformed
from ..veils.json_values import NULL, JsonWrites, Object, json_key, read_object, read_objects
from ..veils.masking import Image, Opened, Writes
from ..veils.records import OpensEach, Record
from .layouts import Layout, Layouts
from .message import Message
from .options import Options

MAX_WRITES = 4096


class OpensForm(OpensEach):
    """`veils.records.OpensEach` of the messages of a form."""

    def __init__(self, form: Any, options: Options, layouts: Layouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts
        self._writes: dict[Layout, Writes] = {}

    def writes(self, rows: Any, names: Collection[str]) -> Writes:
        """How messages have the values that `Form.rows` made `rows` for, of columns of these names."""
        raise NotImplementedError

    def table_of(self, record: Record) -> str | None:
        """See `Opens.table_of`."""
        table: str | None = self._form.table_of(record.value or b"", self._options.limits)
        return table

    def _read(self, value: bytes) -> tuple[Message, Layout]:
        message = self._form.read(value, self._options.limits)
        layout = self._layouts.of(message)
        if layout.error is not None or not message.changes:
            raise Unfit(*astuple(layout.error or malformed("it carries no row")))
        return message, layout

    def _of(self, layout: Layout) -> Writes:
        if layout not in self._writes:
            if len(self._writes) >= MAX_WRITES:
                self._writes.clear()
            types = layout.types_of_records()
            self._writes[layout] = self.writes(self._form.rows(types), types)
        return self._writes[layout]


class OpensMessages(OpensForm):
    """`OpensForm` of a form of JSON (`json_form.JsonForm`)."""

    def writes(self, rows: Any, names: Collection[str]) -> JsonWrites:
        """See `OpensForm.writes`."""
        return JsonWrites(rows, names)

    def one(self, record: Record) -> Opened:
        """See `OpensEach.one`. Fields that are not known are not kept."""
        value = record.value or b""
        message, layout = self._read(value)
        whole = read_object(value)
        kept = {name: token for name, token in whole.items() if name in self._form.kept}
        images: list[Image] = []
        rows: dict[str, object] = {}
        for name, role in self._form.images(message.changes[0].op).items():
            token = whole.get(name, NULL)
            if bytes(token) != b"null":
                found = read_objects(token)
                rows[name] = found if bytes(token).startswith(b"[") else found[0]
                images += [Image(fields, role) for fields in found if fields is not None]
        return Opened(images, self._of(layout), layout.keys, lambda: msgspec.json.encode(kept | rows))

    def key(self, key: bytes, of: Opened) -> Opened | None:
        """See `Opens.key`."""
        return json_key(key, of)

    def ignored(self, record: Record) -> bytes | None:
        """See `Opens.ignored`. Without its statement."""
        said: Object = read_object(record.value or b"")
        return msgspec.json.encode({name: token for name, token in said.items() if name in self._form.kept})
