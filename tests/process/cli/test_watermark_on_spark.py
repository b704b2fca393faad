"""The completeness watermark of lakes on Spark: the transaction up to which all their tables are complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.next_layer import run_until_caught_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
"""The program starts several times, and a JVM with it."""

ARCHIVE = GOLDEN / "decoders" / "debezium" / "postgres"
TABLES = ("customers", "orders", "order_items", "products")
TOPICS = [f"cdc.public.{table}" for table in TABLES]
CONFIG = """\
pipeline: shop
sources:
  shop: {format: debezium_json, transport: archive, path: ./archive, transactions: {topic: cdc.transaction}}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead_letters}
tables:
"""
LAST = "790:27505272"
LARGE = "770:27211296"
"""Changes seven rows of three tables."""
BEFORE_IT = "769:27209304"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    tables = "".join(f"  - {{match: public.{table}, source: shop, to: [{{sink: lake}}]}}\n" for table in TABLES)
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG + tables + 'http: {address: "127.0.0.1:0"}\n')
    (tmp_path / "archive").mkdir()
    return tmp_path


def write_archive(shop: Path, **below: int) -> None:
    """Writes the archive, some topics up to an offset only."""
    for topic in (*TOPICS, "cdc.transaction"):
        lines = (ARCHIVE / f"{topic}.jsonl").read_text().splitlines(keepends=True)
        most = below.get(topic.rpartition(".")[2], 1_000)
        there = [line for line in lines if json.loads(line)["offset"] < most]
        (shop / "archive" / f"{topic}.jsonl").write_text("".join(there))


def read_watermark(shop: Path) -> dict[str, Any]:
    (row,) = DeltaTable(str(shop / "lake" / "_replicator" / "transactions")).to_pyarrow_table().to_pylist()
    return {name: row[name] for name in ("transaction", "exact", "behind")}


def list_applied_counts(said: dict[str, Any]) -> dict[str, int]:
    """The counts of the lanes that applied changes."""
    counted = {lane["id"]: lane["counts"]["applied"] for lane in said["result"]["lanes"]}
    return {lane: changes for lane, changes in counted.items() if changes}


def make_watermark(transaction: str) -> dict[str, Any]:
    return {"transaction": transaction, "exact": False, "behind": []}


@pytest.mark.long
def test_watermark_names_the_last_complete_transaction(shop: Path) -> None:
    """The ends of all transactions are known from the start. One change of a transaction arrives last, after a restart."""
    write_archive(shop, order_items=11)
    run_until_caught_up(shop, "spark")
    assert read_watermark(shop) == make_watermark(BEFORE_IT)
    write_archive(shop)
    said = run_until_caught_up(shop, "spark")
    assert list_applied_counts(said) == {"lake.order_items": 1}
    assert read_watermark(shop) == make_watermark(LAST)


@pytest.mark.long
def test_changes_sent_twice_do_not_advance_the_watermark(shop: Path) -> None:
    """The connector was killed before the last change was acknowledged, and sends another change of that table again."""
    write_archive(shop, order_items=11, transaction=26)
    items = shop / "archive" / "cdc.public.order_items.jsonl"
    lines = items.read_text().splitlines(keepends=True)
    again = {**json.loads(lines[-1]), "offset": 11}
    items.write_text("".join([*lines, json.dumps(again) + "\n"]))
    run_until_caught_up(shop, "spark")
    assert read_watermark(shop) == make_watermark(BEFORE_IT)


@pytest.mark.long
def test_engines_alternate(shop: Path) -> None:
    """Each engine resumes with the watermark of the other. The local engine publishes no transaction that lanes are
    ahead of, holds back the incomplete transaction and all later ones, and ends with the code of data loss."""
    write_archive(shop, customers=10, order_items=11, transaction=12)
    run_until_caught_up(shop, "spark")
    assert read_watermark(shop) == make_watermark("762:27207616")
    write_archive(shop, order_items=11)
    run_until_caught_up(shop, "local", code=4)
    assert "762" <= read_watermark(shop)["transaction"].partition(":")[0] <= "769"
    write_archive(shop)
    said = list_applied_counts(run_until_caught_up(shop, "spark"))
    assert set(said) == {"lake.customers", "lake.order_items"} and said["lake.order_items"] == 1, said
    assert read_watermark(shop) == make_watermark(LAST)
