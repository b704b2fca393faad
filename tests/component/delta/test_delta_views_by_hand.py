"""What the pages tell readers of a lake without a catalog to type."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from paths import PROJECT

from adapters.engines.local import LocalEngine
from adapters.sinks.delta_rs import DeltaRsSink
from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, changes_schema
from replicator.domain.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.shape import Shape
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Write
from replicator.testing.delivery import lane_of
from replicator.testing.sink_base import no_rejects

DOCS = PROJECT / "docs"
PLACE = TopicPartition("cdc.public.customers", 0)
TABLE = TableSpec("public.customers", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 1)
LANES = {
    "soft-deletes.md": replace(lane_of("scd1", "customers"), shape=Shape(soft_deletes=True)),
    "histories.md": lane_of("scd2", "customers_history"),
}
CHANGES = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, OP: "d"}, {"id": 2, OP: "u", "v": "B"}]


@pytest.mark.parametrize("page", LANES)
def test_duckdb(page, tmp_path):
    lane, engine, sink = LANES[page], LocalEngine(), DeltaRsSink({"path": str(tmp_path / "lake")})
    plan = plan_for(lane.policy, TABLE, shape=lane.shape)
    places = [{TOPIC: PLACE.topic, PARTITION: 0, OFFSET: n, "_seq_1": n} for n in range(len(CHANGES))]
    records = [{**place, OP: "c", **change} for place, change in zip(places, CHANGES, strict=True)]
    frame = engine.shape(pa.Table.from_pylist(records, changes_schema(TABLE)), plan).frame
    sink.prepare(lane, plan)
    sink.apply([Write(lane, plan, engine.fold(frame, plan), Span(Position({PLACE: 0}), Position({PLACE: 4})))], no_rejects)
    sink.close()
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    *before, query = code.replace("/data/deltalake", str(tmp_path / "lake")).strip().splitlines()
    known = {}
    exec("\n".join(before), known)
    found = eval(query, known).to_arrow_table().to_pylist()
    assert [(row["id"], row["v"]) for row in found] == [(2, "B")]
