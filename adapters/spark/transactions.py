"""The transactions in frames, collected by jobs that run anyway."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from replicator.domain.change import OP, PARTITION, TOPIC, TX, Op
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart

from ..arrow.transactions import identity_columns, position_columns
from .frame_facts import FrameFacts, group_facts, to_facts
from .frames import column

ATTENDED, MARKS, PARTS = "_replicator_attended", "_replicator_marks", "_replicator_parts"
"""Attributes of a frame."""
Found = tuple[str, TopicPartition, FrameFacts, Row]


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
    """`frame_facts.collect_facts` by `fine`, and the transaction parts without their table.

    One job. The driver reads a row for each transaction in each partition.
    """
    out: dict[bool, tuple[FrameFacts, Sequence[TransactionPart]]] = {}
    streamed = sf.when(sf.coalesce(column(OP) != Op.READ.value, sf.lit(True)), column(TX))
    for row in group_facts(changes, fine.alias("fine"), streamed.alias("tx"), more=_exact_columns(changes)).collect():
        known, parts = out.get(row["fine"], (FrameFacts(), ()))
        one = to_facts(row)
        out[row["fine"]] = (known + one, [*parts, _to_part(row, one)] if row["tx"] is not None else parts)
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


def _exact_columns(changes: DataFrame) -> list[Column]:
    names = position_columns(changes.columns)
    place = sf.array(*(column(name) for name in names)) if names else sf.array(sf.lit(None).cast("long"))
    identity = sf.xxhash64(*(column(name) for name in identity_columns(changes.columns)))
    return [
        # Of two changes with the same hash one is not counted. The count can be too low, but never too high.
        sf.size(sf.collect_set(identity)).alias("changes"),
        sf.min(place).alias("low"),
        sf.max(place).alias("high"),
    ]


def _to_part(row: Row, known: FrameFacts) -> TransactionPart:
    at = TopicPartition(row[TOPIC], row[PARTITION])
    low, high = tuple(row["low"]), tuple(row["high"])
    told = None not in low  # Null is the lowest.
    place = (low, high) if told else (None, None)
    return TransactionPart(row["tx"], "", at, known.rows, known.first[at], known.end[at] - 1, row["changes"], *place)
