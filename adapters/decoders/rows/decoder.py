"""Decoder of rows as JSON objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, TIMESTAMP, Op
from replicator.domain.errors import ConfigProblem, Fatal, Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import Part, map_slices, select_records
from ...arrow.record_errors import (
    UNREADABLE,
    ValueMisfit,
    build_or_reject,
    find_table_entry,
    reject_too_long,
    unreadable_reject,
)
from ...transforms.expressions import evaluate_condition
from ..common.pipeline import TOMBSTONE, Outcome, build_routes, build_row_spec, describe_errors
from ..common.row_files import add_line, describe_line, split_offsets
from ..json.headers import find_read_errors
from ..json.schema_frames import (
    SchemaGroup,
    build_envelope,
    build_envelopes,
    decode_group,
    find_frames,
    hint_by_names,
    split_record,
)
from ..json.type_names import find_type_reader
from ..masking import (
    EachRecordOpener,
    Image,
    MaskedTables,
    MaskingDecoder,
    OpenRecord,
    RoutedRecord,
    open_json_key,
    read_object,
)
from ..options import BEFORE, RowsDecoderOptions
from .changes import BARE, LOW_BITS, MAX_LAYOUTS, RowFrameDecoder, RowLayout, RowLayouts, read_operation


class RowsDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` of rows as JSON objects, with and without types. `options` as in
    `RowsDecoderOptions`; raises ConfigProblem that names every wrong one."""

    OPTIONS: ClassVar[type[RowsDecoderOptions]] = RowsDecoderOptions

    def __init__(self, options: RowsDecoderOptions | Mapping[str, object] | None = None) -> None:
        self._options = self.OPTIONS.read(options or {})
        self._layouts = RowLayouts(self._options)
        self._tombstones = TombstoneRows(self._options)
        super().__init__(
            self._options,
            routing=RowRouter(self._options, self._layouts),
            decoding=RowFrameDecoder(self._options, self._layouts),
            envelopes=RowEnvelopes(self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=RowOpener(self._options, self._layouts),
        )

    def route(self, raw: pa.Table) -> pa.Table:
        return self._add_line(super().route(self._tombstones.to_rows(raw)), "error", raw["offset"])

    def mask_records(self, raw: pa.Table) -> pa.Table:
        return super().mask_records(self._tombstones.to_rows(raw))

    def envelope(self, raw: pa.Table) -> pa.Table:
        return super().envelope(self._tombstones.to_rows(raw))

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        whole = super().decode(self._tombstones.to_rows(raw), table)
        condition = find_table_entry(self._options.truncates, table.name)
        if condition is not None:
            # Rows whose only error is a missing key are accepted if the condition holds: every lane makes truncates of them.
            keyless = pc.fill_null(pc.starts_with(whole[ERROR], f"{RejectCode.NULL_KEY}: "), False)
            if pc.any(keyless).as_py():
                accepted = pc.and_(keyless, evaluate_condition(whole, condition)[0])
                errors = pc.if_else(accepted, pa.scalar(None, pa.string()), whole[ERROR])
                whole = whole.set_column(whole.column_names.index(ERROR), ERROR, errors)
        return self._add_line(whole, ERROR, whole[OFFSET])

    def _add_line(self, frame: pa.Table, error: str, offsets: pa.ChunkedArray) -> pa.Table:
        return add_line(frame, error, offsets, describe_line) if self._options.in_files else frame

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        # The layout of the first readable record: all records have the same.
        values = self._tombstones.to_rows(sample)["value"].combine_chunks()
        groups = find_frames(values, self._options.limits.depth).groups
        layout = self._layouts.get_layout(groups[0].schema if groups else None, table)
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        if not layout.readers:
            raise ConfigProblem(
                f"the rows of table {table} carry no types, and none are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their "
                "Arrow types.",
            )
        keys, sequence = self._options.keys_of(table), self._options.elements
        spec = build_row_spec(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=keys)
        return self._options.to_read_types(self._tables.masked_spec(spec))


# Records without a value as deletes of their key, for tables with `tombstones: delete`.


Scalar = str | int | float | bool


class TombstoneRows:
    """Converts tombstones to rows with the delete operation, so that later steps handle one kind of delete."""

    def __init__(self, options: RowsDecoderOptions) -> None:
        self._options = options
        meanings = options.list_meanings().get("delete") if options.inserts_only and not options.sequence_columns else None
        self._delete = meanings[0] if meanings else None
        modes = options.tombstones
        self._modes: Mapping[str, str] = {"*": modes} if isinstance(modes, str) else modes

    def to_rows(self, raw: pa.Table) -> pa.Table:
        """The records. A record with a key but no value becomes a delete if its table has `tombstones: delete`."""
        if self._delete is None or not raw["value"].null_count:
            return raw
        names = ("topic", "key", "value")
        values = [
            self._to_row(topic, key) if value is None and key is not None else value
            for topic, key, value in zip(*(raw[name].to_pylist() for name in names), strict=True)
        ]
        index = raw.schema.get_field_index("value")
        return raw.set_column(index, raw.schema.field(index), pa.array(values, pa.binary()))

    def _to_row(self, topic: str, key: bytes) -> bytes | None:
        """The deleted row; None if the table does not use tombstones. An invalid key is returned, and rejected as a
        row."""
        keys, columns = self._options.keys_of(topic), self._options.columns_of(topic)
        if not keys or not columns or find_table_entry(self._modes, topic) != "delete":
            return None
        try:
            fields = self._read_key_fields(key, keys, columns)
            return msgspec.json.encode({self._options.operation_column: self._delete, **fields})
        except UNREADABLE:
            return key

    def _read_key_fields(self, key: bytes, keys: tuple[str, ...], columns: Mapping[str, str]) -> Mapping[str, object]:
        """The fields of a key that is an object, or the value of a single key column. Text does not have to be JSON."""
        try:
            payload = split_record(key, self._options.limits.depth)[1]
        except UNREADABLE:
            payload = key
        if payload.lstrip().startswith(b"{") or len(keys) > 1:
            return msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        is_text = keys[0] in columns and find_type_reader(columns[keys[0]]).type == pa.string()
        if is_text and not payload.startswith(b'"'):
            return {keys[0]: payload.decode()}
        return {keys[0]: msgspec.json.decode(payload, type=Scalar)}


# Routing of records to tables by topic, with a check of the operation.


class RowRouter:
    """Routes frames of rows."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._probe = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def route(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ROUTE, self._route_slice)

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        out: list[Outcome] = [(None, None, TOMBSTONE, None)] * raw.num_rows
        frames = find_frames(values, self._options.limits.depth)
        topics = raw.column("topic").to_pylist()
        for group in frames.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for index, outcome in zip(rows, self._route_group(group, [topics[i] for i in rows]), strict=True):
                out[index] = outcome
        for index, error in (frames.errors | large).items():
            out[index] = (topics[index], None, None, str(error))
        for index, error in find_read_errors(raw).items():
            out[index] = (None, None, None, str(error))
        return build_routes(out)

    def _route_group(self, group: SchemaGroup, topics: Sequence[str]) -> list[Outcome]:
        """The outcomes of a group. Rows with types are checked when they are decoded; other rows are checked here."""
        of_topic: dict[str, Outcome] = {}
        for topic in set(topics):
            layout = self._layouts.get_layout(group.schema, topic)
            keyed = "declared" if self._options.keys_of(topic) else "nokey"
            fingerprint = layout.fingerprint if layout.fingerprint == BARE else f"{layout.fingerprint}.{keyed}"
            of_topic[topic] = (topic, None, None, str(layout.error)) if layout.error else (topic, fingerprint, None, None)
        if group.schema is not None and all(fingerprint != BARE for _, fingerprint, *_ in of_topic.values()):
            return [of_topic[topic] for topic in topics]
        wrong = [self._find_fault(payload) for payload in group.payloads()]
        return [
            of_topic[topic] if error is None else (topic, None, None, str(error))
            for topic, error in zip(topics, wrong, strict=True)
        ]

    def _find_fault(self, payload: bytes) -> Reject | None:
        try:
            token: Any = self._probe(payload).get(self._options.operation_column)
            value = None if token is None else msgspec.json.decode(token)
        except UNREADABLE as error:
            return hint_by_names(unreadable_reject(error), payload, "rows")
        unknown = None if read_operation(value, self._options) else self._options.unknown_operation_reject(value)
        return unknown and hint_by_names(unknown, payload, "rows")


# Envelope columns of the event log.


CONNECTOR = "rows"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return build_envelopes(raw, self._options.limits.depth, self._read_group)

    def _read_group(self, raw: pa.RecordBatch, group: SchemaGroup) -> Part:
        records, depth = select_records(raw, group.rows), self._options.limits.depth
        payloads, (rows, errors) = decode_group(_fields, raw.column("value"), group, {}, depth)
        topics = records.column("topic").to_pylist()
        layouts = {topic: self._layouts.get_layout(group.schema, topic) for topic in set(topics)}
        ops = []
        for i, topic in enumerate(topics):
            value = _to_scalar(rows[i].get(self._options.operation_column))
            op = read_operation(value, self._options)
            error = layouts[topic].error or (self._options.unknown_operation_reject(value) if op is None else None)
            if error is not None:
                errors.setdefault(i, error)
            ops.append(None if i in errors else op)
        images = _build_images(ops, payloads, errors)
        has_op = pa.array([op is not None for op in ops], pa.bool_())
        elements = [_read_element(rows, name) for name in self._options.sequence_columns]
        elements = elements or split_offsets(records.column("offset"), LOW_BITS)
        columns = {
            **images,
            "connector": pc.if_else(has_op, CONNECTOR, pa.scalar(None, pa.string())),
            "table": pc.if_else(has_op, records.column("topic"), pa.scalar(None, pa.string())),
            "op": pa.array(ops, pa.string()),
            **{f"seq_{k}": element for k, element in enumerate(elements, 1)},
            "ts": null_out_of_range(records.column("timestamp").cast(TIMESTAMP)),
            "schema_id": pa.array([layouts[topic].fingerprint for topic in topics], pa.string()),
            "error": describe_errors(errors, len(rows)),
        }
        return group.rows, build_envelope(len(rows), columns)


def _build_images(ops: list[Op | None], payloads: list[bytes], errors: dict[int, Reject]) -> dict[str, pa.Array]:
    """The rows as they were sent: before for a delete, after for others."""
    is_delete = [op == Op.DELETE for op in ops]
    texts = [text if op is not None else None for op, text in zip(ops, payloads, strict=True)]
    images, bad = build_or_reject(lambda row_texts: pa.array(row_texts, pa.binary()).cast(pa.string()), texts, "it")
    for i, reject in bad.items():
        errors.setdefault(i, reject)
    deleted, nothing = pa.array(is_delete, pa.bool_()), pa.scalar(None, pa.string())
    return {"before": pc.if_else(deleted, images, nothing), "after": pc.if_else(deleted, nothing, images)}


def _read_element(rows: list[dict[str, msgspec.Raw]], name: str) -> pa.Array:
    values = [_to_scalar(row.get(name)) for row in rows]
    return build_or_reject(lambda ints: pa.array(ints, pa.int64()), [v if type(v) is int else None for v in values], name)[0]


def _to_scalar(value: msgspec.Raw | None) -> Any:
    """A text, number or boolean; None for other values, which are neither an operation nor a sequence."""
    if value is None or bytes(value).startswith((b"{", b"[")):
        return None
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return None


# Access to values in rows, for masking.


class RowOpener(EachRecordOpener):
    """`decoders.masking.EachRecordOpener` of rows, with and without types."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._mask_schema = lru_cache(MAX_LAYOUTS)(self._read_masked_schema)

    def find_table(self, record: RoutedRecord) -> str | None:
        return record.topic

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        value = record.value or b""
        schema, payload = split_record(value, self._options.limits.depth)
        layout = self._layouts.get_layout(schema, record.topic)
        if layout.error is not None:
            raise ValueMisfit(*astuple(layout.error))
        row = read_object(payload)
        token = row.get(self._options.operation_column)
        op = read_operation(None if token is None else msgspec.json.decode(token), self._options)
        writer, keys = layout.writer, self._options.keys_of(record.topic) or ()
        images = [Image(row, writer, required=keys if op == Op.DELETE else None)]
        before_token = row.get(BEFORE)
        before = None if before_token is None or bytes(before_token) == b"null" else read_object(before_token)
        if before is not None:
            images.append(Image(before, writer, required=keys))
        key, of_key = open_json_key(record.key, writer, keys)

        def close() -> bytes:
            whole: Any = row if before is None else row | {BEFORE: before}
            if payload is not value:
                masked_schema = None if schema is None else self._mask_schema(schema, layout)
                whole = {"schema": masked_schema, "payload": whole}
            return msgspec.json.encode(whole)

        return OpenRecord([*images, *of_key], close, key)

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value as it is: only records without a value are ignored."""
        return record.value

    def _read_masked_schema(self, schema: bytes, layout: RowLayout) -> msgspec.Raw:
        """The schema with the type string for masked columns, if it is a schema of rows."""
        texts = {name: msgspec.Raw(b'"string"') for name in layout.masked if self._layouts.is_row_schema(schema)}
        return msgspec.Raw(msgspec.json.encode(read_object(schema) | texts))
