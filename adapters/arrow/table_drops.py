"""Records that report dropped tables, with table and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.position import Position, TopicPartition
from replicator.ports.decoder import TABLE_DROPPED, Decoder

from .record_positions import RAW_PLACE

DROPS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("table", pa.string())])
"""One row per record."""


def find_drops(raw: pa.Table, routes: pa.Table, decoder: Decoder) -> pa.Table:
    """A table with schema `DROPS`, of records routed as `TABLE_DROPPED`, in their order."""
    said = raw.filter(pc.fill_null(pc.equal(routes["ignored"], TABLE_DROPPED), False))
    if not said.num_rows:
        return DROPS.empty_table()
    named = said.select(RAW_PLACE).append_column("table", decoder.envelope(said)["table"])
    return named.filter(pc.is_valid(named["table"])).cast(DROPS)


def group_by_table(drops: pa.Table) -> Mapping[str, Sequence[Position]]:
    """The positions by table: `ports.frames.RoutedBatch.drops`."""
    found: dict[str, list[Position]] = {}
    for topic, partition, offset, table in zip(*(drops[name].to_pylist() for name in DROPS.names), strict=True):
        found.setdefault(table, []).append(Position({TopicPartition(topic, partition): offset}))
    return found
