"""The shipped example of shards: tables matched by one regular expression, each into its own target."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.next_layer import LONG_ON_SPARK, run_until_caught_up
from support.rows_folder import encode_rows, write_closed_file

pytestmark = pytest.mark.slow
"""The program starts in each."""

EXAMPLE = PROJECT / "config" / "examples" / "shards.yaml"
INTO = "into: '{2}_{shop}'"


def make_project(folder: Path, into: str = INTO) -> Path:
    text = EXAMPLE.read_text()
    assert INTO in text
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(text.replace(INTO, into) + 'http: {address: "127.0.0.1:0"}\n')
    return folder


def make_order(number: int, **values: Any) -> dict[str, Any]:
    row = {"id": number, "first": "Ada", "last": "Lovelace", "price": "1.50", "quantity": 3, "at": "2024-02-29T12:00:00"}
    return row | values


def write_orders(project: Path, table: str, *rows: dict[str, Any]) -> None:
    write_closed_file(project / "feed" / table / "000001.jsonl", encode_rows(list(rows), "jsonl"))


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_each_shard_has_its_own_target(tmp_path: Path, engine: str) -> None:
    project = make_project(tmp_path)
    write_orders(
        project, "shop_12_orders", make_order(1), make_order(2, first=None, quantity=10), make_order(3, last="Test")
    )
    write_orders(project, "shop_13_orders", make_order(1, quantity=2**63 - 1), make_order(4))
    write_orders(project, "shop_x_orders", make_order(1))
    said = run_until_caught_up(project, engine)
    assert {lane["id"] for lane in said["result"]["lanes"]} == {"lake.orders_12", "lake.orders_13"}
    columns = ("id", "first_name", "full_name", "total", "month", "size")
    found = {
        shard: sorted(
            tuple(row[name] for name in columns)
            for row in DeltaTable(str(project / "deltalake-shards" / f"orders_{shard}")).to_pyarrow_table().to_pylist()
        )
        for shard in (12, 13)
    }
    may, total = date(2024, 2, 1), Decimal("5.36")
    assert found == {
        12: [
            (1, "Ada", "Ada Lovelace", total, may, "small"),
            (2, None, " Lovelace", Decimal("17.85"), may, "large"),
        ],
        13: [(4, "Ada", "Ada Lovelace", total, may, "small")],
    }
    counts = {lane["id"]: lane["counts"]["rejected"] for lane in said["result"]["lanes"]}
    assert counts == {"lake.orders_12": 0, "lake.orders_13": 1}


def test_two_shards_with_one_target_are_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path, "into: '{2}'")
    write_orders(project, "shop_12_orders", make_order(1))
    write_orders(project, "shop_13_orders", make_order(2))
    said = run_until_caught_up(project, "local", code=2)
    assert "Tables shop_12_orders and shop_13_orders both go to orders in sink lake" in said["summary"]
    assert {lane["id"]: lane["status"] for lane in said["result"]["lanes"]} == {
        "lake.orders": "running",
        "lake.orders (shop_13_orders)": "suspended",
    }


def test_target_without_a_name_is_refused(tmp_path: Path) -> None:
    """The other tables continue."""
    project = make_project(tmp_path, "into: '{2}'")
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("_(\\w+)$", "_(\\w*)$"))
    write_orders(project, "shop_12_", make_order(1))
    write_orders(project, "shop_13_orders", make_order(2))
    said = run_until_caught_up(project, "local", code=2)
    assert (
        "The name of the target of table shop_12_ in sink lake, '', must be the name of a table: not empty"
        in said["summary"]
    )
    assert sorted((lane["id"], lane["status"]) for lane in said["result"]["lanes"]) == [
        ("lake. (shop_12_)", "suspended"),
        ("lake.orders", "running"),
    ]
