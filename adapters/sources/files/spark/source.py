"""The archive source whose records stay on Spark's executors."""

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
    """`ArchiveSource` whose frames are `pyspark.sql.DataFrame`; its options, and `spark`.

    Executors read and parse the files, large ones in pieces, so they must see them at the same path. The driver lists files,
    reads the footers of Parquet files, and hears of each chunk of records which offsets it holds. A compressed file cannot
    be cut: one executor reads it, and it is kept in Spark's storage as a whole while it is delivered.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._spark = split_options(options)
        super().__init__(own)
        if self._options.is_whole:
            # Of a batch Spark keeps on disk what does not fit into memory.
            self._options = self._options.model_copy(update={"batch_records": UNBOUNDED, "batch_bytes": UNBOUNDED})

    def _new_index(self) -> OffsetIndex:
        return SparkOffsetIndex(self._spark, self._form, self._options)

    def _delivery(self, delivered: DeliveryProgress, apply_batch: Any, stop: Stop) -> FileDelivery:
        return SparkDelivery(self._spark, self._form, self._options, delivered, apply_batch, stop=stop)


class SparkOffsetIndex(OffsetIndex):
    """`OffsetIndex`, of what executors tell."""

    def __init__(self, spark: SparkSession, form: FileFormat, options: ArchiveOptions) -> None:
        super().__init__(form)
        self._told = partial(scan_bounds, form)
        self._spark, self._limits = spark, get_slice_limits(options)
        self._plan = SplitPlan(form, split_size(spark, options))

    def update(self, files: Iterable[ArchiveFile]) -> OffsetIndex:
        """Nothing is kept, so that all is read in one job."""
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
