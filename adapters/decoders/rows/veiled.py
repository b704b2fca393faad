"""Where rows have values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op

from ...arrow.json.faults import Unfit
from ...arrow.json.framing import split
from ...arrow.veils.json_values import JsonWrites, Object, json_key, read_object
from ...arrow.veils.masking import Image, Opened, Role
from ...arrow.veils.records import OpensEach, Record
from ...arrow.veils.tables import PrivateTables
from .changes import operation
from .layouts import MAX_LAYOUTS, Layout, Layouts
from .options import BEFORE, Options


class Values:
    """`veils.json_values.Reads` of the columns of a layout."""

    def __init__(self, layout: Layout) -> None:
        self._nodes = layout.nodes
        self.columns: Collection[str] = frozenset(layout.nodes)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `masking.Writes.array`."""
        node = self._nodes[name]
        if node.wire is not msgspec.Raw:
            values = [None if value is None else msgspec.json.decode(value, type=node.wire) for value in values]
        return node.build(values)


class OpensRows(OpensEach):
    """`veils.records.OpensEach` of rows, with and without types."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts
        self._tables = PrivateTables(options.private)
        self._writes: dict[Layout, JsonWrites] = {}
        self._schemas: dict[tuple[bytes, str], msgspec.Raw] = {}

    def table_of(self, record: Record) -> str | None:
        """See `Opens.table_of`."""
        return record.topic

    def one(self, record: Record) -> Opened:
        """See `OpensEach.one`."""
        value = record.value or b""
        schema, payload = split(value, self._options.limits.depth)
        layout = self._layouts.of(schema, record.topic)
        if layout.error is not None:
            raise Unfit(*astuple(layout.error))
        row = read_object(payload)
        said = row.get(self._options.operation_column)
        op = operation(None if said is None else msgspec.json.decode(said), self._options)
        images = [Image(row, Role.DELETED if op == Op.DELETE else Role.ROW)]
        before = _before(row)
        if before is not None:
            images.append(Image(before, Role.BESIDE))

        def close() -> bytes:
            whole: Any = row if before is None else row | {BEFORE: before}
            if payload is not value:
                said = None if schema is None else self._schema(schema, record.topic, layout)
                whole = {"schema": said, "payload": whole}
            return msgspec.json.encode(whole)

        return Opened(images, self._of(layout), self._options.keys_of(record.topic) or (), close)

    def key(self, key: bytes, of: Opened) -> Opened | None:
        """See `Opens.key`."""
        return json_key(key, of)

    def ignored(self, record: Record) -> bytes | None:
        """See `Opens.ignored`. Only a record without a value is."""
        return record.value

    def _of(self, layout: Layout) -> JsonWrites:
        if layout not in self._writes:
            if len(self._writes) >= MAX_LAYOUTS:
                self._writes.clear()
            self._writes[layout] = JsonWrites(Values(layout), frozenset(layout.nodes))
        return self._writes[layout]

    def _schema(self, schema: bytes, table: str, layout: Layout) -> msgspec.Raw:
        """Text where masks are, if it is a schema of rows."""
        which = (schema, table)
        if which not in self._schemas:
            if len(self._schemas) >= MAX_LAYOUTS:
                self._schemas.clear()
            said = read_object(schema)
            texts = {name: msgspec.Raw(b'"string"') for name in layout.masked if self._layouts.carries(schema)}
            self._schemas[which] = msgspec.Raw(msgspec.json.encode(said | texts))
        return self._schemas[which]


def _before(row: Object) -> Object | None:
    said = row.get(BEFORE)
    return None if said is None or bytes(said) == b"null" else read_object(said)
