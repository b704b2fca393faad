"""An event log, dead letters, gold tables and a format of another package: they work as ours do."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import feather
from support.cli_fixtures import SAMPLES
from support.cli_program import run_program
from support.installed_box import install_box

pytestmark = pytest.mark.slow

CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  box: {kind: box_log, path: ./box}
  lake: {kind: delta, path: ./lake}
  gold: {kind: box_tables, path: ./gold}
tables:
  - match: public.*
    source: recorded
    to: [{sink: box}, {sink: lake}]
projections:
  counts:
    sql: ./counts.sql
    inputs: {orders: lake.orders}
    sink: gold
    partition_by: status
  most: {sql: ./most.sql, inputs: {counts: gold.counts}, sink: lake}
http: {address: "127.0.0.1:0"}
"""
QUERIES = {
    "counts": "SELECT status, COUNT(*) AS orders FROM orders GROUP BY status",
    "most": "SELECT MAX(orders) AS orders FROM counts",
}
ORDERS = "cdc.public.orders.jsonl"


class Shop:
    """A pipeline with the installed package."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder, self._package = folder, package

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = run_program(self.folder, *arguments, "--json", before=("env",), PYTHONPATH=str(self._package))
        assert done.returncode == code, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        found = (
            DeltaTable(str(self.folder / "lake" / table)).to_pyarrow_table().drop_columns(["_cdc_applied_at"]).to_pylist()
        )
        return sorted(found, key=lambda row: row["_event_id"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A pipeline that has read its records. One record is unreadable."""
    package, folder = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("shop")
    install_box(package)
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    for name, query in QUERIES.items():
        (folder / f"{name}.sql").write_text(query)
    (folder / "archive").mkdir()
    shutil.copyfile(SAMPLES / ORDERS, folder / "archive" / ORDERS)
    with (folder / "archive" / ORDERS).open("a") as more:
        more.write("no record at all\n")
    made = Shop(folder, package)
    made.run("run", "--until-caught-up", "-q")
    return made


def test_a_target_is_built_again_from_the_log(shop: Shop) -> None:
    shop.run("replay", "public.orders", "--into", "orders_again")
    assert shop.read_rows("orders")
    assert shop.read_rows("orders_again") == shop.read_rows("orders")


def test_the_history_of_a_row_is_in_the_log(shop: Shop) -> None:
    (key,) = {row["id"] for row in shop.read_rows("orders")[:1]}
    assert shop.run("history", "public.orders", str(key))["result"]


def test_rejected_records_are_in_the_store_of_the_first_sink_without_a_key_for_them(shop: Shop) -> None:
    assert (shop.folder / "box" / "rejected" / "letters").is_file()
    assert not (shop.folder / "lake" / "_replicator" / "dead_letters").exists()
    assert [letter["code"] for letter in shop.run("dlq", "list")["result"]] == ["MALFORMED"]


def test_the_log_is_not_dropped(shop: Shop) -> None:
    assert "is an event log and cannot be dropped" in json.dumps(shop.run("drop", "box", "--yes", code=2))


def test_its_keys_are_checked(shop: Shop) -> None:
    said = json.dumps(shop.run("check", "--set", "sinks.box.pth=x", code=2))
    assert "unknown key 'pth' in sinks.box; did you mean 'path'?" in said


def test_an_entry_of_the_log_has_no_keys_of_tables(shop: Shop) -> None:
    said = json.dumps(shop.run("check", "--set", "tables[0].to[0]={sink: box, policy: scd2}", code=2))
    assert "means nothing for an event log" in said


def test_its_format_has_a_key_of_its_own(shop: Shop) -> None:
    boxed = ("check", "--set", "sources.recorded.format=box_json", "--set")
    shop.run(*boxed, "sources.recorded.label=up")
    assert "sources.recorded.label has an unknown value" in json.dumps(
        shop.run(*boxed, "sources.recorded.label=side", code=2)
    )
    assert "the box stands on its head" in json.dumps(shop.run(*boxed, "sources.recorded.label=down", code=2))
    said = json.dumps(shop.run("check", "--set", "sources.recorded.label=up", code=2))
    assert "key 'label' in sources.recorded means nothing with format 'debezium_json'" in said
    assert "means nothing with format 'box_json'" in json.dumps(shop.run(*boxed, "sources.recorded.flattened=true", code=2))


def test_a_gold_table_is_in_the_sink_and_others_are_computed_from_it(shop: Shop) -> None:
    counts = Counter(row["status"] for row in shop.read_rows("orders"))
    found = feather.read_table(shop.folder / "gold" / "counts.arrow").to_pydict()
    assert dict(zip(found["status"], found["orders"], strict=True)) == counts
    most = DeltaTable(str(shop.folder / "lake" / "most")).to_pyarrow_table()
    assert most["orders"].to_pylist() == [max(counts.values())]
    assert [one["kind"] for one in shop.run("refresh")["result"]] == ["current", "current"]


def test_a_sink_without_gold_tables_is_refused(shop: Shop) -> None:
    said = json.dumps(shop.run("check", "--set", "projections.counts.sink=box", code=2))
    assert "does not support projections yet" in said and "box_tables" in said
