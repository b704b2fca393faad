"""The event log sink for Spark, by its options."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from replicator.ports.sink import Sink

from ..sinks.delta.spark.event_log import DeltaSparkEventLog
from ..sinks.postgres.event_log import PostgresEventLog
from ..sinks.postgres.spark.lanes import THROUGH_DRIVER, SparkPostgresLanes
from ..spark.session import split_options_lazily
from .event_log_sink import check_location


def event_log_spark_sink(options: Mapping[str, object], through_driver: int = THROUGH_DRIVER) -> Sink[DataFrame]:
    """`event_log_sink` for Spark's frames."""
    own, session = split_options_lazily(options)
    check_location(own)
    if "path" in own:
        return DeltaSparkEventLog(options)
    log = PostgresEventLog(own)
    return SparkPostgresLanes(log, log.features, session, through_driver)
