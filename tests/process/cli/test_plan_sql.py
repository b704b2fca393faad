"""`replicator plan TABLE`: the SQL of each sink, in its dialect."""

from __future__ import annotations

import pyarrow as pa
import pytest

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.testing.delivery import make_lane

QUOTES = {"local": '"', "spark": "`"}


@pytest.fixture(params=["scd1", "append"])
def policy(request):
    return request.param


@pytest.fixture(params=QUOTES)
def stages(request, policy, project, run_json, monkeypatch):
    """The plan stages of a lake lane and of a database lane, by sink, and the engine's quote. Nothing is connected."""
    monkeypatch.setattr("adapters.spark.session.open_session", lambda _options: 1 / 0)
    config = project / "config" / "replicator.yaml"
    mirror = "  mirror: {kind: postgres, dsn: 'postgresql://u:p@127.0.0.1:1/d', schema: \"my schema\"}\n  raw:"
    text = config.read_text().replace("  raw:", mirror, 1).replace("{sink: lake}]", "{sink: lake}, {sink: mirror}]")
    config.write_text(text + f"engine: {request.param}\ndefaults: {{policy: {policy}}}\n")
    found = {lane["lane"]: lane["stages"] for lane in run_json("plan", "public.products")["result"]}
    assert set(found) == {"lake.products", "mirror.products"}
    return found["lake.products"], found["mirror.products"], QUOTES[request.param]


def test_plan_shows_the_sql_of_each_sink(stages, policy, run_cli):
    lake, mirror, quote = stages
    verb = "MERGE INTO" if policy == "scd1" else "INSERT INTO"
    assert list(lake) == list(mirror) == ["fold", "reconcile", "write"]
    assert lake["fold"] == mirror["fold"] and f"{quote}sku{quote}" in lake["fold"]
    assert f'{verb} "my schema"."products"' in mirror["write"] and "OVERRIDING" in mirror["write"]
    assert f"{verb} {quote}products{quote}" in lake["write"] and "OVERRIDING" not in lake["write"]
    # In process rows are related by their numbers, elsewhere they are completed where they are.
    assert ("r._row" in lake["reconcile"]) == (quote == '"') and 'r."_op" AS "_op"' in mirror["reconcile"]
    shown = run_cli("plan", "products", "--sql").stdout
    assert all(statement in shown for sink in (lake, mirror) for statement in sink.values())


def test_plan_of_a_lake_shows_stored_column_names(tmp_path):
    table = TableSpec("public.items", (Column("id", pa.int64()), Column("a b", pa.string())), ("id",), 1)
    shown = DeltaRsSink({"path": str(tmp_path)}).explain(make_lane("scd1"), plan_for("scd1", table))
    assert '"a_x0020_b"' in shown["write"] and '"a b"' not in shown["write"]


def test_plan_shows_views(project, run_json, monkeypatch):
    """Also names in Spark's catalog, without a Spark session."""
    monkeypatch.setattr("adapters.spark.session.open_session", lambda _options: 1 / 0)
    config = project / "config" / "replicator.yaml"
    mirror = "  mirror: {kind: postgres, dsn: 'postgresql://u:p@127.0.0.1:1/d', schema: target}\n  raw:"
    text = config.read_text().replace("  raw:", mirror, 1).replace("{sink: lake}]", "{sink: lake}, {sink: mirror}]")
    text = text.replace("path: ./lake}", "path: ./lake, schema: shop}", 1)
    config.write_text(f"{text}engine: spark\ndefaults: {{policy: scd2}}\n")
    found = {lane["lane"]: lane["stages"] for lane in run_json("plan", "public.products")["result"]}
    schema, table, view = found["lake.products"]["names"].split(";\n\n")
    assert schema == "CREATE SCHEMA IF NOT EXISTS `spark_catalog`.`shop`"
    assert table.startswith(
        "CREATE TABLE `spark_catalog`.`shop`.`products` USING delta COMMENT 'made by replicator for lane "
    )
    assert table.endswith(f" LOCATION '{project}/lake/products'")
    select = "SELECT * FROM `spark_catalog`.`shop`.`products` WHERE `_cdc_end_seq_1` IS NULL"
    assert view.startswith("CREATE VIEW `spark_catalog`.`shop`.`products_current` ") and view.endswith(f" AS {select}")
    assert found["mirror.products"]["view"].startswith('CREATE OR REPLACE VIEW "target"."products_current" AS SELECT')


@pytest.mark.parametrize(
    "case",
    [
        ("local", "partition_by: [town]", "table public.products has no column 'town' for `partition_by`: it has"),
        ("local", "partition_by: [price]", "only text, whole numbers, booleans and dates can make partitions"),
        ("spark", "cluster_by: [town]", "table public.products has no column 'town' for `cluster_by`: it has"),
    ],
)
def test_plan_reports_impossible_file_layouts(project, run_json, run_cli, monkeypatch, case):
    """By the columns of the records, with either engine."""
    monkeypatch.setattr("adapters.spark.session.open_session", lambda _options: 1 / 0)
    engine, option, said = case
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("{sink: lake}]", f"{{sink: lake, {option}}}]") + f"engine: {engine}\n")
    [lane] = run_json("plan", "products")["result"]
    assert said in lane["problem"] and "config/replicator.yaml:" in lane["problem"] and lane["stages"] == {}
    assert "will be suspended" in run_cli("plan", "products").stdout
