"""Rows over HTTP, from a lake: pages, filters, keys, and invalid requests."""

from __future__ import annotations

import io
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.budget import select_evenly
from support.hostile_strings import make_hostile_strings
from support.served_tables import make_url, parse_problem, read_pages, serve_tables

from adapters.delta.lake import encode_name
from adapters.http.server import HttpServer
from replicator.domain.errors import ConfigProblem
from replicator.ports.runtime import Endpoints
from replicator.testing.contract import EXAMPLES

ARROW = "application/vnd.apache.arrow.stream"
KINDS = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("price", pa.decimal128(20, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("data", pa.binary()),
        ("rate", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("limit", pa.int32()),
    ]
)
ROW = {
    "id": 1,
    "part": "a/b",
    "price": Decimal("123456789012345678.90"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "data": b"\x00\xff",
    "rate": math.nan,
    "ok": True,
    "tags": ["x", None],
    "limit": 7,
}
TOLD = {
    "id": 1,
    "part": "a/b",
    "price": "123456789012345678.90",
    "at": "2026-01-02T03:04:05.000006Z",
    "day": "2026-01-02",
    "data": "00ff",
    "rate": "nan",
    "ok": True,
    "tags": ["x", None],
    "limit": 7,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("shop")
    others = [{**dict.fromkeys(KINDS.names), "id": n, "part": str(n)} for n in (2, 3)]
    write_deltalake(str(folder / "lake/t"), pa.Table.from_pylist([ROW, *others], KINDS))
    texts = [text for text in make_hostile_strings() if "\0" not in text]
    write_deltalake(str(folder / "lake/texts"), pa.table({"id": texts, "n": range(len(texts))}))
    write_deltalake(str(folder / "lake/other"), pa.table({"id": [1]}))
    return serve_tables(
        folder, {"kind": "delta", "path": "./lake"}, {"public.t": ["id", "part"], "public.texts": ["id"]}, max_rows=500
    )


@pytest.mark.parametrize("name", ["a/b", "/", "a%2Fb", "rows/timeline/history"])
def test_table_name_with_a_slash(tmp_path: Path, name: str) -> None:
    write_deltalake(str(tmp_path / "lake" / encode_name(name)), pa.table({"id": [1, 2]}))
    client = serve_tables(tmp_path, {"kind": "delta", "path": "./lake"}, {f"public.{name}": ["id"]})
    assert [table["name"] for table in client.get("/tables").json()["tables"]] == [f"s.{name}"]
    (columns, rows) = re.findall(r'href="(/tables/[^"]*)"', client.get("/docs").text)[:2]
    assert client.get(columns).json()["columns"] == [{"name": "id", "type": "int64"}]
    assert client.get(rows).json()["rows"] == [{"id": 1}, {"id": 2}]
    assert client.get(make_url("tables", f"s.{name}", "rows", "2")).json()["rows"] == [{"id": 2}]
    following = client.get(make_url("tables", f"s.{name}", "rows", limit="1")).json()["next"]
    assert client.get(following).json()["rows"] == [{"id": 2}]


def test_list_of_tables(shop: TestClient) -> None:
    """Targets of the config, and no other tables of the lake."""
    assert [table["name"] for table in shop.get("/tables").json()["tables"]] == ["s.t", "s.texts"]
    parse_problem(shop.get("/tables/s.other/rows"), 404)
    about = shop.get("/tables/s.t").json()
    assert (about["key"], about["columns"][2]) == (["id", "part"], {"name": "price", "type": "decimal128(20, 2)"})


def test_row_by_its_key(shop: TestClient) -> None:
    """A key with a slash; values without a JSON form are text."""
    answer = shop.get(make_url("tables", "s.t", "rows", "1", "a/b"))
    assert answer.json() == {"table": "s.t", "rows": [TOLD], "next": None, "notes": []}
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    parse_problem(shop.get(make_url("tables", "s.t", "rows", "1", "a")), 404)
    assert "2 columns (id, part), not 1" in parse_problem(shop.get(make_url("tables", "s.t", "rows", "1")), 400)["detail"]
    assert "does not fit type int64" in parse_problem(shop.get(make_url("tables", "s.t", "rows", "x", "a")), 400)["detail"]


def test_rows_as_arrow(shop: TestClient) -> None:
    """With their types, and the next page in a header."""
    answer = shop.get(make_url("tables", "s.t", "rows", limit="1"), headers={"accept": f"{ARROW}, application/json;q=0.1"})
    found = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert answer.headers["content-type"] == ARROW
    assert found.schema == KINDS and found.drop(["rate"]).to_pylist() == [{n: v for n, v in ROW.items() if n != "rate"}]
    following = answer.headers["link"].removeprefix("<").removesuffix('>; rel="next"')
    assert [row["id"] for page in read_pages(shop, following) for row in page] == [2, 3]
    parse_problem(shop.get("/tables/s.t/rows", headers={"accept": "text/csv"}), 406)


FILTERS = {
    "every kind": ({name: str(value) for name, value in TOLD.items() if name not in ("tags", "rate", "limit", "ok")}, [1]),
    "a boolean": ({"ok": "true"}, [1]),
    "a column called as a parameter": ({"limit[eq]": "7"}, [1]),
    "a moment in another zone": ({"at": "2026-01-02T05:04:05.000006+02:00"}, [1]),
    "a decimal": ({"price[gt]": "123456789012345678.89"}, [1]),
    "an interval": ({"id[gt]": "1", "id[lte]": "2"}, [2]),
    "unlike": ({"id[ne]": "1"}, [2, 3]),
    "NULL": ({"price[null]": "true"}, [2, 3]),
    "no NULL": ({"tags[null]": "false"}, [1]),
    "NULL is unlike nothing": ({"day[ne]": "2020-01-01"}, [1]),
}


@pytest.mark.parametrize("case", FILTERS)
def test_filters(shop: TestClient, case: str) -> None:
    query, ids = FILTERS[case]
    assert [row["id"] for row in shop.get(make_url("tables", "s.t", "rows", **query)).json()["rows"]] == ids


REFUSED = {
    "an unknown column": ({"nothing": "1"}, "no column 'nothing'"),
    "an unknown comparison": ({"id[like]": "1"}, "no comparison 'like'"),
    "another type": ({"id": "1 OR 1=1"}, "does not fit type int64"),
    "too many digits": ({"price": "1.005"}, "does not fit type decimal128(20, 2)"),
    "a number that does not fit": ({"limit[eq]": "3000000000"}, "does not fit type int32"),
    "a list": ({"tags": "x"}, "cannot be compared"),
    "a word for NULL": ({"id[null]": "yes"}, "neither true nor false"),
    "no time": ({"as_of": "yesterday"}, "not a time"),
    "before all times": ({"as_of": "0001-01-01T00:00:00+14:00"}, "not a time"),
    "the log of now": ({"from_log": "true"}, "needs a time"),
    "no page": ({"limit": "0"}, "from 1 to 500"),
    "too large a page": ({"limit": "501"}, "from 1 to 500"),
    "a place of one's own": ({"after": "W1sieCJdLDFd"}, "not from a page"),
    "a place that is none": ({"after": "' OR 1=1 --"}, "not from a page"),
    "a place with too much": ({"after": "W1siMSIsImEiXSwxMDAwMDAwMDBd"}, "rows are equal"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_query_is_refused(shop: TestClient, case: str) -> None:
    query, said = REFUSED[case]
    assert said in parse_problem(shop.get(make_url("tables", "s.t", "rows", **query)), 400)["detail"]


@pytest.mark.parametrize("raw", ["/tables/s.t/rows/%ff/a", "/tables/s.t/rows?id=%ff", "/tables/s.t/rows?limit=1&limit=2"])
def test_invalid_url_is_refused(shop: TestClient, raw: str) -> None:
    parse_problem(shop.get(raw), 400)


@pytest.mark.slow
def test_hostile_texts_are_texts(shop: TestClient) -> None:
    """As keys and values they find only their row; as columns and tables they are unknown."""
    texts = [text for text in make_hostile_strings() if "\0" not in text]
    for at, text in select_evenly(list(enumerate(texts))[::7], 20):
        if text not in (".", ".."):  # A client takes these for places.
            assert [row["n"] for row in shop.get(make_url("tables", "s.texts", "rows", text)).json()["rows"]] == [at]
        assert [row["n"] for row in shop.get(make_url("tables", "s.texts", "rows", **{"id[eq]": text})).json()["rows"]] == [
            at
        ]
        parse_problem(shop.get(make_url("tables", "s.texts", "rows", **{f"{text}[eq]": "1"})), 400)
        if text not in (".", ".."):  # A client takes these for places.
            assert shop.get(make_url("tables", text, "rows")).status_code == 404
    found = [row["n"] for page in read_pages(shop, make_url("tables", "s.texts", "rows", limit="100")) for row in page]
    assert found == sorted(range(len(texts)), key=lambda at: texts[at].encode())


def test_writing_methods_are_refused(shop: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        parse_problem(shop.request(method, "/tables/s.t/rows"), 405)
    parse_problem(shop.post("/events", json={}), 404)


ROWS = st.lists(
    st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a", "b", "é"]), st.none() | st.booleans()),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=min(12, 2 * EXAMPLES), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, limit=st.integers(1, 4), bound=st.integers(0, 2))
def test_pages_have_all_rows_once(tmp_path: Path, rows: list[Any], limit: int, bound: int) -> None:
    """Without a key too, with NULLs and duplicates."""
    names = ("n", "s", "b")
    schema = pa.schema([("n", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)
    write_deltalake(str(tmp_path / "lake/t"), table, mode="overwrite")
    client = _any(tmp_path)
    for query, wanted in (({}, rows), ({"n[gte]": str(bound)}, [r for r in rows if r[0] is not None and r[0] >= bound])):
        got = list(read_pages(client, make_url("tables", "s.t", "rows", limit=str(limit), **query)))
        found = [tuple(row[name] for name in names) for page in got for row in page]
        assert all(len(page) == limit for page in got[:-1])
        assert found == sorted(wanted, key=lambda row: [(v is None, v) for v in row])


def _any(folder: Path) -> TestClient:
    return serve_tables(folder, {"kind": "delta", "path": "./lake"}, {"public.x": ["id"]}, tables=["s.*"])


def test_row_deleted_between_pages_hides_no_other(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [1, 2, 3]}))
    client = serve_tables(tmp_path, {"kind": "delta", "path": "./lake"}, {"public.t": ["id"]})
    following = client.get("/tables/s.t/rows?limit=2").json()["next"]
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [1, 3]}), mode="overwrite")
    assert client.get(following).json()["rows"] == [{"id": 3}]


def test_version_as_of_a_time(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [1]}))
    between = datetime.now(UTC)
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [2]}), mode="append")
    client = serve_tables(tmp_path, {"kind": "delta", "path": "./lake"}, {"public.t": ["id"]})
    assert client.get(make_url("tables", "s.t", "rows", as_of=between.isoformat())).json()["rows"] == [{"id": 1}]
    assert client.get(make_url("tables", "s.t", "rows", as_of="2100-01-01")).json()["rows"] == [{"id": 1}, {"id": 2}]
    said = parse_problem(client.get(make_url("tables", "s.t", "rows", as_of="2000-01-01")), 422)
    assert "cannot be read at the time" in said["detail"]


def test_query_ends_at_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [1]}))
    client = serve_tables(
        tmp_path, {"kind": "delta", "path": "./lake"}, {"public.t": ["id"]}, query_timeout="0 milliseconds"
    )
    assert "longer than 0 s" in parse_problem(client.get("/tables/s.t/rows"), 504)["detail"]


def test_access_with_and_without_a_token(tmp_path: Path) -> None:
    """With a token, whoever has it, also as a browser's user. Without one, only this machine, under its own name."""
    write_deltalake(str(tmp_path / "lake/t"), pa.table({"id": [1]}))
    lake = {"kind": "delta", "path": "./lake"}
    client = serve_tables(tmp_path, lake, {"public.t": ["id"]}, token="s3cr3t")
    for path in ("/tables", "/docs", "/openapi.json", "/tables/s.t/rows", "/tables/s.t/timeline/1"):
        assert "Basic" in client.get(path).headers["www-authenticate"]
        assert client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, auth=("me", "wrong")).status_code == 401
    assert client.get("/tables/s.t/rows", headers={"authorization": "Bearer s3cr3t"}).status_code == 200
    assert client.get("/tables/s.t/rows", auth=("me", "s3cr3t")).status_code == 200
    assert client.get("/livez").status_code == 200
    alone = serve_tables(tmp_path, lake, {"public.t": ["id"]})
    assert alone.get("/tables", headers={"host": "evil.example"}).status_code == 400
    for address in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"):
        with pytest.raises(ConfigProblem, match="needs a token"):
            HttpServer({"address": address}).start(Endpoints(None, None))  # type: ignore[arg-type]
    with pytest.raises(ConfigProblem, match="needs a token"):
        serve_tables(tmp_path, lake, {"public.t": ["id"]}, address="0.0.0.0:8091")
