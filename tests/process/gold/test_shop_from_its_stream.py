"""The shipped example of a shop, from Debezium's events to its gold tables, on both engines."""

from __future__ import annotations

import base64
import json
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.cli_program import parse_answer, run_program
from support.debezium_events import ID, encode_with_schema, make_column, make_envelope_schema, make_event_key, make_payload

pytestmark = pytest.mark.slow

EXAMPLES = PROJECT / "config" / "examples"
ON_SPARK = pytest.param("spark", marks=[pytest.mark.long, pytest.mark.timeout(3200)])
MONEY = {"parameters": {"scale": "2", "connect.decimal.precision": "12"}}


def make_money_column(name: str) -> dict[str, Any]:
    return make_column(name, "bytes", "org.apache.kafka.connect.data.Decimal", **MONEY)


TABLES = {
    "customers": (ID, make_column("first_name", "string")),
    "products": (ID, make_money_column("price")),
    "orders": (
        ID,
        make_column("customer_id", "int64"),
        make_column("status", "string"),
        make_money_column("total_amount"),
        make_column("ordered_on", "int32", "io.debezium.time.Date"),
        make_column("created_at", "string", "io.debezium.time.ZonedTimestamp"),
    ),
    "order_items": (
        ID,
        make_column("order_id", "int64"),
        make_column("product_id", "int64"),
        make_column("quantity", "int32"),
    ),
}


def make_time(day: int) -> datetime:
    return datetime(2024, 1, day, 12, tzinfo=UTC)


def encode_amount(text: str) -> str:
    cents = int(Decimal(text) * 100)
    return base64.b64encode(cents.to_bytes(8, "big", signed=True)).decode()


def make_order(number: int, customer: int, status: str, total: str, day: int) -> dict[str, Any]:
    days = (date(2024, 1, day) - date(1970, 1, 1)).days
    said = {"id": number, "customer_id": customer, "status": status, "total_amount": encode_amount(total)}
    return said | {"ordered_on": days, "created_at": make_time(day).isoformat().replace("+00:00", "Z")}


class Stream:
    """Writes the connector's records into an archive. Each change has its own day."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sent = folder, 0
        folder.mkdir()

    def send(self, table: str, op: str, row: dict[str, Any], day: int = 1) -> None:
        self.sent += 1
        schema = make_envelope_schema(TABLES[table], table)
        micros = int(make_time(day).timestamp() * 1_000_000)
        source = {"table": table, "ts_us": micros, "ts_ms": micros // 1000}
        value = encode_with_schema(schema, make_payload(op, row, None, 1000 + self.sent, source=source))
        place = {"topic": f"cdc.public.{table}", "partition": 0, "offset": self.sent, "timestamp": None, "headers": None}
        line = place | {"key": make_event_key(id=row["id"]).decode(), "value": value.decode()}
        with (self.folder / f"{table}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")


@pytest.fixture
def shop(tmp_path: Path) -> Stream:
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLES / "gold-shop.yaml", tmp_path / "config" / "replicator.yaml")
    shutil.copytree(EXAMPLES / "sql", tmp_path / "config" / "sql")
    stream = Stream(tmp_path / "archive")
    for number in (1, 2, 3):
        stream.send("customers", "c", {"id": number, "first_name": "Ada"})
    for product, price, day in ((8, "1.50", 1), (7, "10.00", 3), (7, "12.00", 4)):
        stream.send("products", "u" if day == 4 else "c", {"id": product, "price": encode_amount(price)}, day)
    orders = [(10, 1, "paid", "20.00", 2), (11, 1, "shipped", "5.50", 5), (12, 2, "cancelled", "9.00", 5)]
    for one in (*orders, (13, 2, "paid", "7.00", 5)):
        stream.send("orders", "c", make_order(*one), one[-1])
    for item, of, product, quantity in ((100, 10, 7, 2), (101, 11, 7, 1), (102, 11, 8, 3), (103, 12, 8, 9), (104, 13, 8, 1)):
        stream.send("order_items", "c", {"id": item, "order_id": of, "product_id": product, "quantity": quantity}, 5)
    return stream


def run_pipeline(project: Path, engine: str) -> dict[str, tuple[str, int | None]]:
    """The result of each projection."""
    more = ("--set", f"engine={engine}", "--set", "http.address=127.0.0.1:0")
    done = run_program(project, "run", "--until-caught-up", "--json", "-q", *more, seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    told = parse_answer(done)["result"]
    assert sum(lane["counts"]["rejected"] for lane in told["lanes"]) == 0
    return {one["name"]: one["kind"] for one in told["projections"]}


def read_gold_rows(project: Path, name: str) -> set[tuple[Any, ...]]:
    rows = DeltaTable(project / "deltalake" / "gold-shop" / "gold" / name).to_pyarrow_table().to_pylist()
    return {tuple(row.values()) for row in rows}


@pytest.mark.parametrize("engine", ["local", ON_SPARK])
def test_from_events_to_gold(shop: Stream, engine: str) -> None:
    """Order 10 is older than the first known price of product 7; order 11 is under the second price."""
    project, second, fifth = shop.folder.parent, date(2024, 1, 2), date(2024, 1, 5)
    assert set(run_pipeline(project, engine).values()) == {"full"}
    assert read_gold_rows(project, "revenue_by_day_and_customer") == {
        (second, 1, 1, Decimal("20.00")),
        (fifth, 1, 1, Decimal("5.50")),
        (fifth, 2, 1, Decimal("7.00")),
    }
    funnel = {("shipped", 1, 1 / 3), ("cancelled", 1, 1 / 3), ("paid", 1, 1 / 3)}
    assert read_gold_rows(project, "order_funnel") == {(second, "paid", 1, 1.0), *((fifth, *one) for one in funnel)}
    assert read_gold_rows(project, "customer_lifetime_value") == {
        (1, 2, Decimal("36.50")),
        (2, 1, Decimal("1.50")),
        (3, 0, Decimal("0.00")),
    }
    shop.send("orders", "u", make_order(13, 2, "cancelled", "7.00", 5), 6)
    assert run_pipeline(project, engine) == dict.fromkeys(
        ("revenue_by_day_and_customer", "order_funnel", "customer_lifetime_value"), "groups"
    )
    assert read_gold_rows(project, "customer_lifetime_value") == {
        (1, 2, Decimal("36.50")),
        (2, 0, Decimal("0.00")),
        (3, 0, Decimal("0.00")),
    }
    assert (fifth, 2, 1, Decimal("7.00")) not in read_gold_rows(project, "revenue_by_day_and_customer")
    assert (fifth, "cancelled", 2, 2 / 3) in read_gold_rows(project, "order_funnel")
