"""Delta tables in an object store, written by Spark and by delta-rs in turns."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from servers.object_store import BUCKET, ObjectStore, object_store
from support.spark_case import OPTIONS, OnSpark, get_spark_engine
from support.stored_rows import StoredRowsStream
from support.table_of_rows import ReadsRows

from adapters.delta.stored_folder import StoredFolder
from adapters.engines.local import LocalEngine
from adapters.jvm.jars import find_groups
from adapters.object_store.options import Storage
from adapters.observability.checks.spark import SparkCheck
from adapters.sinks.delta.event_log import DeltaEventLog
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.spark.sink import DeltaSparkEventLog, DeltaSparkSink
from adapters.sources.delta_spark import delta_spark_source
from adapters.spark import merge
from adapters.spark.errors import translate_errors
from adapters.spark.frames import to_arrow
from adapters.spark.session import configure_store, to_spark_path
from replicator.domain.change import OFFSET, OP, PARTITION, RAW, TOPIC, changes_schema
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fenced
from replicator.domain.event_log import make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import FoldedChanges, Lane, Write
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects
from replicator.testing.source_contract import SourceContract, make_records

pytestmark = pytest.mark.slow

ITEMS = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 1)
PLACE = TopicPartition("cdc.public.items", 0)
LANE = make_lane("scd1")
TOPICS = ("cdc.items", "cdc./../a b=ü%")
NOW = datetime(2024, 2, 29, tzinfo=UTC)


def item(number, op="c", v=""):
    return {OP: op, "id": number, "v": v or f"v{number}"}


class StoredRowsOnSpark(StoredRowsStream):
    def open(self):
        super().open()
        return delta_spark_source({**self.options(), **OPTIONS})


class Writer:
    """One instance, on Spark or in process."""

    def __init__(self, options, *, spark):
        get_spark_engine()
        self.to_frame = OnSpark().to_frame if spark else lambda frame: frame
        self.sink = (DeltaSparkSink if spark else DeltaRsSink)(options)
        self.engine = get_spark_engine() if spark else LocalEngine()
        self.sink.prepare(LANE, plan_for("scd1", ITEMS))

    def put(self, rows, start=None):
        state = self.sink.state(LANE)
        at = start if start is not None else (state.position[PLACE] if state else 0)
        places = [{TOPIC: PLACE.topic, PARTITION: 0, OFFSET: at + i, "_seq_1": at + i} for i in range(len(rows))]
        records = [place | row for place, row in zip(places, rows, strict=True)]
        plan = plan_for("scd1", ITEMS)
        folded = self.engine.fold(self.to_frame(pa.Table.from_pylist(records, changes_schema(ITEMS))), plan)
        span = Span(Position({PLACE: at}), Position({PLACE: at + len(rows)}))
        return self.sink.apply([Write(LANE, plan, folded, span)], refuse_rejects)[LANE.id]


def values(options):
    """The rows, which both engines must see alike."""
    by_spark = get_spark_engine().spark.read.format("delta").load(to_spark_path(f"{options['path']}/items")).collect()
    by_rs = DeltaRsSink(options).read("items").to_pylist()
    seen = [{row["id"]: row["v"] for row in rows} for rows in (by_spark, by_rs)]
    assert seen[0] == seen[1]
    return seen[0]


def test_engines_alternate(s3: ObjectStore):
    lake = s3.lake()
    for number, spark in enumerate((True, False)):
        writer = Writer(lake, spark=spark)
        rows = [item(number), item(100, "u" if number else "c", str(number)), item(number - 1, "d")]
        assert writer.put(rows).counts.applied == 3
        writer.sink.close()
    late = {**item(0, "u", "late"), "_seq_1": 1}
    assert Writer(lake, spark=True).put([late]).counts.superseded == 1
    assert values(lake) == {100: "1", 1: "v1"}
    assert DeltaRsSink(lake).state(LANE).position == Position({PLACE: 7})


@pytest.mark.long
class TestStoredRowsOnSpark(ReadsRows, SourceContract):
    """`RowsSource` over a bucket, which executors reach by what the options say."""

    @pytest.fixture(autouse=True)
    def server(self, s3: ObjectStore) -> None:
        get_spark_engine()
        self.s3 = s3

    def new_stream(self):
        return StoredRowsOnSpark(self.s3, 6, "feed")

    def to_arrow(self, frame):
        """Inside a list Spark has names of its own."""
        return to_arrow(frame).cast(RAW)


def test_rows_of_a_table_in_a_bucket(s3: ObjectStore):
    stream = StoredRowsOnSpark(s3, 1000, "feed")
    stream.publish(make_records(stream, 0, 6))
    source = stream.open()
    batches, end = [], source.end()
    source.read(source.start(), end, batches.append, threading.Event())
    found = pa.concat_tables([to_arrow(batch.frame).cast(RAW) for batch in batches])
    assert found.sort_by("offset").to_pylist() == stream.list_expected_records(0, 6).to_pylist()


def test_second_instance_is_fenced(s3: ObjectStore):
    lake = s3.lake()
    first, second = Writer(lake, spark=True), Writer(lake, spark=True)
    first.put([item(1)])
    with pytest.raises(Fenced) as fenced:
        second.put([item(2)], start=0)
    assert fenced.value.exit_code == 5
    third = Writer(lake, spark=False)
    third.put([item(3)])
    with pytest.raises(Fenced):
        first.put([item(4)], start=1)
    assert values(lake) == {1: "v1", 3: "v3"}


def test_commit_of_another_instance_during_a_merge(s3: ObjectStore, monkeypatch):
    """It commits after stage 2 was read and a number was claimed."""
    lake = s3.lake()
    first, second = Writer(lake, spark=True), Writer(lake, spark=False)
    original, left = merge.commit_session, [True]

    def meanwhile(*args):
        if left:
            left.clear()
            second.put([item(7)])
        return original(*args)

    monkeypatch.setattr(merge, "commit_session", meanwhile)
    with pytest.raises(Fenced):
        first.put([item(8), item(9)])
    assert values(lake) == {7: "v7"}


def test_attempt_killed_between_position_file_and_commit(s3: ObjectStore, monkeypatch):
    lake = s3.lake()
    first = Writer(lake, spark=True)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(merge, "commit_session", die)
        with pytest.raises(KeyboardInterrupt):
            first.put([item(1), item(2)])
    again = Writer(lake, spark=True)
    assert again.sink.state(LANE) is None
    again.put([item(1)])
    assert again.sink.state(LANE).position == Position({PLACE: 1})
    assert values(lake) == {1: "v1"}
    files = [key for key in s3.keys(lake["path"]) if "/positions/" in key]
    assert sorted(key.rpartition("/")[2] for key in files) == ["1.json", "2.json"]


def test_event_log_with_alternating_engines(s3: ObjectStore):
    lake, plan = s3.lake(), make_event_log_plan()
    lane = Lane("raw.shop", "shop", "shop", "", "raw", "shop", "event_log")
    for number in range(3):
        log = (DeltaSparkEventLog if number % 2 else DeltaEventLog)(lake)
        log.prepare(lane, plan)
        rows = [
            {"event_id": f"{topic}-{number}", "topic": topic, "partition": 0, "offset": number, "ingested_at": NOW}
            for topic in TOPICS
        ]
        frame = pa.Table.from_pylist(rows, pa.schema([(c.name, c.type) for c in plan.target]))
        frame = OnSpark().to_frame(frame) if number % 2 else frame
        start = Position({TopicPartition(topic, 0): number for topic in TOPICS})
        span = Span(start, Position(dict.fromkeys(start, number + 1)))
        log.apply([Write(lane, plan, FoldedChanges(frame, Facts(), Counts(), len(rows), 1), span)], refuse_rejects)
        log.close()
    name = str(lake["path"]).rpartition("/")[2]
    found = DeltaEventLog(lake).read(name).to_pylist()
    assert sorted((r["topic"], r["offset"]) for r in found) == sorted((t, n) for t in TOPICS for n in range(3))
    assert get_spark_engine().spark.read.format("delta").load(to_spark_path(str(lake["path"]))).count() == len(found)


def test_bucket_with_two_sets_of_options_is_refused(s3: ObjectStore):
    get_spark_engine()
    DeltaSparkSink(s3.lake()).apply([], refuse_rejects)
    other = {**s3.lake(), "storage": {**s3.storage, "secret_access_key": "another-secret"}}
    with pytest.raises(ConfigProblem, match=f"reach the bucket {BUCKET} in different ways") as refused:
        DeltaSparkSink(other).apply([], refuse_rejects)
    assert "another-secret" not in str(refused.value)


def test_missing_bucket_is_reported(s3: ObjectStore):
    """The driver's library finds it first. A store that refuses executors later is reported with its own text."""
    lake = {"path": "s3://no-such-bucket/lake", "storage": s3.storage}
    with pytest.raises(EnvironmentProblem, match="does not exist"):
        Writer(lake, spark=True)
    folder = StoredFolder.from_path(lake["path"], Storage.model_validate(s3.storage))
    configure_store(get_spark_engine().spark, folder, folder.bucket.storage)
    with pytest.raises(EnvironmentProblem, match="bucket of a sink does not exist"), translate_errors("looking"):
        get_spark_engine().spark.read.parquet(to_spark_path(f"{lake['path']}/x")).collect()


def test_refused_credentials_of_spark_are_reported():
    with object_store(asks_after=1) as store:
        options = {"path": f"s3://{BUCKET}-asking/lake", "storage": store.storage}
        folder = StoredFolder.from_path(options["path"], Storage.model_validate(store.storage))
        configure_store(get_spark_engine().spark, folder, folder.bucket.storage)
        with pytest.raises(EnvironmentProblem, match="refuses access") as refused, translate_errors("looking"):
            get_spark_engine().spark.read.parquet(to_spark_path(f"{options['path']}/x")).collect()
        assert "not-to-be-seen" not in str(refused.value)


def test_doctor_checks_the_jars_of_a_store():
    assert find_groups(["s3", "s3a"]) == ["s3"] and find_groups(["gs"]) == []
    without, with_s3 = (SparkCheck("spark", {"stores": stores}).diagnose()[-1].sentence for stores in ([], ["s3"]))
    assert without != with_s3
