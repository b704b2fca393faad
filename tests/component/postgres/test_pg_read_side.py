"""The read API over PostgreSQL: values are parameters, pages use the index of the key, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from starlette.testclient import TestClient
from support.hostile_strings import make_hostile_strings
from support.served_tables import make_url, parse_problem, read_pages, serve_tables

pytestmark = pytest.mark.postgres

TABLES = """
CREATE SCHEMA m;
CREATE TYPE m.mood AS ENUM ('low', 'high');
CREATE TABLE m.kinds ("50%" bigint, part text, price numeric(10,2), any_number numeric, at timestamptz, day date,
    clock time, data bytea, rate real, ok boolean, uid uuid, doc jsonb, mood m.mood, ip inet, tags text[],
    PRIMARY KEY ("50%", part));
INSERT INTO m.kinds VALUES (1, 'a', 1.50, 1e30, '2026-01-02 03:04:05.000006Z', '2026-01-02', '23:59:59', '\\x00ff', 1.5,
    true, '11111111-1111-1111-1111-111111111111', '{"a": 1}', 'high', '10.0.0.1', '{x}'),
    (1, 'b', 2.50, 2, 'infinity', 'infinity', null, null, 'nan', false, null, null, 'low', null, null),
    (2, 'a', null, null, '-infinity', null, null, null, null, null, null, null, null, null, null);
CREATE TABLE m.texts (id text PRIMARY KEY, n int);
CREATE TABLE m.alike (a int, b text, c jsonb);
INSERT INTO m.alike SELECT nullif(i % 3, 0), nullif(chr(97 + i % 2), 'b'), '{"x": 1}' FROM generate_series(1, 20) i;
CREATE TABLE m.canary (id int PRIMARY KEY);
"""
KEYS = {"public.kinds": ["50%", "part"], "public.texts": ["id"], "public.alike": []}
ONE = {
    "part": "a",
    "price": "1.5",
    "at": "2026-01-02T03:04:05.000006Z",
    "day": "2026-01-02",
    "clock": "23:59:59",
    "data": "00ff",
    "rate": "1.5",
    "ok": "true",
    "uid": "11111111-1111-1111-1111-111111111111",
    "doc": '{"a": 1}',
    "mood": "high",
    "ip": "10.0.0.1/32",
}


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    return postgres_dsn


@pytest.fixture
def shop(dsn: str, tmp_path: Path) -> TestClient:
    return make_client(dsn, tmp_path, tables=["s.kinds", "s.texts", "s.alike"])


def make_client(dsn: str, folder: Path, **serve: Any) -> TestClient:
    parts = conninfo_to_dict(dsn)
    at = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    keys = {name: key for name, key in KEYS.items() if key}
    return serve_tables(folder, {"kind": "postgres", "dsn": at, "schema": "m"}, keys, **serve)


def query_rows(shop: TestClient, **query: str) -> list[list[Any]]:
    answer = shop.get(make_url("tables", "s.kinds", "rows", **query))
    assert answer.status_code == 200, answer.text
    return [[row["50%"], row["part"]] for row in answer.json()["rows"]]


def test_filters_work_on_every_type(shop: TestClient) -> None:
    assert query_rows(shop, **ONE) == [[1, "a"]]
    for name, text in ONE.items():
        assert [1, "a"] in query_rows(shop, **{name: text}), name
        assert [1, "a"] not in query_rows(shop, **{f"{name}[ne]": text}), name
    assert query_rows(shop, **{"50%": "1", "part[gt]": "a"}) == [[1, "b"]]
    assert query_rows(shop, **{"mood[lt]": "high"}) == [[1, "b"]]  # As the type orders its values.
    assert query_rows(shop, **{"price[null]": "true"}) == [[2, "a"]]
    assert query_rows(shop, **{"at[gt]": "2026-01-02"}) == [[1, "a"], [1, "b"]]
    assert shop.get(make_url("tables", "s.kinds", "rows", "1", "a")).json()["rows"][0]["any_number"] == "1" + "0" * 30


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"uid": "x' OR true --"}, "cannot be compared"),
        ({"mood": "middling"}, "cannot be compared"),
        ({"any_number": "x"}, "cannot be compared"),
        ({"part": "\0"}, "NUL"),
        ({"50%": "1); DROP TABLE m.canary; --"}, "does not fit type int64"),
        ({'x" = 1; DROP TABLE m.canary; --': "1"}, "no column"),
    ],
)
def test_invalid_filter_is_a_bad_request(shop: TestClient, query: dict[str, str], sentence: str) -> None:
    assert sentence in parse_problem(shop.get(make_url("tables", "s.kinds", "rows", **query)), 400)["detail"]


def test_pages_are_complete_with_and_without_a_key(shop: TestClient) -> None:
    """The rows have infinite times and NULLs, and some are equal."""
    for limit in ("2", "7"):
        found = list(read_pages(shop, make_url("tables", "s.kinds", "rows", limit=limit)))
        assert [[row["50%"], row["part"]] for page in found for row in page] == [[1, "a"], [1, "b"], [2, "a"]]
        alike = [
            (row["a"], row["b"])
            for page in read_pages(shop, make_url("tables", "s.alike", "rows", limit=limit))
            for row in page
        ]
        wanted = [(i % 3 or None, None if i % 2 else "a") for i in range(1, 21)]
        assert alike == sorted(wanted, key=lambda row: [(v is None, v) for v in row])


def test_hostile_texts_are_only_values(shop: TestClient, dsn: str) -> None:
    texts = [text for text in make_hostile_strings() if "\0" not in text][::9]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.cursor().executemany("INSERT INTO m.texts VALUES (%s, %s)", [(t, n) for n, t in enumerate(texts)])
    for at, text in list(enumerate(texts))[::2]:
        assert [r["n"] for r in shop.get(make_url("tables", "s.texts", "rows", **{"id[eq]": text})).json()["rows"]] == [at]
        assert shop.get(make_url("tables", f"s.{text}", "rows")).status_code == 404
    found = [row["n"] for page in read_pages(shop, make_url("tables", "s.texts", "rows", limit="10")) for row in page]
    assert sorted(found) == list(range(len(texts)))
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM m.canary").fetchall() == [(0,)]


def test_only_configured_tables_are_served(dsn: str, tmp_path: Path) -> None:
    """Other tables are served if the config lists them. As-of queries are refused, and long queries end at the timeout."""
    shop = make_client(dsn, tmp_path)
    assert [table["name"] for table in shop.get("/tables").json()["tables"]] == ["s.kinds", "s.texts"]
    parse_problem(shop.get("/tables/s.canary/rows"), 404)
    assert "no earlier versions" in parse_problem(shop.get("/tables/s.kinds/rows?as_of=2026-01-01"), 422)["detail"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE VIEW m.slow AS SELECT 1 AS id, pg_sleep(20)::text AS t")
    slow = make_client(dsn, tmp_path, tables=["s.slow"], query_timeout="200 milliseconds")
    assert "longer than 0.2 s" in parse_problem(slow.get("/tables/s.slow/rows"), 504)["detail"]


def test_page_uses_the_index_of_the_key(shop: TestClient, dsn: str) -> None:
    """A page in the middle of a large table reads fewer than 1,000 index entries."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO m.kinds SELECT i, 'p' FROM generate_series(10, 60000) i")
        connection.execute("ANALYZE m.kinds")
        following = shop.get(make_url("tables", "s.kinds", "rows", limit="5", **{"50%[gte]": "30000"})).json()["next"]
        after = httpx.URL(following).params["after"]
        in_the_midst = shop.get(make_url("tables", "s.kinds", "rows", limit="5", after=after)).json()["rows"]
        assert [row["50%"] for row in in_the_midst] == list(range(30005, 30010))
        scans = "SELECT seq_scan, idx_tup_read FROM pg_stat_all_tables t JOIN pg_stat_all_indexes i USING (relid) "
        [(whole, read)] = connection.execute(scans + "WHERE t.relname = 'kinds' AND indexrelname = 'kinds_pkey'").fetchall()
    assert 0 < read < 1_000, (whole, read)
