"""The common methods of sinks in a lake on Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from replicator.ports.frames import ApplyOutcome, RejectRows, Write

from ....spark.errors import translate_errors
from ....spark.session import LazySession
from ..lane_sink import LaneSink


class SparkLaneSink(LaneSink[DataFrame]):
    """Translates Spark's errors. It must be the first base class of a sink, which sets `_session`."""

    frame = DataFrame
    _session: LazySession

    def apply(self, writes: Sequence[Write[DataFrame]], reject: RejectRows[DataFrame]) -> ApplyOutcome:
        with translate_errors(f"writing {', '.join(write.lane.id for write in writes)}"):
            # Frames use the session that created them, which may not have this sink's store yet.
            _ = self._session.spark
            return super().apply(writes, reject)
