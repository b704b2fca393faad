"""Decoder of DMS's CSV rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, TIMESTAMP, Op
from replicator.domain.errors import ConfigProblem, Fatal, Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE

from ...arrow.frame_slices import Part, map_slices, merge_parts
from ...arrow.record_errors import ValueMisfit, malformed_reject, reject_too_long
from ...arrow.text_values import find_text_reader
from ..common.pipeline import TOMBSTONE, Outcome, build_routes, build_row_spec
from ..common.row_files import COLUMNS, DMS_ROW_BITS, CsvDialect, add_line, describe_location, split_offsets
from ..json.headers import find_read_errors, read_values
from ..json.schema_frames import build_envelope
from ..masking import Image, MaskedTables, MaskingDecoder, OpenRecord, RecordOpener, RoutedRecord, ValueWriter
from ..options import DmsCsvOptions
from .cells import EMPTY, is_writable, split_rows, to_row
from .changes import (
    MAX_LAYOUTS,
    SEQUENCE,
    SLICE_ROWS,
    UNDECLARED,
    CsvFrameDecoder,
    CsvLayout,
    CsvLayouts,
    group_by_header,
    read_named_cells,
    read_operations,
    select_part,
)


class DmsCsvDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` of rows of AWS DMS's CSV files. `options` as in `DmsCsvOptions`; raises
    ConfigProblem that names every wrong one."""

    def __init__(self, options: DmsCsvOptions | Mapping[str, object] | None = None) -> None:
        self._options = DmsCsvOptions.read(options or {})
        for table, masks in self._options.private.items():
            for column, mask in masks.items():
                if mask.kind == "fixed" and not is_writable(mask.text, self._options.csv):
                    raise ConfigProblem(
                        f"'columns' of table {table} masks {column!r} with a text that its CSV cannot hold without quotes",
                        next_step="Choose a text without the delimiter and line ends, or `mask: nothing`.",
                    )
        self._layouts = CsvLayouts(self._options)
        super().__init__(
            self._options,
            routing=CsvRouter(self._options, self._layouts),
            decoding=CsvFrameDecoder(self._options, self._layouts),
            envelopes=CsvEnvelopes(self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=CsvOpener(self._options, self._layouts),
        )

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        # The first record's header row: records with one fingerprint have the same columns.
        headers = read_values(sample.slice(0, 1)["headers"].combine_chunks(), COLUMNS)
        layout = self._layouts.get_layout(headers[0].as_py() if len(headers) else None, table)
        if layout.error is UNDECLARED:
            raise ConfigProblem(
                f"the files of table {table} have no header row, and no columns are declared for it",
                next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns in their "
                "order; or have DMS write header rows (AddColumnName) and set `csv.header: true`.",
            )
        if layout.error is not None:
            raise Fatal(f"table {table} cannot be represented: {layout.error.sentence}")
        keys = self._options.keys_of(table)
        spec = build_row_spec(table, layout.columns, sequence=SEQUENCE, fingerprint=fingerprint, keys=keys)
        return self._options.to_read_types(self._tables.masked_spec(spec))

    def _build_rejected(self, raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
        whole = super()._build_rejected(raw, table, rejects)
        return add_line(whole, ERROR, whole[OFFSET], describe_location)


# Routing of records to tables by topic. Rows are not parsed before they are decoded.


UNASKED = "table without declared columns"


class CsvRouter:
    """Routes frames of CSV rows."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        whole = map_slices(raw, ROUTE, self._route_slice, SLICE_ROWS)
        return add_line(whole, "error", raw["offset"], describe_location).combine_chunks()

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        """Collects the distinct outcomes, and for each record the index of its outcome."""
        outcomes: list[Outcome] = [(None, None, TOMBSTONE, None)]
        which = pa.repeat(pa.scalar(0, pa.int32()), raw.num_rows)
        for header, indices in group_by_header(raw.column("headers")):
            topics = select_part(raw, indices).column("topic").dictionary_encode()
            routes = pc.add(topics.indices, len(outcomes))
            outcomes += [self._route_topic(header, topic) for topic in topics.dictionary.to_pylist()]
            which = routes if len(indices) == raw.num_rows else _scatter(which, indices, routes)
        values, tables = raw.column("value"), raw.column("topic")
        which = pc.if_else(pc.is_null(values), pa.scalar(0, pa.int32()), which)
        empty = pc.indices_nonzero(pc.equal(pc.binary_length(values), 0)).to_pylist()
        _, large = reject_too_long(values, self._options.limits)
        wrong = dict.fromkeys(empty, EMPTY) | large
        refused = {i: _reject_outcome(error, tables[i].as_py()) for i, error in wrong.items()}
        refused |= {i: _reject_outcome(error, None) for i, error in find_read_errors(raw).items()}
        if refused:
            last = pa.array(range(len(outcomes), len(outcomes) + len(refused)), pa.int32())
            which, outcomes = _scatter(which, list(refused), last), [*outcomes, *refused.values()]
        return build_routes(outcomes).take(which)

    def _route_topic(self, header: bytes | None, topic: str) -> Outcome:
        layout = self._layouts.get_layout(header, topic)
        if layout.error is UNDECLARED and not self._options.csv.header:
            # No pipeline reads the table: the configuration must declare the columns of tables that are read.
            return None, None, UNASKED, None
        if layout.error is not None:
            return _reject_outcome(layout.error, topic)
        keyed = "keyed" if self._options.keys_of(topic) else "nokey"
        return topic, f"{layout.fingerprint}.{keyed}", None, None


def _reject_outcome(error: Reject, table: str | None) -> Outcome:
    return table, None, None, str(error)


def _scatter(into: pa.Array, indices: Sequence[int], values: pa.Array) -> pa.Array:
    scattered = into.to_pylist()
    for index, value in zip(indices, values.to_pylist(), strict=True):
        scattered[index] = value
    return pa.array(scattered, into.type)


# Envelope columns of the event log.


class CsvEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return map_slices(raw, ENVELOPE, self._read_slice)

    def _read_slice(self, raw: pa.RecordBatch) -> pa.Table:
        errors: dict[int, Reject] = {}
        parts: list[Part] = []
        topics = raw.column("topic")
        for header, indices in group_by_header(raw.column("headers")):
            for topic in pc.unique(select_part(raw, indices).column("topic")).to_pylist():
                of_topic = pc.equal(topics, topic).to_pylist()
                places = [index for index in indices if of_topic[index]]
                layout = self._layouts.get_layout(header, topic)
                for where, rows, cells in read_named_cells(raw, places, layout, self._options.csv, errors):
                    parts.append((where, self._build_rows(rows, cells, layout)))
        if errors:
            present = raw.column("value").is_valid().to_pylist()
            reasons = [str(error) if present[i] else None for i, error in errors.items()]
            parts.append((list(errors), build_envelope(len(reasons), {"error": pa.array(reasons, pa.string())})))
        return merge_parts(parts, ENVELOPE)

    def _build_rows(self, raw: pa.RecordBatch, cells: Mapping[str, pa.Array], layout: CsvLayout) -> pa.Table:
        operations = cells.get(self._options.operation_column)
        ops = read_operations(operations, raw, self._options)
        has_op, nothing = pc.is_valid(ops), pa.scalar(None, pa.string())
        texts = zip(*(column.to_pylist() for column in cells.values()), strict=True)
        rows = [msgspec.json.encode(dict(zip(cells, row, strict=True))).decode() for row in texts]
        images = pc.if_else(has_op, pa.array(rows, pa.string()), nothing)
        errors = pa.nulls(len(ops), pa.string())
        if ops.null_count and operations is not None:
            reasons = [str(self._options.unknown_operation_reject(value)) for value in (None, "")]
            errors = pc.if_else(has_op, nothing, pc.if_else(pc.is_null(operations), *reasons))
        deleted = pc.fill_null(pc.equal(ops, Op.DELETE.value), False)
        first, second = split_offsets(raw.column("offset"), DMS_ROW_BITS)
        columns = {
            "before": pc.if_else(deleted, images, nothing),
            "after": pc.if_else(deleted, nothing, images),
            "connector": pc.if_else(has_op, DmsCsvOptions.what, nothing),
            "table": pc.if_else(has_op, raw.column("topic"), nothing),
            "op": ops,
            "seq_1": first,
            "seq_2": second,
            "ts": null_out_of_range(raw.column("timestamp").cast(TIMESTAMP)),
            "schema_id": pa.repeat(pa.scalar(layout.fingerprint), raw.num_rows),
            "error": errors,
        }
        return build_envelope(raw.num_rows, columns)


# Access to values in CSV rows, for masking.


class CsvValueWriter(ValueWriter):
    """`decoders.masking.ValueWriter` of rows of a layout: every value is its text."""

    def __init__(self, dialect: CsvDialect, layout: CsvLayout) -> None:
        self._types = {column.name: column.type for column in layout.columns}
        self._unsent = dialect.unsent_value
        self.columns: Collection[str] = frozenset(self._types)

    def array(self, name: str, values: Sequence[str | None]) -> pa.Array:
        texts, read = self.texts(values), find_text_reader(self._types[name])
        return texts if read is None else read(texts)

    def texts(self, values: Sequence[str | None]) -> pa.Array:
        return pa.array(values, pa.string())

    def is_null(self, value: str | None) -> bool:
        """True for NULL and for the placeholder of unchanged values, which stays as it is."""
        return value is None or value == self._unsent

    def to_value(self, text: str | None) -> str | None:
        return text


class CsvOpener(RecordOpener):
    """`decoders.masking.RecordOpener` of CSV rows."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._tables = MaskedTables(options.private)
        self._get_writer = lru_cache(MAX_LAYOUTS)(partial(CsvValueWriter, options.csv))

    def find_table(self, record: RoutedRecord) -> str | None:
        return record.topic

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        """Parses the rows of one file at once."""
        groups: dict[tuple[bytes | None, str], list[int]] = defaultdict(list)
        for index, record in enumerate(records):
            # The first header row, as in `changes.group_by_header`.
            header = next((one["value"] or b"" for one in record.headers or () if one["name"] == COLUMNS), None)
            groups[header, record.topic].append(index)
        opened: dict[int, OpenRecord | Reject] = {}
        for (header, topic), indices in groups.items():
            layout = self._layouts.get_layout(header, topic)
            error = layout.error
            missing = self._tables.get_masks(topic).keys() - {name for row in layout.rows for name in row}
            if error is None and header is not None and missing:  # Lanes stop at such a file anyway.
                name = min(missing)
                error = malformed_reject(f"its header row lacks the private column {name!r}: it may be a row")
            if error is not None:
                opened |= dict.fromkeys(indices, error)
                continue
            values = pa.array([records[index].value for index in indices], pa.binary())
            for at, one in self._open_rows(values, layout, self._options.keys_of(topic) or ()):
                opened[indices[at]] = one
        return [opened[index] for index in range(len(records))]

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value, unless the table has masks: then its columns are unknown, and the record is not stored."""
        if self._tables.get_masks(record.topic):
            raise ValueMisfit(RejectCode.MALFORMED, "the columns of its table are not known")
        return record.value

    def _open_rows(
        self, values: pa.Array, layout: CsvLayout, keys: Collection[str]
    ) -> list[tuple[int, OpenRecord | Reject]]:
        dialect, writer = self._options.csv, self._get_writer(layout)
        read = split_rows(values, layout.widths, dialect)
        opened: list[tuple[int, OpenRecord | Reject]] = list(read.errors.items())
        for part in read.parts:
            names = layout.get_names(len(part.columns))
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            for index, row in zip(part.places, rows, strict=True):
                fields = dict(zip(names, row, strict=True))
                operation = fields.get(self._options.operation_column)
                is_delete = operation and self._options.operation_of.get(operation) == Op.DELETE
                images = [Image(fields, writer, required=keys if is_delete else None)]
                # A view of the values, which masking replaces.
                opened.append((index, OpenRecord(images, partial(to_row, fields.values(), dialect))))
        return opened
