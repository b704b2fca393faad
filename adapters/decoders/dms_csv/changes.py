"""Rows to changes: records are split by header row and width, decoded column by column, and merged in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, TIMESTAMP, Op, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.sequence import EPOCH_SHIFT
from replicator.domain.table import RESERVED_PREFIXES, Column, TableSpec

from ...arrow.frame_slices import Part, list_true_indices, merge_parts, reject_records, select_records, split_frame
from ...arrow.record_errors import malformed_reject
from ...arrow.text_values import read_texts
from ...arrow.value_readers import text_reader
from ..common.pipeline import ChangeBlock
from ..common.row_files import (
    COLUMNS,
    DMS_ROW_BITS,
    KIND,
    LOAD,
    CsvDialect,
    add_line,
    describe_location,
    is_first_row,
    split_offsets,
)
from ..json.headers import read_values
from ..json.type_names import find_type_reader
from ..options import DmsCsvOptions
from .cells import read_names, split_rows


class CsvFrameDecoder:
    """Decodes frames of records of one table. Caches nothing of the records."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        # The slices stay chunks: a copy of the frame takes as long as a tenth of its decoding.
        schema, frames = changes_schema(table), []
        for piece in split_frame(raw, SLICE_ROWS):
            errors: dict[int, Reject] = {}
            parts: list[Part] = []
            for header, indices in group_by_header(piece.column("headers")):
                layout = self._layouts.get_layout(header, table.name)
                types = {column.name: column.type for column in layout.columns}
                for places, rows, cells in read_named_cells(piece, indices, layout, self._options.csv, errors):
                    block = CsvChangeBlock(rows, cells, table, self._options, types=types, headless=header is None)
                    parts.append((places, block.build()))
            parts += reject_records(piece, table, errors)
            frames.append(merge_parts(parts, schema))
        whole = pa.concat_tables(frames or [schema.empty_table()])
        return add_line(whole, ERROR, whole[OFFSET], describe_location)


# Rows with the same columns to changes, column by column.


NAMES_ROW = malformed_reject(
    "it holds the names of the columns: its file begins with a header row, so write `csv: {header: true}` for the source"
)
SEQUENCE = 2


def read_operations(operations: pa.Array | None, raw: pa.RecordBatch, options: DmsCsvOptions) -> pa.Array:
    """The operation of every row, null for an unknown one. `operations` is None for rows without an operation column, and
    empty for rows without an operation."""
    change = pa.scalar(Op.CREATE.value if options.csv.inserts_only else None, pa.string())
    # Without an operation a change is rejected, not a create: if the table lost a column, a file without a header
    # would turn deletes into rows.
    silent = pc.if_else(mask_load_records(raw.column("headers")), pa.scalar(Op.READ.value), change)
    if operations is None:
        return silent
    operation_of = options.operation_of
    indices = pc.index_in(operations, value_set=pa.array(list(operation_of), pa.string()), skip_nulls=True)
    ops = pa.array([op.value for op in operation_of.values()], pa.string()).take(indices)
    is_silent = pc.and_(pc.is_null(ops), pc.fill_null(pc.equal(operations, ""), True))
    return pc.if_else(is_silent, silent, ops)


def find_header_rows(raw: pa.RecordBatch, cells: Mapping[str, pa.Array]) -> list[int]:
    """Rows at the start of a file that contain the names of all columns."""
    is_header = is_first_row(raw.column("offset"))
    for name, texts in cells.items():
        is_header = pc.and_(is_header, pc.fill_null(pc.equal(pc.utf8_lower(texts), name.lower()), False))
        if not pc.any(is_header).as_py():
            return []
    return list_true_indices(is_header)


class CsvChangeBlock:
    """Changes of rows with the same columns, whose texts have these `types`."""

    def __init__(
        self,
        raw: pa.RecordBatch,
        cells: Mapping[str, pa.Array],
        table: TableSpec,
        options: DmsCsvOptions,
        *,
        types: Mapping[str, pa.DataType],
        headless: bool,
    ) -> None:
        self._raw, self._cells, self._options, self._types = raw, cells, options, types
        operations = cells.get(options.operation_column)
        self._block = ChangeBlock(table, raw, read_operations(operations, raw, options))
        self._block.reject(dict.fromkeys(find_header_rows(raw, cells) if headless else (), NAMES_ROW))
        for row in list_true_indices(pc.is_null(self._block.ops)):
            value = operations[row].as_py() if operations is not None else None
            self._block.reject({row: options.unknown_operation_reject(value)})

    def build(self) -> pa.Table:
        """The changes frame of these rows, in their order."""
        offsets = self._raw.column("offset")
        negative = list_true_indices(pc.less(offsets, 0))
        self._block.reject(dict.fromkeys(negative, Reject(RejectCode.NO_SEQUENCE, "its offset is below 0")))
        first, second = split_offsets(offsets, DMS_ROW_BITS)
        first = pc.bit_wise_or(first, pa.scalar(self._options.epoch << EPOCH_SHIFT, pa.int64()))
        for column in self._block.table.columns:
            self.read_column(column)
        return self._block.build([first, second], at=null_out_of_range(self._raw.column("timestamp").cast(TIMESTAMP)))

    def read_column(self, column: Column) -> None:
        """Add a column to the block."""
        block, texts = self._block, self._cells.get(column.name)
        is_key = column.name in block.table.keys
        if texts is None:
            block.add_column(column, pa.nulls(self._raw.num_rows, column.type), unchanged=block.updates)
        else:
            unchanged = None
            placeholder = self._options.csv.unsent_value
            if placeholder is not None:
                is_placeholder = pc.fill_null(pc.equal(texts, placeholder), False)
                if pc.any(is_placeholder).as_py():
                    unchanged = pc.and_(is_placeholder, block.updates)
                    texts = pc.if_else(is_placeholder, pa.scalar(None, pa.string()), texts)
            mode = "reject" if is_key else self._options.reading_of(block.table.name, column.name)
            kind = self._types[column.name] if mode == "text" else column.type
            block.add_column(column, *read_texts(texts, kind, f"column {column.name!r}", mode), unchanged)
        if is_key:
            block.refuse_null_key(column.name, lambda _: self._cells if texts is None else ())


# Layouts of rows: from the header row of their file, or from declared columns.


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
        self.get_layout = lru_cache(MAX_LAYOUTS)(self.read_layout)

    def read_layout(self, header: bytes | None, table: str) -> CsvLayout:
        """The layout of rows of `table` in a file with this header row, or None."""
        types = self._options.columns_of(table) or {}
        declared = tuple(Column(name, find_type_reader(type_name).type) for name, type_name in types.items())
        declared_names, operation = tuple(types), self._options.operation_column
        if header is None:
            if not declared:
                return CsvLayout(error=UNDECLARED)
            rows = [declared_names] if operation in declared_names else [declared_names, (operation, *declared_names)]
            return CsvLayout(DECLARED, declared, tuple(rows))
        names = self._read_names(header)
        if isinstance(names, Reject):
            return CsvLayout(error=names)
        others = [name for name in names if name not in types and name != operation]
        others = [name for name in others if not name.startswith(RESERVED_PREFIXES)]
        columns = (*declared, *(Column(name, text_reader().type) for name in others))
        if declared and not others:
            return CsvLayout(DECLARED, declared, (names,))
        if not columns:
            return CsvLayout(error=malformed_reject("its header row names no column of a table"))
        names_json = msgspec.json.encode([column.name for column in columns])
        return CsvLayout(sha256(names_json).hexdigest()[:16], columns, (names,))

    def _read_names(self, header: bytes) -> tuple[str, ...] | Reject:
        columns, most = read_names(header, self._options.csv), self._options.limits.columns
        if isinstance(columns, Reject):
            return Reject(columns.code, f"its header row cannot be read: {columns.sentence}")
        if len(columns) > most:
            return Reject(RejectCode.TOO_LARGE, f"its header row has {len(columns)} columns, more than the {most} allowed")
        names = tuple(name for name in columns if name)
        if len(names) < len(columns):
            return malformed_reject("its header row has a column without a name")
        return names if len(set(names)) == len(names) else malformed_reject("its header row names a column twice")


# Records of one layout as columns by name.


NamedCells = tuple[list[int] | None, pa.RecordBatch, Mapping[str, pa.Array]]
"""Indices of records in their slice (None: all), the records, and their columns as text."""


def read_named_cells(
    raw: pa.RecordBatch, indices: Sequence[int], layout: CsvLayout, dialect: CsvDialect, errors: dict[int, Reject]
) -> Iterator[NamedCells]:
    """The records of `raw` at `indices`, one part per row width. Adds records without this layout to `errors` by index."""
    if layout.error is not None:
        errors |= dict.fromkeys(indices, layout.error)
        return
    records = select_part(raw, indices)
    split_values = split_rows(records.column("value"), layout.widths, dialect)
    errors |= {indices[i]: reject for i, reject in split_values.errors.items()}
    for cells in split_values.parts:
        rows = select_part(records, cells.places)
        where = None if rows.num_rows == raw.num_rows else [indices[i] for i in cells.places]
        yield where, rows, dict(zip(layout.get_names(len(cells.columns)), cells.columns, strict=True))


# Record headers of DMS rows.


SLICE_ROWS = 65_536
"""Records per slice of a frame. Slices are long, because work per slice and column is small."""


def mask_load_records(headers: pa.Array) -> pa.Array:
    """True for records of a full load."""
    return pc.fill_null(pc.equal(read_values(headers, KIND), LOAD.encode()), False)


def group_by_header(headers: pa.Array) -> Iterator[tuple[bytes | None, Sequence[int]]]:
    """Every header row, or None, with the rows of its records."""
    texts = read_values(headers, COLUMNS)
    if texts.null_count == len(texts):
        if len(texts):
            yield None, range(len(texts))
        return
    encoded = texts.dictionary_encode("encode")
    several = encoded.dictionary.to_pylist()
    for index, header in enumerate(several):
        rows = range(len(texts)) if len(several) == 1 else pc.indices_nonzero(pc.equal(encoded.indices, index)).to_pylist()
        yield header, rows


def select_part(raw: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    """The records at `indices`, which must be in order."""
    return raw if len(indices) == raw.num_rows else select_records(raw, list(indices))
