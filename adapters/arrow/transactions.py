"""What a changes frame holds of transactions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, TX, Op
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import Part


def parts(changes: pa.Table, table: str) -> Sequence[Part]:
    """See `ports.engine.SeesTransactions.parts`."""
    streamed = pc.and_(pc.is_valid(changes[TX]), pc.fill_null(pc.not_equal(changes[OP], Op.READ.value), True))
    grouped = changes.filter(streamed).group_by([TX, TOPIC, PARTITION], use_threads=False)
    found = grouped.aggregate([(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")])
    names = (TX, TOPIC, PARTITION, f"{OFFSET}_count", f"{OFFSET}_min", f"{OFFSET}_max")
    rows = zip(*(found[name].to_pylist() for name in names), strict=True)
    return [Part(tx, table, TopicPartition(t, p), count, first, last) for tx, t, p, count, first, last in rows]
