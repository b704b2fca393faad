"""The archive source on Spark's executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from replicator.domain.position import TopicPartition
from replicator.ports.frames import Stop

from ....spark.session import split_options
from ..delivery_progress import DeliveryProgress
from ..file_format import FileFormat
from ..file_list import ArchiveFile
from ..offset_index import OffsetIndex
from ..options import ArchiveOptions
from ..source import ArchiveSource, FileDelivery
from .delivery import UNBOUNDED, SparkDelivery, get_slice_limits, split_size
from .scan import TOLD, scan_bounds
from .split_reader import FilesChanged, SplitPlan, read_facts, scan_splits


class ArchiveSparkSource(ArchiveSource):
    """`ArchiveSource` with `pyspark.sql.DataFrame` as frames; its options, and `spark`.

    Executors read and parse the files, large ones in splits, so they need access at the same path. The driver lists
    files, reads the footers of Parquet files, and gets the offsets of each slice. A compressed file cannot be split: one
    executor reads it, and Spark's storage caches the whole file during delivery.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._spark = split_options(options)
        super().__init__(own)
        if self._options.is_whole:
            # Spark stores the part of a batch that does not fit in memory on disk.
            self._options = self._options.model_copy(update={"batch_records": UNBOUNDED, "batch_bytes": UNBOUNDED})

    def _new_index(self) -> OffsetIndex:
        return SparkOffsetIndex(self._spark, self._form, self._options)

    def _delivery(self, delivered: DeliveryProgress, apply_batch: Any, stop: Stop) -> FileDelivery:
        return SparkDelivery(self._spark, self._form, self._options, delivered, apply_batch, stop=stop)


class SparkOffsetIndex(OffsetIndex):
    """`OffsetIndex` from facts of executors."""

    def __init__(self, spark: SparkSession, form: FileFormat, options: ArchiveOptions) -> None:
        super().__init__(form)
        self._told = partial(scan_bounds, form)
        self._spark, self._limits = spark, get_slice_limits(options)
        self._plan = SplitPlan(form, split_size(spark, options))

    def update(self, files: Iterable[ArchiveFile]) -> OffsetIndex:
        """Caches no records, so that one job can read everything."""
        pieces, moved = self._plan.plan_splits(files), frozenset[str]()
        while pieces:
            try:
                chunks = read_facts(scan_splits(self._spark, pieces, self._told, self._limits, TOLD), pieces)
            except FilesChanged as found:
                moved |= found.labels
                pieces = [piece for piece in pieces if piece.file.label not in moved]
                continue
            for stretch in (stretch for chunk in chunks for stretch in chunk.facts.stretches):
                self.add_range(TopicPartition(stretch.topic, stretch.partition), stretch.bounds[0], stretch.bounds[-1])
            self._plan.record_slices(chunks)
            break
        self._plan.close(without=moved)
        return self
