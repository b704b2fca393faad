"""Records by table and schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, RAW
from replicator.ports.decoder import ROUTE, Decoder
from replicator.ports.frames import Routed, Run

from ...spark.frames import column, derived, kept, mapped, where

ROUTED = {name: f"_route_{name}" for name in ROUTE.names}
"""Where a record's route stands beside it."""
PLACE = ("topic", "partition", "offset")


def routed(raw: DataFrame, decoder: Decoder) -> Routed[DataFrame]:
    """See `ports.engine.Engine.route`. One job, which reads and keeps the records."""
    schema = pa.schema([*RAW, *(field.with_name(ROUTED[field.name]) for field in ROUTE)])
    beside = kept(mapped(raw, lambda records: _with_routes(records.cast(RAW), decoder), schema))
    table, fingerprint, ignored, error = (column(ROUTED[name]) for name in ROUTE.names)
    seen = beside.groupBy("topic", table, fingerprint, ignored, error.isNotNull()).count().collect()
    kinds: Counter[str] = Counter()
    for row in seen:
        kinds.update({row[3]: row[5]} if row[3] else {})
    rejects = beside.filter(error.isNotNull()).withColumn(ERROR, error).drop(*ROUTED.values())
    names = sorted({row[1] for row in seen if row[1]})
    runs = [run for name in names for run in _runs(beside, name, {row[2] for row in seen if row[1] == name})]
    topics = {name: frozenset(row[0] for row in seen if row[1] == name) for name in names}
    return Routed(tuple(runs), dict(kinds), derived(rejects, beside), sum(row[5] for row in seen if row[4]), topics)


def _with_routes(records: pa.Table, decoder: Decoder) -> pa.Table:
    routes = decoder.route(records)
    for name in ROUTE.names:
        records = records.append_column(ROUTED[name], routes[name])
    return records


def _runs(beside: DataFrame, table: str, fingerprints: set[str]) -> Iterable[Run[DataFrame]]:
    """Stretches of one fingerprint; with several, partition by partition."""
    mine = where(beside, column(ROUTED["table"]) == table)
    if len(fingerprints) == 1:
        return [Run(table, next(iter(fingerprints)), _bare(mine))]
    starts = _starts(mine)
    ends: Sequence[Row | None] = [*starts[1:], None]
    return [
        Run(table, start[ROUTED["fingerprint"]], _bare(where(mine, _stretch(start, end))))
        for start, end in zip(starts, ends, strict=True)
    ]


def _starts(mine: DataFrame) -> list[Row]:
    """The records that begin a stretch, in order of their places."""
    fingerprint = column(ROUTED["fingerprint"])
    before = sf.lag(fingerprint).over(Window.partitionBy("topic", "partition").orderBy("offset"))
    fresh = mine.select(*PLACE, fingerprint, before.alias("_before"))
    fresh = fresh.filter(column("_before").isNull() | (column("_before") != fingerprint))
    return fresh.orderBy(*PLACE).collect()


def _stretch(start: Row, end: Row | None) -> Column:
    same = (column("topic") == start["topic"]) & (column("partition") == start["partition"])
    inside: Column = same & (column("offset") >= start["offset"])
    if end is not None and (end["topic"], end["partition"]) == (start["topic"], start["partition"]):
        inside = inside & (column("offset") < end["offset"])
    return inside


def _bare(frame: DataFrame) -> DataFrame:
    return derived(frame.select([column(n) for n in RAW.names]), frame)
