"""Names of a lake's tables in Spark's catalog: tables, and views of current rows."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from paths import PROJECT
from support.spark_case import OnSpark, get_spark_engine

from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.spark.catalog import CatalogNames
from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, changes_schema
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""

PLACE = TopicPartition("cdc.public.items", 0)
NARROW = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 1)
WIDE = replace(NARROW, columns=(*NARROW.columns, Column("it's `w`", pa.int32())))
SOFT = RowTransforms(soft_deletes=True)
SCHEMAS = count(1)
DOCS = PROJECT / "docs"


def soft(into="items"):
    return replace(make_lane("scd1", into), row_transforms=SOFT, config_line="config/replicator.yaml:7")


def history(into="items"):
    return replace(make_lane("scd2", into), config_line="config/replicator.yaml:8")


@dataclass
class Named:
    """A lake whose tables have names in a schema of its own."""

    folder: str
    schema: str
    table: TableSpec = NARROW

    def open(self, *, spark=True):
        get_spark_engine()
        return (DeltaSparkSink if spark else DeltaRsSink)({"path": self.folder, "schema": self.schema})

    def put(self, lane, *rows, spark=True, by_executors=False):
        """Applies the rows at the offsets where the lane stands, by a sink that is new each time. `spark`: the one that
        names the table has looked at it; it need not write the rows itself."""
        plan = plan_for(lane.policy, self.table, row_transforms=lane.row_transforms)
        if spark and not by_executors:
            with closing(self.open()) as naming:
                naming.state(lane)
                naming.prepare(lane, plan)
        made = get_spark_engine() if by_executors else LocalEngine()
        with closing(self.open(spark=by_executors)) as sink:
            state = sink.state(lane)
            start = state.position[PLACE] if state else 0
            places = [{TOPIC: PLACE.topic, PARTITION: 0, OFFSET: start + i, "_seq_1": start + i} for i in range(len(rows))]
            records = [{**place, OP: "c", **row} for place, row in zip(places, rows, strict=True)]
            arrow = pa.Table.from_pylist(records, changes_schema(self.table))
            frame = made.transform_rows(OnSpark().to_frame(arrow) if by_executors else arrow, plan).frame
            span = Span(Position({PLACE: start}), Position({PLACE: start + len(rows)}))
            sink.prepare(lane, plan)
            sink.apply([Write(lane, plan, made.fold(frame, plan), span)], refuse_rejects)

    def rows(self, name, *columns):
        """What a reader gets who knows the name alone, in a session of its own."""
        found = get_spark_engine().spark.newSession().sql(f"SELECT * FROM {self.schema}.{name}").collect()
        return sorted(tuple(row[column] for column in columns or ("id", "v")) for row in found)

    def names(self):
        return sorted(row.tableName for row in run(f"SHOW TABLES IN {self.schema}"))


def run(statement):
    return get_spark_engine().spark.sql(statement).collect()


@pytest.fixture
def lake(tmp_path):
    get_spark_engine()
    schema = f"shop_{next(SCHEMAS)}"
    yield Named(str(tmp_path / "a 'lake' é"), schema)
    run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def test_view_has_the_current_rows_after_each_batch(lake):
    lake.put(soft(), {"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    assert lake.rows("items_living") == [(1, "a"), (2, "b")]
    lake.put(soft(), {"id": 1, OP: "d"}, by_executors=True)
    assert lake.rows("items_living") == [(2, "b")]
    assert lake.rows("items", "id", "_cdc_deleted") == [(1, True), (2, False)]
    (deleted,) = [row for row in run(f"SELECT * FROM {lake.schema}.items") if row["_cdc_deleted"]]
    assert deleted["_cdc_deleted_at"] == deleted["_cdc_ts"]
    lake.put(soft(), {OP: "t"}, {"id": 3, "v": "c"})
    assert lake.rows("items_living") == [(3, "c")]
    assert lake.names() == ["items", "items_living"]


def test_view_has_the_open_versions(lake):
    lake.put(
        history(),
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b"},
        {"id": 1, "v": "A", OP: "u"},
        {"id": 2, OP: "d"},
        by_executors=True,
    )
    assert lake.rows("items_current") == [(1, "A")]
    assert lake.rows("items") == [(1, "A"), (1, "a"), (2, "b")]
    assert lake.names() == ["items", "items_current"]


def test_table_of_current_rows_has_no_view(lake):
    lake.put(make_lane("scd1"), {"id": 1, "v": "a"})
    assert lake.names() == ["items"] and lake.rows("items") == [(1, "a")]


def test_views_follow_the_columns(lake):
    """Whichever engine adds them: the next start of this engine updates the view, also without a write."""
    lake.put(soft(), {"id": 1, "v": "a"})
    run(f"ALTER VIEW {lake.schema}.items_living SET TBLPROPERTIES ('mine' = 'kept')")
    lake.table = WIDE
    lake.put(soft(), {"id": 2, "v": "b", "it's `w`": 5})
    assert run(f"SHOW TBLPROPERTIES {lake.schema}.items_living ('mine')")[0].value == "kept"
    assert lake.rows("items_living", "id", "it's_x0020_`w`") == [(1, None), (2, 5)]
    lake.table = replace(WIDE, columns=(*WIDE.columns, Column("x", pa.string())))
    lake.put(soft(), {"id": 2, "v": "c", "x": "new"}, spark=False)
    with closing(lake.open()) as sink:
        assert sink.state(soft()) is not None
    (row,) = run(f"SELECT * FROM {lake.schema}.items_living WHERE id = 2")
    assert (row["v"], row["x"]) == ("c", "new")


def test_dropped_names_are_restored(lake):
    """Also for a lane without a write: every lane is asked for its state."""
    lake.put(history(), {"id": 1, "v": "a"})
    run(f"DROP SCHEMA {lake.schema} CASCADE")
    with closing(lake.open()) as sink:
        sink.state(history())
    assert lake.rows("items_current") == [(1, "a")]


def test_start_with_existing_names_changes_nothing(lake, monkeypatch):
    ran = []
    lake.put(soft(), {"id": 1, "v": "a"})
    monkeypatch.setattr(CatalogNames, "_run", lambda _, statement: ran.append(statement))
    lake.put(soft(), {"id": 2, "v": "b"})
    assert ran == [] and lake.rows("items_living") == [(1, "a"), (2, "b")]


NOT_OURS = {
    "table": ("items", "CREATE TABLE {} (a INT) USING delta"),
    "view": ("items", "CREATE VIEW {} AS SELECT 1 AS a"),
    "view of the view's name": ("items_living", "CREATE VIEW {} AS SELECT 1 AS a"),
    "table of the view's name": ("items_living", "CREATE TABLE {} (a INT) USING parquet"),
}


SOME = ("view", "table of the view's name")
"""Either kind in either place."""
REST = [pytest.param(name, marks=pytest.mark.long) for name in NOT_OURS if name not in SOME]


@pytest.mark.parametrize("what", [*SOME, *REST])
def test_name_of_another_object_is_reported(lake, what):
    """Before the table is created; the lane loses nothing, and continues when the name is free."""
    name, make = NOT_OURS[what]
    run(f"CREATE SCHEMA {lake.schema}")
    run(make.format(f"{lake.schema}.{name}"))
    with pytest.raises(ConfigProblem) as refused:
        lake.put(soft(), {"id": 1, "v": "a"})
    assert refused.value.sentence.startswith(f"spark_catalog.{lake.schema}.{name} in Spark's catalog is a ")
    for word in ("Remove or rename it", "`into` in config/replicator.yaml:7", "another `schema`"):
        assert word in refused.value.next_step
    assert lake.names() == [name] and run(f"SELECT * FROM {lake.schema}.{name}") in ([], [(1,)])
    with closing(lake.open()) as sink:
        assert sink.tables() == []
    run(f"DROP {'VIEW' if 'VIEW' in make else 'TABLE'} {lake.schema}.{name}")
    lake.put(soft(), {"id": 1, "v": "a"})
    assert lake.rows("items_living") == [(1, "a")]


def test_existing_name_of_the_same_table_is_used(lake):
    """It stays when the lane is dropped."""
    lake.put(soft(), {"id": 1, "v": "a"}, spark=False)
    run(f"CREATE SCHEMA {lake.schema}")
    location = lake.folder.replace("\\", "\\\\").replace("'", "\\'")
    run(f"CREATE TABLE {lake.schema}.items USING delta LOCATION '{location}/items'")
    lake.put(soft(), {"id": 2, "v": "b"})
    assert lake.rows("items_living") == [(1, "a"), (2, "b")]
    with closing(lake.open()) as sink:
        sink.drop(soft())
    assert lake.names() == ["items"]


def test_drop_removes_the_names(lake):
    lake.put(soft(), {"id": 1, "v": "a"})
    lake.put(history("others"), {"id": 1, "v": "a"})
    with closing(lake.open()) as sink:
        found = {(one.what, one.where) for one in sink.list_artifacts(soft())}
        schema = f"spark_catalog.{lake.schema}"
        assert {("name", f"{schema}.items"), ("view", f"{schema}.items_living")} <= found
        sink.drop(soft())
        assert lake.names() == ["others", "others_current"] and not sink.list_artifacts(soft())
        sink.drop(soft())
    lake.put(soft(), {"id": 2, "v": "b"})
    assert lake.rows("items_living") == [(2, "b")]


def test_repeated_drop_removes_names_left_by_a_kill(lake):
    lake.put(soft(), {"id": 1, "v": "a"})
    shutil.rmtree(lake.folder)
    with closing(lake.open()) as sink:
        assert {one.what for one in sink.list_artifacts(soft())} == {"name", "view"}
        sink.drop(soft())
    assert lake.names() == []


def test_existing_table_keeps_its_name(lake):
    """Like the table itself; the view is removed."""
    Path(lake.folder).mkdir()
    write_deltalake(f"{lake.folder}/items", pa.table({"id": [7], "v": ["there"]}))
    lake.put(soft(), {"id": 1, "v": "a"})
    assert lake.rows("items_living") == [(1, "a"), (7, "there")]
    with closing(lake.open()) as sink:
        stays = {one.what: bool(one.stays) for one in sink.list_artifacts(soft())}
        assert stays["name"] and not stays["view"]
        sink.drop(soft())
    assert lake.names() == ["items"] and lake.rows("items") == [(7, "there")]


def test_names_with_special_characters(lake):
    odd = "it's `a`-b.c é漢"
    lake.put(soft(odd), {"id": 1, "v": "a"})
    lake.put(history("_x0020_"), {"id": 1, "v": "b"})
    lake.put(history(" "), {"id": 1, "v": "c"})
    name = "it_x0027_s_x0020__x0060_a_x0060__x002D_b_x002E_c_x0020__x00E9__x6F22_"
    assert lake.rows(f"{name}_living") == [(1, "a")]
    assert lake.rows("_x0020__current") == [(1, "c")] and lake.rows("_x005F_x0020__current") == [(1, "b")]
    with closing(lake.open()) as sink:
        sink.drop(soft(odd))
    assert name not in lake.names()


def test_a_long_name(lake):
    long = "x" * 300
    lake.put(soft(long), {"id": 1, "v": "a"})
    (view,) = [name for name in lake.names() if name.endswith("_living")]
    assert len(view) < 220 and lake.rows(view) == [(1, "a")]


def test_obsolete_view_is_removed(lake):
    lake.put(soft(), {"id": 1, "v": "a"})
    with closing(lake.open()) as sink:
        sink.reset(soft())
    lake.put(history(), {"id": 1, "v": "b"})
    assert lake.names() == ["items", "items_current"] and lake.rows("items_current") == [(1, "b")]


def test_failing_catalog_stops_the_write(lake):
    """The folder of the schema cannot be created. When it can, the same rows are written."""
    warehouse = get_spark_engine().spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    block = Path(warehouse, f"{lake.schema}.db")
    block.write_text("in the way")
    with pytest.raises(Fatal, match=f"naming table items in schema {lake.schema} of Spark's catalog"):
        lake.put(soft(), {"id": 1, "v": "a"})
    block.unlink()
    lake.put(soft(), {"id": 1, "v": "a"})
    assert lake.rows("items_living") == [(1, "a")]


@pytest.mark.parametrize("page", ["how-to/keep-deleted-rows.md", "explanation/histories.md"])
def test_documented_views_without_a_catalog(lake, tmp_path, page):
    """As in the documentation. The view follows the table, whoever adds columns."""
    (typed,) = re.findall(r"```sql\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    plain = replace(lake, folder=str(tmp_path / "plain"))
    of = soft("customers") if page == "how-to/keep-deleted-rows.md" else history("customers_history")
    plain.put(of, {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, OP: "d"}, spark=False)
    reader = get_spark_engine().spark.newSession()
    for statement in (f"CREATE SCHEMA {lake.schema}", f"USE {lake.schema}", *typed.strip().split(";\n")):
        reader.sql(statement.rstrip(";").replace("/data/deltalake", plain.folder))
    name = "customers_living" if page == "how-to/keep-deleted-rows.md" else "customers_current"
    assert lake.rows(name) == [(2, "b")]
    plain.table = WIDE
    plain.put(of, {"id": 3, "v": "c", "it's `w`": 7}, spark=False)
    assert lake.rows(name, "id", "it's_x0020_`w`") == [(2, None), (3, 7)]
