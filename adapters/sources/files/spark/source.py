"""The archive source whose records stay on Spark's executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from replicator.domain.position import TopicPartition
from replicator.ports.frames import Stop

from ....spark.session import split
from ..delivered import Delivered
from ..form import Form
from ..listing import ArchiveFile
from ..options import ArchiveOptions
from ..source import ArchiveSource, Delivery
from ..summary import Summary
from .delivery import UNBOUNDED, OnExecutors, limits, piece_size
from .reading import Moved, Plan, facts_of, scanned
from .scan import TOLD, told


class ArchiveSparkSource(ArchiveSource):
    """`ArchiveSource` whose frames are `pyspark.sql.DataFrame`; its options, and `spark`.

    Executors read and parse the files, large ones in pieces, so they must see them at the same path. The driver lists files,
    reads the footers of Parquet files, and hears of each chunk of records which offsets it holds. A compressed file cannot
    be cut: one executor reads it, and it is kept in Spark's storage as a whole while it is delivered.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._spark = split(options)
        super().__init__(own)
        if self._options.is_whole:
            # Of a batch Spark keeps on disk what does not fit into memory.
            self._options = self._options.model_copy(update={"batch_records": UNBOUNDED, "batch_bytes": UNBOUNDED})

    def _new_summary(self) -> Summary:
        return SparkSummary(self._spark, self._form, self._options)

    def _delivery(self, delivered: Delivered, apply_batch: Any, stop: Stop) -> Delivery:
        return OnExecutors(self._spark, self._form, self._options, delivered, apply_batch, stop=stop)


class SparkSummary(Summary):
    """`Summary`, of what executors tell."""

    def __init__(self, spark: SparkSession, form: Form, options: ArchiveOptions) -> None:
        super().__init__(form)
        self._told = partial(told, form)
        self._spark, self._limits = spark, limits(options)
        self._plan = Plan(form, piece_size(spark, options))

    def over(self, files: Iterable[ArchiveFile]) -> Summary:
        """See `Summary.over`. Nothing is kept, so that all is read in one job."""
        pieces, moved = self._plan.pieces(files), frozenset[str]()
        while pieces:
            try:
                chunks = facts_of(scanned(self._spark, pieces, self._told, self._limits, TOLD), pieces)
            except Moved as found:
                moved |= found.labels
                pieces = [piece for piece in pieces if piece.file.label not in moved]
                continue
            for stretch in (stretch for chunk in chunks for stretch in chunk.facts.stretches):
                self.see(TopicPartition(stretch.topic, stretch.partition), stretch.bounds[0], stretch.bounds[-1])
            self._plan.read(chunks)
            break
        self._plan.close(without=moved)
        return self
