"""Recorded topics in files, for Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from replicator.domain.position import Position
from replicator.ports.frames import Batch, Stop

from ...spark.frames import from_arrow, kept
from ...spark.session import split
from .source import ArchiveSource

ApplyBatch: TypeAlias = Callable[[Batch[DataFrame]], None]


class ArchiveSparkSource(ArchiveSource):
    """`ArchiveSource` whose frames are `pyspark.sql.DataFrame`; its options, and `spark`. The driver reads the files."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._spark = split(options)
        super().__init__(own)

    def run(self, start: Position, apply_batch: ApplyBatch, stop: Stop, *, once: bool) -> None:
        """As the port says."""
        super().run(start, self._distributed(apply_batch), stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch, stop: Stop) -> None:
        """As the port says."""
        super().read(start, until, self._distributed(apply_batch), stop)

    def _distributed(self, apply_batch: ApplyBatch) -> Callable[[Batch[pa.Table]], None]:
        def apply(batch: Batch[pa.Table]) -> None:
            made: Any = replace(batch, frame=kept(from_arrow(self._spark, batch.frame)))
            apply_batch(made)

        return apply
