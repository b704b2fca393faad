"""The times of records in an event log, and the deletion of old records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction

from replicator.domain.position import Position, TopicPartition

from ..sql.dialect import text_literal
from .commits import Attempt


def read_newest_time(table: DeltaTable, since: Position, below: Position) -> datetime | None:
    """See `ports.sink.SinkFeatures.find_newest_time`."""
    times: list[datetime] = []
    for partition, end in below.items():
        where = f'{_partition_condition(partition)} AND "offset" >= {since.get(partition, 0)} AND "offset" < {end}'
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=["ts"], predicate=where)):
            latest = pc.max(batch["ts"]).as_py()
            times += [] if latest is None else [latest]
    return max(times, default=None)


@dataclass(frozen=True)
class LogTruncation:
    """Deletes the records below `cuts`.

    The same commit stores the cuts as transactions of their own applications. They stay in the table's log, and
    in every copy of it.
    """

    cuts: Mapping[TopicPartition, int]

    def __call__(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        parts = (f'({_partition_condition(partition)} AND "offset" < {cut})' for partition, cut in sorted(self.cuts.items()))
        marks = [Transaction(removal_app_id(partition), cut) for partition, cut in self.cuts.items()]
        snapshot.delete(" OR ".join(parts), commit_properties=attempt.with_transactions(marks))


def removal_app_id(partition: TopicPartition) -> str:
    """The application of the transaction that stores the offset below which a partition's records were deleted."""
    return f"replicator/removed/{partition.topic}/{partition.partition}"


def find_cuts(table: DeltaTable, below: Position, came_before: datetime) -> dict[TopicPartition, int]:
    """The offsets below which records may be deleted: all arrived before `came_before`, and are below `below`.

    The last record of a partition stays. Partitions without deletions are left out.
    """
    cuts = {}
    for partition, end in below.items():
        firsts, lasts, bounds = [], [], [end]
        scan = table.scan(columns=["offset", "ingested_at"], predicate=_partition_condition(partition))
        for batch in pa.RecordBatchReader.from_stream(scan):
            if batch.num_rows:
                ends = pc.min_max(batch["offset"]).as_py()
                firsts.append(ends["min"])
                lasts.append(ends["max"])
                stays = pc.fill_null(pc.greater_equal(batch["ingested_at"], came_before), True)
                first = pc.min(pc.filter(batch["offset"], stays)).as_py()
                bounds += [] if first is None else [first]
        cut = min([*bounds, max(lasts)]) if lasts else 0
        if firsts and min(firsts) < cut:
            cuts[partition] = cut
    return cuts


def _partition_condition(partition: TopicPartition) -> str:
    return f'"topic" = {text_literal(partition.topic)} AND "partition" = {partition.partition}'
