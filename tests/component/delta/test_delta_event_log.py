"""The event log as a Delta table."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from adapters.dispatch import event_log_sink
from adapters.sinks.delta.event_log import DeltaEventLog
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced
from replicator.domain.event_log import EVENT_LOG, make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import FoldedChanges, Lane, Write
from replicator.testing.sink_base import refuse_rejects

PLAN = make_event_log_plan()
TAKEN = datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)
HOSTILE = "cdc./../a b=ü%"


def lane(source: str = "shop") -> Lane:
    return Lane(f"raw.{source}", "shop", source, "", "raw", source, "event_log")


def write(
    start: int, end: int, topic: str = "cdc.items", source: str = "shop", at: datetime | None = TAKEN
) -> Write[pa.Table]:
    rows = [
        {"event_id": f"{topic}-0-{i}", "topic": topic, "partition": 0, "offset": i, "timestamp": at, "ingested_at": TAKEN}
        | {"value": b"\xff\x00", "key": None, "error": "MALFORMED: x"}
        for i in range(start, end)
    ]
    frame = pa.Table.from_pylist(rows, pa.schema([(c.name, c.type) for c in PLAN.target]))
    partition = TopicPartition(topic, 0)
    span = Span(Position({partition: start}), Position({partition: end}))
    return Write(
        lane(source), PLAN, FoldedChanges(frame, Facts(), Counts(), frame.num_rows, frame.nbytes), span, {topic: "id"}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cdc_events"


@pytest.fixture
def log(path: Path) -> Iterator[DeltaEventLog]:
    opened = event_log_sink({"path": str(path)})
    assert isinstance(opened, DeltaEventLog)
    for source in ("shop", "other"):
        opened.prepare(lane(source), PLAN)
    yield opened
    opened.close()


def list_offsets(log: DeltaEventLog, topic: str = "cdc.items") -> list[int]:
    return [r["offset"] for r in log.read("cdc_events").sort_by("offset").to_pylist() if r["topic"] == topic]


def test_records_are_stored_unchanged(log: DeltaEventLog, path: Path) -> None:
    done = log.apply([write(5, 8)], refuse_rejects)["raw.shop"]
    assert (done.counts, done.position) == (Counts(applied=3), write(5, 8).span.end)
    row = log.read("cdc_events", where='"offset" = 6').to_pylist()[0]
    assert {name: row[name] for name in ("event_id", "value", "key", "error", "date")} == {
        "event_id": "cdc.items-0-6",
        "value": b"\xff\x00",
        "key": None,
        "error": "MALFORMED: x",
        "date": date(2024, 2, 29),
    }
    assert [f.name for f in DeltaTable(str(path)).schema().fields] == [*(c.name for c in EVENT_LOG), "date"]
    assert DeltaTable(str(path)).metadata().partition_columns == ["topic", "date"]


def test_redelivery_is_recognised_by_position(log: DeltaEventLog) -> None:
    log.apply([write(0, 4)], refuse_rejects)
    assert log.apply([write(0, 4)], refuse_rejects)["raw.shop"].counts == Counts(duplicate=4)
    assert log.apply([write(2, 6)], refuse_rejects)["raw.shop"].counts == Counts(applied=2, duplicate=2)
    with pytest.raises(DataLoss, match="lanes skip"):
        log.apply([write(7, 8)], refuse_rejects)
    log.apply([write(6, 6)], refuse_rejects)
    assert list_offsets(log) == list(range(6))
    assert log.state(lane()) == LaneState(write(0, 6).span.end, identity=(("cdc.items", "id"),), rule="event_log")


def test_sources_share_the_table_but_have_separate_positions(log: DeltaEventLog, path: Path) -> None:
    for i in range(3):
        log.apply([write(i, i + 1), write(i, i + 1, HOSTILE, "other")], refuse_rejects)
    assert list_offsets(log) == list_offsets(log, HOSTILE) == [0, 1, 2]
    assert {p.name for p in path.parent.iterdir()} == {"cdc_events"}
    log.reset(lane())
    assert (list_offsets(log), list_offsets(log, HOSTILE)) == ([], [0, 1, 2])
    assert log.state(lane()) is None
    log.apply([write(0, 2)], refuse_rejects)
    assert list_offsets(log) == [0, 1]


def test_table_refuses_other_rewrites(log: DeltaEventLog, path: Path) -> None:
    log.apply([write(0, 2)], refuse_rejects)
    log.reset(lane("other"))
    with pytest.raises(DeltaError, match=r"(?i)append"):
        DeltaTable(str(path)).delete()
    DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": "false"})
    log.prepare(lane(), PLAN)
    assert DeltaTable(str(path)).metadata().configuration["delta.appendOnly"] == "true"
    assert list_offsets(log) == [0, 1]


def test_record_without_time_gets_the_date_of_its_ingestion(log: DeltaEventLog) -> None:
    log.apply([write(0, 1, at=None)], refuse_rejects)
    assert log.read("cdc_events")["date"].to_pylist() == [date(2024, 2, 29)]


def test_vacuum_does_not_remove_positions(log: DeltaEventLog, path: Path) -> None:
    log.apply([write(0, 2)], refuse_rejects)
    DeltaTable(str(path)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert log.state(lane()) is not None


def test_second_instance_is_fenced(log: DeltaEventLog, path: Path) -> None:
    with pytest.raises(Fenced):
        event_log_sink({"path": str(path)}).prepare(lane(), PLAN)


def test_skip_changes_only_the_state(log: DeltaEventLog) -> None:
    log.apply([write(0, 2)], refuse_rejects)
    state = log.state(lane())
    assert state is not None
    log.skip(lane(), replace(state, position=write(0, 9).span.end))
    assert log.apply([write(9, 10)], refuse_rejects)["raw.shop"].counts == Counts(applied=1)
    assert list_offsets(log) == [0, 1, 9]


def test_records_without_a_position_are_not_removed(log: DeltaEventLog, path: Path) -> None:
    log.apply([write(0, 2), write(0, 2, HOSTILE, "other")], refuse_rejects)
    (path / "_replicator" / "positions" / "shop" / "raw.shop" / "1.json").write_text("{}")
    for act in (lambda: log.state(lane()), lambda: log.apply([write(2, 3)], refuse_rejects)):
        with pytest.raises(DataLoss, match="lanes resync"):
            act()
    with pytest.raises(DataLoss, match=r"it is unknown which records.*remove the folder"):
        log.reset(lane())
    assert (list_offsets(log), list_offsets(log, HOSTILE)) == ([0, 1], [0, 1])
    log.close()
    shutil.rmtree(path)
    log.reset(lane())
    assert log.state(lane()) is None
    log.prepare(lane(), PLAN)
    log.apply([write(0, 2)], refuse_rejects)
    assert list_offsets(log) == [0, 1]


def test_event_log_reads_only_its_own_table(log: DeltaEventLog) -> None:
    assert log.tables() == ["cdc_events"]
    with pytest.raises(Fatal, match="no table 'other'"):
        log.read("other")


@pytest.mark.parametrize("options", [{}, {"path": "a", "dsn": "b"}])
def test_exactly_one_location_is_required(options: dict[str, object]) -> None:
    with pytest.raises(ConfigProblem, match="exactly one"):
        event_log_sink(options)


def test_records_written_by_another_lane_are_data_loss(log: DeltaEventLog) -> None:
    log.apply([write(5, 8)], refuse_rejects)
    with pytest.raises(DataLoss, match=re.escape("records of topic cdc.items that lane raw.other did not write")):
        log.apply([write(5, 8, source="other")], refuse_rejects)
    log.apply([write(8, 9, source="other")], refuse_rejects)
    log.apply([write(0, 2, topic="cdc.more", source="other")], refuse_rejects)
    assert list_offsets(log) == [5, 6, 7, 8]


def test_records_of_a_topic_that_was_not_skipped_are_data_loss(log: DeltaEventLog) -> None:
    """The suggested command lists every partition of the log, so that one command is enough."""
    for topic, end in (("cdc.items", 8), ("cdc.more", 9)):
        log.apply([write(5, end, topic=topic)], refuse_rejects)
    log.prepare(lane("other"), PLAN)
    log.skip(lane("other"), LaneState(position=Position({TopicPartition("cdc.items", 0): 8})))
    with pytest.raises(DataLoss, match=re.escape("records of topic cdc.more that lane raw.other did not write")) as lost:
        log.apply([write(5, 9, topic="cdc.more", source="other")], refuse_rejects)
    assert "`replicator lanes skip raw.other --until cdc.items:0:8,cdc.more:0:9`" in lost.value.next_step
    log.apply([write(8, 9, source="other")], refuse_rejects)
    assert (list_offsets(log), list_offsets(log, "cdc.more")) == ([5, 6, 7, 8], [5, 6, 7, 8])


def test_mirror_in_the_folder_of_an_event_log_is_refused(log: DeltaEventLog, path: Path) -> None:
    log.apply([write(5, 8)], refuse_rejects)
    table = TableSpec("public.cdc_events", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 2)
    sink = DeltaRsSink({"path": str(path.parent)})
    mirror = Lane("lake.cdc_events", "shop", "shop", table.name, "lake", "cdc_events", "scd1")
    with pytest.raises(ConfigProblem, match="the folder of table cdc_events is an event log"):
        sink.prepare(mirror, plan_for("scd1", table))
    sink.close()
    assert log.read("cdc_events").num_rows == 3
