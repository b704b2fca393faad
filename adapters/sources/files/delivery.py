"""Records of files as batches, each record once and in order."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, Stop

from ...arrow.record_positions import payload_bytes
from ..file_options import FileSourceOptions
from .file_list import ArchiveFile
from .file_reader import PSEUDO_TOPIC, ArchiveReader, ArchiveRecord, FileFormat, RecordColumns

# Delivered offsets of an archive, so that no record is delivered twice or skipped silently.

NEXT_STEP = (
    "Files are read in the order of their names, and each from its first line on. Offsets must increase in this order: "
    "rename the files, or sort their lines. Then start again. If the table already has a lane, load it again with "
    "`replicator lanes resync LANE`."
)


class DeliveryProgress:
    """The next offset of each partition, and the holes between the offsets of this run.

    An offset below the next one was delivered before, by this run, or by another one if it is below the start position.
    But a record in a hole of this run is too late to be delivered in order, which is a DataLoss.
    """

    def __init__(self, start: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int] | None = None) -> None:
        self.next = dict(start)
        self._until = until
        self._batch_starts: dict[TopicPartition, int] = {}
        self._holes: dict[TopicPartition, list[tuple[int, int, str]]] = {}
        """Start, end, and the file with the record after the hole."""

    def accept(self, partition: TopicPartition, offset: int, label: str) -> bool:
        """True if the record at `offset`, from the file `label`, must be delivered now."""
        first, end = self.accept_range(partition, offset, offset + 1, label)
        return first < end

    def accept_range(self, partition: TopicPartition, first: int, end: int, label: str) -> tuple[int, int]:
        """The part of the records [first, end) to deliver now. All of them must be in the file `label`."""
        if self._until is not None:
            end = min(end, self._until.get(partition, -1))
        expected = self.next.get(partition)
        if expected is not None and first < expected:
            # A record in a hole is late.
            holes = self._holes.get(partition, [])
            at = bisect_right(holes, first, key=lambda hole: hole[0]) - 1
            for start, after, other in holes[max(at, 0) : at + 2]:
                late = max(first, start)
                if late < min(end, expected, after):
                    raise DataLoss(
                        f"Record {late} of {partition} was found in {label} after record {after}, in {other}, had been "
                        "delivered.",
                        next_step=NEXT_STEP,
                    )
            first = expected
        if first >= end:
            return end, end
        if expected is None or first > expected:
            self._holes.setdefault(partition, []).append((-1 if expected is None else expected, first, label))
        self._batch_starts.setdefault(partition, first if expected is None else expected)
        self.next[partition] = end
        return first, end

    def close_until(self, until: Mapping[TopicPartition, int]) -> None:
        """Mark everything below `until` as delivered; the missing offsets are holes."""
        for partition, end in until.items():
            if self.next.get(partition, -1) < end:
                self._batch_starts.setdefault(partition, self.next.get(partition, end))
                self.next[partition] = end

    def announce(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Include partitions with their `offsets` in the next span, changed or not."""
        for partition, offset in offsets.items():
            self._batch_starts.setdefault(partition, offset)

    def next_span(self) -> Span:
        """The span since the last call."""
        start = Position(dict(self._batch_starts))
        end = Position({partition: self.next[partition] for partition in self._batch_starts})
        self._batch_starts.clear()
        return Span(start, end)


# Batches of records from archive files.

SLICE_RECORDS = 10_000


class FileDelivery(Protocol):
    """Delivers records of files in batches, once and in order, as tracked by a `DeliveryProgress`."""

    def read(self, files: Iterable[ArchiveFile]) -> None:
        """Read new content of `files`, and deliver every full batch."""

    def flush(self, *, even_empty: bool = False) -> bool:
        """Deliver the collected records. Does nothing without any, unless `even_empty`. Returns True if it delivered."""


class LocalDelivery:
    """`FileDelivery` of Arrow tables, in batches within the limits."""

    def __init__(
        self,
        form: FileFormat,
        options: FileSourceOptions,
        delivered: DeliveryProgress,
        consume_batch: ConsumeBatch[pa.Table],
        stop: Stop,
    ) -> None:
        self._options, self._delivered, self._consume = options, delivered, consume_batch
        self._reading = ArchiveReader(form, self._add_record, self._add_frame, stop)
        self._chunks: list[pa.RecordBatch] = []
        self._rows = RecordColumns()
        self._records = self._size = 0

    def read(self, files: Iterable[ArchiveFile]) -> None:
        for file in files:
            self._reading.read(file)

    def _add_record(self, record: ArchiveRecord, label: str) -> None:
        """Add a record, unless it was delivered before."""
        if not self._delivered.accept(record.topic_partition, record.offset, label):
            return
        self._rows.add(record)
        self._count(1, record.size)

    def _add_frame(self, batch: pa.RecordBatch, label: str) -> None:
        """Add a raw batch, without records that were delivered before."""
        records = zip(*(batch.column(c).to_pylist() for c in ("topic", "partition", "offset")), strict=True)
        keep = [self._delivered.accept(TopicPartition(t, p), o, label) for t, p, o in records]
        fresh = batch if all(keep) else batch.filter(pa.array(keep, pa.bool_()))
        if fresh.num_rows:
            self._close_rows()
            self._chunks.append(fresh)
            self._count(fresh.num_rows, payload_bytes(fresh))

    def _count(self, records: int, size: int) -> None:
        self._records += records
        self._size += size
        if len(self._rows) >= SLICE_RECORDS:
            self._close_rows()
        if self._options.is_whole:
            # Refused before the first batch: a run that applied a part and stopped would not be a batch. Small batches are
            # not joined instead, because writes of two schemas cannot be joined.
            if self._size > self._options.batch_bytes:
                raise Fatal(
                    f"The new records in {self._options.path} have more than the {self._options.batch_bytes:,} bytes of "
                    "keys and values that fit into one batch (`mode: batch`). None of them was applied.",
                    next_step="Raise `limits.memory`. Or remove `mode`: then they are applied in several batches.",
                )
        elif self._records >= self._options.batch_records or self._size >= self._options.batch_bytes:
            self.flush()

    def _close_rows(self) -> None:
        if self._rows:
            self._chunks.append(self._rows.to_batch())
            self._rows = RecordColumns()

    def flush(self, *, even_empty: bool = False) -> bool:
        self._close_rows()
        span = self._delivered.next_span()
        if not (self._records or span.end or even_empty):
            return False
        batch = Batch(pa.Table.from_batches(self._chunks, schema=RAW), span, self._records, self._size)
        self._chunks, self._records, self._size = [], 0, 0
        self._consume(batch)
        return True


# Offsets in the files of an archive.


class OffsetIndex:
    """First and last offset per partition. A file is read again only if it changed."""

    def __init__(self, form: FileFormat) -> None:
        self.firsts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._reading = ArchiveReader(form, self._add_record, self._add_frame, threading.Event())

    def update(self, files: Iterable[ArchiveFile]) -> OffsetIndex:
        """This index, updated with `files`."""
        for file in files:
            self._reading.read(file)
        return self

    def _add_record(self, record: ArchiveRecord, _label: str) -> None:
        self.add_range(record.topic_partition, record.offset, record.offset + 1)

    def _add_frame(self, batch: pa.RecordBatch, _label: str) -> None:
        partitions = map(TopicPartition, batch.column("topic").to_pylist(), batch.column("partition").to_pylist())
        for partition, offset in zip(partitions, batch.column("offset").to_pylist(), strict=True):
            self.add_range(partition, offset, offset + 1)

    def add_range(self, partition: TopicPartition, first: int, end: int) -> None:
        """Add records of `partition` from `first` up to `end`."""
        self.firsts[partition] = min(first, self.firsts.get(partition, first))
        self.ends[partition] = max(end, self.ends.get(partition, 0))


def describe_loss(summary: OffsetIndex, partition: TopicPartition, offset: int) -> str:
    """The error for reading on from `offset`, or empty text. Holes are not detected, because offsets may have holes."""
    if partition.topic.startswith(PSEUDO_TOPIC):
        return ""
    if partition not in summary.ends:
        return f"The files hold no record of {partition} (any more)."
    if offset < summary.firsts[partition]:
        return f"Records {offset} to {summary.firsts[partition] - 1} of {partition} are not in the files: they begin later."
    if offset > summary.ends[partition]:
        end = summary.ends[partition]
        return f"Offset {offset} of {partition} lies above the end of the files at {end}: files are missing."
    return ""
