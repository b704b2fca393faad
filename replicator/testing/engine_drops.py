"""The promises of an engine for dropped tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import TABLE_DROPPED

from .engine_base import EngineBase
from .fake_decoder import DROP, FakeDecoder, encode_change

ITEMS = TableSpec("public.items", (Column("id", pa.int64()),), ("id",), fingerprint="0")
VALUES = (
    ("a", "items"), ("a", "drop public.items"), ("a", "items"), ("a", "drop public.other"), ("a", "drop public.items"),
    ("b", "drop public.items"), ("b", "items"),
)  # fmt: skip
"""Topics and record contents, in order."""


class EngineDrops(EngineBase):
    """The part of the contract of `ports.engine.Engine` for records of dropped tables."""

    def test_route_finds_where_a_table_was_dropped(self) -> None:
        """Such records are ignored, and returned by table, in order. Also without other records."""
        engine, records = self.new_engine(), _make_records()
        routed = engine.route(self.to_frame(records), FakeDecoder())
        assert dict(routed.ignored) == {TABLE_DROPPED: 4}
        assert [engine.count(run.frame) for run in routed.slices] == [3]
        of_items = [_make_position("a", 1), _make_position("a", 4), _make_position("b", 0)]
        assert _to_plain(routed.drops) == {"public.items": of_items, "public.other": [_make_position("a", 3)]}
        alone = engine.route(self.to_frame(records.slice(3, 2)), FakeDecoder())
        assert not alone.slices
        assert _to_plain(alone.drops) == {"public.other": [_make_position("a", 3)], "public.items": [_make_position("a", 4)]}
        assert not engine.route(self.to_frame(records.slice(0, 1)), FakeDecoder()).drops


def _make_records() -> pa.Table:
    rows: list[dict[str, Any]] = []
    for topic, said in VALUES:
        offset = sum(row["topic"] == topic for row in rows)
        change = [{"_op": "c", "_seq_1": offset, "id": offset}]
        value = encode_change(pa.Table.from_pylist(change), ITEMS) if said == "items" else said.encode()
        assert said == "items" or value.startswith(DROP)
        rows.append({"topic": topic, "partition": 0, "offset": offset, "value": value})
    return pa.Table.from_pylist(rows, RAW)


def _make_position(topic: str, offset: int) -> Position:
    return Position({TopicPartition(topic, 0): offset})


def _to_plain(drops: Any) -> dict[str, list[Position]]:
    return {table: list(places) for table, places in drops.items()}
