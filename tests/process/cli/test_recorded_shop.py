"""The shipped example of an archive over the recorded topics of a shop: the resulting tables."""

from __future__ import annotations

import shutil
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.next_layer import run_until_caught_up

pytestmark = pytest.mark.slow

RECORDED = PROJECT / "tests" / "golden" / "decoders" / "debezium" / "postgres"
SHOP = ("customers", "products", "orders", "order_items")
ORDERS = [(1, 1, "shipped", Decimal("19.98")), (2, 2, "paid", Decimal("100.00")), (10, 10, "paid", Decimal("29.97"))]
ITEMS = [(1, 1, "SKU-1", 3), (10, 1, "SKU-1", 1), (10, 3, "SKU-2", 2)]
PRODUCTS = [
    ("SKU-1", "Widget 2", Decimal("9.99"), date(2024, 1, 1)),
    ("SKU-2", None, Decimal("100.00"), date(2024, 1, 2)),
    ("SKU-3", None, Decimal("0.00"), date(1999, 12, 31)),
    ("SKU-4", "again", Decimal("3.00"), date(2026, 11, 20)),
]
"""Whose title was renamed, which changes no row."""
CUSTOMERS = [(1, "Ada L.", 5_000_000_000), (2, "Émile ☃ 漢字 🎉", None), (10, "Tess", None), (600, "Post DDL", 42)]
"""The third has days that are infinite, which a lake does not have: its changes are dead letters."""


def read_rows(project: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(project / "deltalake" / "archive" / table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def test_tables_of_the_recorded_shop(tmp_path: Path) -> None:
    """`test_engines_agree` covers the same on Spark."""
    (tmp_path / "config").mkdir()
    shutil.copy(PROJECT / "config" / "examples" / "archive.yaml", tmp_path / "config" / "replicator.yaml")
    (tmp_path / "archive").mkdir()
    for table in SHOP:
        shutil.copy(RECORDED / f"cdc.public.{table}.jsonl", tmp_path / "archive")
    said = run_until_caught_up(tmp_path, "local", "--set", "http.address=127.0.0.1:0")
    assert {lane["id"]: lane["status"] for lane in said["result"]["lanes"]}.keys() == {f"lake.{table}" for table in SHOP}
    assert read_rows(tmp_path, "orders", "id", "customer_id", "status", "total") == ORDERS
    assert read_rows(tmp_path, "order_items", "order_id", "line_no", "sku", "qty") == ITEMS
    assert read_rows(tmp_path, "products", "sku", "product_title", "price", "added") == PRODUCTS
    assert read_rows(tmp_path, "customers", "id", "name", "loyalty") == CUSTOMERS
