"""Access to values in CSV rows, for masking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode

from ...arrow.record_errors import ValueMisfit, malformed_reject
from ...arrow.text_values import find_text_reader
from ..common.row_files import COLUMNS, CsvDialect
from ..masking import Image, MaskedTables, OpenRecord, RecordOpener, Role, RoutedRecord, ValueWriter
from ..options import DmsCsvOptions
from .cells import split_rows, to_row
from .layouts import MAX_LAYOUTS, CsvLayout, CsvLayouts


class CsvValueWriter(ValueWriter):
    """`decoders.masking.ValueWriter` of rows of a layout: every value is its text."""

    def __init__(self, layout: CsvLayout, dialect: CsvDialect) -> None:
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
        self._writes: dict[CsvLayout, CsvValueWriter] = {}

    def find_table(self, record: RoutedRecord) -> str | None:
        return record.topic

    def open_records(self, records: Sequence[RoutedRecord]) -> Sequence[OpenRecord | Reject]:
        """Parses the rows of one file at once."""
        groups: dict[tuple[bytes | None, str], list[int]] = defaultdict(list)
        for place, record in enumerate(records):
            groups[_find_header(record), record.topic].append(place)
        found: dict[int, OpenRecord | Reject] = {}
        for (header, topic), places in groups.items():
            layout = self._layouts.get_layout(header, topic)
            error = layout.error or (self._missing_header_reject(layout, topic) if header is not None else None)
            if error is not None:
                found |= dict.fromkeys(places, error)
                continue
            values = pa.array([records[place].value for place in places], pa.binary())
            for at, one in self._open_rows(values, layout, self._options.keys_of(topic) or ()):
                found[places[at]] = one
        return [found[place] for place in range(len(records))]

    def open_key(self, key: bytes, of: OpenRecord) -> OpenRecord | None:  # noqa: ARG002 - rows of files have no keys
        return None

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The value, unless the table has masks: then its columns are unknown, and the record is not stored."""
        if self._tables.get_masks(record.topic):
            raise ValueMisfit(RejectCode.MALFORMED, "the columns of its table are not known")
        return record.value

    def _open_rows(
        self, values: pa.Array, layout: CsvLayout, keys: Collection[str]
    ) -> list[tuple[int, OpenRecord | Reject]]:
        dialect, writes = self._options.csv, self._get_writer(layout)
        read = split_rows(values, layout.widths, dialect)
        found: list[tuple[int, OpenRecord | Reject]] = list(read.errors.items())
        for part in read.parts:
            names = layout.get_names(len(part.columns))
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            for place, row in zip(part.places, rows, strict=True):
                fields = dict(zip(names, row, strict=True))
                found.append(
                    (
                        place,
                        OpenRecord(
                            [Image(fields, self._find_role(fields))], writes, keys, partial(_to_row, fields, dialect)
                        ),
                    )
                )
        return found

    def _missing_header_reject(self, layout: CsvLayout, topic: str) -> Reject | None:
        """The reject of rows whose header row lacks a masked column: it may be a row of values. Lanes stop anyway."""
        names = {name for row in layout.rows for name in row}
        missing = sorted(self._tables.get_masks(topic).keys() - names)
        return (
            malformed_reject(f"its header row lacks the private column {missing[0]!r}: it may be a row") if missing else None
        )

    def _find_role(self, fields: dict[str, str | None]) -> Role:
        said = fields.get(self._options.operation_column)
        return Role.DELETED if said and self._options.operation_of.get(said) == Op.DELETE else Role.ROW

    def _get_writer(self, layout: CsvLayout) -> CsvValueWriter:
        if layout not in self._writes:
            if len(self._writes) >= MAX_LAYOUTS:
                self._writes.clear()
            self._writes[layout] = CsvValueWriter(layout, self._options.csv)
        return self._writes[layout]


def _to_row(fields: dict[str, str | None], dialect: CsvDialect) -> bytes:
    return to_row(fields.values(), dialect)


def _find_header(record: RoutedRecord) -> bytes | None:
    """The first header row, as in `headers.group_by_header`."""
    found: list[bytes] = [one["value"] or b"" for one in record.headers or () if one["name"] == COLUMNS]
    return found[0] if found else None
