"""Layouts of rows: from the header row of their file, or from declared columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import RESERVED_PREFIXES, Column

from ...arrow.frame_slices import select_records
from ...arrow.record_errors import malformed_reject
from ...arrow.value_readers import text_reader
from ..common.row_files import COLUMNS, KIND, LOAD, CsvDialect
from ..json.headers import read_values
from ..json.type_names import find_type_reader
from ..options import DmsCsvOptions
from .cells import read_names, split_rows

MAX_LAYOUTS = 4096
DECLARED = "declared"
WAY_OUT = (
    "declare them with `schema:` of the table, or have DMS write header rows (AddColumnName) and set `csv.header: true`"
)
UNDECLARED = malformed_reject(f"its file has no header row and its table declares no columns: {WAY_OUT}")


@dataclass(frozen=True, eq=False)
class CsvLayout:
    """The columns of the table and of its rows, or an error. `rows`: the names in a row, one tuple per width.
    `fingerprint` distinguishes layouts of a table."""

    fingerprint: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    error: Reject | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The possible numbers of columns in a row."""
        return tuple(map(len, self.rows))

    def get_names(self, width: int) -> tuple[str, ...]:
        """The names in a row with one of `widths`."""
        return next(names for names in self.rows if len(names) == width)


class CsvLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, options: DmsCsvOptions) -> None:
        self._options = options
        self._known: dict[tuple[bytes | None, str], CsvLayout] = {}

    def get_layout(self, header: bytes | None, table: str) -> CsvLayout:
        """The layout of rows of `table` in a file with this header row, or None."""
        which = (header, table)
        if which not in self._known:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            self._known[which] = self._read_layout(header, table)
        return self._known[which]

    def _read_layout(self, header: bytes | None, table: str) -> CsvLayout:
        types = self._options.columns_of(table) or {}
        declared = tuple(Column(name, find_type_reader(said).type) for name, said in types.items())
        if header is None:
            return self._declared_layout(declared)
        names = self._read_names(header)
        if isinstance(names, Reject):
            return CsvLayout(error=names)
        known = {column.name for column in declared}
        others = [name for name in names if name not in known and not self._is_bookkeeping(name)]
        columns = (*declared, *(Column(name, text_reader().type) for name in others))
        if declared and not others:
            return CsvLayout(DECLARED, declared, (names,))
        if not columns:
            return CsvLayout(error=malformed_reject("its header row names no column of a table"))
        written = msgspec.json.encode([column.name for column in columns])
        return CsvLayout(sha256(written).hexdigest()[:16], columns, (names,))

    def _declared_layout(self, declared: tuple[Column, ...]) -> CsvLayout:
        if not declared:
            return CsvLayout(error=UNDECLARED)
        names, first = tuple(column.name for column in declared), self._options.operation_column
        return CsvLayout(DECLARED, declared, (names,) if first in names else (names, (first, *names)))

    def _read_names(self, header: bytes) -> tuple[str, ...] | Reject:
        found, most = read_names(header, self._options.csv), self._options.limits.columns
        if isinstance(found, Reject):
            return Reject(found.code, f"its header row cannot be read: {found.sentence}")
        if len(found) > most:
            return Reject(RejectCode.TOO_LARGE, f"its header row has {len(found)} columns, more than the {most} allowed")
        names = tuple(name for name in found if name)
        if len(names) < len(found):
            return malformed_reject("its header row has a column without a name")
        return names if len(set(names)) == len(names) else malformed_reject("its header row names a column twice")

    def _is_bookkeeping(self, name: str) -> bool:
        return name == self._options.operation_column or name.startswith(RESERVED_PREFIXES)


# Records of one layout as columns by name.


NamedCells = tuple[list[int] | None, pa.RecordBatch, Mapping[str, pa.Array]]
"""Indices of records in their slice (None: all), the records, and their columns as text."""


def read_named_cells(
    raw: pa.RecordBatch, places: Sequence[int], layout: CsvLayout, dialect: CsvDialect, errors: dict[int, Reject]
) -> Iterator[NamedCells]:
    """The records of `raw` at `places`, one part per row width. Adds records without this layout to `errors` by index."""
    if layout.error is not None:
        errors |= dict.fromkeys(places, layout.error)
        return
    mine = select_part(raw, places)
    found = split_rows(mine.column("value"), layout.widths, dialect)
    errors |= {places[i]: reject for i, reject in found.errors.items()}
    for cells in found.parts:
        rows = select_part(mine, cells.places)
        where = None if rows.num_rows == raw.num_rows else [places[i] for i in cells.places]
        yield where, rows, dict(zip(layout.get_names(len(cells.columns)), cells.columns, strict=True))


# Record headers of DMS rows.


ROWS = 65_536
"""Records per slice of a frame. Slices are long, because work per slice and column is small."""


def mask_load_records(headers: pa.Array) -> pa.Array:
    """True for records of a full load."""
    return pc.fill_null(pc.equal(read_values(headers, KIND), LOAD.encode()), False)


def group_by_header(headers: pa.Array) -> Iterator[tuple[bytes | None, Sequence[int]]]:
    """Every header row, or None, with the indices of its records."""
    found = read_values(headers, COLUMNS)
    if found.null_count == len(found):
        if len(found):
            yield None, range(len(found))
        return
    encoded = found.dictionary_encode("encode")
    several = encoded.dictionary.to_pylist()
    for index, header in enumerate(several):
        places = range(len(found)) if len(several) == 1 else pc.indices_nonzero(pc.equal(encoded.indices, index)).to_pylist()
        yield header, places


def select_part(raw: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """The records at `places`, which must be in order."""
    return raw if len(places) == raw.num_rows else select_records(raw, list(places))
