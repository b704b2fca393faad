"""Masking of raw records before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from replicator.domain.errors import Reject

from ...arrow.record_errors import UNREADABLE, unreadable_reject
from ..json.headers import strip_values
from .mask_headers import Header, MaskHeader, add_mask_header, read_mask_headers
from .masked_values import OpenRecord, ValueMasker
from .tables import MaskedTables, Masks

WITHHELD = b'{"withheld": "cannot be read, and may hold private values"}'


class RecordOpener(Protocol):
    """Access to the values in records of one format."""

    def find_table(self, record: RoutedRecord) -> str | None:
        """The table of a record that routing gave no table, if it can be found. Never fails."""
        ...

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        """Opened records of tables, or for each unreadable record the reason. Never fails."""
        ...

    def open_key(self, key: bytes, of: OpenRecord) -> OpenRecord | None:
        """The key of that record; None if its content is unknown. Such a key is not stored."""
        ...

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value of an ignored record, as it may be stored. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...


class EachRecordOpener(RecordOpener, Protocol):
    """`RecordOpener` for formats that read records one by one."""

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        return list(map(self._try_open, records))

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        """A record that was routed to a table. Raises one of `arrow.record_errors.UNREADABLE`."""
        ...

    def _try_open(self, record: RoutedRecord) -> OpenRecord | Reject:
        try:
            return self.open_one(record)
        except UNREADABLE as error:
            return unreadable_reject(error)


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


class RecordMasker:
    """Replaces private values in records of a source. `route` is the decoder's."""

    def __init__(self, tables: MaskedTables, opens: RecordOpener, route: Callable[[pa.Table], pa.Table]) -> None:
        self._tables, self._opens, self._route = tables, opens, route

    def mask_records(self, raw: pa.Table) -> pa.Table:
        if not self._tables or not raw.num_rows:
            return raw
        masking, records = ValueMasker(), self._read_records(raw)
        waiting = [self._has_masked_columns(record) for record in records]
        opened = iter(self._opens.open_records([record for record, waits in zip(records, waiting, strict=True) if waits]))
        found = [
            self._open_record(place, record, next(opened), masking) if waits else self._mask_other(record)
            for place, (record, waits) in enumerate(zip(records, waiting, strict=True))
        ]
        errors = masking.mask_all()
        done = [one.to_masked(errors.get(i)) if isinstance(one, UnmaskedRecord) else one for i, one in enumerate(found)]
        for name, values in zip(MaskedRecord._fields, zip(*done, strict=True), strict=True):
            at, kind = raw.column_names.index(name), raw.schema.field(name).type
            raw = raw.set_column(at, raw.schema.field(name), pa.chunked_array([pa.array(values, kind)]))
        return raw

    def _read_records(self, raw: pa.Table) -> list[RoutedRecord]:
        routes = self._route(raw)
        headers = raw["headers"].combine_chunks()
        said = read_mask_headers(headers)
        columns = [raw["topic"], headers, raw["key"], raw["value"], *(routes[n] for n in ("table", "ignored", "error"))]
        rows = zip(*(column.to_pylist() for column in columns), map(said.get, range(raw.num_rows)), strict=True)
        return [RoutedRecord(*row) for row in rows]

    def _has_masked_columns(self, record: RoutedRecord) -> bool:
        """True if the record has columns that are not masked yet."""
        return record.value is not None and bool(_remaining_masks(self._tables.get_masks(record.table_name), record.mark))

    def _open_record(
        self, place: int, record: RoutedRecord, opened: OpenRecord | Reject, masking: ValueMasker
    ) -> MaskedRecord | UnmaskedRecord:
        masks = self._tables.get_masks(record.table_name)
        mark = MaskHeader(record.table_name, tuple(sorted(masks)))
        if isinstance(opened, Reject):
            return _redact_whole(record)._replace(headers=add_mask_header(None, mark, opened))
        key = None if record.key is None else self._opens.open_key(record.key, opened)
        left = _remaining_masks(masks, record.mark)
        masking.add(place, opened, left)
        if key is not None:
            masking.add(place, key, left)
        return UnmaskedRecord(record, opened, key, mark)

    def _mask_other(self, record: RoutedRecord) -> MaskedRecord:
        """A record without columns to mask, or without a table in its route."""
        if record.table_name and record.value is not None:
            return MaskedRecord(record.headers, record.key, record.value)
        try:
            named = self._opens.find_table(record)
            if named is not None and self._tables.find_masks(named) == {}:
                return MaskedRecord(record.headers, record.key, record.value)
            if record.ignored is None or record.value is None:
                return _redact_whole(record)
            return MaskedRecord(strip_values(record.headers), record.key and WITHHELD, self._opens.mask_ignored(record))
        except UNREADABLE:
            return _redact_whole(record)


def _remaining_masks(masks: Masks, mark: MaskHeader | None) -> Masks:
    """The masks of columns that are not masked yet."""
    return masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}


def _redact_whole(record: RoutedRecord) -> MaskedRecord:
    return MaskedRecord(None, record.key and WITHHELD, record.value and WITHHELD)
