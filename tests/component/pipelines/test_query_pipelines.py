"""After each query of a database, a target equals the database (type 1), or contains all its states (type 2)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from support.exported_records import Row, compute_versions, make_random_snapshots
from test_snapshots_in_code import EXAMPLES, KEY, current, history, of_delta

from replicator import pipelines as dp

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:no table matched")]  # Until the first row.
LAKE = {"lake": {"kind": "delta", "path": "./lake"}}


def url(postgres_server: Any) -> str:
    name = conninfo_to_dict(postgres_server.database())["dbname"]
    return f"postgresql://tester@127.0.0.1:{postgres_server.port}/{name}"


class Shop:
    """A database whose table `public.items` is queried."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute('CREATE TABLE items (id bigint, "Part" text, name text, price float8)')

    def put(self, rows: list[Row]) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DELETE FROM items")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO items VALUES (%s, %s, %s, %s)", rows)


@pytest.fixture
def shop(postgres_server):
    return Shop(url(postgres_server))


def pipeline(folder: Path, shop: Shop, sinks: dict[str, Any], **changed: Any) -> dp.Pipeline:
    source = {
        "format": "rows",
        "transport": "snapshots",
        "dsn": shop.dsn,
        "table": "public.items",
        "allow_empty": True,
        **changed,
    }
    built = dp.Pipeline("asked", sources={"shop": source}, sinks=sinks, dead_letters={"path": "./dead"}, root=folder)
    for sink in sinks:
        built.create_auto_cdc_from_snapshot_flow(f"{sink}.items", "shop.public.items", KEY)
        built.create_auto_cdc_from_snapshot_flow(f"{sink}.items_history", "shop.public.items", KEY, stored_as_scd_type=2)
    return built


def read_newest_version(folder: Path) -> int:
    taken = json.loads((folder / "state" / "asked" / "kept" / "shop" / "taken.json").read_text())["taken"]
    return max(map(int, taken))


def run_each_state(rng: random.Random, folder: Path, shop: Shop, sinks: dict[str, Any], check: Any) -> None:
    """The database changes, and some runs find nothing new; each run is a separate program. It queries the table or a
    query."""
    query = {} if rng.random() < 0.5 else {"query": 'SELECT * FROM items ORDER BY "Part", price;'}
    states: list[tuple[int, list[Row]]] = []
    for rows in make_random_snapshots(rng, rng.randrange(2, 6)):
        shop.put(rows)
        pipeline(folder, shop, sinks, **query).run(until_caught_up=True)
        version = read_newest_version(folder)
        if not states or sorted(states[-1][1], key=repr) != sorted(rows, key=repr):
            assert not states or version > states[-1][0]
            states.append((version, rows))
        assert version == states[-1][0], "equal rows are no new version"
        check(sorted(rows, key=repr), sorted(compute_versions(states), key=repr))


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_delta_equals_the_database(tmp_path, shop, seed):
    def check(rows: list[Row], versions: list[tuple]) -> None:
        assert of_delta(tmp_path) == (rows, versions)

    run_each_state(random.Random(seed), tmp_path, shop, LAKE, check)


@pytest.mark.parametrize("seed", range(max(1, EXAMPLES // 4)))
def test_postgresql_equals_the_database(tmp_path, shop, postgres_server, seed):
    dsn = url(postgres_server)

    def rows(table: str) -> list[dict[str, Any]]:
        with psycopg.connect(dsn, row_factory=dict_row) as connection:
            exists = connection.execute("SELECT to_regclass(%s) AS found", [table]).fetchone()["found"]
            return connection.execute(f"SELECT * FROM {table}").fetchall() if exists else []

    def check(current_rows: list[Row], versions: list[tuple]) -> None:
        assert current(rows("items")) == current_rows
        assert history(rows("items_history")) == versions

    run_each_state(random.Random(1000 + seed), tmp_path, shop, {"db": {"kind": "postgres", "dsn": dsn}}, check)


def test_plan_lists_its_lanes(tmp_path, shop):
    shop.put([(1, "a", "x", 1.5)])
    planned = pipeline(tmp_path, shop, LAKE).plan()
    assert sorted(lane["flow"] for lane in planned) == ["lake.items", "lake.items_history"]


def test_empty_answer_stops_the_program(tmp_path, shop):
    shop.put([(1, "a", "x", 1.5)])
    pipeline(tmp_path, shop, LAKE).run(until_caught_up=True)
    shop.put([])
    with pytest.raises(dp.RunFailed, match="has no rows"):
        pipeline(tmp_path, shop, LAKE, allow_empty=False).run(until_caught_up=True)
    assert len(of_delta(tmp_path)[0]) == 1
