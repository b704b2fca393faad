"""Example writes for tests of the Delta sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from adapters.engines.local import LocalEngine
from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, TS, changes_schema, sequence_columns
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Lane, Write
from replicator.testing.delivery import make_lane

TOPIC_NAME = "cdc.public.items"
PARTITION_0 = TopicPartition(TOPIC_NAME, 0)
ITEMS = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 1)

Row = tuple[str, Mapping[str, Any]]
"""Operation and values."""


def make_changes(rows: Sequence[Row], start: int = 0, table: TableSpec = ITEMS) -> pa.Table:
    """Changes at consecutive offsets from `start`. The sequence of each is its offset."""
    records = [
        {OP: op, TS: None, TOPIC: TOPIC_NAME, PARTITION: 0, OFFSET: start + i, sequence_columns(1)[0]: start + i, **values}
        for i, (op, values) in enumerate(rows)
    ]
    return pa.Table.from_pylist(records, changes_schema(table))


def make_write(
    rows: Sequence[Row], start: int = 0, *, table: TableSpec = ITEMS, lane: Lane | None = None, policy: str = "scd1"
) -> Write[pa.Table]:
    """A write of `make_changes`."""
    lane = lane or make_lane(policy)
    plan = plan_for(lane.policy, table)
    span = Span(Position({PARTITION_0: start}), Position({PARTITION_0: start + len(rows)}))
    folded = LocalEngine().fold(make_changes(rows, start, table), plan)
    return Write(lane, plan, folded, span)


def make_item_changes(*ids: int, op: str = "c", v: str = "") -> list[Row]:
    """Changes of rows of `ITEMS`."""
    return [(op, {"id": i, "v": v or f"v{i}"}) for i in ids]
