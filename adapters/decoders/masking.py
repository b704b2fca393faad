"""Masking of raw records in formats whose records contain nothing but rows.

A stored record has masked values wherever it contains them. Its header (`MaskHeader`) lists the masked columns, so
that they are not masked again when the record is read back. Live records are masked before they are decoded, so reading a
stored record gives the same result.

Each format shows where its records contain values (`RecordOpener`). Values get the type of their column, so that
a value has one text in every notation. Unreadable records that may belong to a table with private columns are stored
without content. The values of all formats, Debezium's included, are replaced by `CellMasker`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import getitem
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms, Mask, refuse_unknown_masks
from replicator.domain.transform.typed_expressions import is_hashable
from replicator.ports.adapter_options import DecoderOptions
from replicator.ports.decoder import ENVELOPE, DecoderFeatures

from ..arrow.frame_slices import build_rejected, split_frame
from ..arrow.masks import mask_values
from ..arrow.record_errors import UNREADABLE, build_or_reject, find_table_entry, unreadable_reject
from ..arrow.value_readers import ValueReader
from .common.pipeline import CompositeDecoder, EnvelopeReader, FrameDecoder, FrameRouter
from .json.headers import WITHHELD, find_entries, find_read_errors, is_redacted, strip_values
from .json.type_names import to_texts


class MaskingDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` with masking, for formats whose records contain only rows. It decodes records as stored."""

    def __init__(
        self,
        options: DecoderOptions,
        *,
        routing: FrameRouter,
        decoding: FrameDecoder,
        envelopes: EnvelopeReader,
        tables: MaskedTables,
        opens: RecordOpener,
    ) -> None:
        super().__init__(options, routing=routing, decoding=decoding, envelopes=envelopes)
        self._tables = tables
        self._masker = RecordMasker(tables, opens, routing.route)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        return self._masker.mask_records(raw)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        if not self._tables.get_masks(table.name):
            return super().decode(raw, table)
        schema = changes_schema(table)
        frames = [schema.empty_table()]
        for piece in split_frame(self.mask_records(raw)):
            # Errors of values that masking found invalid come from the header.
            errors = find_read_errors(piece)
            for is_bad, run in groupby(range(piece.num_rows), errors.__contains__):
                indices = list(run)
                records = piece.slice(indices[0], len(indices))
                if is_bad:
                    frames.append(self._build_rejected(records, table, [errors[index] for index in indices]))
                else:
                    frames.append(super().decode(pa.Table.from_batches([records]), table))
        return pa.concat_tables(frames).combine_chunks()

    def _build_rejected(self, raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
        return build_rejected(raw, table, rejects)

    def envelope(self, raw: pa.Table) -> pa.Table:
        records = self.mask_records(raw) if self._tables else raw
        whole, withheld = super().envelope(records), pc.fill_null(is_redacted(records["value"]), False)
        if not pc.any(withheld).as_py():
            return whole
        # The source may have sent a reason of its own (`find_read_errors`). A topic may name the table.
        reasons = [
            str(errors[index]) if index in errors else None
            for batch in records.to_batches()
            for errors in [find_read_errors(batch)]
            for index in range(batch.num_rows)
        ]
        parts = {"error": pa.array(reasons, pa.string()), "table": whole["table"]}
        columns = [
            pc.if_else(withheld, parts.get(field.name, pa.scalar(None, field.type)), whole[field.name]) for field in ENVELOPE
        ]
        return pa.Table.from_arrays(columns, schema=ENVELOPE)


# Masking of raw records before they are stored.


class RecordOpener(Protocol):
    """Access to the values in records of one format."""

    def find_table(self, record: RoutedRecord) -> str | None:
        """The table of a record that routing gave no table, if it can be found. Never fails."""
        ...

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        """Opened records of tables, or for each unreadable record the reason. Never fails."""
        ...

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value of an ignored record, as it may be stored. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...


class EachRecordOpener(RecordOpener, Protocol):
    """`RecordOpener` for formats that read records one by one."""

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        opened: list[OpenRecord | Reject] = []
        for record in records:
            try:
                opened.append(self.open_one(record))
            except UNREADABLE as error:
                opened.append(unreadable_reject(error))
        return opened

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        """A record that was routed to a table. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...


class RoutedRecord(NamedTuple):
    """A raw record, its route, and the header that lists its masked columns."""

    topic: str
    headers: list[Header] | None
    key: bytes | None
    value: bytes | None
    table: str | None
    ignored: str | None
    error: str | None
    mark: MaskHeader | None

    @property
    def table_name(self) -> str:
        """The table of the record, if known."""
        return self.table or (self.mark.table if self.mark else "")

    @property
    def content(self) -> RecordContent:
        """The record as it is."""
        return RecordContent(self.headers, self.key, self.value)

    def get_remaining(self, masks: Masks) -> Masks:
        """The masks of columns that are not masked yet."""
        return remaining_masks(masks, self.mark.columns if self.mark else ())


class RecordContent(NamedTuple):
    """The parts of a record that masking replaces."""

    headers: list[Header] | None
    key: bytes | None
    value: bytes | None


def replace_records(
    raw: pa.Table, records: Sequence[RecordContent], names: Collection[str] = RecordContent._fields
) -> pa.Table:
    """The frame with these headers, keys and values, or with some of them."""
    for name, values in zip(RecordContent._fields, zip(*records, strict=True), strict=True):
        if name in names:
            at, field = raw.column_names.index(name), raw.schema.field(name)
            raw = raw.set_column(at, field, pa.chunked_array([pa.array(values, field.type)]))
    return raw


FEW = 1024
"""Records that are open at the same time. The garbage collector slows down with more of them (measured)."""


class RecordMasker:
    """Replaces private values in records of a source. `route` is the decoder's."""

    def __init__(self, tables: MaskedTables, opens: RecordOpener, route: Callable[[pa.Table], pa.Table]) -> None:
        self._tables, self._opens, self._route = tables, opens, route

    def mask_records(self, raw: pa.Table) -> pa.Table:
        if not self._tables or not raw.num_rows:
            return raw
        masked_records = [one for start in range(0, raw.num_rows, FEW) for one in self._mask_few(raw.slice(start, FEW))]
        return replace_records(raw, masked_records)

    def _mask_few(self, raw: pa.Table) -> list[RecordContent]:
        routes = self._route(raw)
        headers = raw["headers"].combine_chunks()
        marks = read_mask_headers(headers)
        columns = [raw["topic"], headers, raw["key"], raw["value"], *(routes[n] for n in ("table", "ignored", "error"))]
        rows = zip(*(column.to_pylist() for column in columns), map(marks.get, range(raw.num_rows)), strict=True)
        records = [RoutedRecord(*row) for row in rows]
        remaining = [one.get_remaining(self._tables.get_masks(one.table_name)) for one in records]
        waiting = [index for index, masks in enumerate(remaining) if masks and records[index].value is not None]
        opened = dict(zip(waiting, self._opens.open_records([records[index] for index in waiting]), strict=True))
        cells = CellMasker()
        for index, one in opened.items():
            if isinstance(one, OpenRecord):
                for image in one.images:
                    cells.add(index, image, remaining[index])
        errors = cells.mask_all()
        return [
            self._close_record(record, opened[i], errors.get(i)) if i in opened else self._mask_other(record)
            for i, record in enumerate(records)
        ]

    def _close_record(self, record: RoutedRecord, opened: OpenRecord | Reject, error: Reject | None) -> RecordContent:
        mark = MaskHeader(record.table_name, tuple(sorted(self._tables.get_masks(record.table_name))))
        if isinstance(opened, Reject):
            return redact_whole(record.key, record.value)._replace(headers=add_mask_header(None, mark, opened))
        key = None if opened.key is None else msgspec.json.encode(opened.key)
        return RecordContent(add_mask_header(record.headers, mark, error), key, opened.close())

    def _mask_other(self, record: RoutedRecord) -> RecordContent:
        """A record without columns to mask, or without a table in its route."""
        if record.table_name and record.value is not None:
            return record.content
        try:
            table = self._opens.find_table(record)
            if table is not None and self._tables.find_masks(table) == {}:
                return record.content
            if record.ignored is None or record.value is None:
                return redact_whole(record.key, record.value)
            return RecordContent(strip_values(record.headers), record.key and WITHHELD, self._opens.mask_ignored(record))
        except UNREADABLE:
            return redact_whole(record.key, record.value)


def redact_whole(key: bytes | None, value: bytes | None) -> RecordContent:
    """The record without content."""
    return RecordContent(None, key and WITHHELD, value and WITHHELD)


# Values in records, and their replacements.


class CellWriter(Protocol):
    """Masks values as they are in records. One object for values that are read in the same way."""

    def is_null(self, value: Any) -> bool:
        """True if a value stays as it is: it is NULL or the placeholder of an unchanged value."""
        ...

    def mask_cells(
        self, name: str, mask: Mask, values: Sequence[Any], required: Sequence[bool]
    ) -> tuple[Sequence[Any], Mapping[int, Reject]]:
        """The masked values of column `name`, and the rejects of invalid ones by index. `required`: False for values
        whose records stay valid without them."""
        ...


class ValueWriter(CellWriter, Protocol):
    """`CellWriter` for all columns of a layout."""

    columns: Collection[str]
    """The columns whose values it can read."""

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column as an Arrow array. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """Values of any column as the texts in the record. Raises the same errors as `array`; None is null."""
        ...

    def to_value(self, text: str | None) -> Any:
        """The value for a text, or for null."""
        ...

    def mask_cells(
        self, name: str, mask: Mask, values: Sequence[Any], required: Sequence[bool]
    ) -> tuple[Sequence[Any], Mapping[int, Reject]]:
        if mask.kind in ("nothing", "fixed"):
            return [self.to_value(mask.text if mask.kind == "fixed" else None)] * len(values), {}
        array, bad = build_or_reject(partial(self._read_array, name), list(values), f"column {name!r}")
        texts = mask_values(pa.chunked_array([array]), mask).to_pylist()
        return [self.to_value(text) for text in texts], {i: reject for i, reject in bad.items() if required[i]}

    def _read_array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values with the type of the column, if that type has a unique text; otherwise the texts as written. Lanes stop
        at such a column, but the stored records are masked all the same."""
        if name in self.columns:
            array = self.array(name, values)
            if is_hashable(array.type):
                return array
        return self.texts(values)


class Image(NamedTuple):
    """Values of one row or key: `fields` by name, which are replaced.

    - `writer`: for the values. `writers`: for those of single columns.
    - `required`: the columns whose invalid values make the record invalid; None for all.
    - `prefix`: the prefix of the names of fields.
    """

    fields: dict[str, Any]
    writer: CellWriter
    writers: Mapping[str, CellWriter] = MappingProxyType({})
    required: Collection[str] | None = None
    prefix: str = ""


class OpenRecord(NamedTuple):
    """A record whose values can be replaced. `close` returns its value in bytes. `key`: the fields of its key; None if its
    content is unknown. Such a key is not stored."""

    images: Sequence[Image]
    close: Callable[[], bytes]
    key: dict[str, Any] | None = None


@dataclass
class Cells:
    """The values of one column: the index of each record, the fields of an image, the field, and whether it is required."""

    records: list[int] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    required: list[bool] = field(default_factory=list)


class CellMasker:
    """Collects the values of records, and masks those of one column at once."""

    def __init__(self) -> None:
        self._cells: dict[tuple[CellWriter, str, Mask], Cells] = defaultdict(Cells)

    def add(self, index: int, image: Image, masks: Masks) -> None:
        """Add the values of an image in the record at an index."""
        for name, mask in masks.items():
            field_name, writer = image.prefix + name, image.writers.get(name, image.writer)
            if field_name in image.fields:
                cells = self._cells[writer, name, mask]
                if not writer.is_null(image.fields[field_name]):
                    cells.records.append(index)
                    cells.fields.append(image.fields)
                    cells.names.append(field_name)
                    cells.required.append(image.required is None or name in image.required)

    def mask_all(self) -> Mapping[int, Reject]:
        """Replace all values. Returns for each rejected record, by index, an error of its first column with one."""
        errors: dict[int, Reject] = {}
        for (writer, name, mask), cells in self._cells.items():
            values = list(map(getitem, cells.fields, cells.names))
            masked, bad = writer.mask_cells(name, mask, values, cells.required)
            for fields, field_name, value in zip(cells.fields, cells.names, masked, strict=True):
                fields[field_name] = value
            errors = {cells.records[i]: reject for i, reject in bad.items()} | errors
        return errors


# The record header that lists masked columns.


HEADER = "replicator.masked"
Header: TypeAlias = dict[str, Any]
"""`name`, and `value` in bytes."""


class MaskHeader(msgspec.Struct, frozen=True, gc=False):
    """The masked `columns` of a record of `table`."""

    table: str
    columns: tuple[str, ...]


_mark = msgspec.json.Decoder(MaskHeader).decode


def read_mask_headers(headers: pa.Array) -> Mapping[int, MaskHeader]:
    """The headers by index of their record. Headers with other content are skipped."""
    marks: dict[int, MaskHeader] = {}
    for index, _, value in find_entries(headers, HEADER):
        try:
            marks[index] = _mark(value)
        except (msgspec.MsgspecError, UnicodeError):
            continue
    return marks


def add_mask_header(headers: Sequence[Header] | None, mark: MaskHeader, error: Reject | None, *names: str) -> list[Header]:
    """The headers of a masked record. `error`: why the record is invalid, which masked values no longer show. `names`:
    name prefixes of other headers without private values."""
    others = [one for one in strip_values(headers, *names) or () if one["name"] != HEADER]
    wrong = [] if error is None else [{"name": ERROR_HEADER, "value": str(error).encode()}]
    return [*others, {"name": HEADER, "value": msgspec.json.encode(mark)}, *wrong]


# The masked columns of a source's tables.


Masks = Mapping[str, Mask]
NOTHING: Masks = {}


def remaining_masks(masks: Masks, masked: Collection[str]) -> Masks:
    """The masks of columns that are not masked yet."""
    return {name: mask for name, mask in masks.items() if name not in masked} if masked else masks


NOWHERE: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class MaskedTables:
    """For each table (exact name or glob) the masks of its columns; tables without masks are included. `declared`: the
    columns that the configuration declares; records may lack them."""

    def __init__(self, private: Mapping[str, Masks], declared: Mapping[str, Mapping[str, str]] = NOWHERE) -> None:
        self._declared = declared
        self._any = any(private.values())
        self._find = lru_cache(4096)(partial(find_table_entry, private))

    def __bool__(self) -> bool:
        return self._any

    def find_masks(self, table: str) -> Masks | None:
        """The masks of the table's columns; None for a table that is not configured."""
        return self._find(table) if self._any else None

    def get_masks(self, table: str) -> Masks:
        """The masks of the table's columns."""
        return self.find_masks(table) or NOTHING

    def masked_column(self, table: str, column: Column) -> Column:
        """The column as it is in masked records."""
        mask = self.get_masks(table).get(column.name)
        return column if mask is None else Column(column.name, mask.get_masked_type(column.type))

    def masked_spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding returns it. Raises ConfigProblem for a mask that does not fit the column."""
        masks = self.get_masks(table.name)
        if not table.partial:
            refuse_unknown_masks(masks, table, find_table_entry(self._declared, table.name) or ())
        rules = tuple((name, ColumnRule(mask=mask)) for name, mask in masks.items() if name in table.column_names)
        return ColumnTransforms(rules).apply_to(table) if rules else table


# JSON values in objects that are rows or keys.


Object = dict[str, msgspec.Raw]
NULL = msgspec.Raw(b"null")
OF_KEYS = ("database", "table")
"""Members of message keys that are not columns."""
PREFIX = "pk."
"""The prefix of column names in Maxwell's keys."""


class JsonValueWriter(ValueWriter):
    """`ValueWriter` for JSON, for columns with these readers."""

    def __init__(self, readers: Mapping[str, ValueReader]) -> None:
        self._readers = readers
        self.columns = frozenset(readers)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        reader = self._readers[name]
        if reader.wire is not msgspec.Raw:
            values = [None if value is None else msgspec.json.decode(value, type=reader.wire) for value in values]
        return reader.build(values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        return to_texts(values)

    def is_null(self, value: Any) -> bool:
        return bytes(value) == b"null"

    def to_value(self, text: str | None) -> msgspec.Raw:
        return NULL if text is None else msgspec.Raw(msgspec.json.encode(text))


def open_json_key(key: bytes | None, writer: JsonValueWriter, keys: Collection[str]) -> tuple[Object | None, list[Image]]:
    """The fields of a key that is an object of columns, and its images. None for any other key, which may repeat values
    and is not stored."""
    try:
        fields = None if key is None else read_object(key)
    except UNREADABLE:
        fields = None
    columns = {name for name in fields or () if name not in OF_KEYS}
    if fields is None or not all({name, name.removeprefix(PREFIX)} & writer.columns for name in columns):
        return None, []
    return fields, [Image(fields, writer, required=keys, prefix=prefix) for prefix in ("", PREFIX)]


def read_objects(token: msgspec.Raw) -> list[Object | None]:
    """The objects of a JSON object, or of an array of objects and nulls. Raises one of UNREADABLE."""
    text = bytes(token)
    return _several(text) if text.startswith(b"[") else [read_object(text)]


read_object = msgspec.json.Decoder(Object).decode
_several = msgspec.json.Decoder(list[Object | None]).decode
