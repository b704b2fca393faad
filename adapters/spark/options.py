"""Checks options of Spark without starting it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replicator.ports.runtime import WrongOption

PREFIX = "spark."
FIXED: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Columns of a source may differ only in case.
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Spark's default, INT96, counts nanoseconds: other readers overflow outside the years 1677 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.stopTimeout": "10s",
}
"""The stages depend on these settings. They are refused under `spark:`."""


def find_wrong_options(names: Iterable[str]) -> Sequence[WrongOption]:
    """`ports.runtime.OptionsCheck` for the session's options."""
    problems = []
    for name in sorted(names):
        if name in FIXED:
            problems.append(WrongOption(name, "is set by replicator itself", "remove it"))
        elif not name.startswith(PREFIX):
            # Spark silently ignores such a name.
            problem = f"is none of Spark's: their names begin with '{PREFIX}'"
            problems.append(WrongOption(name, problem, "correct it, or remove it"))
    return problems
