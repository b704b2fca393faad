"""A pipeline as tutorials write it: `python -m benchmarks.plain_spark BOOTSTRAP TOPIC BATCH LAKE SESSION OUT`.

`from_json` of the envelope, and in each micro-batch a count, then a MERGE for creates, one for updates and one for deletes.
Repaired just enough to run: the last change of each key in the batch (otherwise MERGE finds several rows for one), and
creates that are there already are updated. No order across batches, no key changes, no values that were not sent, not
exactly once. SESSION is `tutorial`, Spark's and Delta's own settings, or `ours`, those that replicator starts Spark with.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from adapters.jvm.jars import fetch_jars
from adapters.jvm.java import find_java_for_spark
from adapters.spark.options import FIXED
from adapters.spark.session import DEFAULTS, open_session

ROW = "id BIGINT, version BIGINT, name STRING, active BOOLEAN, visits INT, rating DOUBLE, updated_at STRING, note STRING"
FIELDS = ", ".join(f"{name}: {kind}" for name, kind in (column.split() for column in ROW.split(", ")))
ENVELOPE = f"payload STRUCT<before: STRUCT<{FIELDS}>, after: STRUCT<{FIELDS}>, op: STRING>"


TUTORIAL = ("spark.master", "spark.driver.memory", "spark.sql.extensions", "spark.sql.catalog.spark_catalog")
"""What Delta Lake's quick start sets, and a master and a memory of the same size."""


def tutorial_session() -> SparkSession:
    """A session as Delta Lake's quick start makes one."""
    os.environ["JAVA_HOME"] = str(find_java_for_spark().parent.parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("tutorial").config("spark.jars", ",".join(map(str, fetch_jars("spark"))))
    for name in TUTORIAL:
        builder = builder.config(name, {**DEFAULTS, **FIXED}[name])
    made: SparkSession = builder.getOrCreate()
    return made


def run(spark: SparkSession, bootstrap: str, topic: str, batch: int, lake: str) -> dict[str, Any]:
    """Until the topic's end; seconds from the start of the query to its end, and those of each batch."""
    spark.sql(f"CREATE TABLE delta.`{lake}` ({ROW}) USING delta")
    target = DeltaTable.forPath(spark, lake)
    taken: list[float] = []

    def merge(frame: DataFrame, _: int) -> None:
        began = time.monotonic()
        frame.persist()
        if frame.count():
            newest = Window.partitionBy("id").orderBy(sf.desc("offset"))
            last = frame.withColumn("n", sf.row_number().over(newest)).filter("n = 1").drop("n")
            for op, act in (("c", _upsert), ("u", _upsert), ("d", _delete)):
                mine = last.filter(sf.col("op") == op)
                print(op, mine.count())
                act(target.alias("t").merge(mine.drop("op", "offset").alias("s"), "t.id = s.id"))
        frame.unpersist()
        taken.append(time.monotonic() - began)

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    read = spark.readStream.format("kafka").options(**options).load()
    parsed = read.select(sf.from_json(sf.col("value").cast("string"), ENVELOPE).payload.alias("p"), "offset")
    changes = parsed.select("p.op", "offset", sf.expr("coalesce(p.after, p.before)").alias("r")).select(
        "op", "offset", "r.*"
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = changes.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    return {"seconds": time.monotonic() - began, "batches": taken}


def _upsert(merger: Any) -> None:
    merger.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _delete(merger: Any) -> None:
    merger.whenMatchedDelete().execute()


if __name__ == "__main__":
    _, server, name, size, folder, kind, out = sys.argv
    made = open_session({"spark.ui.enabled": "false"}) if kind == "ours" else tutorial_session()
    Path(out).write_text(json.dumps(run(made, server, name, int(size), folder)))
