"""Access to values in rows, for masking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op

from ...arrow.record_errors import ValueMisfit
from ..json.schema_frames import split_record
from ..masking import (
    EachRecordOpener,
    Image,
    JsonValueWriter,
    MaskedTables,
    Object,
    OpenRecord,
    Role,
    RoutedRecord,
    open_json_key,
    read_object,
)
from ..options import BEFORE, RowsDecoderOptions
from .changes import read_operation
from .layouts import MAX_LAYOUTS, RowLayout, RowLayouts


class RowColumnReader:
    """`decoders.masking.ColumnReader` for the columns of a layout."""

    def __init__(self, layout: RowLayout) -> None:
        self._nodes = layout.readers
        self.columns: Collection[str] = frozenset(layout.readers)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        node = self._nodes[name]
        if node.wire is not msgspec.Raw:
            values = [None if value is None else msgspec.json.decode(value, type=node.wire) for value in values]
        return node.build(values)


class RowOpener(EachRecordOpener):
    """`decoders.masking.EachRecordOpener` of rows, with and without types."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._tables = MaskedTables(options.private)
        self._writes: dict[RowLayout, JsonValueWriter] = {}
        self._schemas: dict[tuple[bytes, str], msgspec.Raw] = {}

    def find_table(self, record: RoutedRecord) -> str | None:
        return record.topic

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        value = record.value or b""
        schema, payload = split_record(value, self._options.limits.depth)
        layout = self._layouts.get_layout(schema, record.topic)
        if layout.error is not None:
            raise ValueMisfit(*astuple(layout.error))
        row = read_object(payload)
        said = row.get(self._options.operation_column)
        op = read_operation(None if said is None else msgspec.json.decode(said), self._options)
        images = [Image(row, Role.DELETED if op == Op.DELETE else Role.ROW)]
        before = _read_before(row)
        if before is not None:
            images.append(Image(before, Role.BESIDE))

        def close() -> bytes:
            whole: Any = row if before is None else row | {BEFORE: before}
            if payload is not value:
                said = None if schema is None else self._masked_schema(schema, record.topic, layout)
                whole = {"schema": said, "payload": whole}
            return msgspec.json.encode(whole)

        return OpenRecord(images, self._get_writer(layout), self._options.keys_of(record.topic) or (), close)

    def open_key(self, key: bytes, of: OpenRecord) -> OpenRecord | None:
        return open_json_key(key, of)

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value as it is: only records without a value are ignored."""
        return record.value

    def _get_writer(self, layout: RowLayout) -> JsonValueWriter:
        if layout not in self._writes:
            if len(self._writes) >= MAX_LAYOUTS:
                self._writes.clear()
            self._writes[layout] = JsonValueWriter(RowColumnReader(layout), frozenset(layout.readers))
        return self._writes[layout]

    def _masked_schema(self, schema: bytes, table: str, layout: RowLayout) -> msgspec.Raw:
        """The schema with the type string for masked columns, if it is a schema of rows."""
        which = (schema, table)
        if which not in self._schemas:
            if len(self._schemas) >= MAX_LAYOUTS:
                self._schemas.clear()
            said = read_object(schema)
            texts = {name: msgspec.Raw(b'"string"') for name in layout.masked if self._layouts.is_row_schema(schema)}
            self._schemas[which] = msgspec.Raw(msgspec.json.encode(said | texts))
        return self._schemas[which]


def _read_before(row: Object) -> Object | None:
    said = row.get(BEFORE)
    return None if said is None or bytes(said) == b"null" else read_object(said)
