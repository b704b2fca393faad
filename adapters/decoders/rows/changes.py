"""Rows to changes: records are split by schema, decoded column by column in blocks, and merged in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from math import nan
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import TIMESTAMP, Op, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import RESERVED_PREFIXES, Column, TableSpec

from ...arrow.frame_slices import Part, list_true_indices, make_mask, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import UNREADABLE, ValueMisfit, build_or_reject, decode_or_reject, malformed_reject
from ...arrow.temporal_values import make_lenient
from ...arrow.value_readers import UNSET, ValueReader, choose_objects
from ..common.pipeline import ChangeBlock
from ..common.row_files import split_offsets
from ..json.schema_frames import SchemaGroup, decode_group, find_frames
from ..json.type_names import find_type_reader
from ..masking import JsonValueWriter, MaskedTables
from ..options import OPERATION, SEQUENCE, RowsDecoderOptions

MAX_READERS = 512
EMPTY = malformed_reject("its value is empty")


class RowFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._get_reader = lru_cache(MAX_READERS)(partial(RowReader, options))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema = changes_schema(table)

        def decode_slice(piece: pa.RecordBatch) -> pa.Table:
            values = piece.column("value")
            frames = find_frames(values, self._options.limits.depth)
            errors: dict[int, Reject] = dict.fromkeys(pc.indices_nonzero(pc.is_null(values)).to_pylist(), EMPTY)
            errors |= frames.errors
            parts = [part for group in frames.groups for part in self._decode_group(piece, group, table, errors)]
            parts += reject_records(piece, table, errors)
            return merge_parts(parts, schema)

        return map_slices(raw, schema, decode_slice)

    def _decode_group(
        self, raw: pa.RecordBatch, group: SchemaGroup, table: TableSpec, errors: dict[int, Reject]
    ) -> Iterator[Part]:
        rows = list(range(raw.num_rows)) if group.rows is None else group.rows
        layout = self._layouts.get_layout(group.schema, table.name)
        if layout.error is not None:
            errors |= dict.fromkeys(rows, layout.error)
            return
        reader = self._get_reader(table, layout)
        depth = self._options.limits.depth
        _, (decoded, bad) = decode_group(reader.decode, raw.column("value"), group, reader.blank, depth)
        errors |= {rows[i]: reject for i, reject in bad.items()}
        good = [i for i in range(len(rows)) if i not in bad]
        if good:
            indices = None if len(good) == raw.num_rows else [rows[i] for i in good]
            block = RowChangeBlock(select_records(raw, indices), reader, [decoded[i] for i in good], self._options)
            places, frame = block.build()
            yield (places if indices is None else [indices[i] for i in places or range(len(indices))]), frame


# Blocks of changes: consecutive records of one layout, decoded column by column.


LOW_BITS = 30
"""Bits of an offset in the second element of the sequence."""

OF_DELTA = malformed_reject(
    "it was written for a source with `transport: delta`; to be read elsewhere the source says `operation_column: "
    f"{OPERATION}` and `sequence_columns: [{', '.join(SEQUENCE)}]`"
)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowChangeBlock:
    """Changes of one reader. `raw` has the records, `rows` the decoded payloads. A record has a second row if it changes
    its key. The first error of a record is kept."""

    def __init__(self, raw: pa.RecordBatch, reader: RowReader, rows: list[Any], options: RowsDecoderOptions) -> None:
        self._raw, self._reader, self._rows, self._options = raw, reader, rows, options
        operations = reader.read_metadata(rows, options.operation_column)
        self._ops = [read_operation(value, options) for value in operations]
        self._errors = {i: options.unknown_operation_reject(operations[i]) for i, op in enumerate(self._ops) if op is None}
        if options.inserts_only and not options.in_files and reader.is_typed:
            self._errors |= {i: OF_DELTA for i, value in enumerate(operations) if value is not None}

    def build(self) -> Part:
        """The changes of these records, in their order. A key change is a delete of the old row, and a create."""
        elements = self._sequence_elements()
        olds = self._find_old_rows()
        rows, ops, places = self._rows, self._ops, None
        if olds:
            halves: list[tuple[int, Any, Op | None]] = []
            for i, (row, op) in enumerate(zip(rows, ops, strict=True)):
                halves += [(i, olds[i], Op.DELETE), (i, row, Op.CREATE)] if i in olds else [(i, row, op)]
            places, rows, ops = map(list, zip(*halves, strict=True))
        block = ChangeBlock(self._reader.table, self._raw, ops, places, self._errors)
        for column in self._reader.table.columns:
            self.read_column(block, column, rows, ops)
        elements = list(map(block.repeat, elements))
        if places is not None:
            deletes = [row for row, place in enumerate(places) if place in olds and ops[row] == Op.DELETE]
            elements[1] = pc.if_else(make_mask(deletes, len(rows)), pa.scalar(0, pa.int64()), elements[1])
        return places, block.build(elements, at=null_out_of_range(self._raw.column("timestamp").cast(TIMESTAMP)))

    def _find_old_rows(self) -> dict[int, Any]:
        """The old rows of updates that changed the key, by index."""
        reader, name = self._reader, self._options.before_field
        if name is None or not reader.table.keys:
            return {}
        try:
            olds = reader.read_olds(self._rows, name)
        except UNREADABLE:
            olds = []
            for i, row in enumerate(self._rows):
                try:
                    olds += reader.read_olds([row], name)
                except UNREADABLE:
                    self._errors.setdefault(i, malformed_reject("its before image does not have the types of its schema"))
                    olds.append(None)
        indices = [i for i, old in enumerate(olds) if old is not None and self._ops[i] == Op.UPDATE]
        old_rows = [olds[i] for i in indices]
        keys = [reader.read_old_values(old_rows, key) for key in reader.table.keys if key in reader.columns]
        changed = [i for k, i in enumerate(indices) if any(key[k] is not UNSET for key in keys)]
        for i in changed:
            # The row with the new key has no older values.
            lacking = [name for name in reader.columns if reader.read_values([self._rows[i]], name)[0] is UNSET]
            if lacking:
                reason = f"it changes the key, and column(s) {', '.join(map(repr, lacking))} were not sent"
                self._errors.setdefault(i, Reject(RejectCode.INCOMPLETE, reason))
        return {i: reader.merge_old_values(self._rows[i], olds[i]) for i in changed}

    def _sequence_elements(self) -> list[pa.Array]:
        """The sequence of records, with the epoch in the top bits of its first element."""
        elements = []
        for name in self._options.sequence_columns:
            values = [_to_int(value) for value in self._reader.read_metadata(self._rows, name)]
            array, bad = build_or_reject(lambda numbers: pa.array(numbers, pa.int64()), values, name)
            for index in {*bad, *list_true_indices(pc.fill_null(pc.less(array, 0), True))}:
                reason = f"its sequence column {name!r} holds no whole number from 0 on"
                self._errors.setdefault(index, Reject(RejectCode.NO_SEQUENCE, reason))
            elements.append(array)
        elements = elements or split_offsets(self._raw.column("offset"), LOW_BITS)
        room = pc.fill_null(pc.less(elements[0], 1 << EPOCH_SHIFT), True)
        for index in list_true_indices(pc.invert(room)):
            self._errors.setdefault(index, Reject(RejectCode.NO_SEQUENCE, "its sequence leaves no room for the epoch"))
        first = pc.if_else(room, elements[0], None)
        return [pc.add(first, pa.scalar(self._options.epoch << EPOCH_SHIFT, pa.int64())), *elements[1:]]

    def read_column(self, block: ChangeBlock, column: Column, rows: Sequence[Any], ops: Sequence[Op | None]) -> None:
        """Add a column of these rows to the block."""
        node = self._reader.columns.get(column.name)
        values = [UNSET] * len(rows) if node is None else self._reader.read_values(rows, column.name)
        build = node.build if node else lambda cells: pa.nulls(len(cells), column.type)
        array, bad = build_or_reject(build, [None if v is UNSET else v for v in values], f"column {column.name!r}")
        unset = [row for row, v in enumerate(values) if v is UNSET and ops[row] == Op.UPDATE] if UNSET in values else ()
        block.add_column(column, array, bad, make_mask(unset, len(rows)))
        if column.name in block.table.keys:
            block.refuse_null_key(
                column.name, lambda row: self._list_names(block.find_record(row)) if values[row] is UNSET else ()
            )

    def _list_names(self, index: int) -> Collection[str]:
        try:
            fields = _fields(self._raw.column("value")[index].as_py() or b"{}")
            payload = fields.get("payload")
            return fields if payload is None or not bytes(payload).startswith(b"{") else _fields(payload)
        except UNREADABLE:  # No column was read from the record, so it was not parsed before.
            return ()


def read_operation(value: object, options: RowsDecoderOptions) -> Op | None:
    """The operation of a value in the operation column; None for an unknown one. Numbers are compared as text."""
    if value is None and options.inserts_only:
        return Op.CREATE
    is_name = isinstance(value, str | int) and not isinstance(value, bool)
    return options.operation_of.get(str(value)) if is_name else None


def _to_int(value: object) -> object:
    """An integer, also from digits; other values become text that no integer can be built from."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        return int(value)
    return value if value is None or (isinstance(value, int) and not isinstance(value, bool)) else "none"


# Layouts of rows: from the schema in a record, or from declared columns.


MAX_LAYOUTS = 4096
BARE = "bare"
UNDECLARED = malformed_reject("its schema is not one of rows, and its table declares no columns")
_schema = msgspec.json.Decoder(dict[str, str | dict[str, object]]).decode


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The columns of rows in order with their readers, or an error. `fingerprint` distinguishes layouts. `masked`:
    readers for masked columns."""

    fingerprint: str
    readers: Mapping[str, ValueReader]
    error: Reject | None = None
    masked: Mapping[str, ValueReader] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return tuple(Column(name, node.type) for name, node in self.readers.items())

    @cached_property
    def writer(self) -> JsonValueWriter:
        """The writer of values in unmasked rows."""
        return JsonValueWriter(self.readers)


class RowLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, options: RowsDecoderOptions) -> None:
        self._options = options
        self._own = {options.operation_column, *options.sequence_columns}
        self._private = MaskedTables(options.private)
        self.get_layout = lru_cache(MAX_LAYOUTS)(self.find_layout)
        self._get_typed_layout = lru_cache(MAX_LAYOUTS)(self.read_typed_layout)

    def is_row_schema(self, schema: bytes) -> bool:
        """True for a valid schema of rows, which defines the types of its records."""
        return self._get_typed_layout(schema).error is None

    def find_layout(self, schema: bytes | None, table: str) -> RowLayout:
        """The layout of records of `table` with the JSON text `schema`, or None for records without one. Without a schema
        and declared columns the layout has no columns."""
        columns = self._options.columns_of(table) or {}
        readers = {name: self._options.find_column_reader(type_name) for name, type_name in columns.items()}
        layout = RowLayout(BARE, readers)
        if schema is not None:
            typed = self._get_typed_layout(schema)
            layout = layout if readers and typed.error is UNDECLARED else typed
        masks = self._private.get_masks(table)
        names = [name for name, mask in masks.items() if mask.kind != "nothing" and name in layout.readers]
        texts = {name: self._options.find_column_reader("string") for name in names}
        return replace(layout, masked=texts) if texts else layout

    def read_typed_layout(self, schema: bytes) -> RowLayout:
        """The layout that a schema describes."""
        fingerprint = sha256(schema).hexdigest()[:16]
        try:
            fields = _schema(schema)
            names = [name for name in fields if name not in self._own and not name.startswith(RESERVED_PREFIXES)]
            nodes = {name: find_type_reader(fields[name]) for name in names}
        except (*UNREADABLE, ValueMisfit):
            return RowLayout(fingerprint, {}, UNDECLARED)
        if len(nodes) > self._options.limits.columns:
            most = self._options.limits.columns
            reason = f"its schema has {len(nodes)} columns, more than the {most} allowed"
            return RowLayout(fingerprint, {}, Reject(RejectCode.TOO_LARGE, reason))
        return RowLayout(
            fingerprint, nodes, None if nodes else malformed_reject("its schema describes a row without columns")
        )


# Readers of payloads, generated for one layout of one table.


Scalar = str | int | float | bool


class RowReader:
    """Decodes payloads: the columns of `table` that the layout has, and the fields that describe the change."""

    def __init__(self, options: RowsDecoderOptions, table: TableSpec, layout: RowLayout) -> None:
        nodes = {**layout.readers, **layout.masked}
        for name in nodes.keys() - set(table.keys):
            nodes[name] = make_lenient(nodes[name], options.reading_of(table.name, name))
        readers = {c.name: nodes[c.name].with_type(c.type) for c in table.columns if c.name in nodes}
        names = (options.operation_column, *options.sequence_columns)
        kind = choose_objects((*readers, *names))
        self.table, self._olds = table, kind(readers)
        # The fields that describe the change. A column of the table with the same name takes precedence.
        scalar: Any = Scalar
        metadata = dict.fromkeys(names, ValueReader(pa.string(), scalar, pa.array))
        if options.before_field is not None:
            metadata[options.before_field] = ValueReader(pa.null(), self._olds.wire, pa.array)
        self._fields = kind({**metadata, **readers})
        self.columns = {name: self._fields.nodes[name] for name in readers}
        self.is_typed = layout.fingerprint != BARE
        self.blank: Any = self._fields.empty()
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._fields.wire).decode

    def read_values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET if it is missing."""
        return self._fields.values(rows, name)

    def read_metadata(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A metadata field of every row; None if it is missing, and NaN if it is unreadable."""
        tokens = [None if v is UNSET else v for v in self._fields.values(rows, name)]
        return decode_or_reject(lambda v: msgspec.json.decode(v) if isinstance(v, msgspec.Raw) else v, tokens, nan).values

    def read_olds(self, rows: Sequence[Any], name: str) -> list[Any]:
        """The old values of every row as an object, or None. Raises one of UNREADABLE."""
        tokens = self._fields.values(rows, name)
        wire = self._olds.wire
        return [
            None if v is UNSET else msgspec.json.decode(v, type=wire) if isinstance(v, msgspec.Raw) else v for v in tokens
        ]

    def read_old_values(self, olds: Sequence[Any], name: str) -> list[Any]:
        """A column of the objects from `read_olds`; UNSET if it did not change."""
        return self._olds.values(olds, name)

    def merge_old_values(self, row: Any, old: Any) -> Any:
        """The row before an update, from the row after it and an object from `read_olds`."""
        before = copy(row)
        for name in self.columns:
            [value] = self.read_old_values([old], name)
            if value is not UNSET:
                self._fields.put(before, name, value)
        return before
