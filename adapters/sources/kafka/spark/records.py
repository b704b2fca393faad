"""Spark's Kafka records as raw frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition

from ....spark import frames
from ....spark.frames import column
from ....spark.types import spark_schema
from .errors import translate_errors

KNOWN = ("1582-10-15T00:00:00Z", "9999-12-31T23:59:59.999Z")
"""Times that Spark's reader returns unchanged: it shifts earlier ones, as days of the Julian calendar."""
NO_TIME = -1
"""The value in milliseconds of a record without a time in Kafka's protocol."""


def to_raw(loaded: DataFrame) -> DataFrame:
    """The columns of Spark's Kafka source as `domain.change.RAW`. Times outside `KNOWN` are null."""
    at = column("timestamp")
    earliest, latest = (sf.lit(text).cast("timestamp") for text in KNOWN)
    known = at.between(earliest, latest) & (sf.unix_millis(at) != NO_TIME)
    headers = sf.transform(column("headers"), lambda h: sf.struct(h["key"].alias("name"), h["value"].alias("value")))
    values = {"timestamp": sf.when(known, at), "headers": headers}
    schema = spark_schema(RAW)
    return loaded.select(
        [
            values.get(field.name, column(field.name)).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema
        ]
    )


def cache_with_size(frame: DataFrame) -> tuple[DataFrame, int, int]:
    """See `adapters.spark.frames.cache_with_size`."""
    with translate_errors():
        return frames.cache_with_size(frame)


def split_span(start: Mapping[TopicPartition, int], until: Position, records: int) -> Iterator[Span]:
    """The range from `start` to `until` in adjacent spans of at most `records` offsets per partition."""
    at = {p: offset for p, offset in start.items() if offset < until[p]}
    while at:
        end = {p: min(until[p], offset + records) for p, offset in at.items()}
        yield Span(Position(at), Position(end))
        at = {p: offset for p, offset in end.items() if offset < until[p]}


def offsets_to_json(position: Mapping[TopicPartition, int]) -> str:
    """The value of Spark's `startingOffsets` and `endingOffsets`."""
    out: dict[str, dict[str, int]] = {}
    for place, offset in position.items():
        out.setdefault(place.topic, {})[str(place.partition)] = offset
    return json.dumps(out)


def partitions_to_json(position: Mapping[TopicPartition, int]) -> str:
    """The value of Spark's `assign`."""
    out: dict[str, list[int]] = {}
    for place in position:
        out.setdefault(place.topic, []).append(place.partition)
    return json.dumps(out)
