"""Sequences per column on Spark: tables that both engines write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.partitioned_sink import choose_key_column, choose_value_column, list_cluster_columns, make_moving_history
from support.spark_case import LONG, OnSpark, SparkTarget, get_spark_engine
from test_spark_tables import OptionsTarget

from adapters.delta.commits import LaneLog
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.spark import side_tables
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.spark.frames import from_arrow
from replicator.domain.change import changes_schema
from replicator.domain.errors import Retryable
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Write
from replicator.testing.delivery import DeliveryRun, assert_equals_model, make_lane
from replicator.testing.histories import make_random_history
from replicator.testing.model_transforms import ModelRowTransforms
from replicator.testing.sink_row_transforms import plan_column_versions
from replicator.testing.transform_cases import KEYED_TYPES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""

LANE, PLACE = make_lane("scd1"), TopicPartition("cdc.public.items", 0)


class Feed:
    """A stream of changes of one table, of which each batch is a write; `_seq_1` of each change is its own."""

    def __init__(self, keys: Mapping[str, pa.DataType] = {"id": pa.int64()}) -> None:
        columns = {**keys, "a": pa.int64(), "b": pa.int64()}
        self.table = TableSpec("public.items", tuple(Column(n, kind) for n, kind in columns.items()), tuple(keys), 1)
        self.plan, self.offset = plan_for("scd1", self.table, None, RowTransforms(has_column_versions=True)), 0

    def write(self, *rows: Mapping[str, Any]) -> Write[pa.Table]:
        """For the local engine."""
        at = self.offset
        self.offset += len(rows)
        frame = [{"_op": "u", "_topic": PLACE.topic, "_partition": 0, "_offset": at + i, **r} for i, r in enumerate(rows)]
        span = Span(Position({PLACE: at}), Position({PLACE: self.offset}))
        changes = pa.Table.from_pylist(frame, changes_schema(self.table))
        return Write(LANE, self.plan, LocalEngine().fold(changes, self.plan), span)

    def on_spark(self, *rows: Mapping[str, Any]) -> Write[Any]:
        """The same for Spark, in several pieces."""
        write = self.write(*rows)
        whole = write.folded.frame
        pieces = [from_arrow(get_spark_engine().spark, whole.slice(i, 2)) for i in range(0, whole.num_rows, 2)]
        return replace(write, folded=get_spark_engine().fold(get_spark_engine().frames.concat(pieces), self.plan))


def whole(sequence: int, key: Any = 1) -> dict[str, Any]:
    return {"_seq_1": sequence, "_op": "c", "id": key, "a": sequence, "b": sequence}


def part(sequence: int, column: str, key: Any = 1) -> dict[str, Any]:
    (other,) = {"a", "b"} - {column}
    return {"_seq_1": sequence, "id": key, column: sequence, "_unsent": [other]}


def delete(sequence: int, key: Any = 1) -> dict[str, Any]:
    return {"_seq_1": sequence, "_op": "d", "id": key}


def put(sink: Any, *writes: Write[Any]) -> list[tuple[int, ...]]:
    """The counts of each."""
    sink.prepare(writes[0].lane, writes[0].plan)
    told = [sink.apply([each], lambda *rejected: pytest.fail(str(rejected))) for each in writes]
    return [each[LANE.id].counts.as_tuple() for each in told]


def rows(path: Any) -> list[tuple[Any, ...]]:
    found = DeltaRsSink({"path": str(path)}).read(LANE.into).to_pylist()
    return sorted((row["id"], row["a"], row["b"], row["_cdc_seq_1"], row["_cdc_unsent"]) for row in found)


def read_side_table(path: Any) -> list[tuple[Any, ...]]:
    (folder,) = {log.parent for log in path.rglob("_delta_log") if "tombstones" in log.as_posix()}
    found = pa.table(DeltaTable(str(folder)).to_pyarrow_table()).to_pylist()
    return sorted((row["id"], row["_cdc_beside"]) for row in found)


@pytest.fixture
def sink(tmp_path):
    get_spark_engine()
    made = DeltaSparkSink({"path": str(tmp_path)})
    yield made
    made.close()


@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.long)])
def test_failed_attempt_leaves_no_sequences(sink, tmp_path, monkeypatch, before):
    """The side table is written before the table. A record of a failed attempt arrives again in another batch, and must
    not make an older record stale. `before`: the number of earlier batches."""
    feed, commit = Feed(), LaneLog.commit
    for _ in range(before):
        put(sink, feed.on_spark(whole(1)))

    def dies(*_: object) -> int:
        raise Retryable("the store is gone")

    monkeypatch.setattr(LaneLog, "commit", dies)
    with pytest.raises(Retryable):
        put(sink, feed.on_spark(part(5, "a"), part(9, "a"), delete(7), delete(7, key=2)))
    assert len(read_side_table(tmp_path)) == 2
    monkeypatch.setattr(LaneLog, "commit", commit)
    feed.offset = before
    put(sink, feed.on_spark(part(5, "a"), part(6, "b", key=2)))
    assert rows(tmp_path) == [(1, 5, before or None, 5, None if before else ["b"]), (2, None, 6, 6, ["a"])]
    put(sink, feed.on_spark(part(9, "a"), delete(7)), feed.on_spark(part(8, "b"), part(6, "b")))
    assert rows(tmp_path) == [(1, 9, 8, 9, None), (2, None, 6, 6, ["a"])]


@pytest.mark.parametrize("through_driver", [pytest.param(10_000, marks=pytest.mark.long), 0])
def test_each_engine_resumes_after_the_other(tmp_path, monkeypatch, through_driver):
    """Whoever writes the side table, by which rows are also purged."""
    monkeypatch.setattr(side_tables, "THROUGH_DRIVER", through_driver)
    feed, others = Feed(), Feed()
    batches = [
        [whole(1), whole(2, key=2), part(9, "a"), delete(4, key=3)],
        [part(5, "b"), part(7, "a"), part(8, "a", key=2), part(3, "a", key=3), part(6, "b", key=3)],
        [{"_seq_1": 6, "_op": "t"}, part(5, "b", key=2), part(10, "b", key=4)],
        [whole(20), part(7, "b", key=2), delete(11, key=4), part(12, "a", key=4)],
        [part(30, "a"), part(19, "b"), part(31, "b"), part(1, "a", key=4)],
    ]
    (tmp_path / "mixed").mkdir()
    for number, batch in enumerate(batches if LONG else batches[:4]):
        by_spark = number % 2 == 0
        mixed = (DeltaSparkSink if by_spark else DeltaRsSink)({"path": str(tmp_path / "mixed")})
        local = DeltaRsSink({"path": str(tmp_path / "local")})
        told = put(mixed, feed.on_spark(*batch) if by_spark else feed.write(*batch))
        assert told == put(local, others.write(*batch)), number
        mixed.close()
        local.close()
        assert rows(tmp_path / "mixed") == rows(tmp_path / "local"), number
        assert read_side_table(tmp_path / "mixed") == read_side_table(tmp_path / "local"), number


def test_reset_clears_the_column_versions(sink, tmp_path):
    """The side table is created again at the location that Spark has read."""
    feed = Feed()
    put(sink, feed.on_spark(whole(1), part(9, "a"), delete(3, key=2)))
    sink.reset(LANE)
    put(sink, feed.on_spark(part(2, "a"), part(2, "b", key=2), part(1, "b"), part(1, "b", key=2)))
    assert rows(tmp_path) == [(1, 2, 1, 2, None), (2, None, 2, 2, ["a"])]


KEYS = {
    "bytes": (pa.binary(), b"\x00\\x'"),
    "instant": (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, 4, UTC)),
    "decimal": (pa.decimal128(38, 4), Decimal("12345.6700")),
    "unsigned": (pa.uint64(), 2**63),
    "date": (pa.date32(), date(2024, 2, 29)),
    "local time": (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 4)),
    "time": (pa.time64("us"), datetime(2024, 1, 1, 23, 59, 59, 1).time()),
}


def test_late_truncate_finds_keys_of_every_type(sink, tmp_path):
    """All types in one key."""
    feed, key = Feed({name: kind for name, (kind, _) in KEYS.items()}), {name: value for name, (_, value) in KEYS.items()}
    put(sink, feed.on_spark(whole(1) | key, part(9, "a") | key), feed.on_spark({"_seq_1": 5, "_op": "t"}))
    put(sink, feed.on_spark(part(4, "b") | key, part(3, "a") | key))
    (row,) = DeltaRsSink({"path": str(tmp_path)}).read(LANE.into).to_pylist()
    assert [row[name] for name in ("a", "b", "_cdc_seq_1", "_cdc_unsent")] == [9, None, 9, ["b"]]


def test_key_with_a_dot_in_its_name(sink, tmp_path):
    """Rows pass through Python."""
    feed, key = Feed({"the.`key`": pa.int64()}), {"the.`key`": 1}
    put(sink, feed.on_spark(whole(1) | key, part(2, "a") | key))
    (row,) = DeltaRsSink({"path": str(tmp_path)}).read(LANE.into).to_pylist()
    assert [row[name] for name in ("the.`key`", "a", "b")] == [1, 2, 1]


LAYOUTS = {
    "by-key": (choose_key_column, {}),
    "by-value": (choose_value_column, {"deletion_vectors": True, "compact_every": 2}),
    "clustered": (list_cluster_columns, {"option": "cluster_by", "compact_every": 2}),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_histories_equal_the_model_in_every_layout(tmp_path, layout):
    """The changes of each key arrive in any order."""
    case, target = OnSpark(), OptionsTarget(tmp_path / "lake", *LAYOUTS[layout])
    history = make_moving_history(3, 18) if layout == "by-value" else make_random_history(5, 14, keys=KEYED_TYPES)
    history = replace(history, shape=replace(history.shape, parts=True, scramble=7, shuffle=None))
    told = (get_spark_engine(), target, history, "scd1", plan_column_versions, ModelRowTransforms(has_column_versions=True))
    delivering = DeliveryRun(*told, to_frame=case.to_frame, to_arrow=case.to_arrow)
    delivering.run()
    assert_equals_model(delivering)


@pytest.mark.long  # `test_local_and_spark_write_the_same_rows` has such values too.
def test_values_of_every_type_are_unchanged(tmp_path):
    """Also values with another type in Spark, and lists and structs, that a partial change did not send."""
    history = make_random_history(12, 12, keys=KEYED_TYPES)
    history = replace(history, shape=replace(history.shape, parts=True, scramble=3, shuffle=None))
    case, target = OnSpark(), SparkTarget(tmp_path / "lake")
    told = (get_spark_engine(), target, history, "scd1", plan_column_versions, ModelRowTransforms(has_column_versions=True))
    delivering = DeliveryRun(*told, to_frame=case.to_frame, to_arrow=case.to_arrow)
    delivering.run()
    assert_equals_model(delivering)


def test_large_table_is_a_few_ordered_tasks() -> None:
    spark = get_spark_engine().spark
    frame = from_arrow(spark, pa.table({"n": range(50_000)}))
    assert frame.rdd.getNumPartitions() <= spark.sparkContext.defaultParallelism
    assert [row.n for row in frame.collect()] == list(range(50_000))
