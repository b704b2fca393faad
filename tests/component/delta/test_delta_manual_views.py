"""Queries in the documentation for readers of a lake without a catalog."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from paths import PROJECT

from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, changes_schema
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

DOCS = PROJECT / "docs"
PLACE = TopicPartition("cdc.public.customers", 0)
TABLE = TableSpec("public.customers", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 1)
LANES = {
    "how-to/keep-deleted-rows.md": replace(make_lane("scd1", "customers"), row_transforms=RowTransforms(soft_deletes=True)),
    "explanation/histories.md": make_lane("scd2", "customers_history"),
}
CHANGES = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, OP: "d"}, {"id": 2, OP: "u", "v": "B"}]


@pytest.mark.parametrize("page", LANES)
def test_duckdb_query_of_the_page_returns_current_rows(page, tmp_path):
    lane, engine, sink = LANES[page], LocalEngine(), DeltaRsSink({"path": str(tmp_path / "lake")})
    plan = plan_for(lane.policy, TABLE, row_transforms=lane.row_transforms)
    places = [{TOPIC: PLACE.topic, PARTITION: 0, OFFSET: n, "_seq_1": n} for n in range(len(CHANGES))]
    records = [{**place, OP: "c", **change} for place, change in zip(places, CHANGES, strict=True)]
    frame = engine.transform_rows(pa.Table.from_pylist(records, changes_schema(TABLE)), plan).frame
    sink.prepare(lane, plan)
    sink.apply(
        [Write(lane, plan, engine.fold(frame, plan), Span(Position({PLACE: 0}), Position({PLACE: 4})))], refuse_rejects
    )
    sink.close()
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    *before, query = code.replace("/data/deltalake", str(tmp_path / "lake")).strip().splitlines()
    known = {}
    exec("\n".join(before), known)
    found = eval(query, known).to_arrow_table().to_pylist()
    assert [(row["id"], row["v"]) for row in found] == [(2, "B")]
