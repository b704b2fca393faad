"""Where rows of CSV have values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode

from ...arrow.dms import COLUMNS, Dialect
from ...arrow.json.faults import Unfit, malformed
from ...arrow.texts import reader_of
from ...arrow.veils.masking import Image, Opened, Role, Writes
from ...arrow.veils.records import Opens, Record
from ...arrow.veils.tables import PrivateTables
from .cells import split
from .layouts import MAX_LAYOUTS, Layout, Layouts
from .options import Options
from .written import row_of


class CsvWrites(Writes):
    """`veils.masking.Writes` of rows of a layout: every value is its text."""

    def __init__(self, layout: Layout, dialect: Dialect) -> None:
        self._types = {column.name: column.type for column in layout.columns}
        self._unsent = dialect.unsent_value
        self.columns: Collection[str] = frozenset(self._types)

    def array(self, name: str, values: Sequence[str | None]) -> pa.Array:
        """See `Writes.array`."""
        texts, read = self.texts(values), reader_of(self._types[name])
        return texts if read is None else read(texts)

    def texts(self, values: Sequence[str | None]) -> pa.Array:
        """See `Writes.texts`."""
        return pa.array(values, pa.string())

    def is_null(self, value: str | None) -> bool:
        """See `Writes.is_null`. What was not sent stays so."""
        return value is None or value == self._unsent

    def written(self, text: str | None) -> str | None:
        """See `Writes.written`."""
        return text


class OpensCsv(Opens):
    """`veils.records.Opens` of rows of CSV."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts
        self._tables = PrivateTables(options.private)
        self._writes: dict[Layout, CsvWrites] = {}

    def table_of(self, record: Record) -> str | None:
        """See `Opens.table_of`."""
        return record.topic

    def open(self, records: Sequence[Record]) -> Sequence[Opened | Reject]:
        """See `Opens.open`. Rows of one file are parsed together."""
        groups: dict[tuple[bytes | None, str], list[int]] = defaultdict(list)
        for place, record in enumerate(records):
            groups[_header(record), record.topic].append(place)
        found: dict[int, Opened | Reject] = {}
        for (header, topic), places in groups.items():
            layout = self._layouts.of(header, topic)
            error = layout.error or (self._headless(layout, topic) if header is not None else None)
            if error is not None:
                found |= dict.fromkeys(places, error)
                continue
            values = pa.array([records[place].value for place in places], pa.binary())
            for at, one in self._rows(values, layout, self._options.keys_of(topic) or ()):
                found[places[at]] = one
        return [found[place] for place in range(len(records))]

    def key(self, key: bytes, of: Opened) -> Opened | None:  # noqa: ARG002 - rows of files have none
        """See `Opens.key`."""
        return None

    def ignored(self, record: Record) -> bytes | None:
        """See `Opens.ignored`. Of a table whose columns are not known nothing is."""
        if self._tables.of(record.topic):
            raise Unfit(RejectCode.MALFORMED, "the columns of its table are not known")
        return record.value

    def _rows(self, values: pa.Array, layout: Layout, keys: Collection[str]) -> list[tuple[int, Opened | Reject]]:
        dialect, writes = self._options.csv, self._of(layout)
        read = split(values, layout.widths, dialect)
        found: list[tuple[int, Opened | Reject]] = list(read.errors.items())
        for part in read.parts:
            names = layout.names(len(part.columns))
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            for place, row in zip(part.places, rows, strict=True):
                fields = dict(zip(names, row, strict=True))
                found.append(
                    (place, Opened([Image(fields, self._role(fields))], writes, keys, partial(_row, fields, dialect)))
                )
        return found

    def _headless(self, layout: Layout, topic: str) -> Reject | None:
        """Why a header row is taken for a row of values. Lanes stop at it by themselves."""
        names = {name for row in layout.rows for name in row}
        missing = sorted(self._tables.of(topic).keys() - names)
        return malformed(f"its header row lacks the private column {missing[0]!r}: it may be a row") if missing else None

    def _role(self, fields: dict[str, str | None]) -> Role:
        said = fields.get(self._options.operation_column)
        return Role.DELETED if said and self._options.operation_of.get(said) == Op.DELETE else Role.ROW

    def _of(self, layout: Layout) -> CsvWrites:
        if layout not in self._writes:
            if len(self._writes) >= MAX_LAYOUTS:
                self._writes.clear()
            self._writes[layout] = CsvWrites(layout, self._options.csv)
        return self._writes[layout]


def _row(fields: dict[str, str | None], dialect: Dialect) -> bytes:
    return row_of(fields.values(), dialect)


def _header(record: Record) -> bytes | None:
    """The first, as `headers.by_columns`."""
    found: list[bytes] = [one["value"] or b"" for one in record.headers or () if one["name"] == COLUMNS]
    return found[0] if found else None
