"""How sinks in a lake apply writes on Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from replicator.ports.frames import Applied, RejectRows, Write

from ..delta.lane_sink import LaneSink
from .errors import translating


class SparkLaneSink(LaneSink[DataFrame]):
    """Spark's errors are the program's own. Named first among the bases of a sink."""

    frame = DataFrame

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> Applied:
        """See `ports.sink.Sink.apply`."""
        with translating(f"writing {', '.join(write.lane.id for write in writes)}"):
            return super().apply(writes, reject)
