"""After every batch of a random history, an incremental refresh equals the query over all rows."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st

from adapters.gold import LocalProjector, local, table_version
from adapters.sinks.delta.sink import CHANGE_DATA_FEED
from adapters.sinks.postgres.sink import PostgresSink
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.projection import Projection, ProjectionInput
from replicator.settings.queries import QueryContext, read_query
from replicator.testing.contract import EXAMPLES, for_all

pytestmark = pytest.mark.slow

CITIES = ("Oslo", "Rome", "it's", "Zürich", "", None)
NOON = datetime(2024, 2, 28, 12, tzinfo=UTC)
USERS = pa.schema([("id", pa.int64()), ("city", pa.string()), ("spent", pa.int64()), ("seen", pa.timestamp("us", "UTC"))])
PLACES = pa.schema([("city", pa.string()), ("state", pa.string())])
QUERIES = {
    "beside": (
        "city",
        "SELECT u.id, u.city, p.state, RANK() OVER (PARTITION BY u.city ORDER BY u.spent, u.id) AS place, "
        "COUNT(*) OVER w AS users FROM users u LEFT JOIN places p ON p.city = u.city WINDOW w AS (PARTITION BY u.city)",
    ),
    "days": ("day", "SELECT CAST(seen AS DATE) AS day, SUM(spent) AS spent, COUNT(city) AS n FROM users GROUP BY 1"),
    "several": (
        "town",
        "WITH best AS (SELECT city, MAX(spent) AS most FROM users GROUP BY city HAVING COUNT(*) > 1), everything AS ("
        "SELECT city AS town, 'best' AS what, most AS n FROM best UNION ALL SELECT city, state, 0 FROM places) "
        "SELECT town, what, SUM(n) AS n FROM everything GROUP BY town, what",
    ),
    "whole": (
        "id",
        "SELECT id, spent, (SELECT COUNT(*) FROM places) AS places FROM users "
        "WHERE city IN (SELECT city FROM places WHERE state <> 'x') OR city IS NULL",
    ),
}

cities, numbers = st.sampled_from(CITIES), st.integers(0, 9)
steps = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(numbers, cities, numbers), min_size=1, max_size=4)),
    st.tuples(st.just("move"), st.tuples(numbers, cities)),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("places"), st.lists(st.tuples(cities, st.sampled_from("xyz")), max_size=4)),
)


@pytest.mark.parametrize(
    ("smallest", "few"), [(local.SMALLEST, table_version.FEW_ROWS), (1, table_version.FEW_ROWS), (1, 2)]
)
def test_incremental_refresh_equals_a_full_query(smallest: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes tables whose files have few rows, and rows that exceed the memory limit. An empty text is NULL as
    the value of a partition."""
    monkeypatch.setattr(local, "SMALLEST", smallest)
    monkeypatch.setattr(table_version, "FEW_ROWS", few)
    kinds: Counter[str] = Counter()

    histories = st.lists(st.lists(steps, min_size=1, max_size=2), min_size=1, max_size=4)

    @for_all(max(2, EXAMPLES // 8), history=histories, feed=st.booleans(), by=st.sampled_from([None, ["city"]]))
    def check(history: list[list[tuple[str, Any]]], feed: bool, by: list[str] | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            properties = {CHANGE_DATA_FEED: str(feed).lower()}
            write_deltalake(Path(folder) / "users", users([]), partition_by=by, configuration=properties)
            _check(Path(folder), history, kinds)

    assert kinds["groups"] > kinds["full"] / 2


def test_feed_of_a_partition_with_an_empty_name_is_followed(tmp_path: Path) -> None:
    """Rows with an empty text have NULL, in the table and in its feed."""
    settings = {CHANGE_DATA_FEED: "true"}
    write_deltalake(tmp_path / "users", users([]), partition_by=["city"], configuration=settings)
    kinds: Counter[str] = Counter()
    new = [[("add", [(4, "", 4)])], [("move", (4, "Rome")), ("move", (1, ""))], [("delete", 1)]]
    _check(tmp_path, new, kinds)
    assert kinds["groups"] >= 6


@pytest.mark.postgres
def test_incremental_refresh_equals_a_full_query_in_postgresql(postgres_dsn: str) -> None:
    """The gold tables are in PostgreSQL, and their inputs in a lake."""
    kinds: Counter[str] = Counter()
    histories = st.lists(st.lists(steps, min_size=1, max_size=2), min_size=1, max_size=4)

    @for_all(max(2, EXAMPLES // 8), history=histories)
    def check(history: list[list[tuple[str, Any]]]) -> None:
        with psycopg.connect(postgres_dsn) as connection:
            connection.execute("DROP SCHEMA IF EXISTS gold CASCADE")
        with tempfile.TemporaryDirectory() as folder:
            _check(Path(folder), history, kinds, postgres_dsn)

    assert kinds["groups"] > kinds["full"] / 2


def _check(lake: Path, history: list[list[tuple[str, Any]]], kinds: Counter[str], dsn: str = "") -> None:
    write_deltalake(lake / "users", users([(1, "Oslo", 1), (2, "Rome", 2), (3, None, 3)]), mode="append")
    write_deltalake(lake / "places", places([("Oslo", "x"), ("Rome", "y")]))
    database = {"gold": PostgresSink({"dsn": dsn, "schema": "gold"}).features} if dsn else {}
    projector = LocalProjector({"sinks": {"lake": {"path": str(lake)}, **database}})
    refreshing = ProjectionRefresher(projector, "tests")
    for batch in ([], *history):
        for what, how in batch:
            _change(lake, what, how)
        for name in QUERIES:
            done = refreshing.refresh(replace(projection(name), sink="gold" if dsn else "lake"))
            kinds[done.kind] += 1
            assert (read_postgres_rows(dsn, name) if dsn else read_delta_rows(lake, name)) == compute_expected(lake, name), (
                name,
                done,
            )
    projector.close()


def projection(name: str) -> Projection:
    column, text = QUERIES[name]
    query, wrong = read_query(text, QueryContext("local", ["users", "places"], column))
    assert query is not None, wrong
    inputs = tuple(ProjectionInput(table, "lake", table, key, query.columns) for table, key in query.keys.items())
    return Projection(name, query.text, inputs, "lake", name, (), column, name)


def _change(lake: Path, what: str, how: Any) -> None:
    table = DeltaTable(lake / "users")
    if what == "add":
        write_deltalake(table, users(how), mode="append")
    elif what == "move":
        city = "NULL" if how[1] is None else "'" + how[1].replace("'", "''") + "'"
        table.update(predicate=f"id = {how[0]}", updates={"city": city, "spent": "spent + 1"})
    elif what == "delete":
        table.delete(f"id = {how}")
    elif what == "compact":
        table.optimize.compact()
    else:
        write_deltalake(lake / "places", places(dict(how).items()), mode="overwrite")


def users(rows: Any) -> pa.Table:
    named = [{"id": i, "city": city, "spent": n, "seen": NOON + timedelta(hours=7 * n)} for i, city, n in rows]
    return pa.Table.from_pylist(named, USERS)


def places(rows: Any) -> pa.Table:
    return pa.Table.from_pylist([{"city": city, "state": state} for city, state in rows], PLACES)


def read_delta_rows(lake: Path, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in DeltaTable(lake / name).to_pyarrow_table().to_pylist())


def read_postgres_rows(dsn: str, name: str) -> Counter[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return Counter(connection.execute(f"SELECT * FROM gold.{name}".encode()).fetchall())


def compute_expected(lake: Path, name: str) -> Counter[tuple[Any, ...]]:
    """The result of DuckDB alone, over all rows."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in ("users", "places"):
            connection.register(table, DeltaTable(lake / table).to_pyarrow_table())
        return Counter(connection.sql(QUERIES[name][1]).fetchall())
