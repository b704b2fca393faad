"""Tables of projections in PostgreSQL, through the whole program."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from support.pg_gold import SUMS, Shop, list_row_values
from support.small_spark import SMALL

from replicator.application.operations import erase
from replicator.application.operations.read_side import read_target
from replicator.domain.errors import Fatal
from replicator.ports.reads import PageRequest
from replicator.wiring import projections
from replicator.wiring.components import ConfiguredComponents, build_read_side
from replicator.wiring.daemon import DaemonContainer

pytestmark = pytest.mark.postgres
FIRST = {("Oslo", 2, Decimal("3.50")), ("Rome", 1, Decimal("5.00")), (None, 1, Decimal("1.00"))}


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str) -> Shop:
    made = Shop(tmp_path, postgres_dsn)
    made.configure_projections(SUMS, "inputs: {orders: lake.orders}, sink: gold, partition_by: city, keys: [city]")
    made.feed("orders", "c,1,Oslo,1.50,1", "c,2,Oslo,2.00,2", "c,3,Rome,5.00,3", "c,4,,1.00,4")
    made.run()
    return made


def read_sums(shop: Shop) -> set[tuple[Any, ...]]:
    return set(shop.query_database("SELECT city, orders, total FROM gold.sums"))


def test_groups_are_replaced(shop: Shop) -> None:
    """The record of the refresh is in the database, and lineage names its table."""
    assert shop.refresh().version == 1
    assert read_sums(shop) == FIRST
    shop.feed("orders", "d,3,Rome,5.00,5", "u,2,Bergen,2.00,6")
    shop.run()
    done = shop.refresh()
    assert (done.kind, done.groups, done.rows, done.version) == ("groups", 3, 2, 2)
    assert read_sums(shop) == {("Oslo", 1, Decimal("1.50")), ("Bergen", 1, Decimal("2.00")), (None, 1, Decimal("1.00"))}
    assert shop.refresh().kind == "current"
    ((number, record),) = shop.query_database(
        'SELECT number, record FROM _replicator.refreshes WHERE target = \'"gold"."sums"\''
    )
    assert (number, record["run"], record["kind"]) == (2, done.run, "groups")
    event = json.loads((shop.root / "lineage.jsonl").read_text().splitlines()[-1])
    (wrote,) = event["outputs"]
    assert wrote["name"].endswith(".gold.sums") and wrote["facets"]["version"]["datasetVersion"] == "2"


@pytest.mark.slow
def test_tables_computed_by_spark(shop: Shop) -> None:
    """By groups as in process. The query has another text there, so who takes over from it computes everything; where keys
    repeat nothing is written."""
    on_spark = ("engine=spark", f"spark={json.dumps(SMALL)}")
    assert shop.refresh(*on_spark).kind == "full"
    assert read_sums(shop) == FIRST
    assert shop.refresh(*on_spark).kind == "current"
    for number, engine in enumerate((on_spark, (), on_spark, on_spark)):
        shop.feed("orders", f"u,2,Bergen,{number}.00,{number + 5}")
        shop.run()
        done = shop.refresh(*engine)
        assert (done.kind, done.groups) == {0: ("groups", 2), 3: ("groups", 1)}.get(number, ("full", None))
        moved = {("Oslo", 1, Decimal("1.50")), ("Bergen", 1, Decimal(number))}
        assert read_sums(shop) == {*FIRST - {("Oslo", 2, Decimal("3.50"))}, *moved}
    before = read_sums(shop)
    several = "SELECT city, id AS orders, amount AS total FROM orders"
    shop.configure_projections(several, "inputs: {orders: lake.orders}, sink: gold, partition_by: city, keys: [city]")
    shop.feed("orders", "c,9,Rome,5.00,9")
    shop.run()
    with pytest.raises(Fatal, match="several rows with the same city"):
        shop.refresh(*on_spark)
    assert read_sums(shop) == before


def test_rows_are_readable(shop: Shop) -> None:
    """By `query`, current rows only, and by the read side if configured."""
    shop.refresh()
    loaded = shop.load_config('serve={tables: ["gold.sums"], token: t}')
    assert list_row_values(read_target(ConfiguredComponents(loaded), "gold.sums").to_pylist()) == FIRST
    assert read_target(ConfiguredComponents(loaded), "gold.sums", where="city = 'Oslo'").num_rows == 1
    for then in ({"version": 1}, {"as_of": datetime.now(UTC)}):
        with pytest.raises(Fatal, match="no earlier versions"):
            read_target(ConfiguredComponents(loaded), "gold.sums", **then)
    targets = build_read_side(loaded)
    (target,) = targets.targets()
    assert (target.name, target.source_table) == ("gold.sums", None)
    page = targets.rows("gold.sums", PageRequest(limit=2))
    assert page.rows.num_rows == 2 and page.after is not None


def test_projection_of_a_projection(shop: Shop) -> None:
    """The version of a table that refreshes write is their number; whoever else writes to it is noticed."""
    more = "SELECT COUNT(*) AS n, SUM(total) AS total FROM sums | inputs: {sums: gold.sums}, sink: lake"
    shop.configure_projections(SUMS, "inputs: {orders: pg.orders}, sink: gold, partition_by: city", every=more)

    def total() -> set[tuple[Any, ...]]:
        return list_row_values(DeltaTable(shop.root / "lake" / "every").to_pyarrow_table().to_pylist())

    with pytest.raises(Fatal, match=r"gold\.sums, which does not exist yet"):
        shop.refresh(name="every")
    assert DaemonContainer(loaded=shop.load_config()).projection_scheduler().refresh_all(Event()) is None
    assert total() == {(3, Decimal("9.50"))}
    assert shop.refresh(name="every").reads == {"sums": 1}
    assert shop.refresh(name="every").kind == "current"
    shop.query_database("UPDATE gold.sums SET total = 0")
    assert shop.refresh(name="every").kind == "full"
    assert total() == {(3, Decimal("0.00"))}
    shop.feed("orders", "d,3,Rome,5.00,5")
    shop.run()
    assert DaemonContainer(loaded=shop.load_config()).projection_scheduler().refresh_all(Event()) is None
    assert total() == {(2, Decimal("4.50"))}


def test_erased_row_is_removed(shop: Shop) -> None:
    """And its space is overwritten where versions are to end, which leaves nothing of the lake to compare with."""
    shop.refresh()
    loaded = shop.load_config()
    parts, find = ConfiguredComponents(loaded), partial(projections.build_projections, loaded)
    row = erase.find_row(parts, find, "orders", ["3"])
    done = erase.erase_row(
        parts, partial(projections.open_refresher, loaded), row, end_versions=True, show_line=lambda _: None
    )
    assert [(one.name, one.kind) for one in done.refreshed] == [("sums", "full")]
    assert read_sums(shop) == FIRST - {("Rome", 1, Decimal("5.00"))}


def test_duplicate_keys_are_refused(shop: Shop) -> None:
    shop.refresh()
    before = read_sums(shop)
    shop.configure_projections(
        "SELECT city, id, amount AS total FROM orders", "inputs: {orders: lake.orders}, sink: gold, keys: [city]"
    )
    with pytest.raises(Fatal, match="several rows with the same city"):
        shop.refresh()
    assert read_sums(shop) == before
