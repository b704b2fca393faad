"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from replicator.domain.errors import ConfigProblem, EnvironmentProblem

from ..jvm.jars import fetch
from ..jvm.java import find_java_for_spark

CORES = os.cpu_count() or 1
DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "replicator",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    # Tables of a small deployment: a task per core instead of Spark's 200 and Delta's 50.
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.databricks.delta.snapshotPartitions": str(CORES),
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
}
FIXED: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Columns of a source may differ in case only.
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Spark's default, INT96, counts nanoseconds: other readers overflow outside the years 1677 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""What the meaning of the stages rests on. Whoever sets one of these under `spark:` is refused."""


def split(options: Mapping[str, object]) -> tuple[dict[str, object], SparkSession]:
    """An adapter's own options, and the session that option `spark` (any Spark option) asks for."""
    own = dict(options)
    asked = own.pop("spark", None) or {}
    if not isinstance(asked, Mapping):
        raise ConfigProblem("option spark is a mapping of Spark's own options")
    return own, session(asked)


def session(options: Mapping[str, object]) -> SparkSession:
    """The session of this program, made at the first call with `options` (any Spark option) over the defaults.

    Nothing is resolved while it starts: its jars are locked, and on this machine before. Raises `EnvironmentProblem`
    without a Java that Spark runs on, and when a jar cannot be had.
    """
    clash = sorted(set(options) & set(FIXED))
    if clash:
        raise EnvironmentProblem(
            f"spark option {clash[0]} is set by replicator itself", next_step="Remove it from `spark:`."
        )
    os.environ["JAVA_HOME"] = str(find_java_for_spark().parent.parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.config("spark.jars", ",".join(map(str, fetch("spark"))))
    for name, value in {**DEFAULTS, **{k: str(v) for k, v in options.items()}, **FIXED}.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made
