"""The history of rows over HTTP, from the event log of a pipeline."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from support.cli_program import PROGRAM, WITH_SIGNALS, run_program
from support.served_tables import make_url, open_client, parse_problem

from adapters.http.server import HttpServer
from replicator.wiring.components import build_read_side
from replicator.wiring.configuration import read_config

T0 = "2026-11-20T17:47:00Z"


@pytest.fixture(scope="module")
def shop(caught_up: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("served") / "project"
    shutil.copytree(caught_up, folder)
    return open_client(folder / "config" / "replicator.yaml")


def test_history_of_a_row(shop: TestClient) -> None:
    """It ends with the target row. A page is a part of it."""
    told = shop.get("/tables/lake.orders/history/1").json()
    assert (told["source_table"], told["key"], told["next"]) == ("public.orders", ["1"], None)
    assert [change["operation"] for change in told["changes"]] == ["r", "u"]
    [row] = shop.get("/tables/lake.orders/rows/1").json()["rows"]
    assert {name: row[name] for name in told["changes"][-1]["after"]} == told["changes"][-1]["after"]
    first = shop.get("/tables/lake.orders/history/1?limit=1").json()
    rest = shop.get(first["next"]).json()
    assert first["changes"] + rest["changes"] == told["changes"] and rest["next"] is None


def test_rows_as_of_a_time(shop: TestClient) -> None:
    """No version is that old, so the rows come from the event log by source time, and the answer says so."""
    answer = shop.get(make_url("tables", "lake.orders", "rows", as_of=T0, limit="1", **{"id[gt]": "0"})).json()
    assert answer["rows"][0]["status"] == "new" and answer["rows"][0]["_cdc_op"] == "r"
    assert "from the event log" in answer["notes"][0] and answer["next"]
    said = parse_problem(shop.get(make_url("tables", "lake.orders", "rows", as_of="2020-01-01T00:00:00Z")), 422)
    assert "no changes up to" in said["detail"] or "cannot be read at the time" in said["detail"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("lake.orders/history/x", 400, "does not fit type int64"),
        ("lake.orders/history/1/2", 400, "1 column (id), not 2"),
        ("lake.orders/history/77", 404, "no row with this key"),
        ("lake.orders/history/1?limit=0", 400, "from 1 to"),
        ("lake.orders/history/1?after=-1", 400, "not a number"),
        ("lake.orders/history/1?id=1", 400, "is unknown here"),
        ("lake.nothing/history/1", 404, "no table"),
        ("raw.cdc_events/rows", 404, "no table"),
        ("lake.cdc_events/rows", 404, "no table"),
    ],
)
def test_invalid_request_is_refused(shop: TestClient, path: str, status: int, said: str) -> None:
    assert said in parse_problem(shop.get(f"/tables/{path}"), status)["detail"]


def test_timeline_page(shop: TestClient) -> None:
    """The page loads and runs nothing. Errors are pages too."""
    answer = shop.get("/tables/lake.orders/timeline/1?limit=1")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "<script" not in answer.text and " style=" not in answer.text and "://" not in answer.text
    assert answer.text.count("<li class=") == 1 and "Earlier changes" in answer.text
    gone = shop.get("/tables/lake.orders/timeline/77")
    assert gone.status_code == 404 and "no row with this key" in gone.text and gone.text.startswith("<!doctype html>")
    assert "lake.orders" in shop.get("/docs").text


@pytest.fixture
def copied_config(caught_up: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(caught_up, folder)
    return folder / "config" / "replicator.yaml"


def test_log_reads_end_at_the_query_timeout(copied_config: Path) -> None:
    copied_config.write_text(copied_config.read_text() + "serve: {query_timeout: 0 milliseconds}\n")
    shop = open_client(copied_config)
    for path in ("history/1", f"rows?as_of={T0}&from_log=true"):
        assert "longer than 0 s" in parse_problem(shop.get(f"/tables/lake.orders/{path}"), 504)["detail"]


def test_one_request_reads_a_log_at_a_time(copied_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.application.operations.read_side.WAIT_SECONDS", 0.01)
    reads = build_read_side(read_config(copied_config, None, ()))
    with reads._limit_readers(of_the_past=True):
        answer = TestClient(HttpServer({}).app(None, reads)).get("/tables/lake.orders/history/1")
    assert parse_problem(answer, 503) and answer.headers["retry-after"] == "1"


def test_four_requests_read_at_once(copied_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.application.operations.read_side.WAIT_SECONDS", 0.01)
    reads = build_read_side(read_config(copied_config, None, ()))
    shop, path = TestClient(HttpServer({}).app(None, reads)), "/tables/lake.orders/rows/1"
    with reads._limit_readers(), reads._limit_readers(), reads._limit_readers():
        assert shop.get(path).status_code == 200
        with reads._limit_readers():
            answer = shop.get(path)
    assert parse_problem(answer, 503) and answer.headers["retry-after"] == "1"
    assert shop.get(path).status_code == 200


def test_history_hides_columns_that_the_target_leaves_out(copied_config: Path) -> None:
    """Columns that the target drops or masks. A renamed column has its new name."""
    lane = "{sink: lake, columns: {total: drop, status: {mask: nothing}, placed_at: {rename: placed}}}"
    copied_config.write_text(copied_config.read_text().replace("{sink: lake}]", f"{lane}]"))
    changes = open_client(copied_config).get("/tables/lake.orders/history/1").json()["changes"]
    assert {"total", "status", "placed_at"}.isdisjoint(changes[0]["after"]) and "placed" in changes[0]["after"]
    assert all({"total", "status"}.isdisjoint(change["changed"]) for change in changes)


@pytest.mark.slow
def test_serve_without_an_event_store(copied_config: Path) -> None:
    """Until it is stopped. Another address than localhost needs a token."""
    done = run_program(copied_config.parents[1], "serve", "--address", "0.0.0.0:0")
    assert done.returncode == 2 and "needs a token there" in done.stderr
    program = subprocess.Popen(
        [*WITH_SIGNALS, PROGRAM, "serve", "--address", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=copied_config.parents[1],
    )  # fmt: skip
    try:
        at = next(line for line in program.stderr or () if "targets: " in line).split("targets: ")[1].split("/docs")[0]
        assert httpx.get(f"{at}/tables/lake.orders/rows/1", timeout=60).json()["rows"][0]["id"] == 1
        assert httpx.get(f"{at}/tables/lake.orders/rows/1%2F..%2F2", timeout=60).status_code == 400
        assert httpx.post(f"{at}/events", json={}, timeout=60).status_code == 404
        program.send_signal(signal.SIGTERM)
        out, log = program.communicate(timeout=60)
        assert (program.returncode, "stopped cleanly" in out) == (0, True), log
    finally:
        program.kill()
