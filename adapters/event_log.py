"""Event logs, independent of their storage: rows to the original records and to frames of sources, records to rows, and the
range of records."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER, RAW, RAW_RECORD_POSITION, TIMESTAMP
from replicator.domain.erasures import ERASED_RECORD
from replicator.domain.errors import DataLoss, Reject, RejectCode, describe_reload_or_skip
from replicator.domain.event_log import EVENT_LOG, encode_bytes
from replicator.domain.out_of_range import null_out_of_range
from replicator.domain.position import Position, TopicPartition
from replicator.ports.decoder import Decoder

from .arrow.record_positions import payload_bytes

Header: TypeAlias = tuple[str, bytes | None]


class EncodedBytes(msgspec.Struct):
    """Bytes that are not UTF-8 text."""

    base64: str


Text: TypeAlias = str | EncodedBytes | None
"""The form of bytes in JSON."""
_decoder = msgspec.json.Decoder(list[tuple[str, Text]])


SLICE_ROWS, SLICE_BYTES = 50_000, 32 * 1024 * 1024


def merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `SLICE_ROWS` rows or `SLICE_BYTES` bytes, from smaller batches."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(pa.record_batch(batch))
        if sum(b.num_rows for b in waiting) >= SLICE_ROWS or sum(b.nbytes for b in waiting) >= SLICE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def to_raw(rows: pa.Table) -> pa.Table:
    """A raw frame (`domain.change.RAW`) from the log's columns. A record with unreadable headers is rejected."""
    columns = {name: rows[name].cast(RAW.field(name).type) for name in ("topic", "partition", "offset", "key", "value")}
    times = pa.chunked_array([null_out_of_range(array) for array in rows["timestamp"].cast(TIMESTAMP).chunks], TIMESTAMP)
    columns["timestamp"] = pc.cast(times, RAW.field("timestamp").type, safe=False)
    columns["headers"] = _parse_headers(rows["headers"])
    return pa.table([columns[name] for name in RAW.names], schema=RAW)


def _parse_headers(texts: pa.ChunkedArray) -> pa.Array:
    """Parses each distinct list of headers once, as there are few."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), RAW.field("headers").type)
    distinct = texts.combine_chunks().dictionary_encode()
    lists: list[list[Header]] = []
    for text in distinct.dictionary.to_pylist():
        try:
            lists.append([(name, to_bytes(value)) for name, value in _decoder.decode(text)])
        except (msgspec.MsgspecError, binascii.Error, UnicodeEncodeError):
            reject = Reject(RejectCode.MALFORMED, "the headers of this record in the event log cannot be read")
            lists.append([(ERROR_HEADER, str(reject).encode())])
    return pa.array(lists, RAW.field("headers").type).take(distinct.indices)


def to_bytes(value: Text) -> bytes | None:
    """The bytes of their form in JSON. Raises UnicodeEncodeError and binascii.Error."""
    if isinstance(value, str):
        return value.encode()
    return None if value is None else b64decode(value.base64, validate=True)


# Raw frames, in the form in which sources return them.


def build_raw(
    partition: TopicPartition,
    offsets: Iterable[int],
    values: Sequence[bytes],
    *,
    millis: int | None,
    keys: Sequence[bytes] | None = None,
    headers: Sequence[Mapping[str, Any]] | None = None,
) -> pa.RecordBatch:
    """Records of one partition. All have the same time, in milliseconds since 1970, and the same headers."""
    count = len(values)
    columns = {
        "topic": pa.repeat(pa.scalar(partition.topic), count),
        "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.repeat(pa.scalar(millis, pa.int64()), count).cast(RAW.field("timestamp").type),
        "headers": pa.repeat(pa.scalar(headers, RAW.field("headers").type), count),
        "key": pa.nulls(count, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return pa.record_batch([columns[name] for name in RAW.names], schema=RAW)


FEW = 512
"""Consecutive records below which slicing does not pay: decoders copy frames of shorter chunks into one chunk
(`arrow.frame_slices`)."""


def sort_records(frame: pa.Table) -> pa.Table:
    """Records ordered by topic, partition and offset. Copies only if necessary, because records may be large: ordered
    frames, and frames of long ordered ranges as in a compacted file, are only sliced."""
    if _is_sorted(frame):
        return frame
    firsts = [0, *(last + 1 for last in _find_breaks(frame, _is_next))]
    if len(firsts) * FEW <= frame.num_rows:
        stretches = [frame.slice(first, after - first) for first, after in pairwise([*firsts, frame.num_rows])]
        frame = pa.concat_tables(sorted(stretches, key=lambda stretch: _read_position(stretch, 0)))
    return frame if _is_sorted(frame) else frame.sort_by([(name, "ascending") for name in RAW_RECORD_POSITION])


def _is_sorted(frame: pa.Table) -> bool:
    return all(_read_position(frame, last) < _read_position(frame, last + 1) for last in _find_breaks(frame, pc.less_equal))


def _read_position(frame: pa.Table, row: int) -> tuple[str | int, ...]:
    return tuple(frame[name][row].as_py() for name in RAW_RECORD_POSITION)


def _find_breaks(frame: pa.Table, goes_on: Callable[[pa.Array, pa.Array], pa.Array]) -> list[int]:
    """The row numbers before which another partition begins, or an offset does not continue the order."""
    columns = [frame[name].combine_chunks() for name in RAW_RECORD_POSITION]
    topics, partitions, offsets = (
        compare(column[:-1], column[1:]) for column, compare in zip(columns, (pc.equal, pc.equal, goes_on), strict=True)
    )
    rows: list[int] = pc.indices_nonzero(pc.invert(pc.and_(pc.and_(topics, partitions), offsets))).to_pylist()
    return rows


def _is_next(before: pa.Array, after: pa.Array) -> pa.Array:
    return pc.equal(pc.add(before, 1), after)


def drop_repeated(frame: pa.Table) -> pa.Table:
    """Ordered records without duplicates: a log may contain a record twice."""
    if frame.num_rows < 2:
        return frame
    same = pa.repeat(pa.scalar(True), frame.num_rows - 1)
    for name in RAW_RECORD_POSITION:
        values = frame[name].combine_chunks()
        same = pc.and_(same, pc.equal(values[1:], values[:-1]))
    if not pc.any(same).as_py():
        return frame
    return frame.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))


def split_batches(pieces: Iterable[pa.Table], records: int, size: int) -> Iterator[pa.Table]:
    """The records of raw frames in frames of at most `records` records and `size` bytes of keys and values, or of one
    record."""
    waiting: list[pa.Table] = []
    count = weight = 0
    for piece in pieces:
        rest = piece
        while rest.num_rows:
            fitting = _count_within_limit(rest, records - count, size - weight) or (0 if waiting else 1)
            if fitting:
                head, rest = rest.slice(0, fitting), rest.slice(fitting)
                waiting.append(head)
                count, weight = count + fitting, weight + payload_bytes(head)
            if rest.num_rows:
                yield pa.concat_tables(waiting)
                waiting, count, weight = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


def _count_within_limit(piece: pa.Table, records: int, size: int) -> int:
    """The number of first records within these limits."""
    if piece.num_rows <= records and payload_bytes(piece) <= size:
        return int(piece.num_rows)
    lengths = [pc.fill_null(pc.binary_length(piece[name]), 0).cast(pa.int64()) for name in ("key", "value")]
    sums = pc.cumulative_sum(pc.add(*lengths))
    return max(0, min(records, pc.sum(pc.less_equal(sums, size)).as_py() or 0))


# Raw records to rows of the log.


def build_rows(raw: pa.Table, decoder: Decoder, ingested_at: datetime) -> pa.Table:
    """The columns of `domain.event_log.EVENT_LOG`, one row per record. Erased ones keep only position and time."""
    features = decoder.features
    withheld = None if features.find_erased is None else features.find_erased(raw)
    if withheld is not None:
        for name in ("headers", "key", "value"):
            field = raw.schema.field(name)
            remaining = pc.if_else(pc.invert(withheld), raw[name], pa.scalar(None, field.type))
            raw = raw.set_column(raw.column_names.index(name), field, remaining)
    raw = raw if features.mask_records is None else features.mask_records(raw)
    envelope = decoder.envelope(raw)
    computed = {
        "event_id": pc.binary_join_element_wise(*(raw[n].cast(pa.string()) for n in RAW_RECORD_POSITION), "-"),
        "headers": _headers_to_json(raw["headers"]),
        "ingested_at": pa.repeat(pa.scalar(ingested_at, TIMESTAMP), raw.num_rows),
    }
    if withheld is not None:
        computed["error"] = pc.if_else(withheld, pa.scalar(ERASED_RECORD), envelope["error"])
    columns = {}
    for column in EVENT_LOG:
        values = computed.get(column.name)
        if values is None:
            values = envelope[column.name] if column.name in envelope.column_names else raw[column.name]
        columns[column.name] = values.cast(column.type)
    return pa.table(columns)


def _headers_to_json(headers: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Headers as JSON text. Each distinct list of headers is written once, as there are few."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.string())
    written: dict[str, str] = {}
    out = []
    for entry in headers.to_pylist():
        key = repr(entry)
        if key not in written:
            written[key] = (
                json.dumps([[h["name"], encode_bytes(h["value"])] for h in entry], ensure_ascii=False) if entry else ""
            )
        out.append(written[key] or None)
    return pa.array(out, pa.string())


# The range of records in an event log, and errors for positions outside it.


ACCEPT = f"Restore the event log. Otherwise, {describe_reload_or_skip()}"


class LogBounds(NamedTuple):
    """The first offset of each partition, and the end of the log."""

    firsts: Position
    ends: Position

    def limit_to(self, below: Position | None) -> LogBounds:
        """The bounds of a log that ends at `below` and has no other partitions."""
        if below is None:
            return self
        ends = Position({p: min(end, self.ends[p]) for p, end in below.items() if p in self.ends})
        return LogBounds(self.firsts.only(p for p, end in ends.items() if self.firsts[p] <= end), ends)


def describe_loss(bounds: LogBounds, partition: TopicPartition, offset: int) -> str:
    """The error for reading on from `offset`, or empty text. Holes between records are legal, so they are not
    detected."""
    if partition not in bounds.ends:
        # A partition without records: nothing was read from it, so nothing can be missing.
        return f"The event log holds no record of {partition} (any more)." if offset else ""
    end = bounds.ends[partition]
    if offset > end:
        return f"Offset {offset} of {partition} is above the event log's end at {end}: the records before it are missing."
    # If all records below the end were deleted, the partition has no first offset.
    return describe_removed(partition, offset, bounds.firsts.get(partition, end))


def describe_removed(partition: TopicPartition, offset: int, first: int) -> str:
    """The error for an offset before the first record, or empty text."""
    if offset >= first:
        return ""
    return f"Records {offset} to {first - 1} of {partition} are not in the event log: it begins later, or they were deleted."


def recreated_error(where: object) -> DataLoss:
    """The error for a log whose table was replaced: it has other records with the same offsets."""
    return DataLoss(
        f"The event log in {where} was created again: it is another table than before.",
        next_step="Restore the earlier table, or read this one from its beginning with `replicator lanes resync LANE`.",
    )
