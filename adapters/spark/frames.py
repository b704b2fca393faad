"""Frames in Spark's storage, which are kept while a derived frame is in use."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from .types import arrow_schema, from_spark, spark_schema, to_spark

CACHED_FRAMES = "_replicator_kept"
"""Attribute of a frame: the stored frames that it needs."""


_UNUSED: deque[DataFrame] = deque()
"""Stored frames that nothing needs any more."""


class CachedFrame:
    """One stored frame. After this object is collected, the frame is dropped before the next one is stored.

    It is not dropped at once. Python can collect cycles at any allocation, also while an answer of the JVM is
    read, and a call within a call breaks the connection.
    """

    def __init__(self, frame: DataFrame) -> None:
        weakref.finalize(self, _UNUSED.append, frame).atexit = False


def drop_unused() -> None:
    """Drops stored frames that nothing needs any more."""
    while _UNUSED:
        # A session that has ended has no frames to drop.
        with contextlib.suppress(Exception):
            _UNUSED.popleft().unpersist()


def cache_frame(frame: DataFrame) -> DataFrame:
    """`frame`, computed once at its first use. Lost partitions are computed again, so it must always return the
    same rows.

    Derived frames start at the stored data. Otherwise Spark would analyse the whole plan of the frame in every
    later statement, only to find at the end that it is stored.
    """
    drop_unused()
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    cached_frame = _from_plan(frame.sparkSession, frame._jdf.queryExecution().withCachedData())
    setattr(cached_frame, CACHED_FRAMES, (CachedFrame(frame),))
    return cached_frame


def cache_with_size(frame: DataFrame) -> tuple[DataFrame, int, int]:
    """A raw frame in storage, with its number of records and the bytes of their keys and values."""
    frame = cache_frame(frame)
    key, value = (sf.coalesce(sf.sum(sf.length(column(name))), sf.lit(0)) for name in ("key", "value"))
    records, size = frame.agg(sf.count(sf.lit(1)), key + value).collect()[0]
    return frame, records, size


def keep_parents(frame: DataFrame, *parents: DataFrame) -> DataFrame:
    """`frame`, which also keeps the stored frames of its parents."""
    stored_frames = [one for parent in parents for one in getattr(parent, CACHED_FRAMES, ())]
    setattr(frame, CACHED_FRAMES, (*getattr(frame, CACHED_FRAMES, ()), *stored_frames))
    return frame


def to_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """The same rows as a frame of `spark`. One statement cannot contain frames of different sessions."""
    return keep_parents(_from_plan(spark, frame._jdf.logicalPlan()), frame)


def _from_plan(spark: SparkSession, plan: Any) -> DataFrame:
    java: Any = spark
    return DataFrame(java._jvm.org.apache.spark.sql.classic.Dataset.ofRows(java._jsparkSession, plan), spark)


def column(name: str) -> Column:
    """The column of exactly that name, with any characters."""
    return sf.col(quote_name(name))


def quote_name(name: str) -> str:
    """`name` as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def filter_rows(frame: DataFrame, condition: Column) -> DataFrame:
    """The rows for which `condition` is true."""
    return keep_parents(frame.filter(condition), frame)


def map_frame(frame: DataFrame, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> DataFrame:
    """Applies `function` to Arrow batches of the frame, in order, on the executors.

    Its input has the Arrow types that the frame represents. It returns rows of `schema`, possibly more or fewer
    than its input.
    """
    return flat_map_frame(frame, lambda piece: (function(piece),), schema)


def flat_map_frame(frame: DataFrame, function: Callable[[pa.Table], Iterable[pa.Table]], schema: pa.Schema) -> DataFrame:
    """`map_frame` for a function that returns the rows of an Arrow batch in several tables, none of which is
    kept."""
    columns = arrow_schema(frame.schema)
    # Spark would interpret quotes and dots in column names.
    numbered_frame = frame.toDF(*(f"_{number}" for number in range(len(columns))))

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for table in function(from_spark(pa.Table.from_batches([batch]).rename_columns(columns.names), columns)):
                yield from to_spark(table.cast(schema)).combine_chunks().to_batches()

    return keep_parents(numbered_frame.mapInArrow(pieces, spark_schema(schema)), frame)


def run_select(
    spark: SparkSession, select: Callable[[Mapping[str, str]], str], relations: Mapping[str, DataFrame]
) -> DataFrame:
    """Runs the statement that `select` builds, over `relations`. Its text may contain any characters."""
    tokens = {name: f"_{uuid4().hex}" for name in relations}
    # Spark's own formatter inserts the relations, and interprets every brace.
    text = select(tokens).replace("{", "{{").replace("}", "}}")
    for name, token in tokens.items():
        text = text.replace(token, "{" + name + "}")
    frames: dict[str, Any] = dict(relations)
    return spark.sql(text, **frames)


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a small frame, in order, in the types that they represent."""
    return from_spark(frame.toArrow(), arrow_schema(frame.schema))


def from_arrow(spark: Any, table: pa.Table) -> DataFrame:
    """A table as a frame, in order. Empty Arrow batches are left out, because Spark reads one as the end.

    Spark makes a partition of each batch, which would be a task and a file for every few rows.
    """
    travelling = to_spark(table)
    pieces = [_compact_buffers(piece) for piece in travelling.to_batches() if piece.num_rows]
    whole = pa.Table.from_batches(pieces, travelling.schema) if pieces else travelling.schema.empty_table()
    frame: DataFrame = spark.createDataFrame(whole, spark_schema(table.schema))
    return frame.coalesce(spark.sparkContext.defaultParallelism)


def _compact_buffers(piece: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with buffers from offset 0, because Spark cannot read lists with nulls that start at
    another offset."""
    if not any(array.offset for array in piece.columns):
        return piece
    return piece.take(pa.array(range(piece.num_rows), pa.int64()))
