"""Frames in Spark's storage, which are kept while a derived frame is in use, and the known facts about their rows."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from uuid import uuid4
from zipimport import zipimporter

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from replicator.domain.change import KEY_CHANGE_DELETE, OFFSET, OLD_KEY, OP, PARTITION, TOPIC, TX, UNCHANGED, Op
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart

from ..arrow.record_positions import identity_columns, position_columns
from .session import to_spark_path
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


def read_version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    """The rows of the Delta table at delta-rs's `uri`, at that version."""
    return spark.read.format("delta").option("versionAsOf", version).load(to_spark_path(uri))


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

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for table in function(from_spark(pa.Table.from_batches([batch]), columns)):
                yield from to_spark(table.cast(schema)).combine_chunks().to_batches()

    return keep_parents(map_partitions(frame, pieces, spark_schema(schema)), frame)


def map_partitions(
    frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """Applies `function` to the Arrow batches of each partition, in Python on the executors.

    Before each task Spark invalidates Python's caches of imports. Python before 3.13 then reads every archive in its path
    again (python/cpython#103200). That takes longer than a small task, so no finder of an archive stays in the cache.
    A later import creates it again.
    """
    names = frame.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                del sys.path_importer_cache[path]
        return function(batch.rename_columns(names) for batch in batches)

    # Spark would interpret quotes and dots in column names.
    numbered_frame = frame.toDF(*(f"_{number}" for number in range(len(names))))
    return numbered_frame.mapInArrow(run, schema)


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


# Facts about a frame's rows that the driver knows from an earlier job, so that it need not run another one.

ROW_COUNT, KNOWN_FACTS = "_replicator_rows", "_replicator_known"
"""Attributes of a frame."""


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """Facts about a changes frame.

    - `rows`: the number of changes.
    - `first`, `end`: per partition the first offset, and the offset after the last. A folded frame lies within
      these.
    - `unsent`: the columns that some change did not send.
    - `partial`: how many changes have missing values.
    - `halves`: how many changes are a half of a key change; for a folded frame an upper bound.
    - `moves`: how many are the create half of a key change.
    - `truncates`: how many are truncates.
    """

    rows: int = 0
    first: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    unsent: frozenset[str] = frozenset()
    partial: int = 0
    halves: int = 0
    moves: int = 0
    truncates: int = 0

    def __add__(self, other: FrameFacts) -> FrameFacts:
        return FrameFacts(
            self.rows + other.rows,
            Position.lowest((self.first, other.first)),
            self.end.advanced_to(other.end),
            self.unsent | other.unsent,
            self.partial + other.partial,
            self.halves + other.halves,
            self.moves + other.moves,
            self.truncates + other.truncates,
        )


def set_row_count(frame: DataFrame, rows: int) -> DataFrame:
    """`frame`, with its number of rows as an attribute."""
    setattr(frame, ROW_COUNT, rows)
    return frame


def count_rows(frame: DataFrame) -> int:
    """The number of rows; by a job if it is not known."""
    rows: int | None = getattr(frame, ROW_COUNT, None)
    return frame.count() if rows is None else rows


def set_facts(frame: DataFrame, facts: FrameFacts | None) -> DataFrame:
    """`frame`, with these facts as an attribute; unchanged if `facts` is None."""
    if facts is not None:
        setattr(frame, KNOWN_FACTS, facts)
        set_row_count(frame, facts.rows)
    return frame


def get_facts(*frames: DataFrame) -> FrameFacts | None:
    """The combined facts of the frames; None if those of one frame are not known."""
    each: Sequence[FrameFacts | None] = [getattr(frame, KNOWN_FACTS, None) for frame in frames]
    parts = [one for one in each if one is not None]
    return reduce(lambda a, b: a + b, parts, FrameFacts()) if len(parts) == len(each) else None


def collect_facts(changes: DataFrame, *by: Column) -> dict[tuple[object, ...], FrameFacts]:
    """The facts of a changes frame, for each combination of `by`. One job."""
    out: dict[tuple[object, ...], FrameFacts] = {}
    for row in group_facts(changes, *by).collect():
        group = tuple(row)[: len(by)]
        out[group] = out.get(group, FrameFacts()) + to_facts(row)
    return out


def group_facts(changes: DataFrame, *by: Column, more: Sequence[Column] = ()) -> DataFrame:
    """One row for each combination of `by` and each partition, with the input of `to_facts`, and the columns
    `more`."""
    moves = column(OLD_KEY).isNotNull() if OLD_KEY in changes.columns else sf.lit(False)
    half = sf.coalesce(column(KEY_CHANGE_DELETE), sf.lit(False)) | moves if KEY_CHANGE_DELETE in changes.columns else moves
    return changes.groupBy(*by, TOPIC, PARTITION).agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.min(OFFSET).alias("first"),
        sf.max(OFFSET).alias("last"),
        sf.array_distinct(sf.flatten(sf.collect_set(UNCHANGED))).alias("unsent"),
        sf.count_if(column(UNCHANGED).isNotNull()).alias("partial"),
        sf.count_if(half).alias("halves"),
        sf.count_if(moves).alias("moves"),
        sf.count_if(column(OP) == Op.TRUNCATE.value).alias("truncates"),
        *more,
    )


def to_facts(row: Row) -> FrameFacts:
    """The facts in a row of `group_facts`."""
    at = TopicPartition(row[TOPIC], row[PARTITION])
    return FrameFacts(
        row["rows"],
        Position({at: row["first"]}),
        Position({at: row["last"] + 1}),
        frozenset(row["unsent"] or ()),
        row["partial"],
        row["halves"],
        row["moves"],
        row["truncates"],
    )


def is_inside(facts: FrameFacts, span: Span) -> bool:
    """Every change is in `span`."""
    inside = (at in span.end and span.start[at] <= facts.first[at] and end <= span.end[at] for at, end in facts.end.items())
    return all(inside)


def is_outside(facts: FrameFacts, span: Span) -> bool:
    """No change is in `span`, as far as the first and the last ones show it."""
    return all(
        at not in span.end or end <= span.start[at] or span.end[at] <= facts.first[at] for at, end in facts.end.items()
    )


# The transactions in frames, collected by jobs that run anyway.

ATTENDED, MARKS, PARTS = "_replicator_attended", "_replicator_marks", "_replicator_parts"
"""Attributes of a frame."""


def set_topic(frame: DataFrame, topic: str) -> DataFrame:
    """`frame`, with `topic` as the topic of its transaction markers. Its transactions are then collected."""
    setattr(frame, ATTENDED, topic)
    return frame


def get_topic(frame: DataFrame) -> str | None:
    """The topic, if `set_topic` was called."""
    topic: str | None = getattr(frame, ATTENDED, None)
    return topic


def set_markers(raw: DataFrame, marks: Sequence[TransactionMark]) -> None:
    """Stores the transaction markers of a raw frame."""
    setattr(raw, MARKS, tuple(marks))


def get_markers(raw: DataFrame) -> Sequence[TransactionMark] | None:
    """The transaction markers of a raw frame; None if they are not known."""
    marks: Sequence[TransactionMark] | None = getattr(raw, MARKS, None)
    return marks


def collect_transaction_facts(changes: DataFrame, fine: Column) -> dict[bool, tuple[FrameFacts, Sequence[TransactionPart]]]:
    """`collect_facts` by `fine`, and the transaction parts without their table.

    One job. The driver reads a row for each transaction in each partition.
    """
    names = position_columns(changes.columns)
    position = sf.array(*(column(name) for name in names)) if names else sf.array(sf.lit(None).cast("long"))
    identity = sf.xxhash64(*(column(name) for name in identity_columns(changes.columns)))
    more = [
        # Of two changes with the same hash one is not counted. The count can be too low, but never too high.
        sf.size(sf.collect_set(identity)).alias("changes"),
        sf.min(position).alias("low"),
        sf.max(position).alias("high"),
    ]
    streamed = sf.when(sf.coalesce(column(OP) != Op.READ.value, sf.lit(True)), column(TX))
    out: dict[bool, tuple[FrameFacts, Sequence[TransactionPart]]] = {}
    for row in group_facts(changes, fine.alias("fine"), streamed.alias("tx"), more=more).collect():
        facts, parts = out.get(row["fine"], (FrameFacts(), ()))
        one = to_facts(row)
        if row["tx"] is not None:
            at = TopicPartition(row[TOPIC], row[PARTITION])
            low, high = tuple(row["low"]), tuple(row["high"])
            bounds = (None, None) if None in low else (low, high)  # Null is the lowest.
            first, last = one.first[at], one.end[at] - 1
            parts = [*parts, TransactionPart(row["tx"], "", at, one.rows, first, last, row["changes"], *bounds)]
        out[row["fine"]] = (facts + one, parts)
    return out


def set_parts(changes: DataFrame, parts: Sequence[TransactionPart]) -> DataFrame:
    """`changes`, with these transaction parts as an attribute."""
    setattr(changes, PARTS, tuple(parts))
    return changes


def get_parts(changes: DataFrame) -> Sequence[TransactionPart]:
    """The transaction parts of a changes frame, without their table; by a job if they are not known."""
    parts: Sequence[TransactionPart] | None = getattr(changes, PARTS, None)
    if parts is None:
        _, parts = collect_transaction_facts(changes, sf.lit(True)).get(True, (FrameFacts(), ()))
    return parts
