"""A record that kills the program is found and stored as a dead letter without decoding; kills from outside reject
nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from support.cli_program import RunningProgram, start_program
from support.dead_letter_project import append_records, make_row_record, query_rows, run_command, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN = ("run", "--until-caught-up", "-q")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose format `rows` crashes the process."""
    package = tmp_path / "package" / "killing-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: killing\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[replicator.decoders]\nrows = killing_rows:KillingRows\n")
    (package.parent / "killing_rows.py").write_text((TESTS / "support" / "killing_rows.py").read_text())
    write_config(tmp_path, price="string")
    return tmp_path


def make_environment(folder: Path, **more: str) -> dict[str, str]:
    found = os.pathsep.join([str(folder / "package"), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": found, **more}


def start_run(folder: Path, **variables: str) -> RunningProgram:
    return start_program(folder, *RUN, **make_environment(folder, **variables))


def run_with_restarts(folder: Path, most: int = 25, dies: int = -signal.SIGSEGV, seconds: float = 100) -> int:
    """Restarts the program like a process supervisor. Returns how often it was killed, with the exit code `dies`."""
    for deaths in range(most):
        code = start_run(folder).wait(seconds)
        if code == 0:
            return deaths
        assert code == dies, code
    raise AssertionError(f"killed {most} times")


def list_dead_letters(folder: Path) -> list[dict[str, Any]]:
    return run_command(folder, "dlq", "list", **make_environment(folder))["result"]


@pytest.mark.parametrize("methods", ["decode", "route envelope mask_records"])
def test_poison_record_is_found_and_all_others_are_applied(
    project: Path, methods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASHES_IN", methods)
    poison = {7: "deadly", 8: "deadly too"}
    append_records(project, *(make_row_record(i, i % 10, poison.get(i, str(i))) for i in range(40)))
    deaths = run_with_restarts(project)
    found = list_dead_letters(project)
    assert {letter["event_id"]: letter["code"] for letter in found} == {"items-0-7": "CRASHED", "items-0-8": "CRASHED"}
    assert {(letter["stage"], letter["table"]) for letter in found} == {("route", "items")}
    assert all("deadly" in letter["record"] for letter in found)
    assert 2 * 3 < deaths <= 12
    assert query_rows(project) == [(key, str(30 + key), 30 + key) for key in range(10)]
    changes = run_command(project, "query", "changes")["result"]
    assert sorted(each["_cdc_seq_1"] for each in changes) == [i for i in range(40) if i not in poison]
    # Known ever after: also to a lane that reads everything again.
    run_command(project, "lanes", "resync", "lake.changes", "--yes", **make_environment(project))
    assert run_with_restarts(project) == 0
    assert len(run_command(project, "query", "changes")["result"]) == 38 and len(list_dead_letters(project)) == 2
    # A release that decodes it, and the record is tried again.
    said = run_command(project, "dlq", "replay", **make_environment(project, CALM="yes"))["result"]
    assert said == {"replayed": 2, "rejected": 0, "left": {}}
    assert sorted(each["_cdc_seq_1"] for each in run_command(project, "query", "changes")["result"]) == list(range(40))
    run_command(project, "lanes", "resync", "lake.changes", "--yes", **make_environment(project))
    assert start_run(project, CALM="yes").wait(100) == 0
    assert len(run_command(project, "query", "changes")["result"]) == 40
    assert {letter["state"] for letter in list_dead_letters(project)} == {"replayed"}


def test_commands_over_the_event_log_decode_no_poison_record(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forget` finds the poison record of the key by its message key or its JSON, and names those without either."""
    for name, value in make_environment(project, CRASHES_IN="route decode envelope mask_records").items():
        monkeypatch.setenv(name, value)
    config = project / "config" / "replicator.yaml"
    text = config.read_text().replace("to: [", "to: [{sink: raw}, ").replace(
        "sinks:", "sinks:\n  raw: {kind: event_log, path: ./lake/cdc_events}"
    )  # fmt: skip
    config.write_text(text)
    records = [make_row_record(i, i % 10, "deadly" if i == 17 else str(i)) for i in range(20)]
    append_records(project, *records, records[17] | {"offset": 20, "key": "\x00\x01", "value": "not deadly in JSON"})
    run_with_restarts(project)
    others = [(key, str(key if key == 7 else 10 + key), key if key == 7 else 10 + key) for key in range(10)]
    assert query_rows(project) == others
    lane = ("items", "--lane", "lake.items")
    assert run_command(project, "snapshot", *lane)["result"]
    then = run_command(project, "query", "items", "--as-of", "items:0:20", "--from-log")["result"]
    assert sorted((row["id"], row["price"], row["_cdc_seq_1"]) for row in then) == others
    assert run_command(project, "diff", "items", "--against", "log")["result"]
    run_command(project, "replay", *lane, "--into", "again")
    assert query_rows(project, "again") == others
    assert len(run_command(project, "history", "items", "8")["result"]) == 2
    for key, removed, left in (
        ("3", {"raw": 2, "dead letters": 0}, {"items-0-17", "items-0-20"}),
        ("7", {"raw": 2, "dead letters": 2}, {"items-0-20"}),
    ):
        said = run_command(project, "forget", "items", key, "--yes")["result"]
        assert {name: said["removed"][name] for name in removed} == removed
        assert [stays.split(" may ")[0] for stays in said["stays"][1:]] == ["record items-0-20"]
        assert {letter["event_id"] for letter in list_dead_letters(project)} == left


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_poison_record_that_kills_spark_workers_is_found(project: Path) -> None:
    """A worker process of Spark dies, and the program ends because of it."""
    write_config(project, price="string", more="engine: spark")
    append_records(project, *(make_row_record(i, i % 10, "deadly" if i == 7 else str(i)) for i in range(40)))
    deaths = run_with_restarts(project, dies=1, seconds=400)
    assert {letter["event_id"]: letter["code"] for letter in list_dead_letters(project)} == {"items-0-7": "CRASHED"}
    assert 3 < deaths <= 12
    assert query_rows(project) == [(key, str(30 + key), 30 + key) for key in range(10)]
    changes = run_command(project, "query", "changes")["result"]
    assert sorted(each["_cdc_seq_1"] for each in changes) == [i for i in range(40) if i != 7]


@pytest.mark.long
def test_kills_at_random_times_reject_nothing(project: Path) -> None:
    """Mostly during decoding, which takes most of the time."""
    chance = random.Random(os.environ.get("REPLICATOR_SEED", "7"))
    notes = project / "state" / "shop" / "sources" / "feed.crashes"
    fed = noted = 0
    for _ in range(12):
        append_records(project, *(make_row_record(fed + i, i % 10, str(fed + i)) for i in range(20)))
        fed += 20
        before = notes.stat().st_ino if notes.exists() else 0
        daemon = start_run(project, SLOW="0.05" if noted else "0.5")
        limit = time.monotonic() + 60
        while (notes.stat().st_ino if notes.exists() else 0) == before and daemon.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.8))
        daemon.kill()
        daemon.wait(20)
        noted += '"decoding": {' in notes.read_text()
    assert noted >= 2, "some were killed amid a decoding"
    assert start_run(project).wait(100) == 0
    assert list_dead_letters(project) == []
    assert query_rows(project) == [(key, str(fed - 10 + key), fed - 10 + key) for key in range(10)]
    assert len(run_command(project, "query", "changes", "--limit", "1000")["result"]) == fed
