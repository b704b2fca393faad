"""`replicator replay` without `--into`: the lane's own target is rebuilt and swapped."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.cli_program import run_program, start_program

from adapters.stack.layout import find_free_port
from replicator.application.operations import table_swap
from replicator.ports.components import Components
from replicator.wiring import components

Answer = Callable[..., dict[str, Any]]
BIG = "  - {match: public.orders, source: recorded, where: id > 1, to: [{sink: raw}, {sink: lake}]}\n"
NARROW = "  - {match: public.orders, source: recorded, column_list: [id, status], to: [{sink: raw}, {sink: lake}]}\n"
ORDERS = "cdc.public.orders"


@pytest.fixture(autouse=True)
def _signals_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents commands of this process from installing signal handlers."""
    monkeypatch.setattr("replicator.cli.run.handle_signals", lambda _: None)


def read_rows(project: Path, name: str = "orders") -> list[dict[str, Any]]:
    found = DeltaTable(str(project / "lake" / name)).to_pyarrow_table().drop_columns(["_cdc_applied_at"])
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def filter_orders(project: Path) -> None:
    """Changes the config to a part of the orders."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("http:", f"{BIG}http:"))


def has_no_leftovers(project: Path) -> bool:
    found = [path for path in (project / "lake").rglob("*") if "__replay" in path.name or "__dry_run" in path.name]
    return not [path for path in found if path.suffix != ".lock"] and not [*(project / "state").rglob("asked.json")]


def run_afterwards(project: Path) -> list[dict[str, Any]]:
    """The lanes after another run of the program."""
    ran = run_program(project, "run", "--until-caught-up", "--json", "-q")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)["result"]["lanes"]


@pytest.mark.slow
def test_target_is_rebuilt_in_place_under_changed_rules(project: Path, run_json: Answer) -> None:
    """The dry run reports the difference before. The lane, which would have stopped, continues."""
    before, unchanged = read_rows(project), run_json("status")["result"]["lanes"]
    assert run_json("replay", "public.orders", "--dry-run")["result"]["same"] == len(before)
    filter_orders(project)
    stood = run_json("status")["result"]["lanes"]
    (orders,) = (lane for lane in stood if lane["id"] == "lake.orders")
    assert orders["exit_code"] == 2 and "now 'scd1 by id where id > 1'" in orders["error"] and orders["next_step"]
    without = {"exit_code": None, "error": None, "next_step": None}
    assert [{**lane, **(without if lane is orders else {})} for lane in stood] == unchanged
    said = run_json("replay", "public.orders", "--dry-run")["result"]
    gone = [row for row in before if not row["id"] > 1]
    assert gone and said["only_live"] == len(gone) and said["same"] == len(before) - len(gone) and said["exact"]
    assert [row["id"] for row in said["first"]["only_live"]] == [row["id"] for row in gone] and not said["differing"]
    assert read_rows(project) == before and has_no_leftovers(project) and run_json("status")["result"]["lanes"] == stood
    said = run_json("replay", "public.orders")["result"]
    assert said["lane"] == "lake.orders" and said["rejected"] == 1
    assert read_rows(project) == [row for row in before if row["id"] > 1] and has_no_leftovers(project)
    assert not any(lane["error"] for lane in run_json("status")["result"]["lanes"])
    assert {lane["counts"]["applied"] for lane in run_afterwards(project)} == {0}
    letters = run_json("dlq", "list")["result"]
    assert not [one for one in letters if "__replay" in one["lane"]]


@pytest.mark.slow
def test_rebuild_fills_a_late_column_for_existing_rows(project: Path, run_json: Answer) -> None:
    config, full = project / "config" / "replicator.yaml", read_rows(project)
    all_columns = config.read_text()
    config.write_text(all_columns.replace("http:", f"{NARROW}http:"))
    run_json("replay", "public.orders")
    assert all("total" not in row and row["status"] for row in read_rows(project))
    config.write_text(all_columns)
    run_afterwards(project)
    said = run_json("replay", "public.orders", "--dry-run")["result"]
    assert "total" in said["columns_only_rebuilt"]
    run_json("replay", "public.orders")
    assert read_rows(project) == full and has_no_leftovers(project)


def test_difference_is_reported_by_column(project: Path, run_json: Answer, run_cli: Callable[..., Any]) -> None:
    table = DeltaTable(str(project / "lake" / "orders"))
    found = table.to_pyarrow_table()
    status = pa.array(["changed", *found["status"].to_pylist()[1:]])
    write_deltalake(table, found.set_column(found.column_names.index("status"), "status", status), mode="overwrite")
    said = run_json("replay", "public.orders", "--dry-run")["result"]
    told = {"key": {"id": found["id"][0].as_py()}, "columns": {"status": ["changed", found["status"][0].as_py()]}}
    assert (said["differing"], said["columns"], said["first"]["differing"]) == (1, {"status": 1}, [told])
    lines = run_cli("replay", "public.orders", "--dry-run").output
    assert "1 row with differences, in status (1)" in lines and "'changed' →" in lines
    assert has_no_leftovers(project)


class ProcessKilled(BaseException):
    """An exception that no code catches."""


STEPS = [
    pytest.param("catch_up_with_lane", "before", marks=pytest.mark.long),
    ("_copy_dead_letters", "before"),
    ("_swap_in_daemon_or_here", "before"),
    ("remove_rebuild", "before"),
    pytest.param("remove_rebuild", "after", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("step", "when"), STEPS)
def test_rebuild_killed_at_any_step_finishes_when_repeated(
    project: Path, run_json: Answer, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    before = read_rows(project)
    filter_orders(project)
    after = [row for row in before if row["id"] > 1]
    real = getattr(table_swap, step)

    def kill(*words: Any) -> Any:
        if when == "after":
            real(*words)
        raise ProcessKilled

    with monkeypatch.context() as patched:
        patched.setattr(table_swap, step, kill)
        with pytest.raises(ProcessKilled):
            run_json("replay", "public.orders")
    assert read_rows(project) == (after if step == "remove_rebuild" else before)
    run_json("replay", "public.orders")
    assert read_rows(project) == after and has_no_leftovers(project)


def test_rebuild_started_under_other_rules_starts_again(
    project: Path, run_json: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise ProcessKilled

    before = read_rows(project)
    with monkeypatch.context() as patched:
        patched.setattr(table_swap, "_swap_in_daemon_or_here", kill)
        with pytest.raises(ProcessKilled):
            run_json("replay", "public.orders")
    assert read_rows(project, "orders__replay") == before
    filter_orders(project)
    run_json("replay", "public.orders")
    assert read_rows(project) == [row for row in before if row["id"] > 1] and has_no_leftovers(project)


WITHOUT_ITS_BEGINNING = {
    "replay": ("replay", "public.orders"),
    "kept beside": ("replay", "public.orders", "--into", "again"),
    "the difference": ("replay", "public.orders", "--dry-run"),
    "as it was": ("query", "lake.orders", "--as-of", "2026-11-21", "--from-log"),
}


def test_unknown_temporary_table_is_named_with_its_drop(
    project: Path, run_json: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay on another machine was interrupted. The user did not choose the name of its table."""

    def kill(*_: Any) -> None:
        raise ProcessKilled

    with monkeypatch.context() as patched:
        patched.setattr(table_swap, "_swap_in_daemon_or_here", kill)
        with pytest.raises(ProcessKilled):
            run_json("replay", "public.orders")
    shutil.rmtree(project / "state" / "shop" / "replays")
    refused = run_json("replay", "public.orders", code=2)["error"]
    assert "lake.orders__replay already exists" in refused["sentence"]
    assert "`replicator drop lake.orders__replay`" in refused["next_step"]
    run_json("drop", "lake.orders__replay", "--yes")
    run_json("replay", "public.orders")


def test_records_missing_from_the_log_are_reported(project: Path, run_json: Answer) -> None:
    """The log is younger than the lane: a rebuild would silently lack rows."""
    log = DeltaTable(str(project / "lake" / "cdc_events"))
    log.alter.set_table_properties({"delta.appendOnly": "false"})
    log.delete(f"topic = '{ORDERS}' AND offset < 2")
    register = next((project / "state").rglob("recorded.json"))
    seen = json.loads(register.read_text())
    seen["beginnings"]["raw.recorded"][ORDERS] = {"0": 2}
    register.write_text(json.dumps(seen))
    before = read_rows(project)
    for words in WITHOUT_ITS_BEGINNING.values():
        refused = run_json(*words, code=4)["error"]
        assert f"lacks the records from 0 to 1 of {ORDERS}[0]" in refused["sentence"], words
        assert "resync lake.orders" in refused["next_step"]
    assert read_rows(project) == before and has_no_leftovers(project) and not (project / "lake" / "again").exists()
    part = ("--since", "2026-11-20T17:47:00+0000")
    assert run_json("replay", "public.orders", "--into", "again", *part)["result"]["applied"] == 2


def test_rejects_of_a_rebuild_belong_to_the_lane(project: Path, run_json: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards there is no other lane."""
    real = table_swap.catch_up_with_lane

    def rejecting(parts: Components, rebuild: Components, asked: Any, make: Any) -> dict[str, Any]:
        done = real(parts, rebuild, asked, make)
        store = rebuild.open_dead_letters()
        store.write([replace(store.read()[0], event_id="of-a-lane", lane=asked.id, stage="apply")])
        store.close()
        return done

    monkeypatch.setattr(table_swap, "catch_up_with_lane", rejecting)
    run_json("replay", "public.orders")
    letters = {one["event_id"]: one["lane"] for one in run_json("dlq", "list")["result"]}
    assert letters["of-a-lane"] == "lake.orders" and len(letters) == 2


RUNNING = {
    "kept beside": (("--into", "again"), "lake.again"),
    "in place": ((), "lake.orders__replay"),
    "the difference": (("--dry-run",), "lake.orders__dry_run"),
}


@pytest.mark.parametrize("case", RUNNING)
def test_rebuild_that_runs_is_not_disturbed(
    project: Path, run_json: Answer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A second replay, a drop and an erasure are refused before they change anything, also before the first batch."""
    real, words, refused = components.run_until_caught_up, ("replay", "public.orders", *RUNNING[case][0]), []

    def run(*arguments: Any) -> Any:
        monkeypatch.setattr(components, "run_until_caught_up", real)
        refused.append(run_json(*words, code=5)["error"])
        done = real(*arguments)
        for others in (("drop", RUNNING[case][1]), ("forget", "public.orders", "1")):
            refused.append(run_json(*others, "--yes", code=5)["error"])
        return done

    monkeypatch.setattr(components, "run_until_caught_up", run)
    run_json(*words)
    assert [one["sentence"].partition(":")[0] for one in refused] == [
        f"another command builds or removes {RUNNING[case][1]}"
    ] * 3
    assert not list((project / "state").rglob("replays/*.lock"))


REFUSED = {
    "a part of the records": (("--until", "2026-11-20T17:47:00+0000"), "a different policy cannot replace"),
    "from some time on": (("--from", "2026-11-20T17:47:00+0000"), "a different policy cannot replace"),
    "another policy": (("--policy", "scd2"), "a different policy cannot replace"),
    "kept, and not": (("--into", "other", "--dry-run"), "exclude each other"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_rebuilds_are_refused(run_json: Answer, project: Path, case: str) -> None:
    words, sentence = REFUSED[case]
    refused = run_json("replay", "public.orders", *words, code=2)["error"]
    assert sentence in refused["sentence"] and refused["next_step"] and has_no_leftovers(project)


@pytest.mark.slow
def test_daemon_continues_with_the_rebuilt_target(project: Path, run_json: Answer) -> None:
    """It runs meanwhile: no gap, and no change twice. A daemon with another configuration is not touched."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{find_free_port()}"))
    plain, before = config.read_text(), read_rows(project)
    filter_orders(project)
    run_json("replay", "public.orders")
    config.write_text(plain)
    assert read_rows(project) != before  # Made under other rules than those of now: the program would not go on.
    program = start_program(project, "run")
    try:
        await_lane_status(run_json, "lake.products", "running")
        filter_orders(project)
        refused = run_json("replay", "public.orders", code=2)["error"]
        assert "another configuration" in refused["sentence"] and read_rows(project) != before
        config.write_text(plain)
        run_json("replay", "public.orders")
        await_lane_status(run_json, "lake.orders", "running")
        assert read_rows(project) == before and has_no_leftovers(project)
        archive = project / "archive" / f"{ORDERS}.jsonl"
        record = json.loads(archive.read_text().splitlines()[-2])
        archive.write_text(archive.read_text() + json.dumps({**record, "offset": 6}) + "\n")
        deadline = time.monotonic() + 60
        while await_lane_status(run_json, "lake.orders", "running")["position"][ORDERS]["0"] < 7:
            assert time.monotonic() < deadline
        assert [row["id"] for row in read_rows(project)] == [row["id"] for row in before]
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0


def await_lane_status(run_json: Answer, name: str, status: str) -> dict[str, Any]:
    """Waits until the lane has this status, and returns it."""
    deadline = time.monotonic() + 60
    while True:
        found = {lane["id"]: lane for lane in run_json("status")["result"]["lanes"]}.get(name, {})
        if found.get("status") == status:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
