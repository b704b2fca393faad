"""The pipeline of a decoder: a router, a frame decoder, an envelope reader, and their shared steps.

All of them work slice by slice (`arrow.frame_slices.map_slices`). A frame decoder makes changes of the good records of a
slice and rejects the others (`reject_records`). It merges both in the order of the records (`merge_parts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.change import changes_schema, refuse_frame_names
from replicator.domain.errors import Reject
from replicator.domain.table import Column, TableSpec
from replicator.ports.adapter_options import DecoderOptions
from replicator.ports.decoder import ROUTE, DecoderFeatures

from ...arrow.frame_slices import RECORD_IDS

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


def build_changes(
    table: TableSpec,
    raw: Sequence[pa.Array],
    *,
    ops: pa.Array,
    elements: Sequence[pa.Array],
    at: pa.Array,
    columns: Sequence[pa.Array],
    tx: pa.Array | None = None,
    errors: pa.Array | None = None,
    unchanged: pa.Array | None = None,
    key_changes: Sequence[pa.Array] = (),
) -> pa.Table:
    """The changes frame of rows, from its columns. `raw`: topic, partition and offset of the row's record (`record_ids`).
    `elements`: the sequence. `columns`: those of the table, in its order. Columns that are not given are null."""
    count, schema = len(ops), changes_schema(table)
    nothing = pa.nulls(count, pa.string())
    arrays = [
        ops,
        *elements,
        at,
        *raw,
        nothing if tx is None else tx,
        nothing if errors is None else errors,
        pa.nulls(count, pa.list_(pa.string())) if unchanged is None else unchanged,
        *key_changes,
    ]
    others = [pa.nulls(count, field.type) for field in list(schema)[len(arrays) : len(schema) - len(columns)]]
    return pa.Table.from_arrays([*arrays, *others, *columns], schema=schema)


def record_ids(raw: pa.RecordBatch) -> list[pa.Array]:
    """Topic, partition and offset of records."""
    return [raw.column(name) for name in RECORD_IDS.values()]


def describe_errors(errors: Mapping[int, Reject], count: int) -> pa.Array:
    """The column of errors of `count` records, from rejects by index."""
    if not errors:
        return pa.nulls(count, pa.string())
    return pa.array([str(errors[i]) if i in errors else None for i in range(count)], pa.string())
