"""Sequences per column in a lake: a side table has them, at the version that belongs to the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from adapters.delta.commits import LaneLog
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.change import changes_schema
from replicator.domain.errors import Retryable
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane

LANE, PLACE = make_lane("scd1"), TopicPartition("cdc.public.items", 0)
ITEMS = TableSpec("public.items", tuple(Column(n, pa.int64()) for n in ("id", "a", "b")), ("id",), 1)
PLAN = plan_for("scd1", ITEMS, None, RowTransforms(has_column_versions=True))


def write(start: int, *rows: Mapping[str, Any]) -> Write[pa.Table]:
    """Changes at consecutive offsets; each row has its own `_seq_1`."""
    frame = [
        {"_op": "u", "_topic": PLACE.topic, "_partition": 0, "_offset": at, **row} for at, row in enumerate(rows, start)
    ]
    span = Span(Position({PLACE: start}), Position({PLACE: start + len(rows)}))
    return Write(LANE, PLAN, LocalEngine().fold(pa.Table.from_pylist(frame, changes_schema(ITEMS)), PLAN), span)


def whole(sequence: int, key: int = 1) -> dict[str, Any]:
    return {"_seq_1": sequence, "_op": "c", "id": key, "a": sequence, "b": sequence}


def part(sequence: int, column: str, key: int = 1) -> dict[str, Any]:
    (other,) = {"a", "b"} - {column}
    return {"_seq_1": sequence, "id": key, column: sequence, "_unsent": [other]}


def apply_rows(sink: DeltaRsSink, *writes: Write[pa.Table]) -> None:
    sink.prepare(LANE, PLAN)
    for each in writes:
        sink.apply([each], lambda *rejected: pytest.fail(str(rejected)))


def rows(path: Any) -> list[tuple[Any, ...]]:
    found = DeltaRsSink({"path": str(path)}).read(LANE.into).to_pylist()
    return sorted((row["id"], row["a"], row["b"], row["_cdc_seq_1"], row["_cdc_unsent"]) for row in found)


@pytest.fixture
def sink(tmp_path):
    opened = DeltaRsSink({"path": str(tmp_path)})
    yield opened
    opened.close()


def test_failed_attempt_stores_no_column_sequences(sink, tmp_path, monkeypatch):
    """The side table is written before the table. A record of a failed attempt arrives again in another batch; an older
    one must not be compared with its sequence."""
    apply_rows(sink, write(0, whole(1)))
    commit = LaneLog.commit

    def fail_commit(*_: object) -> int:
        raise Retryable("the store is gone")

    monkeypatch.setattr(LaneLog, "commit", fail_commit)
    with pytest.raises(Retryable):
        apply_rows(sink, write(1, part(5, "a"), part(9, "a"), {"_seq_1": 7, "_op": "d", "id": 1}))
    monkeypatch.setattr(LaneLog, "commit", commit)
    apply_rows(sink, write(1, part(5, "a")))
    assert rows(tmp_path) == [(1, 5, 1, 5, None)]
    apply_rows(sink, write(2, part(9, "a"), {"_seq_1": 7, "_op": "d", "id": 1}), write(4, part(8, "b"), part(6, "b")))
    assert rows(tmp_path) == [(1, 9, 8, 9, None)]


def test_failed_rename_leaves_the_column_sequences(sink, tmp_path, monkeypatch):
    """`b` takes the name of a column that was dropped before, also in the side table. The commit of the rows fails, and
    the rename is repeated."""
    apply_rows(sink, write(0, whole(1), part(5, "b"), part(6, "a"), part(9, "a")))
    names = {"id": "id", "a": "_old_a", "b": "a"}
    columns = tuple(replace(column, name=names[column.name]) for column in ITEMS.columns if column.name != "a")
    reshaping = TargetReshape(replaced=("a",), renames=(("b", "a"),))
    version = SchemaVersion(2, ITEMS, columns, Position(), datetime(2026, 3, 1, tzinfo=UTC), reshaping=reshaping)
    table = replace(ITEMS, columns=columns)
    plan = replace(plan_for("scd1", table, None, RowTransforms(has_column_versions=True)), versions=(version,))
    commit = LaneLog.commit

    def fail_commit(*_: object) -> int:
        raise Retryable("the store is gone")

    monkeypatch.setattr(LaneLog, "commit", fail_commit)
    with pytest.raises(Retryable):
        sink.prepare(LANE, plan)
    monkeypatch.setattr(LaneLog, "commit", commit)
    sink.prepare(LANE, plan)
    for sequence, start in ((7, 4), (4, 5)):
        late = {"_seq_1": sequence, "_op": "u", "id": 1, "a": sequence}
        frame = pa.Table.from_pylist(
            [{"_topic": PLACE.topic, "_partition": 0, "_offset": start, **late}], changes_schema(table)
        )
        span = Span(Position({PLACE: start}), Position({PLACE: start + 1}))
        sink.apply([Write(LANE, plan, LocalEngine().fold(frame, plan), span)], lambda *rejected: pytest.fail(str(rejected)))
    (row,) = DeltaRsSink({"path": str(tmp_path)}).read(LANE.into).to_pylist()
    assert (row["a"], row["_cdc_seq_1"]) == (7, 9)


def test_second_instance_resumes(sink, tmp_path):
    apply_rows(sink, write(0, whole(1), part(9, "a")))
    sink.close()
    again = DeltaRsSink({"path": str(tmp_path)})
    apply_rows(again, write(2, part(5, "b"), part(7, "a")))
    again.close()
    assert rows(tmp_path) == [(1, 9, 5, 9, None)]


def test_side_table_contains_only_keys_that_need_it(sink, tmp_path):
    """A row needs no entry if its last change was whole and no delete precedes it."""
    apply_rows(sink, write(0, whole(1), whole(2, key=2), part(3, "a"), whole(4, key=3)))
    (folder,) = {log.parent for log in tmp_path.rglob("_delta_log") if "tombstones" in log.as_posix()}
    side_table = DeltaTable(str(folder))
    entries = pa.table(side_table.to_pyarrow_table()).to_pylist()
    assert entries == [{"id": 1, "_cdc_beside": '{"older": {"b": [1]}}'}]
    apply_rows(sink, write(4, whole(6)))
    side_table.update_incremental()
    assert side_table.to_pyarrow_table().num_rows == 0
    assert not [name for name in DeltaRsSink({"path": str(tmp_path)}).read("items").column_names if "beside" in name]


def test_replaced_files_of_the_side_table_are_deleted(sink, tmp_path):
    """Once a day, and at the first write of a program."""
    apply_rows(sink, write(0, whole(1), part(2, "a")))
    sink.close()
    (folder,) = {log.parent for log in tmp_path.rglob("_delta_log") if "tombstones" in log.as_posix()}
    old = folder / "part-old.parquet"
    old.write_bytes(b"rows")
    os.utime(old, (time.time() - 10 * 86_400,) * 2)
    again = DeltaRsSink({"path": str(tmp_path)})
    apply_rows(again, write(2, part(4, "b")), write(3, part(3, "b")))
    again.close()
    assert not old.exists() and rows(tmp_path) == [(1, 2, 4, 4, None)]


def test_reset_clears_the_column_versions(sink, tmp_path):
    apply_rows(sink, write(0, whole(1), part(9, "a"), {"_seq_1": 3, "_op": "d", "id": 2}))
    sink.reset(LANE)
    apply_rows(sink, write(3, part(2, "a"), part(2, "b", key=2)))
    assert rows(tmp_path) == [(1, 2, None, 2, ["b"]), (2, None, 2, 2, ["a"])]


def test_checkpoint_has_the_columns_under_their_own_names(sink):
    """Another target stores them under these names, also in lists and texts."""
    columns = tuple(replace(column, name={"b": "b c"}.get(column.name, column.name)) for column in ITEMS.columns)
    table = replace(ITEMS, columns=columns)
    plan = plan_for("scd1", table, None, RowTransforms(has_column_versions=True))
    parts = [
        {"_seq_1": 1, "id": 1, "b c": 1, "_unsent": ["a"]},
        {"_seq_1": 2, "id": 1, "a": 2, "_unsent": ["b c"]},
        {"_seq_1": 3, "id": 2, "a": 3, "_unsent": ["b c"]},
    ]
    places = [{"_op": "u", "_topic": PLACE.topic, "_partition": 0, "_offset": at} for at in range(3)]
    frame = pa.Table.from_pylist([p | r for p, r in zip(places, parts, strict=True)], changes_schema(table))
    span = Span(Position({PLACE: 0}), Position({PLACE: 3}))
    sink.prepare(LANE, plan)
    sink.apply([Write(LANE, plan, LocalEngine().fold(frame, plan), span)], lambda *rejected: pytest.fail(str(rejected)))
    stored = sink.open_stored_lane(LANE, plan)
    rows = pa.concat_tables(stored.rows()).to_pylist()
    assert {row["id"]: (row["b c"], row["_cdc_unsent"]) for row in rows} == {1: (1, None), 2: (None, ["b c"])}
    texts = {row["id"]: row["_cdc_beside"] for row in pa.concat_tables(stored.side_rows()).to_pylist()}
    assert texts == {1: '{"older": {"b c": [1]}}', 2: '{"unsent": ["b c"]}'}


def test_rule_with_column_sequences_differs_from_plain_scd1(sink):
    """A lane does not start to store sequences per column over rows without them."""
    apply_rows(sink, write(0, whole(1)))
    state = sink.state(LANE)
    assert state is not None
    assert (state.rule, PLAN.rule) == ("scd1 with sequences per column by id",) * 2
    assert plan_for("scd1", ITEMS).rule == "scd1 by id"
