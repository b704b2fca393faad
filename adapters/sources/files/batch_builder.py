"""Batches of records from archive files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW
from replicator.domain.errors import Fatal
from replicator.domain.position import TopicPartition
from replicator.ports.frames import Batch

from .archive_records import ArchiveRecord
from .delivery_progress import DeliveryProgress
from .options import ArchiveOptions

ApplyBatch: TypeAlias = Callable[[Batch[pa.Table]], None]
ROWS = 10_000


class RecordColumns:
    """Records by column. A tuple per record would be visited by Python's garbage collector again and again."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in RAW]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, record: ArchiveRecord) -> None:
        """Add a record."""
        for column, value in zip(self._columns, record, strict=True):
            column.append(value)

    def to_batch(self) -> pa.RecordBatch:
        """All records in order."""
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, RAW, strict=True)]
        return pa.record_batch(arrays, schema=RAW)


class BatchBuilder:
    """Splits records into batches within the limits, and delivers them."""

    def __init__(self, options: ArchiveOptions, delivered: DeliveryProgress, apply_batch: ApplyBatch) -> None:
        self._options, self._delivered, self._apply = options, delivered, apply_batch
        self._chunks: list[pa.RecordBatch] = []
        self._rows = RecordColumns()
        self._records = self._size = 0

    def add_record(self, record: ArchiveRecord, label: str) -> None:
        """Add a record, unless it was delivered before."""
        if not self._delivered.accept(record.place, record.offset, label):
            return
        self._rows.add(record)
        self._count(1, record.size)

    def add_frame(self, chunk: pa.RecordBatch, label: str) -> None:
        """Add a raw batch, without records that were delivered before."""
        places = zip(*(chunk.column(c).to_pylist() for c in ("topic", "partition", "offset")), strict=True)
        keep = [self._delivered.accept(TopicPartition(t, p), o, label) for t, p, o in places]
        kept = chunk if all(keep) else chunk.filter(pa.array(keep, pa.bool_()))
        if kept.num_rows:
            self._close_rows()
            self._chunks.append(kept)
            self._count(kept.num_rows, payload_bytes(kept))

    def _count(self, records: int, size: int) -> None:
        self._records += records
        self._size += size
        if len(self._rows) >= ROWS:
            self._close_rows()
        if self._options.is_whole:
            refuse_larger(self._size, self._options)
        elif self._records >= self._options.batch_records or self._size >= self._options.batch_bytes:
            self.flush()

    def _close_rows(self) -> None:
        if self._rows:
            self._chunks.append(self._rows.to_batch())
            self._rows = RecordColumns()

    def flush(self, *, even_empty: bool = False) -> bool:
        """Deliver the collected records. Does nothing without any, unless `even_empty`. Returns True if it delivered."""
        self._close_rows()
        span = self._delivered.next_span()
        if not (self._records or span.end or even_empty):
            return False
        batch = Batch(pa.Table.from_batches(self._chunks, schema=RAW), span, self._records, self._size)
        self._chunks, self._records, self._size = [], 0, 0
        self._apply(batch)
        return True


def refuse_larger(size: int, options: ArchiveOptions) -> None:
    """Raise Fatal if one batch would exceed the limit. No batch was delivered then."""
    # Refused before the first batch: a run that applied a part and stopped would not be a batch. Small batches are
    # not joined instead, because writes of two schemas cannot be joined.
    if size > options.batch_bytes:
        raise Fatal(
            f"The new records in {options.path} have more than the {options.batch_bytes:,} bytes of keys and values that "
            "fit into one batch (`mode: batch`). None of them was applied.",
            next_step="Raise `limits.memory`. Or remove `mode`: then they are applied in several batches.",
        )


def payload_bytes(chunk: pa.RecordBatch) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(chunk.column(name))).as_py() or 0 for name in ("key", "value"))
