"""The event log written by Spark's executors, at the place its options name."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from replicator.ports.sink import Sink

from ...delta.event_log import LogTable
from ...delta.options import LakeOptions
from ...spark.applying import SparkLaneSink
from ...spark.event_log import SparkAppending
from ...spark.pg_lanes import THROUGH_DRIVER, SparkPostgresLanes
from ...spark.session import split_later
from ...sql.pg_event_log import PostgresEventLog
from .local import check_place


class DeltaSparkEventLog(SparkLaneSink, LogTable[DataFrame]):
    """The event log as one Delta table; options as of `DeltaEventLog`, and `spark`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._session = split_later(options)
        said = LakeOptions.checked(own)
        lake = said.lake
        self._session.reaches(lake.root, said.storage)
        super().__init__(lake, SparkAppending(lake.root), said)


def event_log_spark_sink(options: Mapping[str, object], through_driver: int = THROUGH_DRIVER) -> Sink[DataFrame]:
    """As `event_log_sink`, over Spark's frames."""
    own, session = split_later(options)
    check_place(own)
    if "path" in own:
        return DeltaSparkEventLog(options)
    log = PostgresEventLog(own)
    return SparkPostgresLanes(log, log.capabilities, session, through_driver)
