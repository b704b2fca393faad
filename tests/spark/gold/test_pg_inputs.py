"""Projections over tables in PostgreSQL: all inputs are of one snapshot."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.pg_gold import JOINED, SUMS, Shop, list_row_values
from support.small_spark import SMALL

from adapters.gold import LocalProjector
from adapters.sinks.postgres.event_store import PostgresEventStore
from replicator.application.operations import erase
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.errors import Fatal
from replicator.domain.events import NewEvent
from replicator.domain.projection import InputVersions
from replicator.wiring import projections
from replicator.wiring.components import ConfiguredComponents

pytestmark = pytest.mark.postgres

EXAMPLES = PROJECT / "config" / "examples"
GROUPED = "sink: lake, partition_by: city"


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str) -> Shop:
    made = Shop(tmp_path, postgres_dsn)
    made.configure_projections(SUMS, f"inputs: {{orders: pg.orders}}, {GROUPED}")
    made.feed("orders", "c,1,Oslo,1.50,1", "c,2,Oslo,2.00,2", "c,3,Rome,5.00,3", "c,4,,1.00,4")
    return made


def read_sums(shop: Shop) -> set[tuple[Any, ...]]:
    return list_row_values(DeltaTable(shop.root / "lake" / "sums").to_pyarrow_table().to_pylist())


def test_target_in_postgresql_is_an_input(shop: Shop) -> None:
    """Complete after every commit of its lane, with deletes, and not read without a commit."""
    shop.run()
    assert shop.refresh().kind == "full"
    assert read_sums(shop) == {("Oslo", 2, Decimal("3.50")), ("Rome", 1, Decimal("5.00")), (None, 1, Decimal("1.00"))}
    assert shop.refresh().kind == "current"
    shop.feed("orders", "d,3,Rome,5.00,5", "u,2,Bergen,2.00,6")
    assert shop.refresh().kind == "current"
    shop.run()
    done = shop.refresh()
    assert (done.kind, done.reason) == ("full", "orders has changed, and the affected groups are unknown")
    assert read_sums(shop) == {("Oslo", 1, Decimal("1.50")), ("Bergen", 1, Decimal("2.00")), (None, 1, Decimal("1.00"))}
    shop.run()
    assert shop.refresh().kind == "current"
    assert shop.await_no_session()


def test_version_is_the_position_of_the_lane(shop: Shop) -> None:
    """In the record of the refresh and in lineage, which names the table by server and database."""
    shop.run()
    first = shop.refresh()
    shop.feed("orders", "c,5,Rome,1.00,7")
    shop.run()
    second = shop.refresh()
    assert second.reads["orders"] > first.reads["orders"] > 0
    (entry,) = DeltaTable(shop.root / "lake" / "sums").history(1)
    said = json.loads(entry["replicatorRefresh"])["reads"]["orders"]
    assert said["version"] == second.reads["orders"] and said["mark"]
    event = json.loads((shop.root / "lineage.jsonl").read_text().splitlines()[-1])
    (read,) = event["inputs"]
    assert read["facets"]["version"]["datasetVersion"] == str(second.reads["orders"])
    server, _, database = shop.url.removeprefix("postgresql://tester@").partition("/")
    assert (read["namespace"], read["name"]) == (f"postgres://{server}", f"{database}.silver.orders")


def test_tables_of_a_database_are_of_one_snapshot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits after the versions were read are for the next refresh."""
    shop.configure_projections(JOINED, f"inputs: {{orders: pg.orders, cities: pg.cities}}, {GROUPED}")
    shop.feed("cities", "c,Oslo,N,1", "c,Rome,I,2")
    shop.run()
    looked = LocalProjector._read_inputs

    def meanwhile(self: LocalProjector, projection: Any) -> InputVersions:
        reads = looked(self, projection)
        monkeypatch.undo()
        shop.feed("orders", "c,7,Rome,9.00,9")
        shop.feed("cities", "u,Rome,X,10")
        shop.run()
        return reads

    monkeypatch.setattr(LocalProjector, "_read_inputs", meanwhile)
    shop.refresh()
    before = {("Oslo", "N", 2, Decimal("3.50")), (None, None, 1, Decimal("1.00"))}
    assert read_sums(shop) == {*before, ("Rome", "I", 1, Decimal("5.00"))}
    assert shop.refresh().kind == "full"
    assert read_sums(shop) == {*before, ("Rome", "X", 2, Decimal("14.00"))}


def test_groups_of_a_lake_joined_with_postgresql(shop: Shop) -> None:
    """While the table in PostgreSQL does not change."""
    shop.configure_projections(JOINED, f"inputs: {{orders: lake.orders, cities: pg.cities}}, {GROUPED}")
    shop.feed("cities", "c,Oslo,N,1", "c,Rome,I,2")
    shop.run()
    shop.refresh()
    shop.feed("orders", "c,5,Rome,1.00,7")
    shop.run()
    done = shop.refresh()
    assert (done.kind, done.groups) == ("groups", 1)
    assert ("Rome", "I", 2, Decimal("6.00")) in read_sums(shop)
    shop.feed("cities", "d,Rome,I,8")
    shop.run()
    assert shop.refresh().reason == "cities has changed, and the affected groups are unknown"
    assert ("Rome", None, 2, Decimal("6.00")) in read_sums(shop)


def test_erased_row_causes_a_refresh(shop: Shop) -> None:
    """An erasure has no position in the stream."""
    shop.run()
    shop.refresh()
    loaded = shop.load_config()
    parts, find = ConfiguredComponents(loaded), partial(projections.build_projections, loaded)
    row = erase.find_row(parts, find, "orders", ["3"])
    done = erase.erase_row(
        parts, partial(projections.open_refresher, loaded), row, end_versions=False, show_line=lambda _: None
    )
    assert [(one.name, one.kind) for one in done.refreshed] == [("sums", "full")]
    assert "Rome" not in {city for city, *_ in read_sums(shop)}


def test_reloaded_table_is_read_again(shop: Shop) -> None:
    shop.run()
    shop.refresh()
    shop.query_database("UPDATE _replicator.positions SET state = NULL")
    done = shop.refresh()
    assert (done.kind, done.reason) == ("full", "the table of orders was created again")


def test_missing_input_is_reported(shop: Shop) -> None:
    """Whether the lane has not started, or another program created a table with its name."""
    with pytest.raises(Fatal, match=r"reads pg\.orders, which does not exist yet"):
        shop.refresh()
    shop.query_database("CREATE SCHEMA silver; CREATE TABLE silver.orders (city text, amount numeric)")
    with pytest.raises(Fatal, match=r"reads pg\.orders, which does not exist yet"):
        shop.refresh()
    assert shop.await_no_session()


def test_customers_from_their_events(shop: Shop) -> None:
    """The event store in PostgreSQL: its version is the number of its events, and its maps are maps."""
    query = (EXAMPLES / "sql" / "customers-now.sql").read_text()
    shop.configure_projections(query, "inputs: {events: event_store}, sink: lake, partition_by: customer_id")
    store = PostgresEventStore({"dsn": shop.dsn})

    def emit(number: int, kind: str, of: str = "C101", **data: str | None) -> None:
        event = {"event_id": f"{of}-{number}", "event_type": kind, "aggregate_id": of, "aggregate_type": "Customer"}
        store.append([NewEvent(**event, event_data=data)])

    with pytest.raises(Fatal, match="reads event_store, which does not exist yet"):
        shop.refresh()
    emit(1, "CustomerCreated", name="Alice", email="a@x", city="NYC")
    emit(1, "CustomerCreated", of="C102", name="Bob", email=None, city='"Oslo"')
    assert shop.refresh().reads == {"events": 2}
    assert shop.refresh().kind == "current"
    emit(2, "CustomerAddressChanged", new_city="LA")
    done = shop.refresh()
    assert (done.kind, done.reads) == ("full", {"events": 3})
    assert read_sums(shop) == {("C101", "Alice", "a@x", "LA", 2, 2), ("C102", "Bob", None, '"Oslo"', 1, 1)}
    store.close()


def test_event_log_in_postgresql_is_an_input(shop: Shop) -> None:
    shop.configure_projections(
        "SELECT topic, COUNT(*) AS n FROM log GROUP BY topic", "inputs: {log: log}, sink: lake, partition_by: topic"
    )
    text = shop.config.read_text()
    shop.config.write_text(text.replace("{sink: lake}]", "{sink: log}]"))
    shop.run()
    shop.refresh()
    assert {n for _, n in read_sums(shop)} == {4}
    assert shop.refresh().kind == "current"


def test_transaction_ended_by_the_server_is_repeated(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed refresh wrote nothing, and holds nothing."""
    shop.run()
    loaded = shop.load_config()
    with projections.open_refresher(loaded) as refreshing:
        (one,) = projections.build_projections(loaded)
        last = type(refreshing.projector)._read_last

        def kill_transaction(self: Any, projection: Any) -> Any:
            monkeypatch.undo()
            assert shop.count_sessions() == 1
            shop.end_sessions()
            return last(self, projection)

        monkeypatch.setattr(type(refreshing.projector), "_read_last", kill_transaction)
        with pytest.raises(Exception, match=r"reading silver\.orders"):
            refreshing.refresh(one)
        assert not (shop.root / "lake" / "sums").exists()
        assert refreshing.refresh(one).kind == "full"


@pytest.mark.long
def test_inputs_on_spark(shop: Shop) -> None:
    """The driver reads the rows; the engines may alternate."""
    query = (
        "SELECT o.city, COUNT(*) AS orders, SUM(o.amount) AS total, MAX(e.event_data['city']) AS seen FROM orders o "
        "LEFT JOIN cities c ON c.city = o.city LEFT JOIN events e ON e.aggregate_id = o.city GROUP BY o.city"
    )
    inputs = "inputs: {orders: lake.orders, cities: pg.cities, events: event_store}"
    shop.configure_projections(query, f"{inputs}, {GROUPED}")
    shop.feed("cities", "c,Oslo,N,1", "c,Rome,I,2")
    shop.run()
    store = PostgresEventStore({"dsn": shop.dsn})
    seen = {"event_id": "1", "event_type": "Seen", "aggregate_id": "Rome", "aggregate_type": "City"}
    store.append([NewEvent(**seen, event_data={"city": "Rome!"})])
    store.close()
    on_spark = ("engine=spark", f"spark={json.dumps(SMALL)}")
    assert shop.refresh(*on_spark).kind == "full"
    before = {("Oslo", 2, Decimal("3.50"), None), (None, 1, Decimal("1.00"), None)}
    assert read_sums(shop) == {*before, ("Rome", 1, Decimal("5.00"), "Rome!")}
    assert shop.refresh(*on_spark).kind == "current"
    shop.feed("orders", "c,5,Rome,1.00,7")
    shop.run()
    done = shop.refresh(*on_spark)
    assert (done.kind, done.groups) == ("groups", 1)
    assert read_sums(shop) == {*before, ("Rome", 2, Decimal("6.00"), "Rome!")}
    shop.feed("cities", "d,Rome,I,8")
    shop.run()
    assert shop.refresh(*on_spark).reason == "cities has changed, and the affected groups are unknown"
    assert shop.await_no_session()


def test_check_reports_full_refreshes(shop: Shop) -> None:
    (hint,) = projections.list_hints(shop.load_config())
    assert "each change computes all groups again" in hint.message
    assert hint.severity == "warning"


def test_snapshot_ends_if_nothing_is_computed(shop: Shop) -> None:
    """Nothing is held between two refreshes of one projector."""
    shop.run()
    loaded = shop.load_config()
    with projections.open_refresher(loaded) as refreshing:
        assert isinstance(refreshing, ProjectionRefresher)
        (one,) = projections.build_projections(loaded)
        for kind in ("full", "current"):
            assert refreshing.refresh(one).kind == kind
            assert shop.await_no_session()
    with psycopg.connect(shop.dsn) as connection:
        connection.execute("LOCK TABLE silver.orders IN ACCESS EXCLUSIVE MODE NOWAIT")
