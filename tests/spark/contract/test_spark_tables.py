"""Options of tables on Spark, and tables that other programs write too."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as sf
from support.partitioned_sink import (
    Choice,
    choose_key_column,
    choose_value_column,
    list_cluster_columns,
    make_moving_history,
    partition_sink,
)
from support.restored_targets import RestoresFromLake, choose_first_column
from support.rows_of_tables import apply_changes, decode_changes, read_records, read_table_rows
from support.spark_case import LONG, OPTIONS, OnSpark, SparkTarget, get_spark_engine
from support.table_of_rows import VERSION, WHOLE

from adapters.arrow.sequence_elements import to_elements
from adapters.arrow.sequence_elements import to_values as local_shown
from adapters.delta import table_writer
from adapters.delta.commits import PositionFiles
from adapters.delta.partitions import NULL_FOLDER, unnameable_reason
from adapters.delta.table_writer import SparkNeeded
from adapters.delta.tables import STATISTICS
from adapters.delta.types import storage_type, to_storage
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.spark import mirror, side_tables
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.sources.delta_spark import delta_spark_source
from adapters.sources.delta_table.source import RowsSource
from adapters.spark import merge
from adapters.spark.frames import from_arrow, to_arrow
from adapters.spark.types import value_expression
from replicator.domain.change import OFFSET, OP, PARTITION, RAW, TOPIC, TS, changes_schema
from replicator.domain.errors import AMBIGUOUS_DELETE, ConfigProblem, DataLoss, EnvironmentProblem, Fatal, ReplicatorError
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.sequence import get_display_type
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Write
from replicator.ports.sink import VacuumResult
from replicator.testing.delivery import DeliveryRun, assert_equals_model, make_lane
from replicator.testing.histories import make_random_history
from replicator.testing.restore_contract import RestoreContract
from replicator.testing.sink_base import refuse_rejects
from replicator.testing.sink_contract import KEYED_TYPES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""


@dataclass
class OptionsTarget(SparkTarget):
    """Written by Spark, read by both: they must see the same."""

    choice: Choice
    options: dict[str, Any]
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def open(self):
        return partition_sink(super().open(), self.choice, self.chosen, **self.options)

    def rows(self, lane):
        found = super().open().read(lane.into).to_pylist()
        assert get_spark_engine().spark.read.format("delta").load(str(self.folder / lane.into)).count() == len(found)
        return found


OPTIONS_OF_TABLES = {
    "by-key": (choose_key_column, {}),
    "all": (choose_value_column, {"deletion_vectors": True, "change_data_feed": True, "compact_every": 2}),
    "clustered": (list_cluster_columns, {"option": "cluster_by", "change_data_feed": True, "compact_every": 2}),
}
FEW = replace(make_moving_history(1, 10), cuts=((9, 0, ""),))
"""In two batches."""
HISTORIES = {
    "moving": (make_moving_history(1, 21) if LONG else FEW, "scd1"),
    "random": (make_random_history(7, 16, keys=KEYED_TYPES), "scd1"),
    "unkeyed": (make_random_history(11, 8, keys=("none",)), "append"),
}


@pytest.mark.parametrize(
    ("named", "history"),
    [
        pytest.param("by-key", "moving", marks=pytest.mark.long),
        pytest.param("by-key", "unkeyed", marks=pytest.mark.long),
        pytest.param("all", "random", marks=pytest.mark.long),
        ("clustered", "moving"),
        pytest.param("clustered", "unkeyed", marks=pytest.mark.long),
    ],
)
def test_histories_with_table_options_equal_the_model(tmp_path, named, history):
    """Rows move between partitions, have deletion vectors, and are compacted in between."""
    case, target = OnSpark(), OptionsTarget(tmp_path / "lake", *OPTIONS_OF_TABLES[named])
    said, policy = HISTORIES[history]
    delivering = DeliveryRun(get_spark_engine(), target, said, policy, to_frame=case.to_frame, to_arrow=case.to_arrow)
    delivering.run()
    assert_equals_model(delivering)
    if "deletion_vectors" in target.options and policy == "scd1":
        assert list(target.folder.rglob("deletion_vector_*.bin"))


class OnSparkFromLake(OnSpark, RestoresFromLake):
    """One in so many histories: what a target begins with is written by delta-rs, and what follows by Spark."""

    one_in = 200


class TestRestoreOnSpark(OnSparkFromLake, RestoreContract):
    """Whose rows delta-rs writes on the driver, as it does in `TestIntoLake`. That Spark finds what delta-rs remembers of
    deletes and columns say `test_tombstones_of_both_engines_are_found` and
    `test_each_engine_resumes_after_the_other` too."""

    always = frozenset({"test_restored_lane_continues_like_the_model[scd1]"})

    def new_target(self):
        return SparkTarget(self.parent / f"lake{next(self.numbers)}")


@pytest.mark.long
class TestRestoreInPartitionsOnSpark(OnSparkFromLake, RestoreContract):
    """With marks of deleted rows."""

    unsupported_text = ""

    def new_target(self):
        return OptionsTarget(self.parent / f"lake{next(self.numbers)}", choose_first_column, {"deletion_vectors": True})


@pytest.mark.long  # `test_histories_with_table_options_equal_the_model` writes such tables too.
class TestRestoreInClusters(OnSparkFromLake, RestoreContract):
    """Whose rows the executors write."""

    case_names = ("scd1", "versions", "changes")

    def new_target(self):
        return OptionsTarget(self.parent / f"lake{next(self.numbers)}", list_cluster_columns, {"option": "cluster_by"})


SALES = TableSpec(
    "public.items",
    (Column("country", pa.string()), Column("id", pa.int64()), Column("v", pa.string())),
    ("country", "id"),
    1,
)
PLACE = TopicPartition("cdc.public.items", 0)
PLACE_OF_ITEMS = TopicPartition("items", 0)
LINE = "config/replicator.yaml:7"
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
COUNTRIES = ["NL", "it's", "é漢", "a b", "a/b=c%20", "back\\slash", "..", "null", "x" * 70]


def sale(country, number, op="c", v=""):
    return {OP: op, "country": country, "id": number, "v": v or f"v{number}"}


def lane(policy="scd1", **options):
    return replace(make_lane(policy), options=options, config_line=LINE)


@pytest.fixture
def lake(tmp_path):
    """A sink per engine on the same tables; who of them is asked takes the lane over from the other."""
    return TwoWriters(tmp_path / "a lake é")


class TwoWriters:
    def __init__(self, folder):
        self.folder, self.table, self.rejected = folder, folder / "items", []

    def put(self, of, rows, *, spark=True, of_table=SALES, out_of_band=False):
        """Applies the rows at the offsets where the lane stands."""
        maker, to_frame = (DeltaSparkSink, OnSpark().to_frame) if spark else (DeltaRsSink, lambda frame: frame)
        sink, made = maker({"path": str(self.folder)}), get_spark_engine() if spark else LocalEngine()
        try:
            state, plan = sink.state(of), plan_for(of.policy, of_table, of.watermark)
            start = state.position[PLACE] if state else 0
            places = [{TOPIC: PLACE.topic, PARTITION: 0, OFFSET: start + i, "_seq_1": start + i} for i in range(len(rows))]
            records = [place | row for place, row in zip(places, rows, strict=True)]
            folded = made.fold(to_frame(pa.Table.from_pylist(records, changes_schema(of_table))), plan)
            starts, ends = ({}, {}) if out_of_band else ({PLACE: start}, {PLACE: start + len(rows)})
            write = Write(of, plan, folded, Span(Position(starts), Position(ends)), out_of_band=out_of_band)
            sink.prepare(of, plan)
            return sink.apply([write], lambda _, bad: self._reject(bad))[of.id].counts
        finally:
            sink.close()

    def _reject(self, rows):
        self.rejected += (rows if isinstance(rows, pa.Table) else to_arrow(rows)).to_pylist()

    def values(self):
        """The rows, which both engines must see alike."""
        by_spark = get_spark_engine().spark.read.format("delta").load(str(self.table)).collect()
        by_rs = DeltaRsSink({"path": str(self.folder)}).read("items").to_pylist()
        seen = [sorted((row["country"], row["id"], row["v"]) for row in rows) for rows in (by_spark, by_rs)]
        assert seen[0] == seen[1]
        return seen[0]

    def feed(self, *, spark):
        """Every change of the feed: version, kind, country, id, value."""
        if spark:
            reader = (
                get_spark_engine().spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
            )
            rows = [row.asDict() for row in reader.load(str(self.table)).collect()]
        else:
            rows = pa.RecordBatchReader.from_stream(DeltaTable(str(self.table)).load_cdf()).read_all().to_pylist()
        names = ("_commit_version", "_change_type", "country", "id", "v")
        return sorted(tuple(row[name] for name in names) for row in rows)


def test_both_engines_name_partitions_alike(lake):
    """In turns, so that each one removes files of the other; nothing remains."""
    of = lane(partition_by=("country",))
    lake.put(of, [sale(c, 1) for c in COUNTRIES], spark=False)
    for number, spark in enumerate((True, False)):
        lake.put(of, [sale(c, 1, "u", str(number)) for c in COUNTRIES], spark=spark)
        assert lake.values() == sorted((c, 1, str(number)) for c in COUNTRIES)
    lake.put(of, [sale(c, 1, "d") for c in COUNTRIES])
    assert lake.values() == []


def test_invalid_partition_values_are_rejected(lake):
    texts = ["", NULL_FOLDER, "a\0b", "x" * 78]
    rows = [sale("NL", 1), *(sale(text, 2) for text in texts), *(sale(text, 3, "d") for text in texts)]
    counts = lake.put(lane(partition_by=("country",)), rows)
    assert (counts.applied, counts.rejected) == (1 + len(texts), len(texts))
    assert sorted(row[OFFSET] for row in lake.rejected) == [1, 2, 3, 4]
    assert {row["_error"] for row in lake.rejected} == {unnameable_reason("country")}
    assert lake.values() == [("NL", 1, "v1")]


def test_delete_with_append_needs_a_partition_value(lake):
    """A delete is a row there."""
    counts = lake.put(lane("append", partition_by=("country",)), [sale("NL", 1), sale("", 2), sale("", 2, "d")])
    assert (counts.applied, counts.rejected) == (1, 2)
    assert lake.values() == [("NL", 1, "v1")]


def test_late_changes_by_the_watermark_of_the_other_engine(lake):
    """With the same message."""
    of = replace(lane("append"), watermark=timedelta(seconds=10))
    for spark, *seconds in ((True, 30, 19.5, 20), (False, 19.5, 40, 29.999999), (True, 29.999999, 30)):
        rows = [sale("NL", number) | {TS: NEW_YEAR + timedelta(seconds=second)} for number, second in enumerate(seconds)]
        lake.put(of, rows, spark=spark)
    assert [row[OFFSET] for row in lake.rejected] == [1, 3, 5, 6]
    first, second, third, fourth = (row["_error"] for row in lake.rejected)
    assert first == second and third == fourth
    assert "LATE: its event time 2024-01-01 00:00:19.5 UTC" in first and "of its partition, 2024-01-01 00:00:20 UTC" in first
    assert "2024-01-01 00:00:29.999999 UTC" in third
    assert [number for _, number, _ in lake.values()] == [0, 1, 1, 2]


@pytest.mark.parametrize("through_driver", [0, pytest.param(10, marks=pytest.mark.long)])
def test_tombstones_of_both_engines_are_found(lake, through_driver, monkeypatch):
    """Executors write them if there are many."""
    monkeypatch.setattr(side_tables, "THROUGH_DRIVER", through_driver)
    of = lane()
    lake.put(of, [sale("NL", n) for n in range(3)], spark=False)
    lake.put(of, [sale("NL", 1, "d"), sale("BE", 7, "d"), sale("NL", 2, "u", "new")])
    remembered = DeltaTable(str(lake.folder / "_replicator" / "tombstones" / "items"))
    assert sorted((row["country"], row["id"]) for row in remembered.to_pyarrow_table().to_pylist()) == [("BE", 7), ("NL", 1)]
    for spark in (True, False):
        late = {**sale("NL", 1, "u", "late"), "_seq_1": 1}
        assert lake.put(of, [late], spark=spark).superseded == 1
    assert lake.values() == [("NL", 0, "v0"), ("NL", 2, "new")]


def test_value_that_was_not_sent_of_a_column_with_another_stored_name(lake):
    """A version has the value of the version before it."""
    kinds = {"id": pa.int64(), "v": pa.int64(), "long text": pa.string()}
    table = TableSpec("public.items", tuple(Column(name, kind) for name, kind in kinds.items()), ("id",), 1)
    lake.put(lane("scd2"), [{OP: "c", "id": 1, "v": 1, "long text": "kept"}], of_table=table)
    lake.put(lane("scd2"), [{OP: "u", "id": 1, "v": 2, "_unsent": ["long text"]}], of_table=table)
    rows = DeltaRsSink({"path": str(lake.folder)}).read("items").to_pylist()
    assert sorted((row["v"], row["long text"]) for row in rows) == [(1, "kept"), (2, "kept")]


@pytest.mark.parametrize("died", [True, pytest.param(False, marks=pytest.mark.long)], ids=["spark", "local"])
def test_tombstones_of_a_failed_commit_hide_nothing(lake, died, monkeypatch):
    """Whichever engine failed and whichever resumes."""
    of = lane()
    lake.put(of, [sale("NL", n) | {"_seq_1": 0} for n in (1, 2)] + [sale("NL", 2, "d") | {"_seq_1": 9}], spark=False)
    for spark, number in ((True, 5), (False, 6)):
        update, delete = sale("NL", 1, "u", f"newer {number}") | {"_seq_1": number}, sale("NL", 1, "d") | {"_seq_1": 7}
        with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
            dying.setattr(PositionFiles, "announce", kill)
            lake.put(of, [update, delete], spark=died)
        lake.put(of, [update], spark=spark)
        assert DeltaTable(str(lake.folder / "_replicator" / "tombstones" / "items")).count() > 1
        assert ("NL", 1, f"newer {number}") in lake.values()


def test_delete_without_a_record_ends_a_version_that_is_written_out_of_band(lake):
    """The delete ended a version, until a late delete ended it earlier. Since then only the side table has it."""
    for number, spark in enumerate((True, False)):
        first, end, late_end = (sale("NL", number, op) | {"_seq_1": at} for op, at in (("c", 1), ("d", 10), ("d", 5)))
        for rows in ([first, end], [late_end]):
            lake.put(lane("scd2"), rows, spark=spark)
        lake.put(lane("scd2"), [sale("NL", number, "u", "late") | {"_seq_1": 7}], spark=spark, out_of_band=True)
    versions = DeltaRsSink({"path": str(lake.folder)}).read("items").to_pylist()
    found = sorted((row["id"], row["_cdc_seq_1"], row["_cdc_end_seq_1"]) for row in versions)
    assert found == [(0, 1, 5), (0, 7, 10), (1, 1, 5), (1, 7, 10)]


def kill(*_):
    raise KeyboardInterrupt


def test_only_partitions_of_the_batch_are_read(lake):
    of = lane(partition_by=("country",))
    lake.put(of, [sale(c, n) for c in ("NL", "DE") for n in (1, 2)], spark=False)
    for file in (lake.table / "country=DE").glob("*.parquet"):
        file.rename(file.with_suffix(".gone"))
    partial = {**sale("NL", 1, "u"), "v": None, "_unsent": ["v"]}
    assert lake.put(of, [partial, sale("NL", 2, "u", "new")]).applied == 2
    with pytest.raises(ReplicatorError):
        lake.put(of, [sale("DE", 1, "u", "x")])


@pytest.mark.parametrize("by", [pytest.param((), marks=pytest.mark.long), ("country",)])
def test_change_data_feed_of_both_writers(lake, by):
    """Each engine reads the feed of both, and its changes give the rows."""
    of = lane(change_data_feed=True, partition_by=by)
    for spark in (True, False):
        start = 10 * spark
        lake.put(of, [sale(c, start + n) for c in ("NL", "BE") for n in range(3)], spark=spark)
        changes = [sale("NL", start, "u", "new"), sale("BE", start + 1, "d"), sale("BE", start + 9)]
        lake.put(of, changes, spark=spark)
    found = lake.feed(spark=True)
    assert found == lake.feed(spark=False)
    kinds = Counter(kind for _, kind, *_ in found)
    assert kinds == {"insert": 14, "update_preimage": 2, "update_postimage": 2, "delete": 2}
    left = Counter()
    for _, kind, *row in found:
        left[tuple(row)] += 1 if kind in ("insert", "update_postimage") else -1
    assert sorted(left.elements()) == lake.values()


def test_deletion_vectors_are_read_by_the_other_engine(lake):
    of = lane(deletion_vectors=True)
    lake.put(of, [sale("NL", n) for n in range(50)])
    lake.put(of, [sale("NL", 3, "d"), sale("NL", 4, "u", "new")])
    assert list(lake.table.glob("deletion_vector_*.bin"))
    features = DeltaTable(str(lake.table)).protocol().writer_features
    assert "deletionVectors" in features and "variantType" not in features
    lake.put(lane(), [sale("NL", 3, "c", "back"), sale("NL", 5, "d")], spark=False)
    gone = {("NL", n, f"v{n}") for n in (3, 4, 5)}
    expected = sorted({("NL", n, f"v{n}") for n in range(50)} - gone | {("NL", 3, "back"), ("NL", 4, "new")})
    assert lake.values() == expected


def clusters(lake):
    detail = get_spark_engine().spark.sql(f"DESCRIBE DETAIL delta.`{lake.table}`").collect()[0]
    return detail["clusteringColumns"]


@pytest.mark.long
def test_clustered_table_from_its_first_row_to_its_reset(lake, monkeypatch):
    """Everything that is done to other tables by delta-rs, which cannot commit to this one: it is made, widened, given a
    feed, moved on without rows, compacted and emptied."""
    few = 4
    monkeypatch.setattr(table_writer, "FEWEST_FILES", few)
    of = lane(cluster_by=("country", "v"), compact_every=few)
    for n in range(few - 1):
        lake.put(of, [sale("NL", n)])
    assert clusters(lake) == ["country", "v"]
    assert len(DeltaTable(str(lake.table)).file_uris()) == few - 1
    lake.put(of, [sale("BE", 1)])
    assert DeltaTable(str(lake.table)).history(1)[0]["operation"] == "OPTIMIZE"
    assert len(DeltaTable(str(lake.table)).file_uris()) == 1
    wider = replace(SALES, columns=(*SALES.columns, Column("price", pa.decimal128(10, 2)), Column("at", pa.timestamp("us"))))
    lake.put(replace(of, options={"change_data_feed": True, "cluster_by": ("v",)}), [sale("BE", 2)], of_table=wider)
    assert clusters(lake) == ["v"] and {"price", "at"} <= set(DeltaTable(str(lake.table)).schema().to_arrow().names)
    assert lake.put(of, [sale("XX", 1, "d")]).applied == 1
    assert len(lake.values()) == few + 1
    sink = DeltaSparkSink({"path": str(lake.folder)})
    moved = replace(sink.state(of), position=Position({PLACE: 100}))
    sink.skip(of, moved)
    assert sink.state(of) == moved
    sink.reset(of)
    assert sink.state(of) is None
    sink.close()
    assert lake.values() == []
    lake.put(of, [sale("NL", 1)])
    assert lake.values() == [("NL", 1, "v1")] and clusters(lake) == ["country", "v"]


def test_clustered_table_is_swapped_and_a_key_erased(lake):
    """By Spark, in one commit each with the lane's transaction; the lane continues, and clusters the table again."""
    of = lane(cluster_by=("country",))
    anew = replace(of, id=f"{of.id}_anew", into="items_anew")
    lake.put(of, [sale("NL", 1), sale("NL", 2), sale("BE", 1)])
    lake.put(anew, [sale("NL", 1, v="anew"), sale("BE", 1, v="anew")])
    sink = DeltaSparkSink({"path": str(lake.folder)})
    state = sink.state(anew)
    assert sink.swap(of, anew, lambda _, rebuilt: rebuilt) == state == sink.state(of)
    sink.close()
    assert lake.values() == [("BE", 1, "anew"), ("NL", 1, "anew")]

    assert lake.put(of, [sale("NL", 3)]).applied == 1
    assert lake.values() == [("BE", 1, "anew"), ("NL", 1, "anew"), ("NL", 3, "v3")] and clusters(lake) == ["country"]
    sink = DeltaSparkSink({"path": str(lake.folder)})
    assert sink.erase(of, {"country": "NL", "id": "1"}).rows == 1
    sink.close()
    assert lake.values() == [("BE", 1, "anew"), ("NL", 3, "v3")]


def test_delta_rs_reads_a_clustered_table_and_refuses_to_write_it(lake):
    of = lane(cluster_by=("id",))
    with pytest.raises(ConfigProblem, match=r"delta-rs clusters no tables") as refused:
        lake.put(of, [sale("NL", 1)], spark=False)
    assert f"Remove `cluster_by` in {LINE}" in str(refused.value.next_step)
    lake.put(of, [sale("NL", 1)])
    version = DeltaTable(str(lake.table)).version()
    for options in ({}, {"cluster_by": ("id",)}):
        with pytest.raises(Fatal, match="has liquid clustering, which delta-rs cannot write") as fatal:
            lake.put(lane(**options), [sale("NL", 2)], spark=False)
        assert "engine: spark" in str(fatal.value.next_step)
    assert DeltaTable(str(lake.table)).version() == version
    # Without the option the table stays as it is.
    lake.put(lane(), [sale("NL", 2)])
    assert lake.values() == [("NL", 1, "v1"), ("NL", 2, "v2")] and clusters(lake) == ["id"]


def test_rewrite_renames_columns_in_lists_as_delta_rs_does(tmp_path):
    lists = [None, ["b"], ["a"], ["a", "c"], ["gone", "b"], ["gone"]]
    rows = pa.table({"id": range(len(lists)), "_cdc_unsent": pa.array(lists, pa.list_(pa.string()))})
    found = []
    for writer in (table_writer.TableWriter(), DeltaSparkSink({"path": str(tmp_path)})._writer):
        path = str(tmp_path / str(len(found)))
        write_deltalake(path, rows)
        table = DeltaTable(path)
        renamed = {"a": "b", "b": None, "gone": None}
        columns = [table_writer.TargetColumn(f.name, f, renamed=renamed if f.name != "id" else {}) for f in rows.schema]
        writer.rewrite(table, columns)
        found.append(table.to_pyarrow_table().sort_by("id")["_cdc_unsent"].to_pylist())
    assert found == [[None, None, ["b"], ["b", "c"], None, None]] * 2


def test_existing_table_becomes_clustered(lake):
    lake.put(lane(), [sale("NL", n) for n in range(3)], spark=False)
    DeltaTable(str(lake.table)).alter.set_table_properties({STATISTICS: "id"})
    lake.put(lane(cluster_by=("country",)), [sale("NL", 7)])
    assert clusters(lake) == ["country"] and len(lake.values()) == 4
    assert DeltaTable(str(lake.table)).metadata().configuration[STATISTICS] == "country,id"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cluster_by": ("town",)}, r"has no column 'town' for `cluster_by`: it has 'country', 'id', 'v'"),
        ({"cluster_by": ("paid",)}, r"column 'paid' .* has type bool; rows can only be clustered by"),
        ({"cluster_by": ("id",)}, r"is partitioned by country: it cannot be clustered"),
    ],
)
def test_invalid_clustering_is_refused(lake, options, said):
    table = SALES
    if "paid" in options["cluster_by"]:
        table = replace(SALES, columns=(*SALES.columns, Column("paid", pa.bool_())))
    elif "id" in options["cluster_by"]:
        lake.put(lane(partition_by=("country",)), [sale("NL", 1)], spark=False)
    with pytest.raises(ConfigProblem, match=said) as refused:
        lake.put(lane(**options), [sale("NL", 1)], of_table=table)
    assert f"`cluster_by` in {LINE}" in str(refused.value.next_step)


def test_compaction_after_the_write_of_the_lane(lake, monkeypatch):
    few = 4
    monkeypatch.setattr(table_writer, "FEWEST_FILES", few)
    of = lane(compact_every=2)
    for n in range(few):
        lake.put(lane(), [sale("NL", n)], spark=False)
    sink = DeltaSparkSink({"path": str(lake.folder)})
    plan = plan_for("scd1", SALES)
    sink.prepare(of, plan)
    for n in range(2):
        start = sink.state(of).position[PLACE]
        record = {TOPIC: PLACE.topic, PARTITION: 0, OFFSET: start, "_seq_1": start, **sale("BE", n)}
        frame = OnSpark().to_frame(pa.Table.from_pylist([record], changes_schema(SALES)))
        span = Span(Position({PLACE: start}), Position({PLACE: start + 1}))
        sink.apply([Write(of, plan, get_spark_engine().fold(frame, plan), span)], refuse_rejects)
    sink.close()
    history = DeltaTable(str(lake.table)).history(1)
    assert history[0]["operation"] == "OPTIMIZE" and len(DeltaTable(str(lake.table)).file_uris()) == 1
    assert len(lake.values()) == few + 2


def test_versions_have_the_position_of_the_lane(lake):
    """Merges, appends and commits without rows, of either engine. A compaction has the position of the commit before
    it, and a version of another writer has none."""
    of = lane()
    for number, spark in enumerate((True, False, True, False)):
        lake.put(of, [sale("NL", number), sale("NL", number, "u", "again")], spark=spark)
    table = DeltaTable(str(lake.table))
    table.optimize.compact()
    table.delete("id = 0")
    told = {name: [] for name in ("rs", "spark")}
    for name, maker in (("rs", DeltaRsSink), ("spark", DeltaSparkSink)):
        sink = maker({"path": str(lake.folder)})
        told[name] = [(version, position[PLACE]) for version, position in sink.read_version_positions(of)]
        assert {sink.columns_at(of.into, version) for version, _ in told[name]} == {sink.read(of.into).schema}
        sink.close()
    assert told["rs"] == told["spark"] and [at for _, at in told["rs"]] == [8, 8, 6, 4, 2]
    assert {version for version, _ in told["rs"]} == set(range(table.version() - 5, table.version()))
    for version, at in told["rs"]:
        assert DeltaTable(str(lake.table), version=version).to_pyarrow_table().num_rows == at // 2


# `test_commit_of_another_instance_during_a_merge` has a commit that is refused.
@pytest.mark.parametrize("cleaned", [pytest.param(False, marks=pytest.mark.long), True])
def test_merge_is_repeated_after_an_optimize_by_another_program(lake, monkeypatch, cleaned):
    """The files that a MERGE started to rewrite are compacted and vacuumed: Spark reports a conflict or misses a file,
    and the batch is applied to the new version."""
    of, original, tries = lane(), mirror.make_merge_operation, []
    get_spark_engine()
    for n in range(3):
        lake.put(of, [sale("NL", n)], spark=False)
    table, marker = str(lake.table), str(lake.folder / "compacted")

    @sf.udf("string")
    def meanwhile(value):
        if not Path(marker).exists():
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            there = DeltaTable(table)
            there.optimize.compact()
            if cleaned:
                there.vacuum(0, enforce_retention_duration=False, dry_run=False)
        return value

    def optimize_meanwhile(plan, rows, *rest):
        tries.append(plan)
        return original(plan, rows.coalesce(1).withColumn("v", meanwhile("v")), *rest)

    monkeypatch.setattr(mirror, "make_merge_operation", optimize_meanwhile)
    assert lake.put(of, [sale("NL", 1, "u", "new"), sale("NL", 7)]).applied == 2
    assert len(tries) == 2
    operations = [entry["operation"] for entry in DeltaTable(table).history(2)]
    assert operations == ["MERGE", "VACUUM END" if cleaned else "OPTIMIZE"]
    assert lake.values() == [("NL", 0, "v0"), ("NL", 1, "new"), ("NL", 2, "v2"), ("NL", 7, "v7")]


def test_write_is_repeated_if_files_are_deleted_during_the_read(lake, monkeypatch):
    """Stage 2 reads a version that was the newest a moment before."""
    of, original, tries = lane(), mirror.SparkMirror.prepare_commit, []
    for n in range(3):
        lake.put(of, [sale("NL", n)], spark=False)

    def prepare_commit(self, snapshot, *rest):
        tries.append(snapshot.version())
        if len(tries) == 1:
            table = DeltaTable(str(lake.table))
            table.optimize.compact()
            table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        return original(self, snapshot, *rest)

    monkeypatch.setattr(mirror.SparkMirror, "prepare_commit", prepare_commit)
    assert lake.put(of, [{**sale("NL", 1, "u"), "v": None, "_unsent": ["v"]}]).applied == 1
    assert len(tries) == 2 and tries[1] > tries[0]
    assert lake.values() == [("NL", 0, "v0"), ("NL", 1, "v1"), ("NL", 2, "v2")]


# `DeltaRsSink` passes the other kind, in `test_delete_of_an_unknown_transaction_keeps_the_reused_key`, by the same query.
@pytest.mark.parametrize("kind", ["by_commit", pytest.param("by_tx", marks=pytest.mark.long)])
def test_ambiguous_delete_is_rejected(lake, kind):
    """Its image may be partial, or the transaction of the row with its key is unknown."""
    of_table = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 2, **{kind: True})
    took = {OP: "c", "_seq_1": 9, "_seq_2": 1, "_tx": "9", "_moved_from": {"id": 1}, "id": 2, "v": "a"}
    left = {OP: "d", "_seq_1": 9, "_seq_2": 2, "_tx": "9", "_moved_to": True, "id": 2, "v": "b"}
    lake.put(lane(), [took], spark=False, of_table=of_table)
    counts = lake.put(lane(), [left | {"_unsent": ["v"] if kind == "by_commit" else None}], of_table=of_table)
    assert (counts.rejected, counts.total) == (1, 1)
    assert [row["_error"] for row in lake.rejected] == [str(AMBIGUOUS_DELETE)]
    assert DeltaTable(lake.table).to_pyarrow_table().select(["id", "v"]).to_pylist() == [{"id": 2, "v": "a"}]


def test_table_changed_before_the_merge_is_staged_again(lake, monkeypatch):
    """A foreign row comes in between the reading of stage 2 and the MERGE: the partial image is completed from it."""
    of, tries = lane(), []
    lake.put(of, [sale("NL", 1)], spark=False)
    original = merge.refuse_changed_table

    def foreign(snapshot, attempt):
        tries.append(snapshot)
        if len(tries) == 1:
            theirs = pa.table({"country": ["NL"], "id": pa.array([1], pa.int64()), "v": ["theirs"]})
            table = DeltaTable(str(lake.table))
            merger = table.merge(theirs, "t.id = s.id", source_alias="s", target_alias="t")
            merger.when_matched_update({"v": "s.v"}).execute()
        original(snapshot, attempt)

    monkeypatch.setattr(merge, "refuse_changed_table", foreign)
    assert lake.put(of, [{**sale("NL", 1, "u"), "v": None, "_unsent": ["v"]}]).applied == 1
    assert len(tries) == 2 and lake.values() == [("NL", 1, "theirs")]


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        pytest.param({"minReaderVersion": 1, "minWriterVersion": 99}, "writer version 99", marks=pytest.mark.long),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]}, "feature fromTheFuture"),
    ],
)
def test_newer_protocol_is_refused(lake, protocol, said):
    of = lane()
    lake.put(of, [sale("NL", 1)], spark=False)
    log = lake.table / "_delta_log"
    version = DeltaTable(str(lake.table)).version() + 1
    (log / f"{version:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(Fatal, match=said):
        lake.put(of, [sale("NL", 2)])
    assert max(int(file.stem) for file in log.glob("*.json")) == version


@pytest.mark.long
def test_both_engines_read_the_feed_of_a_catalog_table(tmp_path):
    """Spark commits in its own ways: the records are the same for both readers, and give the table."""
    spark, path = get_spark_engine().spark, tmp_path / "items"
    columns = (
        "id BIGINT, v STRING, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(30,4), tags ARRAY<STRUCT<n: DATE>>, p DATE"
    )
    spark.sql(
        f"CREATE TABLE default.items ({columns}) USING delta PARTITIONED BY (p) LOCATION '{path}' "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    rows = (
        "SELECT id, concat('é', id) AS v, timestamp_micros(id * 7) AS at, "
        "timestamp_ntz'1500-01-01 00:00:00.000001' AS local, "
        "CAST(id / 3 AS DECIMAL(30,4)) AS price, array(named_struct('n', date'2024-02-29')) AS tags, "
        "date_add(date'2024-01-01', CAST(id % 2 AS INT)) AS p"
    )
    for statement in (
        f"INSERT INTO default.items {rows} FROM range(0, 50, 1, 3)",
        "UPDATE default.items SET id = CASE WHEN id = 1 THEN 3 ELSE 1 END, v = concat(v, '!') WHERE id IN (1, 3)",
        "UPDATE default.items SET id = id + 100, p = date'2020-01-01' WHERE id IN (4, 5)",
        f"MERGE INTO default.items t USING ({rows} FROM range(5, 60, 7)) s ON t.id = s.id "
        "WHEN MATCHED AND t.id > 40 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT *",
        f"INSERT OVERWRITE default.items {rows} FROM range(30, 40)",
    ):
        spark.sql(statement)
    named = {"format": "rows", "changes": "feed", "table": "spark_catalog.default.items"}
    on_spark = delta_spark_source({**named, "batch_records": 40, **OPTIONS})
    local = RowsSource({"format": "rows", "changes": "feed", "path": str(path)})
    assert DeltaTable(str(path)).version() == 5
    for start in (local.beginning(), {PLACE_OF_ITEMS: 2 * VERSION + WHOLE}):
        records = read_records(local, start)
        theirs = {TopicPartition(named["table"], 0): offset for offset in start.values()}
        found = read_records(on_spark, theirs, lambda frame: to_arrow(frame).cast(RAW))
        assert found.drop_columns("topic").equals(records.drop_columns("topic"))
        assert apply_changes(decode_changes(records)) == read_table_rows(str(path))
    next(path.glob("_change_data/**/*.parquet")).unlink()
    with pytest.raises(DataLoss, match=r"cannot be read any more: its file .* was removed"):
        read_records(on_spark, {TopicPartition(named["table"], 0): 0})
    spark.sql("DROP TABLE default.items")
    with pytest.raises(EnvironmentProblem, match=r"no table spark_catalog\.default\.items"):
        delta_spark_source({**named, **OPTIONS})


def test_versions_show_the_same_values_as_the_local_engine():
    """`__START_AT` with `sequence_by`: the elements of the first column as its values."""
    at = datetime(2024, 2, 29, 23, 59, 59, 999_999)
    values = {
        pa.bool_(): [True, False],
        pa.int16(): [-(2**15), 2**15 - 1],
        pa.uint64(): [0, 2**64 - 1],
        pa.date32(): [date(1582, 10, 4), date(9999, 12, 31)],
        pa.timestamp("ms"): [at.replace(microsecond=0), datetime(1969, 12, 31)],
        pa.timestamp("us", "UTC"): [at.replace(tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
        pa.decimal128(18, 2): [Decimal("-9999999999999999.99"), Decimal("0.01")],
        pa.decimal128(18, 18): [Decimal("0.999999999999999999"), Decimal("-1E-18")],
        pa.string(): ["é", "𝄞"],
        pa.binary(): [b"\x00\xff", b""],
    }
    made = {str(kind): to_elements(pa.chunked_array([pa.array([*pair, None], kind)])) for kind, pair in values.items()}
    frame = from_arrow(get_spark_engine().spark, pa.table(made))
    found = frame.select(
        [value_expression(sf.col(f"`{kind}`"), get_display_type(kind)).alias(str(kind)) for kind in values]
    ).toArrow()
    for kind in values:
        there = found[str(kind)]
        expected = to_storage(local_shown(made[str(kind)], get_display_type(kind)), storage_type(get_display_type(kind)))
        assert there.cast(storage_type(get_display_type(kind))).to_pylist() == expected.to_pylist(), kind


def test_spark_vacuums_files_unknown_to_delta_rs(lake):
    of = lane(deletion_vectors=True)
    for version in range(2):
        lake.put(of, [sale("NL", 1, "u", f"v{version}"), sale("BE", 2, "u", f"v{version}")])
    before, there = set(lake.table.rglob("*.parquet")), lake.values()
    with pytest.raises(SparkNeeded):
        DeltaRsSink({"path": str(lake.folder)}).vacuum(of, timedelta(0), dry_run=False)
    sink = DeltaSparkSink({"path": str(lake.folder)})
    dry = sink.vacuum(of, timedelta(0), dry_run=True)
    assert dry is not None and dry.files and set(lake.table.rglob("*.parquet")) == before
    assert sink.vacuum(of, timedelta(0), dry_run=False) == VacuumResult(None)
    sink.close()
    assert set(lake.table.rglob("*.parquet")) < before and lake.values() == there
    lake.put(of, [sale("NL", 1, "u", "again")])
    assert len(lake.values()) == len(there)
