"""The event log written by Spark's executors, at the place its options name."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from replicator.ports.sink import Sink

from ...delta.event_log import LogTable
from ...delta.layout import Lake
from ...delta.options import LakeOptions
from ...spark.applying import SparkLaneSink
from ...spark.collected import Collected
from ...spark.event_log import SparkAppending
from ...spark.session import split
from .local import event_log_sink


class DeltaSparkEventLog(SparkLaneSink, LogTable[DataFrame]):
    """The event log as one Delta table; option `path`, the table's own folder, and `spark`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, _ = split(options)
        lake = Lake.at(LakeOptions.checked(own).path)
        super().__init__(lake, SparkAppending(lake.root))


def event_log_spark_sink(options: Mapping[str, object]) -> Sink[DataFrame]:
    """As `event_log_sink`, over Spark's frames."""
    own, spark = split(options)
    if "path" in own and "dsn" not in own:
        return DeltaSparkEventLog(options)
    return Collected(event_log_sink(own), spark)
