"""Files read by Spark's executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from replicator.domain.change import RAW
from replicator.domain.position import TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, Stop

from ...spark.errors import translate_error, translate_errors
from ...spark.frames import cache_frame, cache_with_size, column, filter_rows, from_arrow, keep_parents
from ...spark.scan import scan_splits
from ...spark.types import spark_schema
from ..file_options import FileSourceOptions
from .delivery import SLICE_RECORDS, DeliveryProgress, OffsetIndex
from .file_list import ArchiveFile
from .file_reader import FileFormat, FileProgress, FileSplit, log_unfinished, unusable_error
from .spark_splits import (
    BOUNDS_SCHEMA,
    CHUNK,
    FACTS,
    IN_PIECE,
    SPLIT_SCHEMA,
    STRETCH,
    OffsetRuns,
    SliceFacts,
    SliceLimits,
    group_splits,
    scan_bounds,
    scan_rows,
    split_file,
)

UNBOUNDED = 2**62


def lift_batch_limits(options: FileSourceOptions) -> FileSourceOptions:
    """The options. The whole batch of `mode: batch` has no limits: Spark stores the part that does not fit in memory on
    disk."""
    limits = {"batch_records": UNBOUNDED, "batch_bytes": UNBOUNDED}
    return options.model_copy(update=limits) if options.is_whole else options


class SparkOffsetIndex(OffsetIndex):
    """`OffsetIndex` from facts of executors."""

    def __init__(self, spark: SparkSession, form: FileFormat, options: FileSourceOptions) -> None:
        super().__init__(form)
        options = lift_batch_limits(options)
        self._spark, self._read_bounds = spark, partial(scan_bounds, form, get_slice_limits(options))
        self._plan = SplitPlan(form, split_size(spark, options))

    def update(self, files: Iterable[ArchiveFile]) -> OffsetIndex:
        """Caches no records, so that one job can read everything."""
        pieces, labels = self._plan.plan_splits(files), frozenset[str]()
        while pieces:
            try:
                slices = read_facts(scan_splits(self._spark, pieces, self._read_bounds, BOUNDS_SCHEMA), pieces)
            except FilesChanged as change:
                labels |= change.labels
                pieces = [piece for piece in pieces if piece.file.label not in labels]
                continue
            for stretch in (stretch for scanned in slices for stretch in scanned.facts.stretches):
                self.add_range(TopicPartition(stretch.topic, stretch.partition), stretch.bounds[0], stretch.bounds[-1])
            self._plan.record_slices(slices)
            break
        self._plan.close(without=labels)
        return self


# Batches of records that executors have read. The driver uses only facts about them, and sees no record.

SLICE_BYTES = 8 * 1024 * 1024
WAVE_BYTES = 128 * 1024 * 1024
"""The most bytes that are read at once, for all cores. A larger batch is read in several waves."""
PIECES = 2
"""Splits per core and batch, so that no core is idle while others read the last split."""
FROM, END = "_from", "_end"
PART = pa.schema([(CHUNK, pa.int64()), (STRETCH, pa.int32()), (FROM, pa.int64()), (END, pa.int64())])


class OffsetSlice(NamedTuple):
    """Records of a run with offsets in [first, end)."""

    chunk: int
    stretch: int
    first: int
    end: int


class SliceBatch:
    """The part of a frame for the next batch. `is_whole`: it includes all records of the added slices. `is_cut`: it
    includes a part of some run, whose size is unknown."""

    def __init__(self) -> None:
        self.parts: list[OffsetSlice] = []
        self.records = self.size = 0
        self.is_whole, self.is_cut = True, False

    def add(self, scanned: ScannedSlice, delivered: DeliveryProgress) -> None:
        """Add the undelivered records of the slice."""
        for number, stretch in enumerate(scanned.facts.stretches):
            partition, label = TopicPartition(stretch.topic, stretch.partition), scanned.piece.file.label
            ranges = [delivered.accept_range(partition, a, b, label) for a, b in _split_runs(stretch)]
            due_ranges = [(a, b) for a, b in ranges if a < b]
            first, end = (due_ranges[0][0], due_ranges[-1][1]) if due_ranges else (0, 0)
            records = sum(b - a for a, b in due_ranges)
            is_whole = (first, end) == (stretch.bounds[0], stretch.bounds[-1])
            self.is_whole = self.is_whole and is_whole
            if records:
                self.parts.append(OffsetSlice(scanned.number, number, first, end))
                self.is_cut = self.is_cut or not is_whole
                self.records += records
                self.size += stretch.size

    def has_room(self, scanned: ScannedSlice, options: FileSourceOptions) -> bool:
        """True if the whole slice fits in the batch, or the batch is empty."""
        records = sum(b - a for s in scanned.facts.stretches for a, b in _split_runs(s))
        size = sum(s.size for s in scanned.facts.stretches)
        fits = self.records + records <= options.batch_records and self.size + size <= options.batch_bytes
        return fits or not self.parts


def _split_runs(stretch: OffsetRuns) -> Iterator[tuple[int, int]]:
    return zip(stretch.bounds[::2], stretch.bounds[1::2], strict=True)


class SparkDelivery:
    """`FileDelivery` of Spark frames.

    Executors read and parse the files, large ones in splits, so they need access at the same path. The driver lists
    files, reads the footers of Parquet files, and gets the offsets of each slice. A compressed file cannot be split: one
    executor reads it, and Spark's storage caches the whole file during delivery.

    Executors read a wave of splits, about one batch, which is cached in Spark's storage. The driver divides it into
    batches by the facts of its slices. A batch may exceed the limits by one slice.
    """

    def __init__(
        self,
        spark: SparkSession,
        form: FileFormat,
        options: FileSourceOptions,
        delivered: DeliveryProgress,
        consume_batch: ConsumeBatch[DataFrame],
        *,
        stop: Stop,
    ) -> None:
        options = lift_batch_limits(options)
        self._read_rows = partial(scan_rows, form, get_slice_limits(options))
        self._spark, self._options, self._stop = spark, options, stop
        self._delivered, self._consume = delivered, consume_batch
        self._plan = SplitPlan(form, split_size(spark, options))
        self._nothing = spark.createDataFrame([], spark_schema(RAW))

    def read(self, files: Iterable[ArchiveFile]) -> None:
        labels: frozenset[str] = frozenset()
        for wave in group_splits(self._plan.plan_splits(files), self._options.batch_bytes):
            labels |= self._read_splits([piece for piece in wave if piece.file.label not in labels])
            if self._stop.is_set():
                return
        self._plan.close(without=labels)

    def _read_splits(self, pieces: list[FileSplit]) -> frozenset[str]:
        """Deliver the records of the splits. Returns the files that changed; nothing of these is delivered."""
        if not pieces:
            return frozenset()
        frame = cache_frame(scan_splits(self._spark, pieces, self._read_rows, SPLIT_SCHEMA))
        try:
            slices = read_facts(frame, pieces)
        except FilesChanged as moved:
            return moved.labels | self._read_splits([piece for piece in pieces if piece.file.label not in moved.labels])
        batch = SliceBatch()
        for scanned in slices:
            if not batch.has_room(scanned, self._options):
                self._hand_over(frame, batch)
                batch = SliceBatch()
            if self._stop.is_set():
                if not self._options.is_whole:
                    # Added records count as delivered.
                    self._hand_over(frame, batch)
                return frozenset()
            batch.add(scanned, self._delivered)
        self._hand_over(frame, batch)
        self._plan.record_slices(slices)
        return frozenset()

    def _hand_over(self, frame: DataFrame, batch: SliceBatch) -> None:
        if not batch.records:
            return
        span = self._delivered.next_span()
        within = column(CHUNK).between(batch.parts[0].chunk, batch.parts[-1].chunk)
        rows = filter_rows(frame, within & column(FACTS).isNull())
        if not batch.is_whole:
            listed = [dict(zip(PART.names, part, strict=True)) for part in batch.parts]
            parts = from_arrow(self._spark, pa.Table.from_pylist(listed, PART))
            # Broadcast, so that no record moves between executors.
            rows = rows.join(sf.broadcast(parts), [CHUNK, STRETCH])
            rows = rows.filter((column("offset") >= column(FROM)) & (column("offset") < column(END)))
        part = keep_parents(rows.select([column(name) for name in RAW.names]), frame)
        if not batch.is_cut:
            self._consume(Batch(part, span, batch.records, batch.size))
            return
        with translate_errors("reading files"):
            part, records, size = cache_with_size(part)
        self._consume(Batch(part, span, records, size))

    def flush(self, *, even_empty: bool = False) -> bool:
        """Delivers positions only: no records are left."""
        span = self._delivered.next_span()
        if not (span.end or even_empty):
            return False
        self._consume(Batch(self._nothing, span, 0, 0))
        return True


def split_size(spark: SparkSession, options: FileSourceOptions) -> int:
    """The bytes per split that keep every core busy with one batch."""
    return min(options.batch_bytes, WAVE_BYTES) // (PIECES * spark.sparkContext.defaultParallelism)


def get_slice_limits(options: FileSourceOptions) -> SliceLimits:
    """The limits of a slice: the driver divides batches between slices."""
    return SliceLimits(min(SLICE_RECORDS, options.batch_records), min(SLICE_BYTES, options.batch_bytes))


# Splits that executors read, and their facts on the driver.

SMALLEST = 1024 * 1024
"""The least bytes of a split, unless its file has less."""


class ScannedSlice(NamedTuple):
    """A slice as the driver sees it: its number in the frame, its split, its facts."""

    number: int
    piece: FileSplit
    facts: SliceFacts


class FilesChanged(Exception):
    """Files that changed since they were listed."""

    def __init__(self, labels: Iterable[str]) -> None:
        super().__init__(*labels)
        self.labels = frozenset(labels)


def read_facts(frame: DataFrame, pieces: Sequence[FileSplit]) -> list[ScannedSlice]:
    """The facts in a scanned frame, in order. Raises FilesChanged; EnvironmentProblem for an unreadable file."""
    try:
        rows = frame.filter(column(FACTS).isNotNull()).select(CHUNK, FACTS).collect()
    except (Py4JError, PySparkException) as error:
        _refuse_changed(pieces)
        raise translate_error(error, "reading files") from error
    _refuse_changed(pieces)
    slices = [ScannedSlice(n, pieces[n // IN_PIECE], msgspec.msgpack.decode(facts, type=SliceFacts)) for n, facts in rows]
    return sorted(slices, key=lambda scanned: scanned.number)


def _refuse_changed(pieces: Iterable[FileSplit]) -> None:
    files = {piece.file.label: piece.file for piece in pieces}
    labels = [label for label, file in files.items() if file.is_replaced]
    if labels:
        raise FilesChanged(labels)


class SplitPlan:
    """New content of files as splits, with the read positions."""

    def __init__(self, form: FileFormat, size: int) -> None:
        self._form, self._size = form, max(SMALLEST, size)
        self._progress = FileProgress(growing=form.growing)
        self._files: dict[str, tuple[ArchiveFile, int, int]] = {}

    def plan_splits(self, files: Iterable[ArchiveFile]) -> list[FileSplit]:
        """The splits of every file that is new or has grown, in order."""
        self._files = {}
        planned: list[FileSplit] = []
        for file in files:
            progress = self._progress.begin(file)
            if progress is None:
                continue
            try:
                splits = list(split_file(self._form, file, *progress, self._size))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unusable_error(file, error) from error
            self._files[file.label] = (file, *progress)
            planned += splits
        return planned

    def record_slices(self, slices: Iterable[ScannedSlice]) -> None:
        """Store the read positions from ordered slices, which must include all slices of their splits."""
        last = {scanned.piece: scanned.facts for scanned in slices}
        for piece, facts in last.items():
            file, _, lines = self._files[piece.file.label]
            if facts.lines:
                self._files[piece.file.label] = (file, facts.at, lines + facts.lines)
            if facts.unfinished:
                log_unfinished(file, lines + facts.lines + 1)

    def close(self, *, without: Iterable[str] = ()) -> None:
        """Mark all splits as read, except for files that changed, which are read again."""
        for label in self._files.keys() - set(without):
            self._progress.end(*self._files[label])
