"""What frames hold of transactions, found out by jobs that run anyway."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from replicator.domain.change import OP, PARTITION, TOPIC, TX, Op
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import Mark, Part

from ..arrow.transactions import identity_of, places_of
from .frames import column
from .known import Known, grouped, known_row

ATTENDED, MARKS, PARTS = "_replicator_attended", "_replicator_marks", "_replicator_parts"
"""Attributes of a frame."""
Found = tuple[str, TopicPartition, Known, Row]


def attend(frame: DataFrame, topic: str) -> DataFrame:
    """`frame`, of which is to be found out what it holds of transactions, which are told in `topic`."""
    setattr(frame, ATTENDED, topic)
    return frame


def attended(frame: DataFrame) -> str | None:
    """The topic, where that was asked for."""
    topic: str | None = getattr(frame, ATTENDED, None)
    return topic


def with_marks(raw: DataFrame, marks: Sequence[Mark]) -> None:
    """Remember what a raw frame tells."""
    setattr(raw, MARKS, tuple(marks))


def marks_of(raw: DataFrame) -> Sequence[Mark] | None:
    """What a raw frame tells; None where that is not known."""
    marks: Sequence[Mark] | None = getattr(raw, MARKS, None)
    return marks


def look_closely(changes: DataFrame, fine: Column) -> dict[bool, tuple[Known, Sequence[Part]]]:
    """`known.look` by `fine`, and the parts of transactions, of no table yet. One job; the driver gets a row for each
    transaction in each partition."""
    out: dict[bool, tuple[Known, Sequence[Part]]] = {}
    streamed = sf.when(sf.coalesce(column(OP) != Op.READ.value, sf.lit(True)), column(TX))
    for row in grouped(changes, fine.alias("fine"), streamed.alias("tx"), more=_exactly(changes)).collect():
        known, parts = out.get(row["fine"], (Known(), ()))
        one = known_row(row)
        out[row["fine"]] = (known + one, [*parts, _part(row, one)] if row["tx"] is not None else parts)
    return out


def with_parts(changes: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """`changes`, of which that much is known."""
    setattr(changes, PARTS, tuple(parts))
    return changes


def parts_of(changes: DataFrame) -> Sequence[Part]:
    """The parts in a changes frame, of no table yet; by a job where they are not known."""
    parts: Sequence[Part] | None = getattr(changes, PARTS, None)
    if parts is None:
        _, parts = look_closely(changes, sf.lit(True)).get(True, (Known(), ()))
    return parts


def _exactly(changes: DataFrame) -> list[Column]:
    names = places_of(changes.columns)
    place = sf.array(*(column(name) for name in names)) if names else sf.array(sf.lit(None).cast("long"))
    identity = sf.xxhash64(*(column(name) for name in identity_of(changes.columns)))
    return [
        # Of two that have one hash by chance one is not counted: too few, and never too many.
        sf.size(sf.collect_set(identity)).alias("changes"),
        sf.min(place).alias("low"),
        sf.max(place).alias("high"),
    ]


def _part(row: Row, known: Known) -> Part:
    at = TopicPartition(row[TOPIC], row[PARTITION])
    low, high = tuple(row["low"]), tuple(row["high"])
    told = None not in low  # Null is the lowest.
    place = (low, high) if told else (None, None)
    return Part(row["tx"], "", at, known.rows, known.first[at], known.end[at] - 1, row["changes"], *place)
