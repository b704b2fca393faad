"""A pipeline as tutorials write it: `python -m benchmarks.plain_spark BOOTSTRAP TOPIC EVENTS BATCH LAKE OUT`.

`from_json` of the envelope, and in each micro-batch a count, then a MERGE for creates, one for updates and one for deletes.
Repaired just enough to run: the last change of each key in the batch (otherwise MERGE finds several rows for one), and
creates that are there already are updated. No order across batches, no key changes, no values that were not sent, not
exactly once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from adapters.spark.session import session

ROW = "id BIGINT, version BIGINT, name STRING, active BOOLEAN, visits INT, rating DOUBLE, updated_at STRING, note STRING"
FIELDS = ", ".join(f"{name}: {kind}" for name, kind in (column.split() for column in ROW.split(", ")))
ENVELOPE = f"payload STRUCT<before: STRUCT<{FIELDS}>, after: STRUCT<{FIELDS}>, op: STRING>"


def run(bootstrap: str, topic: str, events: int, batch: int, lake: str) -> dict[str, Any]:
    """Until the topic's end; seconds from the start of the query to its end, and those of each batch."""
    spark = session({"spark.ui.enabled": "false"})
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
    return {"events": events, "seconds": time.monotonic() - began, "batches": taken}


def _upsert(merger: Any) -> None:
    merger.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _delete(merger: Any) -> None:
    merger.whenMatchedDelete().execute()


if __name__ == "__main__":
    _, server, name, count, size, folder, out = sys.argv
    Path(out).write_text(json.dumps(run(server, name, int(count), int(size), folder)))
