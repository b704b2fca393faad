"""`policies_child` for `spark` and `spark-plain`: `python -m benchmarks.policies_spark CASE TARGET PLACE OUT`."""

from __future__ import annotations

from delta.tables import DeltaTable as SparkTable
from pyspark.sql import Window
from pyspark.sql import functions as sf

from adapters.engines.spark import SparkEngine
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.spark.frames import from_arrow
from adapters.spark.session import open_session

from .applying import Case
from .policies_child import ElapsedTime, Stopwatch, apply_batch, lane, main

QUIET = {"spark.ui.enabled": "false"}


def spark(case: Case, place: str) -> ElapsedTime:
    """The program's own, on Spark."""
    engine = SparkEngine({"spark": QUIET})
    frame = from_arrow(engine.spark, case.frame()).persist()
    frame.count()
    sink = DeltaSparkSink({"path": place, "spark": QUIET})
    sink.prepare(lane(case), case.plan)
    took = apply_batch(case, engine, sink, frame)
    sink.close()
    return took


def spark_plain(case: Case, place: str) -> ElapsedTime:
    """By hand, in a session like the program's own."""
    changes = from_arrow(open_session(QUIET), case.frame()).persist()
    changes.count()
    values = {c: f"s.{c}" for c in case.table.column_names}
    watch = Stopwatch()
    newest = Window.partitionBy("id").orderBy(sf.desc("_offset"))
    source = changes.withColumn("_n", sf.row_number().over(newest)).where("_n = 1")
    merger = SparkTable.forPath(source.sparkSession, f"{place}/items").alias("t").merge(source.alias("s"), "t.id = s.id")
    merger = merger.whenMatchedDelete("s._op = 'd'").whenMatchedUpdate(set=values)
    merger.whenNotMatchedInsert("s._op <> 'd'", values).execute()
    return watch.read_elapsed()


if __name__ == "__main__":
    main({"spark": spark, "spark-plain": spark_plain})
