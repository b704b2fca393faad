"""Masking of raw records in formats whose records contain nothing but rows.

A stored record has masked values wherever it contains them. Its header (`MaskHeader`) lists the masked columns, so
that they are not masked again when the record is read back. Live records are masked before they are decoded, so reading a
stored record gives the same result.

Each format shows where its records contain values (`RecordOpener`). Values get the type of their column, so that
a value has one text in every notation. Unreadable records that may belong to a table with private columns are stored
without content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from itertools import groupby
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

    def open_key(self, key: bytes, record: OpenRecord) -> OpenRecord | None:
        """The key of that record; None if its content is unknown. Such a key is not stored."""
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


class MaskedRecord(NamedTuple):
    """A record as it is stored."""

    headers: list[Header] | None
    key: bytes | None
    value: bytes | None


@dataclass
class UnmaskedRecord:
    """A record that is open, before its values are masked."""

    record: RoutedRecord
    opened: OpenRecord
    key: OpenRecord | None
    mark: MaskHeader

    def to_masked(self, error: Reject | None) -> MaskedRecord:
        """The record after its values were masked."""
        headers = add_mask_header(self.record.headers, self.mark, error)
        return MaskedRecord(headers, self.key and self.key.close(), self.opened.close())


def replace_records(raw: pa.Table, records: Sequence[MaskedRecord]) -> pa.Table:
    """The frame with these headers, keys and values."""
    for name, values in zip(MaskedRecord._fields, zip(*records, strict=True), strict=True):
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

    def _mask_few(self, raw: pa.Table) -> list[MaskedRecord]:
        routes = self._route(raw)
        headers = raw["headers"].combine_chunks()
        marks = read_mask_headers(headers)
        columns = [raw["topic"], headers, raw["key"], raw["value"], *(routes[n] for n in ("table", "ignored", "error"))]
        rows = zip(*(column.to_pylist() for column in columns), map(marks.get, range(raw.num_rows)), strict=True)
        records = [RoutedRecord(*row) for row in rows]
        # Records that wait have columns that are not masked yet.
        get_masks, masking = self._tables.get_masks, ValueMasker()
        waiting = [r.value is not None and bool(_remaining_masks(get_masks(r.table_name), r.mark)) for r in records]
        opened = iter(self._opens.open_records([record for record, waits in zip(records, waiting, strict=True) if waits]))
        outcomes = [
            self._open_record(index, record, next(opened), masking) if waits else self._mask_other(record)
            for index, (record, waits) in enumerate(zip(records, waiting, strict=True))
        ]
        errors = masking.mask_all()
        return [one.to_masked(errors.get(i)) if isinstance(one, UnmaskedRecord) else one for i, one in enumerate(outcomes)]

    def _open_record(
        self, index: int, record: RoutedRecord, opened: OpenRecord | Reject, masking: ValueMasker
    ) -> MaskedRecord | UnmaskedRecord:
        masks = self._tables.get_masks(record.table_name)
        mark = MaskHeader(record.table_name, tuple(sorted(masks)))
        if isinstance(opened, Reject):
            return redact_whole(record.key, record.value)._replace(headers=add_mask_header(None, mark, opened))
        key = None if record.key is None else self._opens.open_key(record.key, opened)
        mask_rest = _remaining_masks(masks, record.mark)
        masking.add(index, opened, mask_rest)
        if key is not None:
            masking.add(index, key, mask_rest)
        return UnmaskedRecord(record, opened, key, mark)

    def _mask_other(self, record: RoutedRecord) -> MaskedRecord:
        """A record without columns to mask, or without a table in its route."""
        if record.table_name and record.value is not None:
            return MaskedRecord(record.headers, record.key, record.value)
        try:
            table = self._opens.find_table(record)
            if table is not None and self._tables.find_masks(table) == {}:
                return MaskedRecord(record.headers, record.key, record.value)
            if record.ignored is None or record.value is None:
                return redact_whole(record.key, record.value)
            return MaskedRecord(strip_values(record.headers), record.key and WITHHELD, self._opens.mask_ignored(record))
        except UNREADABLE:
            return redact_whole(record.key, record.value)


def _remaining_masks(masks: Masks, mark: MaskHeader | None) -> Masks:
    """The masks of columns that are not masked yet."""
    return masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}


def redact_whole(key: bytes | None, value: bytes | None) -> MaskedRecord:
    """The record without content."""
    return MaskedRecord(None, key and WITHHELD, value and WITHHELD)


# Values in records, and their replacements.


class Role(Enum):
    """The role of an image in its record: the new row, the deleted row, or other values."""

    ROW = "row"
    DELETED = "deleted"
    OTHER = "other"


class ValueWriter(Protocol):
    """Reads and writes values in records of a format. One object for all records of one layout."""

    columns: Collection[str]
    """The columns whose values it can read."""

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column as an Arrow array; None is null. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """Values of any column as the texts in the record; None is null. Raises the same errors as `array`."""
        ...

    def is_null(self, value: Any) -> bool:
        """True if a value is NULL."""
        ...

    def to_value(self, text: str | None) -> Any:
        """The value for a text, or for null."""
        ...


class Image(NamedTuple):
    """Values of one row: `fields` by name, which are replaced. `prefix`: the prefix of their names."""

    fields: dict[str, Any]
    role: Role
    prefix: str = ""


class OpenRecord(NamedTuple):
    """A record whose values can be replaced. `keys`: the key's columns. `close` returns the record's bytes."""

    images: Sequence[Image]
    writer: ValueWriter
    keys: Collection[str]
    close: Callable[[], bytes]


@dataclass
class MaskedCells:
    """The values of one column in several records."""

    writer: ValueWriter
    name: str
    mask: Mask
    places: list[int] = field(default_factory=list)
    images: list[tuple[Image, bool]] = field(default_factory=list)
    """The flag is true if an invalid value makes its record a reject."""

    def mask_values(self) -> Mapping[int, Reject]:
        """Replace every value by its masked value. Returns rejects by index of their record."""
        fields = [image.fields[image.prefix + self.name] for image, _ in self.images]
        values = [None if self.writer.is_null(field) else field for field in fields]
        bad: Mapping[int, Reject] = {}
        if self.mask.kind in ("nothing", "fixed"):
            texts = [self.mask.text if self.mask.kind == "fixed" else None] * len(values)
        else:
            array, bad = build_or_reject(self._read_array, values, f"column {self.name!r}")
            texts = mask_values(pa.chunked_array([array]), self.mask).to_pylist()
        for (image, _), value, text in zip(self.images, values, texts, strict=True):
            if value is not None:
                image.fields[image.prefix + self.name] = self.writer.to_value(text)
        return {self.places[i]: reject for i, reject in bad.items() if self.images[i][1]}

    def _read_array(self, values: Sequence[Any]) -> pa.Array:
        """Values with the type of the column, if that type has a unique text; otherwise the texts as written. Lanes stop
        at such a column, but the stored records are masked all the same."""
        if self.name in self.writer.columns:
            array = self.writer.array(self.name, values)
            if is_hashable(array.type):
                return array
        return self.writer.texts(values)


class ValueMasker:
    """Collects the values of records, and masks those of one column at once."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, str], MaskedCells] = {}

    def add(self, index: int, record: OpenRecord, masks: Mapping[str, Mask]) -> None:
        """Add the values of a record at an index."""
        for image in record.images:
            for name, mask in masks.items():
                if image.prefix + name in image.fields:
                    cells = self._cells.setdefault((id(record.writer), name), MaskedCells(record.writer, name, mask))
                    is_key = name in record.keys
                    cells.places.append(index)
                    cells.images.append((image, image.role is Role.ROW or is_key))

    def mask_all(self) -> Mapping[int, Reject]:
        """Replace all values. Returns for each rejected record, by index, its first error."""
        errors: dict[int, Reject] = {}
        for cells in self._cells.values():
            for index, reject in cells.mask_values().items():
                errors.setdefault(index, reject)
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


class ColumnReader(Protocol):
    """Reads columns of JSON rows: see `ValueWriter`."""

    columns: Collection[str]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array: ...


class JsonValueWriter(ValueWriter):
    """`ValueWriter` for JSON. `reads` reads the columns. `names` are all columns that rows have."""

    def __init__(self, reads: ColumnReader, names: Collection[str]) -> None:
        self.columns, self.names = reads.columns, names
        self._reads = reads

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._reads.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        return to_texts(values)

    def is_null(self, value: Any) -> bool:
        return bytes(value) == b"null"

    def to_value(self, text: str | None) -> msgspec.Raw:
        return NULL if text is None else msgspec.Raw(msgspec.json.encode(text))


def open_json_key(key: bytes, record: OpenRecord) -> OpenRecord | None:
    """A key that is an object of columns. None for any other key, which may repeat values and is not stored."""
    names = record.writer.names if isinstance(record.writer, JsonValueWriter) else ()
    try:
        fields = read_object(key)
    except UNREADABLE:
        return None
    if not all(name in names or name.removeprefix(PREFIX) in names for name in fields if name not in OF_KEYS):
        return None
    images = [Image(fields, Role.OTHER), Image(fields, Role.OTHER, PREFIX)]
    return OpenRecord(images, record.writer, record.keys, lambda: msgspec.json.encode(fields))


def read_objects(token: msgspec.Raw) -> list[Object | None]:
    """The objects of a JSON object, or of an array of objects and nulls. Raises one of UNREADABLE."""
    text = bytes(token)
    return _several(text) if text.startswith(b"[") else [read_object(text)]


read_object = msgspec.json.Decoder(Object).decode
_several = msgspec.json.Decoder(list[Object | None]).decode
