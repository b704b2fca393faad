"""`replicator diff` of a target that was changed by hand, against the event log of its table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.cli_program import PROGRAM, parse_answer, run_program

pytestmark = pytest.mark.slow
"""The program starts several times."""

TOPIC = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.order_items.jsonl"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
tables:
  - {match: public.order_items, source: recorded, to: [{sink: raw}, {sink: lake}, {sink: lake, into: again}]}
  - {match: public.customers, source: recorded, to: [{sink: lake}]}
http: {address: "127.0.0.1:0"}
"""
DIFF = ("diff", "order_items")


@pytest.fixture(scope="module")
def read_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop that has caught up. Tests do not write into it."""
    folder = tmp_path_factory.mktemp("shop")
    for name in ("config", "archive"):
        (folder / name).mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    shutil.copy(TOPIC, folder / "archive")
    ran = run_program(folder, "run", "--until-caught-up", "-q")
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def edited_shop(read_shop: Path, tmp_path: Path) -> Path:
    """A copy, with one row changed and one removed in one of its two targets."""
    folder = Path(shutil.copytree(read_shop, tmp_path / "shop"))
    table = DeltaTable(folder / "lake" / "again")
    first, second, *_ = table.to_pyarrow_table().sort_by("line_no").sort_by("order_id").to_pylist()
    of_row = "order_id = {order_id} AND line_no = {line_no}".format
    table.update(new_values={"sku": "NULL "}, predicate=of_row(**first))
    table.delete(of_row(**second))
    return folder


def test_equal_targets(read_shop: Path) -> None:
    done = run_program(read_shop, *DIFF)
    assert done.returncode == 0, done.stdout + done.stderr
    one, other, summary = done.stdout.splitlines()
    assert one.startswith("lake.order_items: equal, 3 rows at cdc.public.order_items:0:") and other.startswith(
        "lake.again: "
    )
    assert summary == "2 lanes compared, all equal"
    assert "lake.order_items: applying the event log" in done.stderr


def test_differing_rows_are_reported(edited_shop: Path) -> None:
    """As text, as JSON, and as a report."""
    done = run_program(edited_shop, *DIFF, "--show", "1", "--report", "diff.html", "-q")
    assert done.returncode == 7, done.stdout + done.stderr
    assert (
        "lake.order_items: equal" in done.stdout and "lake.again: 2 rows differ (1 missing, 1 different) of 3" in done.stdout
    )
    assert "1 more row differs" in done.stdout and "replicator replay public.order_items" in done.stdout
    page = (edited_shop / "diff.html").read_text()
    assert "2 lanes compared, 2 rows differ in 1 lane" in page and "no row" in page
    answer = parse_answer(run_program(edited_shop, *DIFF, "--sink", "lake", "--json", "-q"))
    assert (answer["ok"], answer["error"], answer["summary"]) == (False, None, "2 lanes compared, 2 rows differ in 1 lane")
    found: dict[str, Any] = {one["lane"]: one for one in answer["result"]}
    assert found["lake.order_items"]["equal"] and not found["lake.again"]["equal"]
    missing, different = found["lake.again"]["differences"]
    assert (missing["kind"], different["kind"]) == ("missing", "different")
    assert different["columns"]["sku"][1] == "NULL "


def test_failure_keeps_the_result_of_earlier_tables(edited_shop: Path) -> None:
    """The second table has no event log."""
    done = run_program(edited_shop, *DIFF, "public.customers", "--json", "-q")
    answer = parse_answer(done)
    assert done.returncode == answer["error"]["code"] == 2, done.stderr
    assert "public.customers" in answer["error"]["sentence"]
    assert [one["equal"] for one in answer["result"]] == [True, False]


def test_watch_compares_until_an_interrupt(edited_shop: Path) -> None:
    """The exit code is that of the last comparison."""
    words = (PROGRAM, *DIFF, "--watch", "1 second", "--report", "diff.html", "-q")
    running = subprocess.Popen(
        words, cwd=edited_shop, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        lines = [running.stdout.readline() for _ in range(4)]
        running.send_signal(signal.SIGINT)
        rest = running.communicate(timeout=60)[0]
    finally:
        running.kill()
    assert running.returncode == 7, lines
    outcomes = [line.split(" ", 2)[2].partition(" of 3")[0] for line in lines]
    assert outcomes[1] == outcomes[3] == "lake.again: 2 rows differ (1 missing, 1 different)"
    assert all(line.startswith("20") for line in lines) and rest.count("\n") < 3
    assert (edited_shop / "diff.html").stat().st_size > 1000
