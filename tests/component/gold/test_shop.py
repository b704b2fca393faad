"""The shipped queries over the shop's tables and over events; the expected results were calculated by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from paths import PROJECT

from adapters.gold import LocalProjector
from adapters.sinks.delta.event_store import DeltaEventStore
from replicator.application.operations.refresh import ProjectionRefresher, RefreshResult
from replicator.domain.events import NewEvent
from replicator.settings import load_settings
from replicator.wiring import projections

EXAMPLES = PROJECT / "config" / "examples"
MONEY = pa.decimal128(12, 2)
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("customer_id", pa.int64()),
        ("status", pa.string()),
        ("total_amount", MONEY),
        ("ordered_on", pa.date32()),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)
ITEMS = pa.schema([(name, pa.int64()) for name in ("id", "order_id", "product_id", "quantity")])
HISTORY = pa.schema(
    [
        ("id", pa.int64()),
        ("price", MONEY),
        ("__START_AT", pa.timestamp("us", "UTC")),
        ("__END_AT", pa.timestamp("us", "UTC")),
    ]
)


def make_time(day: int) -> datetime:
    return datetime(2024, 1, day, 12, tzinfo=UTC)


def order(number: int, customer: int, status: str, amount: str, day: int) -> dict[str, Any]:
    values = (number, customer, status, Decimal(amount), date(2024, 1, day), make_time(day))
    return dict(zip(ORDERS.names, values, strict=True))


def write_rows(table: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="overwrite")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    text = (EXAMPLES / "gold-shop.yaml").read_text().replace("./config/sql", str(EXAMPLES / "sql"))
    (tmp_path / "config" / "replicator.yaml").write_text(text)
    silver = tmp_path / "deltalake" / "gold-shop" / "silver"
    write_rows(silver / "customers", [{"id": 1}, {"id": 2}, {"id": 3}], pa.schema([("id", pa.int64())]))
    write_rows(
        silver / "orders",
        [
            order(10, 1, "paid", "20.00", 2),
            order(11, 1, "shipped", "5.50", 5),
            order(12, 2, "cancelled", "9.00", 5),
            order(13, 2, "paid", "7.00", 5),
        ],
        ORDERS,
    )
    items = [(100, 10, 7, 2), (101, 11, 7, 1), (102, 11, 8, 3), (103, 12, 8, 9), (104, 13, 8, 1)]
    write_rows(silver / "order_items", [dict(zip(ITEMS.names, item, strict=True)) for item in items], ITEMS)
    prices = [(7, "10.00", make_time(3), make_time(4)), (7, "12.00", make_time(4), None), (8, "1.50", make_time(1), None)]
    write_rows(
        silver / "products_history",
        [dict(zip(HISTORY.names, (i, Decimal(p), a, b), strict=True)) for i, p, a, b in prices],
        HISTORY,
    )
    return tmp_path


def refresh_tables(project: Path) -> dict[str, RefreshResult]:
    loaded = load_settings(project / "config" / "replicator.yaml", environ={})
    refreshing = ProjectionRefresher(
        LocalProjector({"sinks": {name: {"path": one.path} for name, one in loaded.settings.sinks.items()}}), ""
    )
    return {one.name: refreshing.refresh(one) for one in projections.build_projections(loaded)}


def read_gold_rows(project: Path, name: str) -> set[tuple[Any, ...]]:
    rows = DeltaTable(project / "deltalake" / "gold-shop" / "gold" / name).to_pyarrow_table().to_pylist()
    return {tuple(row.values()) for row in rows}


def test_shop_queries_have_the_expected_results(project: Path) -> None:
    assert {one.kind for one in refresh_tables(project).values()} == {"full"}
    second, fifth = date(2024, 1, 2), date(2024, 1, 5)
    assert read_gold_rows(project, "revenue_by_day_and_customer") == {
        (second, 1, 1, Decimal("20.00")),
        (fifth, 1, 1, Decimal("5.50")),
        (fifth, 2, 1, Decimal("7.00")),
    }
    thirds = 1 / 3
    assert read_gold_rows(project, "order_funnel") == {
        (second, "paid", 1, 1.0),
        (fifth, "shipped", 1, thirds),
        (fifth, "cancelled", 1, thirds),
        (fifth, "paid", 1, thirds),
    }
    # Order 10 precedes the first known version of product 7, and order 11 falls into its second one.
    assert read_gold_rows(project, "customer_lifetime_value") == {
        (1, 2, Decimal("36.50")),
        (2, 1, Decimal("1.50")),
        (3, 0, Decimal("0.00")),
    }


def test_changed_order_refreshes_only_its_groups(project: Path) -> None:
    refresh_tables(project)
    table = DeltaTable(project / "deltalake" / "gold-shop" / "silver" / "orders")
    table.update(predicate="id = 13", updates={"status": "'cancelled'"})
    done = refresh_tables(project)
    assert {name: (one.kind, one.groups) for name, one in done.items()} == {
        "revenue_by_day_and_customer": ("groups", 1),
        "order_funnel": ("groups", 1),
        "customer_lifetime_value": ("groups", 1),
    }
    assert (2, 0, Decimal("0.00")) in read_gold_rows(project, "customer_lifetime_value")
    history = project / "deltalake" / "gold-shop" / "silver" / "products_history"
    DeltaTable(history).update(predicate="id = 8", updates={"price": "CAST(2 AS DECIMAL(12, 2))"})
    done = refresh_tables(project)
    assert {name: one.kind for name, one in done.items() if one.kind != "current"} == {"customer_lifetime_value": "full"}
    assert (1, 2, Decimal("38.00")) in read_gold_rows(project, "customer_lifetime_value")


def test_customers_are_projected_from_their_events(tmp_path: Path) -> None:
    """The event store is read directly; each customer is a group."""
    (tmp_path / "config").mkdir()
    text = (EXAMPLES / "minimal.yaml").read_text()
    more = "inputs: {events: event_store}, sink: lake, partition_by: customer_id"
    entry = f"{{sql: '{EXAMPLES / 'sql' / 'customers-now.sql'}', {more}}}"
    (tmp_path / "config" / "replicator.yaml").write_text(
        f"{text}\nevent_store: {{path: ./events}}\nprojections: {{customers_now: {entry}}}\n"
    )
    loaded = load_settings(tmp_path / "config" / "replicator.yaml", environ={})
    store = DeltaEventStore({"path": str(tmp_path / "events")})

    def emit(number: int, kind: str, of: str = "C101", **data: str) -> None:
        event = {"event_id": f"{of}-{number}", "event_type": kind, "aggregate_id": of, "aggregate_type": "Customer"}
        store.append([NewEvent(**event, event_data=data)])

    def refresh() -> RefreshResult:
        with projections.open_refresher(loaded) as refreshing:
            (one,) = projections.build_projections(loaded)
            return refreshing.refresh(one)

    def view() -> dict[str, tuple[Any, ...]]:
        found = DeltaTable(loaded.settings.sinks["lake"].path + "/customers_now").to_pyarrow_table().to_pylist()
        return {row.pop("customer_id"): tuple(row.values()) for row in found}

    emit(1, "CustomerCreated", name="Alice Johnson", email="alice@email.com", city="NYC")
    emit(1, "CustomerCreated", of="C102", name="Bob", email="bob@email.com", city="Oslo")
    refresh()
    emit(2, "CustomerAddressChanged", old_city="NYC", new_city="LA", change_reason="relocation")
    emit(3, "CustomerEmailUpdated", old_email="alice@email.com", new_email="alice.new@email.com")
    done = refresh()
    assert (done.kind, done.groups) == ("groups", 1)
    assert view() == {
        "C101": ("Alice Johnson", "alice.new@email.com", "LA", 3, 3),
        "C102": ("Bob", "bob@email.com", "Oslo", 1, 1),
    }
    emit(4, "CustomerDeleted")
    refresh()
    assert set(view()) == {"C102"}
