"""Records that say that a table was dropped: of which table, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.position import Position, TopicPartition
from replicator.ports.decoder import TABLE_DROPPED, Decoder

from .record_positions import RAW_PLACE

DROPS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("table", pa.string())])
"""A row per such record."""


def find_drops(raw: pa.Table, routes: pa.Table, decoder: Decoder) -> pa.Table:
    """Schema `DROPS`, of the records that were routed so, in their order."""
    said = raw.filter(pc.fill_null(pc.equal(routes["ignored"], TABLE_DROPPED), False))
    if not said.num_rows:
        return DROPS.empty_table()
    named = said.select(RAW_PLACE).append_column("table", decoder.envelope(said)["table"])
    return named.filter(pc.is_valid(named["table"])).cast(DROPS)


def group_by_table(drops: pa.Table) -> Mapping[str, Sequence[Position]]:
    """`ports.frames.RoutedBatch.drops`."""
    found: dict[str, list[Position]] = {}
    for topic, partition, offset, table in zip(*(drops[name].to_pylist() for name in DROPS.names), strict=True):
        found.setdefault(table, []).append(Position({TopicPartition(topic, partition): offset}))
    return found
