"""The event log sink for Spark, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from replicator.ports.sink import Sink

from ..event_log.options import EventLogSettings
from ..sinks.delta.spark.event_log import DeltaSparkEventLog
from ..sinks.postgres.event_log import PostgresEventLog
from ..sinks.postgres.spark.sink import THROUGH_DRIVER, SparkPostgresLanes
from ..spark.session import split_options_lazily


def event_log_spark_sink(
    options: EventLogSettings | Mapping[str, Any], through_driver: int = THROUGH_DRIVER
) -> Sink[DataFrame]:
    """`event_log_sink` for Spark's frames."""
    own, session = split_options_lazily(options)
    found = EventLogSettings.read(own)
    if found.path is not None:
        return DeltaSparkEventLog(options)
    return SparkPostgresLanes(PostgresEventLog(found), session, through_driver)
