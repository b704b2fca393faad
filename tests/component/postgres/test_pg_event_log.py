"""The event log on PostgreSQL stores each record once and unchanged."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, fetch_rows, refuse_any_reject

from adapters.dispatch import event_log_sink
from replicator.domain.errors import DataLoss
from replicator.domain.event_log import EVENT_LOG, make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts, LaneState
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import FoldedChanges, Lane, Write

pytestmark = pytest.mark.postgres

PLAN = make_event_log_plan()


def lane_of(source: str = "shop") -> Lane:
    return Lane(f"raw_pg.{source}", "tests", source, "*", "raw_pg", source, "event_log")


def make_write(
    start: int, end: int, topic: str = "cdc.public.a", lane: Lane | None = None, **values: object
) -> Write[pa.Table]:
    schema = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG])
    rows = []
    for offset in range(start, end):
        known = {"event_id": f"{topic}-0-{offset}", "topic": topic, "partition": 0, "offset": offset, "value": b"\x00{}"}
        rows.append({**dict.fromkeys(schema.names), **known, "headers": '[["h", "é"], ["b", {"base64": "AA=="}]]', **values})
    frame = pa.Table.from_pylist(rows, schema)
    at = TopicPartition(topic, 0)
    folded = FoldedChanges(frame, Facts(), Counts(), frame.num_rows, frame.nbytes)
    return Write(lane or lane_of(), PLAN, folded, Span(Position({at: start}), Position({at: end})))


EXISTING = """
CREATE SCHEMA cdc_raw;
CREATE TABLE cdc_raw.cdc_events (
  id bigserial PRIMARY KEY, event_id text NOT NULL UNIQUE, topic varchar(255) NOT NULL,
  partition int NOT NULL, "offset" bigint NOT NULL,
  "timestamp" timestamptz, headers jsonb, key bytea, value bytea, error text, loaded_at timestamptz DEFAULT now())
"""


@pytest.mark.parametrize("existing", [False, True])
def test_records_are_stored_once(postgres_dsn: str, existing: bool) -> None:
    if existing:
        fetch_rows(postgres_dsn, EXISTING)
    sink = event_log_sink({"dsn": postgres_dsn})
    sink.prepare(lane_of(), PLAN)
    for start, end, applied in ((0, 3, 3), (0, 3, 0), (1, 5, 2), (5, 5, 0)):
        counts = sink.apply([make_write(start, end)], refuse_any_reject)["raw_pg.shop"].counts
        assert (counts.applied, counts.total) == (applied, end - start)
    found = fetch_rows(
        postgres_dsn,
        "SELECT event_id, \"offset\", value, headers::jsonb->1->1->>'base64' FROM cdc_raw.cdc_events ORDER BY 2",
    )
    assert found == [(f"cdc.public.a-0-{i}", i, b"\x00{}", "AA==") for i in range(5)]
    sink.close()
    again = event_log_sink({"dsn": postgres_dsn})
    assert dict(again.state(lane_of()).position) == {TopicPartition("cdc.public.a", 0): 5}
    again.close()


@pytest.mark.parametrize("table", ["cdc_events", "100%s"])
def test_reset_leaves_the_records_of_other_lanes(postgres_dsn: str, table: str) -> None:
    sink = event_log_sink({"dsn": postgres_dsn, "table": table})
    for source, topic in (("shop", "cdc.public.a"), ("shop", "cdc.public.b"), ("other", "x.y")):
        sink.prepare(lane_of(source), PLAN)
        sink.apply([make_write(0, 2, topic, lane_of(source))], refuse_any_reject)
    sink.reset(lane_of())
    assert sink.state(lane_of()) is None
    assert fetch_rows(postgres_dsn, f'SELECT DISTINCT topic FROM cdc_raw."{table}"') == [("x.y",)]
    sink.close()


def test_reset_without_a_position_is_data_loss(postgres_dsn: str) -> None:
    sink = event_log_sink({"dsn": postgres_dsn})
    for source, topic in (("shop", "cdc.public.a"), ("other", "x.y")):
        sink.prepare(lane_of(source), PLAN)
        sink.apply([make_write(0, 2, topic, lane_of(source))], refuse_any_reject)
    fetch_rows(postgres_dsn, "UPDATE _replicator.positions SET state = '{}' WHERE lane = 'raw_pg.shop'")
    with pytest.raises(DataLoss, match="it is unknown which records") as lost:
        sink.reset(lane_of())
    assert fetch_rows(postgres_dsn, "SELECT count(*) FROM cdc_raw.cdc_events") == [(4,)]
    sink.close()
    fetch_rows(postgres_dsn, "DELETE FROM cdc_raw.cdc_events WHERE topic = 'cdc.public.a'")
    fetch_rows(postgres_dsn, lost.value.next_step.split("`")[1])
    sink.prepare(lane_of(), PLAN)
    assert sink.apply([make_write(0, 2)], refuse_any_reject)["raw_pg.shop"].counts == Counts(applied=2)
    sink.close()


def test_record_that_the_table_refuses_is_rejected(postgres_dsn: str) -> None:
    fetch_rows(postgres_dsn, EXISTING)
    rejects = CollectedRejects()
    sink = event_log_sink({"dsn": postgres_dsn})
    sink.prepare(lane_of(), PLAN)
    counts = sink.apply([make_write(0, 3), make_write(3, 4, headers='"\\u0000"')], rejects)["raw_pg.shop"].counts
    assert (counts.applied, counts.rejected) == (3, 1)
    assert "headers" in rejects[0][2]
    sink.close()


def test_records_that_another_lane_wrote_are_data_loss(postgres_dsn: str) -> None:
    sink = event_log_sink({"dsn": postgres_dsn})
    other = lane_of("renamed")
    for lane in (lane_of(), other):
        sink.prepare(lane, PLAN)
    sink.apply([make_write(5, 8)], refuse_any_reject)
    with pytest.raises(DataLoss, match=re.escape("records of topic cdc.public.a that lane raw_pg.renamed did not write")):
        sink.apply([make_write(5, 8, lane=other)], refuse_any_reject)
    sink.apply([make_write(8, 9, lane=other)], refuse_any_reject)
    assert fetch_rows(postgres_dsn, 'SELECT "offset" FROM cdc_raw.cdc_events ORDER BY 1') == [(5,), (6,), (7,), (8,)]
    sink.close()


def test_records_of_a_topic_that_was_not_skipped_are_data_loss(postgres_dsn: str) -> None:
    sink = event_log_sink({"dsn": postgres_dsn})
    other = lane_of("renamed")
    for lane in (lane_of(), other):
        sink.prepare(lane, PLAN)
    sink.apply([make_write(5, 8), make_write(5, 9, "cdc.public.b")], refuse_any_reject)
    sink.skip(other, LaneState(position=Position({TopicPartition("cdc.public.a", 0): 8})))
    with pytest.raises(DataLoss, match=re.escape("of topic cdc.public.b that lane raw_pg.renamed did not")) as lost:
        sink.apply([make_write(5, 9, "cdc.public.b", lane=other)], refuse_any_reject)
    assert "skip raw_pg.renamed --until cdc.public.a:0:8,cdc.public.b:0:9`" in lost.value.next_step
    sink.close()
