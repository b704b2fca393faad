"""Frames that are kept in Spark's storage while something derived from them is in use."""

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

KEPT = "_replicator_kept"
"""Attribute of a frame: what must stay in storage as long as it is in use."""


_UNUSED: deque[DataFrame] = deque()
"""Frames in storage that nobody holds on to any more."""


class CachedFrame:
    """One frame in storage. When nobody holds this any more, the frame is dropped before the next one is stored.

    Not at once: Python collects what is in cycles at any allocation, thus also while an answer of the JVM is being read,
    and a call within a call breaks the connection.
    """

    def __init__(self, frame: DataFrame) -> None:
        weakref.finalize(self, _UNUSED.append, frame).atexit = False


def drop_unused() -> None:
    """Drop from Spark's storage what nobody holds on to any more."""
    while _UNUSED:
        # Of a session that has ended there is nothing left to drop.
        with contextlib.suppress(Exception):
            _UNUSED.popleft().unpersist()


def cache_frame(frame: DataFrame) -> DataFrame:
    """`frame`, computed once at its first use. Lost parts are computed again, so it must always give the same rows.

    What is derived from it begins at what is stored: Spark would otherwise analyse anew, in every later statement, all that
    the frame was made of, to find only at the end that it is stored.
    """
    drop_unused()
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    stored = _from_plan(frame.sparkSession, frame._jdf.queryExecution().withCachedData())
    setattr(stored, KEPT, (CachedFrame(frame),))
    return stored


def cache_with_size(frame: DataFrame) -> tuple[DataFrame, int, int]:
    """A raw frame, kept in storage, with its number of records and their bytes of keys and values."""
    frame = cache_frame(frame)
    key, value = (sf.coalesce(sf.sum(sf.length(column(name))), sf.lit(0)) for name in ("key", "value"))
    records, size = frame.agg(sf.count(sf.lit(1)), key + value).collect()[0]
    return frame, records, size


def keep_parents(frame: DataFrame, *parents: DataFrame) -> DataFrame:
    """`frame`, which holds on to what its parents hold on to."""
    known = [one for parent in parents for one in getattr(parent, KEPT, ())]
    setattr(frame, KEPT, (*getattr(frame, KEPT, ()), *known))
    return frame


def to_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """The same rows as a frame of `spark`: frames of different sessions do not meet in one statement."""
    return keep_parents(_from_plan(spark, frame._jdf.logicalPlan()), frame)


def _from_plan(spark: SparkSession, plan: Any) -> DataFrame:
    java: Any = spark
    return DataFrame(java._jvm.org.apache.spark.sql.classic.Dataset.ofRows(java._jsparkSession, plan), spark)


def column(name: str) -> Column:
    """The column of exactly that name, whatever characters it holds."""
    return sf.col(quote_name(name))


def quote_name(name: str) -> str:
    """`name` as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def filter_rows(frame: DataFrame, condition: Column) -> DataFrame:
    """The rows for which `condition` holds."""
    return keep_parents(frame.filter(condition), frame)


def map_frame(frame: DataFrame, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> DataFrame:
    """`function` over pieces of the frame, in order, on the executors. It gets the Arrow types that the frame stands for and
    gives rows of `schema`; it may give more or fewer rows than it got."""
    return flat_map_frame(frame, lambda piece: (function(piece),), schema)


def flat_map_frame(frame: DataFrame, function: Callable[[pa.Table], Iterable[pa.Table]], schema: pa.Schema) -> DataFrame:
    """`map_frame` by a function that gives the rows of a piece in several tables, none of which is kept."""
    given = arrow_schema(frame.schema)
    # Spark looks for columns by what it reads in their names: quotes, and dots.
    numbered = frame.toDF(*(f"_{number}" for number in range(len(given))))

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for table in function(from_spark(pa.Table.from_batches([batch]).rename_columns(given.names), given)):
                yield from to_spark(table.cast(schema)).combine_chunks().to_batches()

    return keep_parents(numbered.mapInArrow(pieces, spark_schema(schema)), frame)


def run_select(
    spark: SparkSession, select: Callable[[Mapping[str, str]], str], relations: Mapping[str, DataFrame]
) -> DataFrame:
    """The statement that `select` makes, over `relations`. What else is in it may hold anything."""
    tokens = {name: f"_{uuid4().hex}" for name in relations}
    # Spark's own formatter puts the relations in, and takes every brace for one of its own.
    text = select(tokens).replace("{", "{{").replace("}", "}}")
    for name, token in tokens.items():
        text = text.replace(token, "{" + name + "}")
    frames: dict[str, Any] = dict(relations)
    return spark.sql(text, **frames)


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a small frame, in order, in the types they stand for."""
    return from_spark(frame.toArrow(), arrow_schema(frame.schema))


def from_arrow(spark: Any, table: pa.Table) -> DataFrame:
    """A table as a frame, in order. Without empty pieces: Spark takes one for the end."""
    travelling = to_spark(table)
    pieces = [_compact_buffers(piece) for piece in travelling.to_batches() if piece.num_rows]
    whole = pa.Table.from_batches(pieces, travelling.schema) if pieces else travelling.schema.empty_table()
    made: DataFrame = spark.createDataFrame(whole, spark_schema(table.schema))
    return made


def _compact_buffers(piece: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows from the beginning of their buffers: Spark cannot take lists with nulls that begin within."""
    if not any(array.offset for array in piece.columns):
        return piece
    return piece.take(pa.array(range(piece.num_rows), pa.int64()))
