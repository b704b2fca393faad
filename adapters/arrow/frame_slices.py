"""Frames in slices of limited size, and slices merged in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, PARTITION, TOPIC, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec

PIECE_ROWS = 4_096
FEW = 512
"""Records per chunk below which copying a frame into one chunk costs less than the work per slice (measured)."""
SMALL = 512 * 1024 * 1024
RECORD_IDS = {TOPIC: "topic", PARTITION: "partition", OFFSET: "offset"}

Part = tuple[list[int] | None, pa.Table]
"""Indices of records in their slice (None: all), and their changes."""


def split_frame(raw: pa.Table, rows: int = PIECE_ROWS) -> Iterator[pa.RecordBatch]:
    """Consecutive slices of at most `rows` records. Frames of many tiny chunks are copied into one chunk first."""
    count = raw["value"].num_chunks
    if count > 1 and raw.num_rows < FEW * count and raw.nbytes < SMALL:
        raw = raw.combine_chunks()
    return iter(raw.to_batches(max_chunksize=rows))


def map_slices(
    raw: pa.Table, schema: pa.Schema, read: Callable[[pa.RecordBatch], pa.Table], rows: int = PIECE_ROWS
) -> pa.Table:
    """The results of `read` for the slices of a frame, as one table of `schema`."""
    return pa.concat_tables([schema.empty_table(), *map(read, split_frame(raw, rows))]).combine_chunks()


def select_records(raw: pa.RecordBatch, indices: list[int] | None) -> pa.RecordBatch:
    """The records at `indices`, or all."""
    return raw if indices is None else raw.take(pa.array(indices, pa.int64()))


def build_rejected(raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
    """The changes frame of rejected records: only positions and errors are set."""
    by_name = {name: raw.column(of) for name, of in RECORD_IDS.items()} | {ERROR: pa.array(map(str, rejects), pa.string())}
    schema = changes_schema(table)
    columns = [by_name[f.name] if f.name in by_name else pa.nulls(raw.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def reject_records(raw: pa.RecordBatch, table: TableSpec, errors: Mapping[int, Reject]) -> list[Part]:
    """The changes of the records of a slice that have errors, by index; none if there are no errors."""
    bad = sorted(errors)
    return [(bad, build_rejected(select_records(raw, bad), table, [errors[i] for i in bad]))] if bad else []


def merge_parts(parts: list[Part], schema: pa.Schema) -> pa.Table:
    """The parts of one slice as one frame, in the order of its records."""
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1]
    whole = pa.concat_tables([schema.empty_table(), *(part for _, part in parts)])
    indices = pa.array([row for rows, _ in parts for row in rows or ()], pa.int64())
    rising = pc.all(pc.less_equal(indices.slice(0, max(len(indices) - 1, 0)), indices.slice(1))).as_py()
    return whole if rising is not False else whole.combine_chunks().take(pc.sort_indices(indices))


def list_true_indices(mask: pa.Array) -> list[int]:
    """The indices at which `mask` is true. Quick if there are none."""
    indices: list[int] = pc.indices_nonzero(mask).to_pylist() if pc.any(mask).as_py() else []
    return indices


def make_mask(indices: Iterable[int], count: int) -> pa.Array | None:
    """True at these indices of `count`; None if there are none."""
    rows = frozenset(indices)
    return pa.array([row in rows for row in range(count)], pa.bool_()) if rows else None


def read_bytes(values: pa.Array) -> bytes:
    """The bytes of all values in an array of text or bytes, concatenated. Nulls may contribute any bytes."""
    if not len(values):
        return b""
    _, offsets, data = values.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, offsets], offset=values.offset)
    first, last = ends[0].as_py(), ends[len(values)].as_py()
    content: bytes = data.slice(first, last - first).to_pybytes() if data else b""
    return content


# The `_unsent` column of a changes frame.


def list_names(masks: Mapping[str, pa.Array], count: int) -> pa.Array:
    """For each row the names with a set mask, or null if there are none."""
    set_masks = {name: mask for name, mask in masks.items() if pc.any(mask).as_py()}
    if not set_masks:
        return pa.nulls(count, pa.list_(pa.string()))
    rows = [pc.indices_nonzero(mask) for mask in set_masks.values()]
    which = pa.concat_arrays([pa.repeat(pa.scalar(i, pa.int32()), len(indices)) for i, indices in enumerate(rows)])
    table = pa.table({"row": pa.concat_arrays(rows), "which": which})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("which", "ascending")])
    names = pa.array(list(set_masks), pa.string()).take(which.take(order))
    counts = pa.repeat(pa.scalar(0, pa.int32()), count)
    for mask in set_masks.values():
        counts = pc.add(counts, mask.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    return pa.ListArray.from_arrays(offsets, names, mask=pc.equal(counts, 0))


# The items of a list column's own rows: a slice of the column still carries the items of all rows.


def slice_items(column: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Offsets that begin at 0, and the items to which they point."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return rebase_offsets(offsets), column.values.slice(first, last - first)


def rebase_offsets(offsets: pa.Array) -> pa.Array:
    """Offsets shifted so that the first is 0, in a buffer of their own."""
    return pc.subtract(offsets, offsets[0])
