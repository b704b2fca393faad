"""Rows to changes: records are split by schema, decoded column by column in blocks, and merged in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import TIMESTAMP, Op, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import RESERVED_PREFIXES, Column, TableSpec

from ...arrow.frame_slices import Part, list_true_indices, map_slices, merge_parts, reject_records, select_records
from ...arrow.record_errors import (
    UNREADABLE,
    DecodedValues,
    ValueMisfit,
    build_or_reject,
    decode_or_reject,
    malformed_reject,
    null_key_reject,
)
from ...arrow.temporal_values import make_lenient
from ...arrow.value_readers import UNSET, ValueReader, choose_objects
from ..common.pipeline import build_changes, record_ids
from ..json.schema_frames import SchemaGroup, find_frames, split_members
from ..json.type_names import find_type_reader
from ..masking import MaskedTables
from ..options import OPERATION, SEQUENCE, RowsDecoderOptions

MAX_READERS = 512
EMPTY = malformed_reject("its value is empty")


class RowFrameDecoder:
    """Decodes frames of records of one table. Caches generated readers, never records."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._readers: dict[tuple[str | None, TableSpec], RowReader] = {}

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
        which = (layout.fingerprint, table)
        if which not in self._readers:
            if len(self._readers) >= MAX_READERS:
                self._readers.clear()
            self._readers[which] = RowReader(table, layout, self._options)
        reader = self._readers[which]
        decoded, bad = reader.read_rows(group.payloads())
        whole = split_members(raw.column("value"), group, bad, self._options.limits.depth)
        again, still = reader.read_rows([*whole.values()])
        for number, i in enumerate(whole):
            if number not in still:
                decoded[i] = again[number]
                del bad[i]
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


@dataclass
class HalfFrame:
    """Rows of a changes frame: the indices of their records, their operations, and the values by column. Building columns
    adds to `missing`."""

    places: Sequence[int]
    ops: Sequence[Op | None]
    values: Mapping[str, list[Any]]
    missing: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing = [[] for _ in self.places]


class RowChangeBlock:
    """Changes of one reader. `raw` has the records, `rows` the decoded payloads.

    Building columns adds to `errors`; the first error of a record is kept.
    """

    def __init__(self, raw: pa.RecordBatch, reader: RowReader, rows: list[Any], options: RowsDecoderOptions) -> None:
        self.raw, self.reader, self.rows, self.options = raw, reader, rows, options
        self.table = reader.table
        self.errors: dict[int, Reject] = {}
        operations = reader.read_metadata(rows, options.operation_column)
        self.ops = [read_operation(value, options) for value in operations]
        self.errors |= {i: options.unknown_operation_reject(operations[i]) for i, op in enumerate(self.ops) if op is None}
        if options.inserts_only and not options.in_files and reader.is_typed:
            self.errors |= {i: OF_DELTA for i, value in enumerate(operations) if value is not None}

    def build(self) -> Part:
        """The changes of these records, in their order; a key change is two rows."""
        elements = self._sequence_elements()
        values = {name: self.reader.read_values(self.rows, name) for name in self.reader.columns}
        key_changes = self._find_key_changes()
        for i in key_changes:
            # The row with the new key has no older values.
            lacking = [name for name, column_values in values.items() if column_values[i] is UNSET]
            if lacking:
                reason = f"it changes the key, and column(s) {', '.join(map(repr, lacking))} were not sent"
                self._fail(i, RejectCode.INCOMPLETE, reason)
        ops = [Op.CREATE if i in key_changes else op for i, op in enumerate(self.ops)]
        frame = self._build_frame(HalfFrame(range(len(self.rows)), ops, values), elements)
        if not key_changes:
            return None, frame
        indices = list(key_changes)
        olds = {}
        for name, news in values.items():
            changed = zip(key_changes, self.reader.read_old_values(list(key_changes.values()), name), strict=True)
            olds[name] = [news[i] if old is UNSET else old for i, old in changed]
        first = [e.take(pa.array(indices, pa.int64())) for e in elements]
        first[1] = pa.array([0] * len(indices), pa.int64())
        deletes = self._build_frame(HalfFrame(indices, [Op.DELETE] * len(indices), olds), first)
        order = sorted([*((i, 1, i) for i in range(len(ops))), *((i, 0, len(ops) + k) for k, i in enumerate(indices))])
        both = pa.concat_tables([frame, deletes]).combine_chunks()
        return [index for index, *_ in order], both.take(pa.array([row for *_, row in order], pa.int64()))

    def _find_key_changes(self) -> dict[int, Any]:
        """The updates that changed the key, by index, with their old values."""
        if self.options.before_field is None or not self.table.keys:
            return {}
        try:
            olds = self.reader.read_olds(self.rows, self.options.before_field)
        except UNREADABLE:
            olds = []
            for i in range(len(self.rows)):
                try:
                    olds += self.reader.read_olds(self.rows[i : i + 1], self.options.before_field)
                except UNREADABLE:
                    self.errors.setdefault(i, malformed_reject("its before image does not have the types of its schema"))
                    olds.append(None)
        indices = [i for i, old in enumerate(olds) if old is not None and self.ops[i] == Op.UPDATE]
        old_rows = [olds[i] for i in indices]
        keys = [self.reader.read_old_values(old_rows, key) for key in self.table.keys if key in self.reader.columns]
        return {i: olds[i] for k, i in enumerate(indices) if any(key[k] is not UNSET for key in keys)}

    def _sequence_elements(self) -> list[pa.Array]:
        """The sequence, with the epoch in the top bits of its first element."""
        elements = []
        for name in self.options.sequence_columns:
            values = [_to_int(value) for value in self.reader.read_metadata(self.rows, name)]
            array, bad = build_or_reject(lambda numbers: pa.array(numbers, pa.int64()), values, name)
            for index in {*bad, *list_true_indices(pc.fill_null(pc.less(array, 0), True))}:
                reason = f"its sequence column {name!r} holds no whole number from 0 on"
                self._fail(index, RejectCode.NO_SEQUENCE, reason)
            elements.append(array)
        elements = elements or offsets_to_sequence(self.raw.column("offset"))
        room = pc.fill_null(pc.less(elements[0], 1 << EPOCH_SHIFT), True)
        for index in list_true_indices(pc.invert(room)):
            self._fail(index, RejectCode.NO_SEQUENCE, "its sequence leaves no room for the epoch")
        first = pc.if_else(room, elements[0], None)
        return [pc.add(first, pa.scalar(self.options.epoch << EPOCH_SHIFT, pa.int64())), *elements[1:]]

    def _build_frame(self, half: HalfFrame, elements: Sequence[pa.Array]) -> pa.Table:
        count = len(half.places)
        columns = [self._build_column(c, half) for c in self.table.columns]
        raw = self.raw if count == self.raw.num_rows else self.raw.take(pa.array(half.places, pa.int64()))
        errors = map(self.errors.get, half.places)
        return build_changes(
            self.table,
            record_ids(raw),
            ops=pa.array(half.ops, pa.string()),
            elements=elements,
            at=null_out_of_range(raw.column("timestamp").cast(TIMESTAMP)),
            columns=columns,
            errors=pa.array([str(error) if error else None for error in errors], pa.string()),
            unchanged=pa.array([names or None for names in half.missing], pa.list_(pa.string())),
        )

    def _build_column(self, column: Column, half: HalfFrame) -> pa.Array:
        """A column, null for missing and invalid values. Adds to `half.missing` and `errors`."""
        is_key = column.name in self.table.keys
        column_values = half.values.get(column.name, [UNSET] * len(half.places))
        node = self.reader.columns.get(column.name)
        build = node.build if node else lambda cells: pa.nulls(len(cells), column.type)
        array, bad = build_or_reject(build, [None if v is UNSET else v for v in column_values], f"column {column.name!r}")
        for row, reject in bad.items():
            if half.ops[row] == Op.DELETE and not is_key:
                half.missing[row].append(column.name)
            else:
                self.errors.setdefault(half.places[row], reject)
        if is_key:
            for row in list_true_indices(pc.is_null(array)):
                index = half.places[row]
                names = self._list_names(index) if column_values[row] is UNSET else ()
                self.errors.setdefault(index, null_key_reject(column.name, self.table.name, names))
        elif UNSET in column_values:
            for row in (row for row, v in enumerate(column_values) if v is UNSET and half.ops[row] == Op.UPDATE):
                half.missing[row].append(column.name)
        return array

    def _list_names(self, index: int) -> Collection[str]:
        try:
            fields = _fields(self.raw.column("value")[index].as_py() or b"{}")
            payload = fields.get("payload")
            return fields if payload is None or not bytes(payload).startswith(b"{") else _fields(payload)
        except UNREADABLE:  # No column was read from the record, so it was not parsed before.
            return ()

    def _fail(self, index: int, code: str, sentence: str) -> None:
        self.errors.setdefault(index, Reject(code, sentence))


def offsets_to_sequence(offsets: pa.Array) -> list[pa.Array]:
    """The sequence elements of offsets."""
    return [pc.shift_right(offsets, LOW_BITS), pc.bit_wise_and(offsets, (1 << LOW_BITS) - 1)]


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


class RowLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, options: RowsDecoderOptions) -> None:
        self._options = options
        self._own = {options.operation_column, *options.sequence_columns}
        self._private = MaskedTables(options.private)
        self._known: dict[bytes, RowLayout] = {}
        self._masked: dict[tuple[str, str], RowLayout] = {}
        self._declared: dict[str, RowLayout] = {}

    def get_layout(self, schema: bytes | None, table: str) -> RowLayout:
        """The layout of records of `table` with the JSON text `schema`, or None for records without one. Without a schema
        and declared columns the layout has no columns."""
        if schema is None:
            layout = self.declared_layout(table)
        else:
            if schema not in self._known:
                if len(self._known) >= MAX_LAYOUTS:
                    self._known.clear()
                self._known[schema] = self._read_layout(schema)
            layout = self._known[schema]
            if layout.error is UNDECLARED:
                declared = self.declared_layout(table)
                layout = declared if declared.readers else layout
        masks = self._private.get_masks(table)
        if not masks:
            return layout
        which = (layout.fingerprint, table)
        if which not in self._masked:
            if len(self._masked) >= MAX_LAYOUTS:
                self._masked.clear()
            names = (name for name, mask in masks.items() if mask.kind != "nothing")
            texts = {name: self._options.find_column_reader("string") for name in names}
            self._masked[which] = replace(
                layout, masked={name: node for name, node in texts.items() if name in layout.readers}
            )
        return self._masked[which]

    def is_row_schema(self, schema: bytes) -> bool:
        """True for a valid schema of rows, which defines the types of its records."""
        return schema in self._known and self._known[schema].error is None

    def declared_layout(self, table: str) -> RowLayout:
        """The layout of the declared columns."""
        if table not in self._declared:
            if len(self._declared) >= MAX_LAYOUTS:
                self._declared.clear()
            columns = self._options.columns_of(table) or {}
            self._declared[table] = RowLayout(
                BARE, {name: self._options.find_column_reader(type_name) for name, type_name in columns.items()}
            )
        return self._declared[table]

    def _read_layout(self, schema: bytes) -> RowLayout:
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

    def __init__(self, table: TableSpec, layout: RowLayout, options: RowsDecoderOptions) -> None:
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
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._fields.wire).decode

    def read_rows(self, payloads: list[bytes]) -> DecodedValues:
        """One object per payload; `blank` for unreadable payloads."""
        return decode_or_reject(self._decode, payloads, self.blank)

    def read_values(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A column of every row: UNSET if it is missing."""
        return self._fields.values(rows, name)

    def read_metadata(self, rows: Sequence[Any], name: str) -> list[Any]:
        """A metadata field of every row; None if it is missing."""
        tokens = self._fields.values(rows, name)
        return [None if v is UNSET else msgspec.json.decode(v) if isinstance(v, msgspec.Raw) else v for v in tokens]

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
