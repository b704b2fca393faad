"""Rows copied by the tasks of a Spark job are applied once, also after failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark import TaskContext
from support.pg_case import TOPIC, LaneWrites, fetch_rows, make_pg_lane, make_table, refuse_any_reject
from support.small_spark import SMALL

from adapters.dispatch import event_log_spark_sink
from adapters.engines.spark import SparkEngine
from adapters.sinks.postgres.lanes import PostgresLanes
from adapters.sinks.postgres.spark import sink as spark_sink
from adapters.sinks.postgres.spark.sink import PostgresSparkSink
from adapters.spark.frames import from_arrow, to_arrow
from replicator.domain.errors import Fatal, Retryable
from replicator.domain.event_log import EVENT_LOG, make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.position import Position, Span
from replicator.ports.frames import FoldedChanges, Lane, Write

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = make_table({"id": pa.int64(), "name": pa.string(), "n": pa.int64()})


@cache
def engine() -> SparkEngine:
    return SparkEngine({"spark": SMALL})


def open_sink(dsn: str, through_driver: int = 0) -> Any:
    engine()
    return closing(PostgresSparkSink({"dsn": dsn, "schema": "mirror"}, through_driver=through_driver))


def on_spark(write: Write[pa.Table], parts: int = 2) -> Write[Any]:
    frame = from_arrow(engine().spark, write.folded.frame).repartition(parts)
    return replace(write, folded=replace(write.folded, frame=frame))


def items(start: int, end: int, **values: Any) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}", "n": 1, **values} for i in range(start, end)]


def put(sink: Any, write: Write[pa.Table], reject: Any = refuse_any_reject, **options: Any) -> Any:
    sink.prepare(write.lane, write.plan)
    return sink.apply([on_spark(write, **options)], reject)[write.lane.id]


def staging_tables(dsn: str) -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relname LIKE 'staging%' AND relkind = 'r'"
    return [row[0] for row in fetch_rows(dsn, query)]


class Rejected(list):
    """Takes rejects: (offset, sentence)."""

    def __call__(self, lane: Lane, rows: Any) -> None:
        for row in to_arrow(rows).to_pylist():
            self.append((row["_offset"] if "_offset" in row else row["offset"], row["_error"]))


@pytest.mark.parametrize("policy", ["scd1", "append"])
def test_task_that_fails_after_its_copy_is_retried(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Both attempts of each task have committed; the rows of one count."""
    told = spark_sink.report_copy

    def failing_once(copy: Any, pieces: Any) -> Iterator[pa.RecordBatch]:
        yield from list(told(copy, pieces))
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the executor is lost")

    seen = []
    apply_writes = PostgresLanes.apply_writes

    def fail_after_copy(self: PostgresLanes, writes: Any, reject: Any) -> Any:
        (table,) = staging_tables(postgres_dsn)
        seen.extend(fetch_rows(postgres_dsn, f"SELECT count(*), count(DISTINCT _cdc_attempt) FROM _replicator.{table}"))
        return apply_writes(self, writes, reject)

    monkeypatch.setattr(spark_sink, "report_copy", failing_once)
    monkeypatch.setattr(PostgresLanes, "apply_writes", fail_after_copy)
    with open_sink(postgres_dsn) as sink:
        counts = put(sink, LaneWrites(TABLE, make_pg_lane(policy=policy)).write(*items(0, 100))).counts
    assert seen == [(200, 4)]
    assert counts == Counts(applied=100)
    assert fetch_rows(postgres_dsn, "SELECT count(*), count(DISTINCT id) FROM mirror.items") == [(100, 100)]
    assert staging_tables(postgres_dsn) == []


def fail(dsn: str, sink: Any, feed: LaneWrites, monkeypatch: pytest.MonkeyPatch) -> str:
    """A batch whose rows are copied and whose transaction then fails; returns the table it leaves."""

    def lose(*_: Any) -> None:
        raise Retryable("the server is away")

    offset = feed.offset
    with monkeypatch.context() as broken, pytest.raises(Retryable):
        broken.setattr(PostgresLanes, "_commit", lose)
        put(sink, feed.write(*items(0, 50, n=666)))
    feed.offset = offset
    (table,) = staging_tables(dsn)
    assert fetch_rows(dsn, f"SELECT count(*) FROM _replicator.{table}") == [(50,)]
    return table


def test_rows_of_a_failed_batch_are_not_applied(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the next batch of the same instance nor by the next instance, not even while it is still copied."""
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        fail(postgres_dsn, sink, feed, monkeypatch)
        applied = sink.apply([on_spark(feed.write(*items(100, 110)))], refuse_any_reject)
        assert applied[feed.lane.id].counts == Counts(applied=10)
        assert staging_tables(postgres_dsn) == []
        table = fail(postgres_dsn, sink, feed, monkeypatch)
    name = f"replicator {table} elsewhere/1"
    with psycopg.connect(postgres_dsn, application_name=name) as straggler, open_sink(postgres_dsn) as sink:
        straggler.execute(f"INSERT INTO _replicator.{table} SELECT * FROM _replicator.{table}".encode())
        began = time.monotonic()
        sink.prepare(feed.lane, feed.plan)
        assert staging_tables(postgres_dsn) == [] and time.monotonic() - began < 9
        assert put(sink, feed.write(*items(200, 205))).counts == Counts(applied=5)
        assert straggler.pgconn.status == psycopg.pq.ConnStatus.OK
        with pytest.raises(psycopg.OperationalError):
            straggler.execute("SELECT 1")
    assert fetch_rows(postgres_dsn, "SELECT count(*), max(n) FROM mirror.items") == [(15, 1)]


@pytest.mark.parametrize(
    ("column", "bad", "said"),
    [
        ("n smallint", {"n": 100_000}, "column 'n'"),
        ("n bigint CHECK (n < 10)", {"n": 11}, "items_n_check"),
        ("name varchar(8)", {"name": "much too long"}, "column 'name'"),
        ("name uuid", {"name": "no uuid"}, "column 'name'"),
        ("name text", {"name": "a\0b"}, "column 'name'"),
    ],
)
def test_unconvertible_rows_are_rejected(postgres_dsn: str, column: str, bad: dict, said: str) -> None:
    """Whether the executors, the server during the copy, or the merge refuses them."""
    columns = {"id": "id bigint PRIMARY KEY", "name": "name text", "n": "n bigint", column.split(maxsplit=1)[0]: column}
    fetch_rows(postgres_dsn, f"CREATE SCHEMA mirror; CREATE TABLE mirror.items ({', '.join(columns.values())})")
    rows = items(0, 40, **({"name": None} if "uuid" in column else {}))
    for place in (7, 21):
        rows[place] = {**rows[place], **bad}
    rejected = Rejected()
    with open_sink(postgres_dsn) as sink:
        feed = LaneWrites(TABLE)
        assert put(sink, feed.write(*rows), rejected).counts == Counts(applied=38, rejected=2)
        assert sorted(offset for offset, _ in rejected) == [7, 21]
        assert all(said in sentence for _, sentence in rejected)
        assert not any(str(value) in sentence for _, sentence in rejected for value in bad.values() if len(str(value)) > 2)
        assert dict(sink.state(feed.lane).position) == {TOPIC: 40}
    left = fetch_rows(postgres_dsn, "SELECT id FROM mirror.items ORDER BY id")
    assert [row[0] for row in left] == [i for i in range(40) if i not in (7, 21)]


def test_column_with_a_dot_in_its_name_is_copied(postgres_dsn: str) -> None:
    feed = LaneWrites(make_table({"id": pa.int64(), "a.`b`": pa.int64()}))
    with open_sink(postgres_dsn) as sink:
        assert put(sink, feed.write({"id": 1, "a.`b`": 7})).counts == Counts(applied=1)
    assert fetch_rows(postgres_dsn, 'SELECT "a.`b`" FROM mirror.items') == [(7,)]


def test_row_that_cannot_be_completed_is_rejected(postgres_dsn: str) -> None:
    feed, rejected = LaneWrites(TABLE), Rejected()
    with open_sink(postgres_dsn) as sink:
        put(sink, feed.write(*items(0, 2)))
        partial = [{"id": 1, "n": 3, "_unsent": ["name"]}, {"id": 2, "n": 30, "_unsent": ["name"]}]
        assert put(sink, feed.write(*partial), rejected).counts == Counts(applied=1, rejected=1)
    ((offset, sentence),) = rejected
    assert offset == 3 and "name" in sentence
    assert fetch_rows(postgres_dsn, "SELECT id, name, n FROM mirror.items ORDER BY id") == [
        (0, "name 0", 1),
        (1, "name 1", 3),
    ]


@pytest.mark.parametrize("through_driver", [0, 1000])
def test_missing_value_is_that_of_an_earlier_change_of_the_batch(postgres_dsn: str, through_driver: int) -> None:
    """Whichever of them a task copies first, and whatever their offsets."""
    feed = LaneWrites(TABLE, make_pg_lane(policy="scd2"))
    later = [{"id": i, "n": 2, "_unsent": ["name"]} for i in range(40)]
    write = feed.write(*(row | {"_topic": "backfill", "_offset": 900} for row in items(0, 40)), *later)
    folded = engine().fold(from_arrow(engine().spark, write.folded.frame), feed.plan)
    with open_sink(postgres_dsn, through_driver) as sink:
        sink.prepare(feed.lane, feed.plan)
        applied = sink.apply([replace(write, folded=folded)], refuse_any_reject)[feed.lane.id]
    assert applied.counts == Counts(applied=80)
    found = fetch_rows(postgres_dsn, 'SELECT id, name, n FROM mirror.items WHERE "__END_AT" IS NULL ORDER BY id')
    assert found == [(i, f"name {i}", 2) for i in range(40)]


def test_appended_rows_keep_their_order_and_are_written_once(postgres_dsn: str) -> None:
    """In the order of the frame's partitions; rows below the lane's position are left out."""
    columns = "number bigserial, id bigint, name text, n bigint"
    fetch_rows(postgres_dsn, f"CREATE SCHEMA mirror; CREATE TABLE mirror.items ({columns})")
    feed = LaneWrites(TABLE, make_pg_lane(policy="append"))
    with open_sink(postgres_dsn) as sink:
        first = feed.write(*items(0, 30))
        ordered = replace(first, folded=replace(first.folded, frame=from_arrow(engine().spark, first.folded.frame)))
        sink.prepare(feed.lane, feed.plan)
        assert sink.apply([ordered], refuse_any_reject)[feed.lane.id].counts == Counts(applied=30)
        feed.offset = 20
        again = put(sink, feed.write(*items(20, 45)))
        assert again.counts == Counts(applied=15, duplicate=10)
    found = [row[0] for row in fetch_rows(postgres_dsn, "SELECT id FROM mirror.items ORDER BY number")]
    assert found[:30] == list(range(30)) and sorted(found) == list(range(45))


def test_small_writes_go_through_the_driver(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("no job was to copy")

    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn, through_driver=10) as sink:
        with monkeypatch.context() as watched:
            watched.setattr(spark_sink, "copy_in_tasks", never)
            put(sink, feed.write(*items(0, 10)))
            put(sink, feed.write())
        writes = [on_spark(feed.write(*items(start, end))) for start, end in ((5, 15), (0, 20), (30, 31))]
        assert sink.apply(writes, refuse_any_reject)[feed.lane.id].counts == Counts(applied=31)
        assert dict(sink.state(feed.lane).position) == {TOPIC: 41}
    assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items") == [(21,)]


def test_no_secret_is_shown(postgres_dsn: str) -> None:
    """Neither in Spark's plans and jobs, nor in errors of tasks that cannot connect."""
    secret = "hunter2-is-secret"
    with open_sink(f"{postgres_dsn} password={secret}") as sink:
        feed = LaneWrites(TABLE)
        put(sink, feed.write(*items(0, 5)))
        sink._lanes.session.dsn = f"host=127.0.0.1 port=1 user=tester password={secret}"
        with pytest.raises(Retryable, match="copying rows of lane") as failed:
            sink.apply([on_spark(feed.write(*items(5, 10)))], refuse_any_reject)
    assert secret not in str(failed.value)
    java: Any = engine().spark
    store = java._jsparkSession.sharedState().statusStore()
    shown = [store.executionsList().apply(i) for i in range(store.executionsList().size())]
    plans = [f"{one.description()} {one.details()} {one.physicalPlanDescription()}" for one in shown]
    assert any("MapInArrow" in plan for plan in plans)
    assert not any(secret in plan for plan in plans)


def test_lost_rows_stop_the_lane(postgres_dsn: str) -> None:
    """If the count differs from that of the fold, nothing is applied."""
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        write = feed.write(*items(0, 20))
        short = replace(write, folded=replace(write.folded, frame=write.folded.frame.slice(0, 19)))
        with pytest.raises(Fatal, match=r"of 20 rows for lane pg\.items 19"):
            put(sink, short)
        assert sink.state(feed.lane) is None
    assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items") == [(0,)]


def test_server_crash_between_copy_and_merge(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The staging table is empty afterwards, so the batch is repeated."""
    apply_writes = PostgresLanes.apply_writes

    def empty_table(self: PostgresLanes, writes: Any, reject: Any) -> Any:
        (table,) = staging_tables(postgres_dsn)
        fetch_rows(postgres_dsn, f"TRUNCATE _replicator.{table}")
        return apply_writes(self, writes, reject)

    write = LaneWrites(TABLE).write(*items(0, 20))
    with open_sink(postgres_dsn) as sink:
        with monkeypatch.context() as crashing, pytest.raises(Retryable, match="of 20 copied rows"):
            crashing.setattr(PostgresLanes, "apply_writes", empty_table)
            put(sink, write)
        assert put(sink, write).counts == Counts(applied=20)
    assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items") == [(20,)]


LOG = Lane("raw_pg.shop", "tests", "shop", "*", "raw_pg", "shop", "event_log")


def records(start: int, end: int, **values: Any) -> Write[Any]:
    schema = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG])
    rows = []
    for offset in range(start, end):
        known = {"event_id": f"{TOPIC.topic}-0-{offset}", "topic": TOPIC.topic, "partition": 0, "offset": offset}
        rows.append({**dict.fromkeys(schema.names), **known, "key": b"k", "value": b"\x00{}", "headers": "[]", **values})
    frame = from_arrow(engine().spark, pa.Table.from_pylist(rows, schema))
    folded = FoldedChanges(frame, Facts(), Counts(), len(rows), 0)
    return Write(LOG, make_event_log_plan(), folded, Span(Position({TOPIC: start}), Position({TOPIC: end})))


EXISTING = """
CREATE SCHEMA cdc_raw;
CREATE TABLE cdc_raw.cdc_events (
  id bigserial PRIMARY KEY, event_id text NOT NULL UNIQUE, topic varchar(255) NOT NULL, partition int NOT NULL,
  "offset" bigint NOT NULL CHECK ("offset" <> 32), "timestamp" timestamptz, headers jsonb,
  key bytea, value bytea, error text)
"""


def test_records_of_rejects_are_kept_once_and_in_order(postgres_dsn: str) -> None:
    """What the executors, the copy and the merge refuse comes back with what the record holds."""
    fetch_rows(postgres_dsn, EXISTING)
    kept: list[dict[str, Any]] = []
    engine()
    with closing(event_log_spark_sink({"dsn": postgres_dsn}, through_driver=0)) as sink:
        sink.prepare(LOG, make_event_log_plan())
        for write, counts in (
            (records(0, 20), Counts(applied=20)),
            (records(0, 20), Counts(duplicate=20)),
            (records(10, 30), Counts(applied=10, duplicate=10)),
            (records(30, 31, headers='"\\u0000"'), Counts(rejected=1)),
            (records(31, 34), Counts(applied=2, rejected=1)),
        ):
            took = sink.apply([write], lambda _, rows: kept.extend(to_arrow(rows).to_pylist()))
            assert took[LOG.id].counts == counts
    found = fetch_rows(postgres_dsn, 'SELECT "offset", value FROM cdc_raw.cdc_events ORDER BY id')
    assert found == [(i, b"\x00{}") for i in range(34) if i not in (30, 32)]
    assert [(row["offset"], row["key"], row["value"]) for row in kept] == [(i, b"k", b"\x00{}") for i in (30, 32)]
    assert "headers" in kept[0]["_error"] and "cdc_events_offset_check" in kept[1]["_error"]
