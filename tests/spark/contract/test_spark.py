"""What runs on Spark keeps the promises of its ports. One file, so that one process has one session."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from threading import Event
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType
from support.debezium_events import ID, make_change_event, make_event_key, make_raw_records
from support.postgres_target import PostgresTarget
from support.recorded_log import TIMES, LogStream, RecordedLog
from support.spark_case import LONG, OPTIONS, OnSpark, SparkTarget, get_spark_engine
from support.table_of_rows import ReadsRows, RowsStream
from support.variants import COPY_TESTS, READ_TESTS, SPARK_COMMIT_TESTS

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from adapters.engines.spark.fold import list_still_missing
from adapters.sinks.postgres.spark.sink import PostgresSparkSink
from adapters.sources.delta_spark import DeltaSparkSource, delta_spark_source
from adapters.sources.event_log.delta_source import DeltaSource
from adapters.spark.frames import (
    FrameFacts,
    cache_frame,
    collect_facts,
    drop_unused,
    from_arrow,
    get_facts,
    keep_parents,
    map_partitions,
    run_select,
    to_arrow,
)
from adapters.spark.key_change_deletes import drop_foreign_deletes
from adapters.spark.rows import to_rows
from replicator.domain.change import OFFSET, OP, PARTITION, RAW, TOPIC, changes_schema
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.table import Column, TableSpec
from replicator.domain.transactions import Connector
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import LaneOutcome
from replicator.testing.delivery import DeliveryRun, assert_equals_model, to_canonical_rows
from replicator.testing.engine_contract import EngineContract
from replicator.testing.histories import make_random_history
from replicator.testing.sink_contract import KEYED_TYPES, SinkContract
from replicator.testing.sink_row_transforms import SinkColumnVersions
from replicator.testing.source_contract import SourceContract
from replicator.testing.transform_cases import CASES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""


SHAPES = (
    "where NULL changes nothing in some columns",
    "where there is no such text, with deletes by text, in the order of a column",
    "with a column that is computed of two, left out with another, where there is no such text",
    "with a key as its HMAC, with soft deletes",
    "with everything",
)
"""Executors transform rows by the function of the local engine, which passes the contract in every case; Spark sees parts of
frames, columns, rejects and counts."""


class TestSparkEngine(OnSpark, EngineContract):
    """`SparkEngine`."""

    # What these compare with the model, `test_row_transforms_equal_those_of_the_local_engine` compares with that engine, and
    # `test_local_and_spark_write_the_same_rows` by policy, with a watermark and without.
    always = frozenset(dir(EngineContract)) - {
        "test_fold_equals_model",
        "test_fold_under_a_watermark_equals_model",
        "test_row_transforms_equal_model",
        "test_row_transforms_account_for_every_change",
    }

    def test_row_transforms_equal_those_of_the_local_engine(self):
        """Row by row, including the facts of the rows."""
        for number, (name, case) in enumerate(CASES.items()):
            if not LONG and name not in SHAPES:
                continue
            history = make_random_history(number, 40 if LONG else 16, keys=("composite",), first=case.first_types)
            plan, local = case.plan("scd1", history.table()), LocalEngine()
            arrow = local.frames.concat([frame for _, frame in history.runs(0, len(history.events))], history.table())
            mine, other = local.transform_rows(arrow, plan), get_spark_engine().transform_rows(self.to_frame(arrow), plan)
            columns = mine.frame.schema.names
            for one, two in ((mine.frame, other.frame), (mine.rejects, other.rejects)):
                assert to_canonical_rows(self.to_arrow(two).to_pylist(), columns) == to_canonical_rows(
                    one.to_pylist(), columns
                ), name
            assert mine.counts == other.counts, name
            assert get_facts(other.frame) == collect_facts(other.frame).get((), FrameFacts()), name
            assert [
                get_spark_engine().frames.count(piece)
                for piece in get_spark_engine().frames.segments(other.frame, plan.table)
            ] == [piece.num_rows for piece in local.frames.segments(mine.frame, plan.table)], name

    def test_column_names_with_special_characters(self):
        """Also if rows pass through Python: Spark would interpret quotes and dots."""
        names = ("it's `w`", "a.b", "`")
        table = TableSpec("public.t", tuple(Column(name, pa.int64()) for name in names), names[:1], 1)
        row = {TOPIC: "t", PARTITION: 0, OFFSET: 0, OP: "c", "_seq_1": 0, **dict.fromkeys(names, 7)}
        frame = self.to_frame(pa.Table.from_pylist([row], changes_schema(table)))
        shaped = (
            get_spark_engine()
            .transform_rows(frame, plan_for("scd1", table, row_transforms=RowTransforms(soft_deletes=True)))
            .frame
        )
        assert [[found[name] for name in names] for found in self.to_arrow(shaped).to_pylist()] == [[7, 7, 7]]

    def test_connector_is_read_once_from_the_newest_records(self):
        """Batches without a change have none. Nothing of a closed decoder remains: the next one may have its id."""
        decoder, block = DebeziumJsonDecoder({}), {"id": "7:1", "total_order": 1, "data_collection_order": 1}
        old, new = (
            make_change_event((ID,), after={"id": 1}, transaction=block, source={"version": version})
            for version in ("3.4.0", "3.5.0")
        )
        assert get_spark_engine().features.transactions.connector(self.to_frame(make_raw_records([None])), decoder) is None
        named = Connector("postgresql", "3.5.0", has_metadata=True, prefix="cdc")
        assert (
            get_spark_engine().features.transactions.connector(
                self.to_frame(make_raw_records([old, new, old, new])), decoder
            )
            == named
        )
        assert get_spark_engine().features.transactions.connector(self.to_frame(make_raw_records([old])), decoder) is None
        known = len(get_spark_engine()._looks)
        del decoder
        gc.collect()
        assert len(get_spark_engine()._looks) < known

    def test_empty_array_hides_no_rows(self):
        pieces = [pa.table({"a": pa.array(values, pa.int64())}) for values in ([1], [], [2, 3])]
        assert self.to_arrow(self.to_frame(pa.concat_tables(pieces)))["a"].to_pylist() == [1, 2, 3]

    @pytest.mark.parametrize("name", ["where NULL changes nothing", "with soft deletes by text"])
    def test_partial_rows_fold_like_those_of_the_local_engine(self, name):
        """Values that a later change or a delete left NULL are those of the last change that sent them. The folded
        frame has the others, so that it can be folded again."""
        case, local = CASES[name], LocalEngine()
        history = make_random_history(5, 60, keys=("composite",), first=case.first_types)
        plan = case.plan("scd1", history.table())
        arrow = local.frames.concat([frame for _, frame in history.runs(0, len(history.events))], history.table())
        segments = local.frames.segments(local.transform_rows(arrow, plan).frame, plan.table)
        pieces = [piece for piece in segments if piece.num_rows > 2]
        for piece in sorted(pieces, key=lambda piece: -piece.num_rows)[: 2 if LONG else 1]:
            mine, other = local.fold(piece, plan), get_spark_engine().fold(self.to_frame(piece), plan)
            again = get_spark_engine().fold(get_spark_engine().frames.concat([other.frame, other.frame]), plan)
            names = mine.frame.schema.names
            for frame in (other.frame, again.frame):
                assert to_canonical_rows(self.to_arrow(frame).to_pylist(), names) == to_canonical_rows(
                    mine.frame.to_pylist(), names
                )
            assert (mine.facts, mine.counts) == (other.facts, other.counts)


class TestDeltaSparkSink(OnSpark, SinkContract):
    """`DeltaSparkSink`, on a local disk."""

    always = SPARK_COMMIT_TESTS
    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.parent = tmp_path

    def new_target(self):
        return SparkTarget(self.parent / f"lake{next(self.numbers)}")

    def test_times_at_the_end_of_the_calendar(self):
        """Year 9999 is unchanged, also for readers other than Spark."""
        with self.target() as target:
            history = replace(make_random_history(65, 1, keys=KEYED_TYPES), cuts=())
            delivering = DeliveryRun(
                get_spark_engine(), target, history, "scd1", to_frame=self.to_frame, to_arrow=self.to_arrow
            )
            delivering.run()
            assert_equals_model(delivering)


@pytest.mark.long
class TestSequencesPerColumn(OnSpark, SinkColumnVersions):
    """Through `DeltaSparkSink`. A short history is in `test_spark_equals_local`."""

    cuts = () if LONG else (2,)
    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.parent = tmp_path

    def new_target(self):
        return SparkTarget(self.parent / f"columns{next(self.numbers)}")


@dataclass
class SparkLogStream(LogStream):
    def open(self):
        return DeltaSparkSource({"path": str(self.path), "batch_records": self.batch_records, **OPTIONS})


class TestDeltaSparkSource(SourceContract):
    """`DeltaSparkSource`."""

    # It plans what it reads as `DeltaSource` does, which passes the others.
    always = READ_TESTS | {"test_odd_times_are_null"}
    odd_times = TIMES

    @pytest.fixture(autouse=True)
    def own(self, tmp_path):
        get_spark_engine()
        self.path, self.batch_records = tmp_path / "log", 6

    def new_stream(self):
        return SparkLogStream(self.path, self.batch_records)

    def to_arrow(self, frame):
        """Inside a list Spark has names of its own."""
        return to_arrow(frame).cast(RAW)


@pytest.mark.parametrize("period", [{"since": 102}, {"until": 103}, {"since": 101, "until": 103}])
def test_event_log_is_read_for_a_period(tmp_path, period):
    """By the times in its records, which are those of the source; a record without a time is always included. Both
    engines give the same rows and the span of all records."""
    get_spark_engine()
    log = RecordedLog(tmp_path)
    texts = [make_change_event([ID], at=100 + n, after={"id": n}) for n in range(5)]
    log.append(make_raw_records([*texts, b"no event"], [make_event_key(id=n) for n in range(6)]))
    low, high = period.get("since", 0), period.get("until", 1_000)
    times = {name: f"2023-11-14T22:13:20.{at:06}+00:00" for name, at in period.items()}
    for source, read in ((DeltaSource, pa.table), (DeltaSparkSource, to_arrow)):
        found, options = [], {"path": str(tmp_path), **times, **(OPTIONS if read is to_arrow else {})}
        reading = source(options)
        reading.read(reading.beginning(), reading.end(), found.append, Event())
        offsets = [offset for batch in found if batch.records for offset in read(batch.frame)["offset"].to_pylist()]
        assert offsets == [*(n for n in range(5) if low <= 100 + n <= high), 5]
        assert found[-1].span.end == reading.end()


@dataclass
class SparkRowsStream(RowsStream):
    def open(self):
        super().open()
        return delta_spark_source({**self.options(), **OPTIONS})


class TestRowsSparkSource(ReadsRows, SourceContract):
    """`RowsSource` on executors."""

    always = READ_TESTS

    @pytest.fixture(autouse=True)
    def own(self, tmp_path):
        get_spark_engine()
        self.path = tmp_path

    def new_stream(self):
        return SparkRowsStream(self.path, 6, "feed")

    def to_arrow(self, frame):
        """Inside a list Spark has names of its own."""
        return to_arrow(frame).cast(RAW)


@pytest.mark.postgres
@pytest.mark.usefixtures("dsn_of_class")
class TestPostgresSparkSink(OnSpark, SinkContract):
    """`PostgresSparkSink`, every row of which the executors copy."""

    always = COPY_TESTS

    def new_target(self):
        get_spark_engine()
        return PostgresTarget(self.dsn, partial(PostgresSparkSink, through_driver=0))


@pytest.mark.postgres
@pytest.mark.usefixtures("dsn_of_class")
@pytest.mark.long
class TestSequencesPerColumnInPostgres(OnSpark, SinkColumnVersions):
    """Through `PostgresSparkSink`."""

    cuts = () if LONG else (2,)

    def new_target(self):
        get_spark_engine()
        return PostgresTarget(self.dsn, partial(PostgresSparkSink, through_driver=0))


class Folding:
    """The engine; of every fold, and of what is folded again, what is known is compared with what a look tells."""

    def __init__(self):
        self.engine, self.folded, self.seen = get_spark_engine(), [], 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def fold(self, changes, plan):
        folded = self.engine.fold(changes, plan)
        self.compare(folded.frame)
        if self.folded and self.folded[-1].columns == folded.frame.columns:
            again = self.engine.frames.concat([self.folded[-1], folded.frame])
            self.compare(again)
            self.compare(self.engine.fold(again, plan).frame)
        self.folded.append(folded.frame)
        return folded

    def compare(self, frame):
        known, told = get_facts(frame), collect_facts(frame).get((), FrameFacts())
        exact = [(k.rows, k.partial, k.moves, k.truncates) for k in (known, told)]
        assert exact[0] == exact[1]
        assert known.unsent >= told.unsent and known.halves >= told.halves
        assert all(known.first[p] <= offset for p, offset in told.first.items())
        assert all(known.end[p] >= offset for p, offset in told.end.items())
        self.seen |= 1 * bool(told.partial) | 2 * bool(told.moves) | 4 * bool(told.truncates)


def test_slice_of_a_table_is_unchanged():
    """Also slices of lists with nulls."""
    table = pa.table({"n": range(5), "l": pa.array([None, [1], None, [2, 3], []], pa.list_(pa.int64()))}).slice(2, 2)
    assert to_arrow(from_arrow(get_spark_engine().spark, table)).equals(table)


class Nowhere:
    """A target and its sink: what is folded is written nowhere."""

    def open(self):
        return self

    def prepare(self, *_):
        pass

    def apply(self, writes, _):
        return {write.lane.id: LaneOutcome(Position(), Counts()) for write in writes}


def test_facts_of_folded_rows_are_true():
    folding, case, history = Folding(), OnSpark(), make_random_history(8, 12, toast=True, keys=KEYED_TYPES)
    history = replace(history, cuts=((5, 0, ""), (6, 2, "")))
    delivering = DeliveryRun(folding, Nowhere(), history, "scd1", to_frame=case.to_frame, to_arrow=case.to_arrow)
    for delivery in history.deliveries:
        delivering.deliver(delivery)
    assert len(folding.folded) > 1 and folding.seen & 3 == 3, folding.seen


def list_cached() -> set[int]:
    """The numbers of what Spark keeps. What other tests kept may go at any time."""
    return set(get_spark_engine().spark.sparkContext._jsc.getPersistentRDDs())


def test_cached_frame_is_computed_once_and_dropped_after_its_last_use(tmp_path):
    """Also of a statement with WITH, read twice in one statement and in a cached frame based on it."""
    log, spark = tmp_path / "computed", get_spark_engine().spark

    @sf.udf("bigint")
    def record_call(value):
        with log.open("a") as file:
            file.write(".")
        return value

    before = list_cached()
    rows = spark.range(3).select(record_call("id").alias("v"))
    windows = "WITH a AS (SELECT * FROM {}) SELECT *, count(*) OVER (PARTITION BY v) AS n FROM a"
    once = cache_frame(run_select(spark, lambda names: windows.format(names["rows"]), {"rows": rows}))
    twice = "WITH a AS (SELECT * FROM {0} WHERE v > 0) SELECT a.v FROM a JOIN {0} AS b ON a.v = b.v"
    later = cache_frame(keep_parents(run_select(spark, lambda names: twice.format(names["once"]), {"once": once}), once))
    for _ in range(2):
        assert sorted(row["v"] for row in later.collect()) == [1, 2]
        assert sorted(row["v"] for row in once.collect()) == [0, 1, 2]
    mine = list_cached() - before
    assert log.read_text() == "..." and len(mine) == 2
    del once
    assert later.count() == 2 and log.read_text() == "..."
    del later
    gc.collect()
    drop_unused()
    assert not mine & list_cached()


def test_rows_that_were_compared_with_the_target_stay_cached():
    """Otherwise each use of them reads and compares the target again."""
    columns, engine = (Column("id", pa.int64()), Column("v", pa.int64())), get_spark_engine()
    plan = plan_for("scd1", TableSpec("public.t", columns, ("id",), 2, by_commit=True))
    row = {TOPIC: "t", PARTITION: 0, OFFSET: 0, OP: "c", "_seq_1": 1, "_seq_2": 1, "id": 1, "v": 1}
    changes = from_arrow(engine.spark, pa.Table.from_pylist([row], changes_schema(plan.table)))
    rows = to_rows(engine.fold(changes, plan).frame, plan, datetime.now(UTC))
    before = list_cached()
    rest, others, _ = drop_foreign_deletes(plan, Facts(has_key_changes=True), rows, rows)
    gc.collect()
    drop_unused()
    assert others == 0 and list_cached() - before
    assert rest.count() == 1


def test_frame_released_during_an_answer_of_the_jvm_breaks_no_connection(monkeypatch):
    """The garbage collector may do so at any allocation."""
    spark = get_spark_engine().spark
    before = list_cached()
    held = [cache_frame(spark.range(3).select("id"))]
    assert held[0].count() == 3
    connection = spark.sparkContext._gateway._gateway_client.get_thread_connection()
    stream = connection.stream

    class LettingGo:
        def readline(self):
            held.clear()
            return stream.readline()

    with monkeypatch.context() as patched:
        patched.setattr(connection, "stream", LettingGo())
        assert spark.range(5).count() == 5
    mine = list_cached() - before
    assert held == [] and len(mine) == 1
    assert cache_frame(spark.range(4)).count() == 4
    drop_unused()
    assert not mine & list_cached()


def test_expression_of_missing_names_grows_linearly() -> None:
    """It once doubled with each column, which used all of the driver's memory from about twenty columns on."""
    get_spark_engine()
    few, many = (list_still_missing([f"c{i}" for i in range(count)])._jc.toString() for count in (5, 10))
    assert len(many) < 3 * len(few)


def test_tasks_keep_no_finders_of_archives() -> None:
    """Python before 3.13 would read each archive again before every task."""

    def list_finders(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(
            {"path": [p for p, f in sys.path_importer_cache.items() if isinstance(f, zipimporter)]}
        )

    spark = get_spark_engine().spark
    path = StructType([StructField("path", StringType())])
    assert to_arrow(map_partitions(spark.range(4), list_finders, path)).num_rows == 0
