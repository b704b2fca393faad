"""The event log written by Spark's executors, at the place its options name."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from replicator.ports.sink import Sink

from ...delta.options import LakeOptions
from ...sinks.delta.event_log import LogTable
from ...sinks.delta.spark.event_log import SparkLogAppend
from ...sinks.delta.spark.lane_sink import SparkLaneSink
from ...sinks.postgres.event_log import PostgresEventLog
from ...sinks.postgres.spark.lanes import THROUGH_DRIVER, SparkPostgresLanes
from ...spark.session import split_options_lazily
from .local import check_location


class DeltaSparkEventLog(SparkLaneSink, LogTable[DataFrame]):
    """The event log as one Delta table; options as of `DeltaEventLog`, and `spark`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._session = split_options_lazily(options)
        said = LakeOptions.from_options(own)
        lake = said.lake
        self._session.add_store(lake.root, said.storage)
        super().__init__(lake, SparkLogAppend(lake.root), said)


def event_log_spark_sink(options: Mapping[str, object], through_driver: int = THROUGH_DRIVER) -> Sink[DataFrame]:
    """As `event_log_sink`, over Spark's frames."""
    own, session = split_options_lazily(options)
    check_location(own)
    if "path" in own:
        return DeltaSparkEventLog(options)
    log = PostgresEventLog(own)
    return SparkPostgresLanes(log, log.capabilities, session, through_driver)
