"""The pipeline of a decoder: a router, a frame decoder, an envelope reader, and their shared steps.

All of them work slice by slice (`arrow.frame_slices.map_slices`). A frame decoder makes `ChangeBlock`s of the good records
of a slice and rejects the others (`reject_records`). It merges both in the order of the records (`merge_parts`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op, changes_schema, refuse_frame_names
from replicator.domain.errors import Reject
from replicator.domain.table import Column, TableSpec
from replicator.ports.adapter_options import DecoderOptions
from replicator.ports.decoder import ROUTE, DecoderFeatures

from ...arrow.frame_slices import RECORD_IDS, list_names, list_true_indices, make_mask
from ...arrow.record_errors import null_key_reject

TOMBSTONE = "tombstone"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class FrameRouter(Protocol):
    """Does `route` of a `CompositeDecoder`."""

    def route(self, raw: pa.Table) -> pa.Table: ...


class FrameDecoder(Protocol):
    """Does `decode` of a `CompositeDecoder`."""

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table: ...


class EnvelopeReader(Protocol):
    """Does `envelope` of a `CompositeDecoder`."""

    def envelope(self, raw: pa.Table) -> pa.Table: ...


class CompositeDecoder:
    """`ports.decoder.Decoder` without `learn`. Pickled as its options: its parts may cache schemas, never rows."""

    def __init__(
        self, options: DecoderOptions, *, routing: FrameRouter, decoding: FrameDecoder, envelopes: EnvelopeReader
    ) -> None:
        self._pickled = options
        self._routing, self._decoding, self._envelopes = routing, decoding, envelopes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._pickled,)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures()

    def route(self, raw: pa.Table) -> pa.Table:
        return self._routing.route(raw)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoding.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._envelopes.envelope(raw)


def build_row_spec(
    table: str, columns: tuple[Column, ...], *, sequence: int, fingerprint: str, keys: Sequence[str] | None
) -> TableSpec:
    """The specification of a table whose records do not name its key. Raises Fatal for columns with a name that frames
    reserve, ConfigProblem for a key that is not among the columns."""
    spec = TableSpec(table, columns, (), sequence, fingerprint)
    refuse_frame_names(spec)
    return spec.with_keys(tuple(keys or ()))


def build_routes(outcomes: Sequence[Outcome]) -> pa.Table:
    """The routes of records, in their order."""
    columns = [pa.array([outcome[i] for outcome in outcomes], pa.string()) for i in range(len(ROUTE))]
    return pa.Table.from_arrays(columns, schema=ROUTE)


def describe_errors(errors: Mapping[int, Reject], count: int) -> pa.Array:
    """The column of errors of `count` records, from rejects by index."""
    if not errors:
        return pa.nulls(count, pa.string())
    return pa.array([str(errors[i]) if i in errors else None for i in range(count)], pa.string())


# Blocks of changes: rows of a changes frame, whose columns are added one by one.
#
# All formats treat values in the same way. An invalid value rejects its record. In a deleted row, outside the key, it counts
# as unchanged, so that the delete is not lost. A null key rejects its record, except in truncates.


class ChangeBlock:
    """Rows of the records `raw`.

    - `ops`: the operation of each row, null for an unknown one.
    - `record_indices`: the record of each row; None if each record has one row.
    - `errors`: the first error of each record. Adding columns adds errors.
    """

    def __init__(
        self,
        table: TableSpec,
        raw: pa.RecordBatch,
        ops: Sequence[str | None] | pa.Array,
        record_indices: Sequence[int] | None = None,
        errors: dict[int, Reject] | None = None,
    ) -> None:
        self.table, self.raw = table, raw
        self.ops = ops if isinstance(ops, pa.Array) else pa.array(ops, pa.string())
        self.updates = pc.fill_null(pc.equal(self.ops, Op.UPDATE.value), False)
        self.errors = {} if errors is None else errors
        self._record_indices = record_indices
        self._indices = None if record_indices is None else pa.array(record_indices, pa.int64())
        self._columns: dict[str, pa.Array] = {}
        self._unchanged: dict[str, pa.Array] = {}

    def find_record(self, row: int) -> int:
        """The index of a row's record."""
        return row if self._record_indices is None else self._record_indices[row]

    def reject(self, errors: Mapping[int, Reject]) -> None:
        """Add the errors of rows to those of their records."""
        for row, reject in errors.items():
            self.errors.setdefault(self.find_record(row), reject)

    def add_column(
        self, column: Column, values: pa.Array, bad: Mapping[int, Reject] | None = None, unchanged: pa.Array | None = None
    ) -> None:
        """Add the next column of the table. `bad`: the errors of invalid values by row; these values are null. `unchanged`:
        true for values that were not sent."""
        self._columns[column.name] = values
        is_key, bad = column.name in self.table.keys, bad or {}
        lost = [] if is_key else [row for row in bad if self.ops[row].as_py() == Op.DELETE]
        self.reject({row: bad[row] for row in bad.keys() - lost})
        if lost:
            mask = make_mask(lost, len(values))
            unchanged = mask if unchanged is None else pc.or_(unchanged, mask)
        if unchanged is not None and not is_key:
            self._unchanged[column.name] = unchanged

    def refuse_null_key(self, name: str, names_of: Callable[[int], Collection[str]] = lambda _: ()) -> None:
        """Reject the records whose column `name` is null. `names_of`: the columns in the record of a row, for a hint, if
        it lacks this one."""
        for row in list_true_indices(pc.is_null(self._columns[name])):
            if self.ops[row].as_py() != Op.TRUNCATE:
                self.reject({row: null_key_reject(name, self.table.name, names_of(row))})

    def repeat(self, values: pa.Array) -> pa.Array:
        """Values of records, repeated for each of their rows."""
        return values if self._indices is None else values.take(self._indices)

    def build(
        self, elements: Sequence[pa.Array], *, at: pa.Array, tx: pa.Array | None = None, key_changes: Sequence[pa.Array] = ()
    ) -> pa.Table:
        """The changes frame, with all columns of the table. The sequence (`elements`) and `key_changes`, null if not given,
        are those of rows, `at` and `tx` those of records."""
        schema, count, columns = changes_schema(self.table), self.raw.num_rows, self._columns.values()
        ids = [self.raw.column(name) for name in RECORD_IDS.values()]
        errors = describe_errors(self.errors, count)
        of_records = map(self.repeat, [at, *ids, pa.nulls(count, pa.string()) if tx is None else tx, errors])
        arrays = [self.ops, *elements, *of_records, list_names(self._unchanged, len(self.ops)), *key_changes]
        others = [pa.nulls(len(self.ops), field.type) for field in list(schema)[len(arrays) : len(schema) - len(columns)]]
        return pa.Table.from_arrays([*arrays, *others, *columns], schema=schema)
