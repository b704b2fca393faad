"""Decoding of raw records to the changes frame: split by schema, decoded in blocks, merged in their order."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from hashlib import md5
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema, key_struct
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import Column, TableSpec

from ...arrow.frame_slices import Part, list_true_indices, make_mask, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import FAILURES, UNREADABLE, DecodedValues, build_or_reject, malformed_reject
from ...arrow.value_readers import UNSET, ValueReader
from ..common.pipeline import ChangeBlock
from ..json.headers import find_entries
from ..json.schema_frames import CachedFrames, SchemaGroup, find_frames, split_each
from ..options import DebeziumOptions
from .documents import DocumentConverter
from .records import NO_SOURCE, ChangeReader, PayloadReaders, SourceBlock, read_event_times
from .sequence import ChangeOrder, SequenceFacts, offset_order, order_changes, to_offset_element

NO_PAYLOAD = b"{}"


class DebeziumFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records. The router shares `once`."""

    def __init__(self, options: DebeziumOptions, once: CachedFrames) -> None:
        self.options, self._once = options, once
        self.placeholders = Placeholders(options.unavailable_value)
        self.readers = PayloadReaders(options)
        self._documents = DocumentConverter(options)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema = changes_schema(table)

        def decode_slice(piece: pa.RecordBatch) -> pa.Table:
            records, refused = self._documents.to_rows(piece, table)
            values = records.column("value")
            frames = self._once.find_again(values)
            errors = frames.errors | refused
            parts = [part for group in frames.groups for part in self._decode_group(records, group, table, errors)]
            if values.null_count:
                parts += self._decode_null_records(records, table, errors)
            parts += reject_records(records, table, errors)
            return merge_parts(parts, schema)

        return map_slices(raw, schema, decode_slice)

    def _decode_group(
        self, raw: pa.RecordBatch, group: SchemaGroup, table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        rows = list(range(raw.num_rows)) if group.rows is None else group.rows
        reader = self.readers.get_reader(group.schema, table)
        if isinstance(reader, Reject):
            errors |= dict.fromkeys(rows, reader)
            return
        payloads = group.payloads()
        read = reader.read_changes(payloads)
        if reader.holds_decimals:
            read.errors.update(reader.find_unreadable_deletes(read, payloads))
        if not read.errors:
            yield group.rows, self._decode_block(select_records(raw, group.rows), reader, read.values, payloads)
            return
        yield from self._decode_readable(raw, rows, reader, read, payloads)

        # The others are decoded again: parsed as a whole instead of by their prefix, and with decimals as numbers. Records
        # that fail again keep their first error.
        bad = {rows[i]: reject for i, reject in read.errors.items()}
        reader = self.readers.get_reader(group.schema, table, numeric=True)
        if isinstance(reader, Reject):
            errors |= bad
            return
        parts, broken = split_each(raw.column("value"), list(bad), self.options.limits.depth)
        indices, payloads = list(parts), [payload for _, payload in parts.values()]
        read = reader.read_changes(payloads)
        errors |= broken | {indices[i]: bad[indices[i]] for i in read.errors}
        yield from self._decode_readable(raw, indices, reader, read, payloads)

    def _decode_block(
        self, raw: pa.RecordBatch, reader: ChangeReader, records: list[Any], payloads: list[bytes]
    ) -> pa.Table:
        return DebeziumChangeBlock(raw, reader, records, payloads, self.options).build(self.placeholders)

    def _decode_readable(
        self, raw: pa.RecordBatch, rows: list[int], reader: ChangeReader, read: DecodedValues, payloads: list[bytes]
    ) -> Iterator[Part]:
        """The block of the readable records, if any."""
        good = [i for i in range(len(rows)) if i not in read.errors]
        if good:
            indices = [rows[i] for i in good]
            records = [read.values[i] for i in good]
            yield indices, self._decode_block(select_records(raw, indices), reader, records, [payloads[i] for i in good])

    def _decode_null_records(self, raw: pa.RecordBatch, table: TableSpec, errors: dict[int, Reject]) -> Iterator[Part]:
        """Decode null values: deletes of the record's key, if the table has `tombstones: delete`."""
        indices: list[int] = pc.indices_nonzero(pc.is_null(raw.column("value"))).to_pylist()
        if not self.options.deletes_by_tombstone(table.name):
            errors |= dict.fromkeys(indices, malformed_reject("its value is empty"))
            return
        keys = raw.column("key").take(pa.array(indices, pa.int64()))
        frames = find_frames(keys, self.options.limits.depth)
        nowhere = pc.indices_nonzero(pc.is_null(keys)).to_pylist()
        errors |= {indices[i]: e for i, e in frames.errors.items()}
        errors |= {indices[i]: malformed_reject("it has neither a key nor a value") for i in nowhere}
        for group in frames.groups:
            rows = indices if group.rows is None else [indices[i] for i in group.rows]
            reader = self.readers.get_key_reader(group.schema, table)
            if isinstance(reader, Reject):
                errors |= dict.fromkeys(rows, reader)
                continue
            delete: Any = copy(reader.blank)
            delete.op = Op.DELETE.value
            yield (
                rows,
                self._decode_block(select_records(raw, rows), reader, [delete] * len(rows), [NO_PAYLOAD] * len(rows)),
            )


# Blocks of changes: consecutive records of one schema, decoded column by column.


OPS = frozenset(op.value for op in Op)
WHOLE = ("oracle", "sqlserver", "db2", "mysql", "mariadb")
"""Connectors that send the whole row of every delete. MySQL's and MariaDB's require `binlog_row_image=FULL`."""
FILLED_IN = frozenset({"{}", "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "00000000-0000-0000-0000-000000000000"})
"""Values that the connector writes for NULL in NOT NULL columns, besides 0 and empty text."""


class DebeziumChangeBlock:
    """Changes that one reader decodes. `raw` has the records, `records` the decoded payloads."""

    def __init__(
        self, raw: pa.RecordBatch, reader: ChangeReader, records: list[Any], payloads: list[bytes], options: DebeziumOptions
    ) -> None:
        self.raw, self.reader, self.records, self.payloads = raw, reader, records, payloads
        self.table, self.options = reader.table, options
        self.ops: list[Any] = [r.op if r.op in OPS else None for r in records]
        self.sources: list[SourceBlock] = [r.source or NO_SOURCE for r in records]
        self.deletes = [i for i, op in enumerate(self.ops) if op == Op.DELETE] if Op.DELETE in self.ops else []
        self.block = ChangeBlock(self.table, raw, self.ops)
        for index in list_true_indices(pc.is_null(self.block.ops)):
            op = records[index].op
            operation = f"the operation {op[:10]!r}" if op else "no operation"
            reason = f"the record has {operation}; Debezium's are {', '.join(sorted(OPS))}"
            self.block.reject({index: Reject(RejectCode.UNKNOWN_OPERATION, reason)})

    def build(self, placeholders: Placeholders) -> pa.Table:
        """The changes frame of these records, in their order."""
        order = self._read_order()
        self.block.reject(order.errors)
        if self.table.keys and not self.options.keys_of(self.table.name):
            nowhere = list_true_indices(pc.is_null(self.raw.column("key")))
            reason = Reject(RejectCode.NULL_KEY, f"the record has no key, though table {self.table.name} has one")
            self.block.reject({index: reason for index in nowhere if self.ops[index] != Op.TRUNCATE})
        images = self._images()
        came_from, went_to = read_key_headers(self.raw.column("headers")) if self.table.keys else ({}, {})
        moves = {index for index in went_to if self.ops[index] == Op.DELETE}
        doubtful = self._reduce_doubtful_images(moves, images)
        for column in self.table.columns:
            self.read_column(column, images, placeholders, doubtful)
        for key in self.table.keys:
            self.block.refuse_null_key(key)
        key_changes = self._key_change_columns(came_from, moves)
        at = read_event_times(self.sources)
        return self.block.build(order.elements, at=at, tx=order.tx, key_changes=key_changes)

    def _read_order(self) -> ChangeOrder:
        offsets = self.raw.column("offset")
        transactions = list(map(attrgetter("transaction"), self.records))
        keyed = [bool(self.table.keys)] * len(self.records)
        facts = SequenceFacts(self.sources, transactions, self.ops, offsets, keyed)
        if self.table.unordered:
            return offset_order(facts, self.options.epoch)
        order = order_changes(facts, self.options.epoch)
        if self.table.sequence == 1:
            return ChangeOrder([to_offset_element(offsets, self.options.epoch)], order.tx, {})
        return order

    def _images(self) -> list[Any]:
        """The image with each change's columns: before for a delete, after for others, an empty one for a truncate."""
        images = list(map(attrgetter("after"), self.records))
        for index in self.deletes:
            images[index] = self._before(index)
        if None not in images and Op.TRUNCATE not in self.ops:
            return images
        empty = self.reader.images.empty()
        for index, op in enumerate(self.ops):
            if op == Op.TRUNCATE:
                images[index] = empty
            elif images[index] is None:
                images[index] = empty
                self.block.reject({index: malformed_reject("the record carries no row: its after image is null")})
        return images

    def _before(self, index: int) -> Any:
        """The before image of a delete. Missing key columns are filled from the message key."""
        image = None
        try:
            image = self.reader.read_before(self.payloads[index])
        except UNREADABLE:
            self.block.reject({index: malformed_reject("its before image is not of the type that its schema says")})
        if image is None:
            image = self.reader.images.empty()
        missing = [k for k in self.reader.keys.nodes if self.reader.images.values([image], k)[0] in (None, UNSET)]
        text = self.raw.column("key")[index].as_py() if missing else None
        if text is None:
            return image
        try:
            key = self.reader.read_key(text, self.options.limits.depth)
        except UNREADABLE:
            self.block.reject({index: malformed_reject("its key is not JSON of the key columns")})
            return image
        for name, value in key.items():
            if name in missing:
                self.reader.images.put(image, name, value)
        return image

    def read_column(self, column: Column, images: list[Any], placeholders: Placeholders, doubtful: Collection[int]) -> None:
        """Add a column to the block. A value missing in an update is unchanged; in a new row or a before image it is null.
        In a doubtful image every value outside the key counts as unchanged."""
        node = self.reader.images.nodes.get(column.name)
        if node is None:
            self.block.add_column(column, pa.nulls(len(images), column.type))
            return
        built = build_column(node, self.reader.images.values(images, column.name), column.name, placeholders)
        absent = [i for i in built.absent if self.ops[i] == Op.UPDATE]
        unchanged = {*built.unchanged, *absent, *doubtful}
        self.block.add_column(column, built.array, built.errors, make_mask(unchanged, len(images)))

    def _key_change_columns(self, came_from: Mapping[int, bytes], moves: set[int]) -> list[pa.Array]:
        """The columns `_moved_from` (for tables with a key) and `_moved_to`."""
        count = len(self.records)
        if not self.table.keys:
            return [pa.nulls(count, pa.bool_())]
        struct = key_struct(self.table)
        moved_to = pa.array([i in moves or None for i in range(count)], pa.bool_()) if moves else pa.nulls(count, pa.bool_())
        halves = {index: text for index, text in came_from.items() if self.ops[index] in (Op.CREATE, Op.READ)}
        if not halves:
            return [pa.nulls(count, struct), moved_to]
        keys: dict[int, dict[str, Any]] = {}
        for index, text in halves.items():
            try:
                keys[index] = self.reader.read_old_key(text, self.options.limits.depth)
            except UNREADABLE:
                keys[index] = {}
            if len(keys[index]) < len(self.table.keys):
                reason = "its header __debezium.oldkey is not the key that the row had before"
                self.block.reject({index: malformed_reject(reason)})
        columns = []
        for column in struct:
            node = self.reader.old_keys.nodes.get(column.name)
            if node is None:  # The schema has no such column, so all records are rejected for a missing key.
                columns.append(pa.nulls(count, column.type))
                continue
            values = [keys.get(i, {}).get(column.name) for i in range(count)]
            array, bad = build_or_reject(node.build, values, f"the old value of key column {column.name!r}")
            self.block.reject(bad)
            columns.append(array)
        nulls = pa.array([i not in halves for i in range(count)])
        return [pa.StructArray.from_arrays(columns, fields=list(struct), mask=nulls), moved_to]

    def _reduce_doubtful_images(self, moves: set[int], images: list[Any]) -> list[int]:
        """The indices of deletes of key changes whose image may not show the row.

        PostgreSQL sends only the key unless REPLICA IDENTITY is FULL, and does not mark the difference. The connector
        fills in the rest. Deferrable keys are only possible with FULL. They cannot be a replica identity
        (`RelationGetIndexList` skips indexes that are not `indimmediate`), and PostgreSQL refuses changes of published
        rows without one. So an image with only the key needs no comparison with the row, and a full image shows the row.

        The result must not depend on other records, because a record may be read again among others. An image that was
        filled in is reduced to its key in `images`. A doubtful image stays, with all values counted as unchanged.
        """
        nodes = self.reader.images.nodes
        columns = {c.name: self.reader.images.values(images, c.name) for c in self.table.values if c.name in nodes}
        identity = self.options.replica_identity_of(self.table.name)
        doubtful = []
        for i in moves:
            values = {n: c[i] for n, c in columns.items() if c[i] is not None and c[i] is not UNSET}
            if not values or self._is_whole(values, identity, self.sources[i].connector):
                continue
            doubtful.append(i)
            if identity == "default" or all(_is_filled_in(v, self.reader.defaults.get(n)) for n, v in values.items()):
                key = self.reader.images.empty()
                for name in self.reader.keys.nodes:
                    self.reader.images.put(key, name, self.reader.images.values([images[i]], name)[0])
                images[i] = key
        return doubtful

    def _is_whole(self, values: Mapping[str, Any], identity: str | None, connector: str | None) -> bool:
        """True if an image with these values is certainly the whole row."""
        if identity == "full" or connector in WHOLE:
            return True
        if identity == "default":
            return False
        pairs = [(value, self.reader.telling[name]) for name, value in values.items() if name in self.reader.telling]
        return any(nullable or not _is_filled_in(value, None) for value, nullable in pairs)


def _is_filled_in(value: Any, default: Any) -> bool:
    """True if the connector may have written the value for NULL: the column's default, 0, false, empty text, such a
    decimal."""
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except UNREADABLE:
            return False  # Its column rejects it, as in any other change.
    if isinstance(value, bytes):
        return not value.strip(b"\0") or b64encode(value).decode() == default
    if isinstance(value, str):
        return not value.strip("0.") or value in FILLED_IN or value == default
    return not value or value == default


# One column of a block of changes: its array, unchanged values and invalid values.


@dataclass
class BuiltColumn:
    """One column. `unchanged` are the indices of placeholders, `absent` of values missing in the image, `errors` of
    invalid values. All are null in `array`."""

    array: pa.Array
    unchanged: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    errors: dict[int, Reject] = field(default_factory=dict)


def build_column(node: ValueReader, values: list[Any], name: str, placeholders: Placeholders) -> BuiltColumn:
    """The column `name` from these values."""
    try:
        array = node.build(values)
    except FAILURES:
        array = None
    unchanged = placeholders.find_indices(node, values, array) if node.placeholder else []
    if array is not None and not unchanged:
        return BuiltColumn(array)
    absent = [] if array is not None else [i for i, v in enumerate(values) if v is UNSET]
    cells = list(values)
    for index in (*unchanged, *absent):
        cells[index] = None
    array, errors = build_or_reject(node.build, cells, f"column {name!r}")
    return BuiltColumn(array, unchanged, absent, errors)


# Placeholders for unchanged values (PostgreSQL's TOAST, Oracle's LOBs), in all forms that Debezium writes, after its
# `UnchangedToastedPlaceholder.java`.


class Placeholders:
    """Finds the placeholders in a column."""

    def __init__(self, configured: Iterable[str]) -> None:
        codes = []
        for text in configured:
            code = text.encode()
            if text.startswith("hex:"):  # As in Debezium's `unavailable.value.placeholder`.
                with suppress(ValueError):
                    code = bytes.fromhex(text[4:])
            codes.append(code)
        texts = [text for code in codes for text in _placeholder_texts(code)]
        self._texts, self._known = pa.array(texts, pa.string()), frozenset(texts)
        self._bytes, self._codes = pa.array(codes, pa.binary()), frozenset(codes)
        self._quoted = frozenset(msgspec.json.encode(text) for text in texts)
        self._forms: dict[str, list[Any]] = {
            "list:text": [[t] for t in texts],
            "list:bytes": [[c] for c in codes],
            "list:raw": [[msgspec.Raw(q)] for q in self._quoted]
            + [[msgspec.Raw(str(n).encode()) for n in s] for c in codes for s in (list(c), _to_signed_bytes(c))],
            "list:int": [list(c) for c in codes] + [_to_signed_bytes(c) for c in codes if max(c, default=0) > 127],
            "map:text": [{t: t} for t in texts],
            "map:bytes": [{t: c} for c in codes for t in _placeholder_texts(c)],
        }

    @property
    def text(self) -> str | None:
        """The text of a placeholder, or None if there is none."""
        return self._texts[0].as_py() if len(self._texts) else None

    def is_text(self, text: str) -> bool:
        """True if the text is a placeholder."""
        return text in self._known

    def find_indices(self, node: ValueReader, values: list[Any], array: pa.Array | None) -> list[int]:
        """The indices of placeholders in a column. `array` is its array, or None if the values could not be built."""
        if node.placeholder in ("text", "bytes") and (array is not None or node.wire is not msgspec.Raw):
            # A column of another type that was built has none, unless a decimal is wide enough for one.
            if array is None or pa.types.is_decimal256(array.type):
                placeholders = self._known if node.placeholder == "text" else self._codes
                return [i for i, v in enumerate(values) if isinstance(v, str | bytes) and v in placeholders]
            if pa.types.is_string(array.type):
                return list_true_indices(pc.is_in(array, value_set=self._texts))
            return list_true_indices(pc.is_in(array, value_set=self._bytes)) if pa.types.is_binary(array.type) else []
        if node.placeholder == "variable":
            return [i for i, v in enumerate(values) if getattr(v, "value", None) in self._codes]
        if node.placeholder in ("text", "raw"):
            return [i for i, v in enumerate(values) if isinstance(v, msgspec.Raw) and bytes(v) in self._quoted]
        forms = self._forms.get(node.placeholder, ())
        return [i for i, v in enumerate(values) if v in forms] if any(f in values for f in forms) else []


def _placeholder_texts(code: bytes) -> list[str]:
    """The placeholder in string columns: plain, hstore as JSON, UUID, and bytes in each `binary_reader.handling.mode`."""
    coded = [b64encode(code).decode(), urlsafe_b64encode(code).decode(), code.hex()]
    try:
        plain = code.decode()
    except UnicodeDecodeError:
        return [*coded, _java_uuid(code)]
    return [plain, f'{{"{plain}":"{plain}"}}', *coded, _java_uuid(code)]


def _java_uuid(code: bytes) -> str:
    """Java's `UUID.nameUUIDFromBytes`: an MD5 with the version and variant bits set."""
    return str(UUID(bytes=md5(code, usedforsecurity=False).digest(), version=3))


def _to_signed_bytes(code: bytes) -> list[int]:
    """Bytes as signed numbers, as in Java."""
    return [c - 256 if c > 127 else c for c in code]


# Debezium's headers: links between the two halves of a key change.


OLD_KEY = "__debezium.oldkey"
"""In the create half: the old key of the row."""
NEW_KEY = "__debezium.newkey"
"""In the delete half: the new key of the row."""
CONTEXT = "__debezium.context."
"""Prefix of headers that describe the connector."""


def read_key_headers(headers: pa.Array) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """JSON texts of old keys and of new keys, by index of the record."""
    keys: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for index, name, value in find_entries(headers, OLD_KEY, NEW_KEY):
        keys[name == NEW_KEY][index] = value
    return keys
