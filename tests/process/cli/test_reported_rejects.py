"""Rejected records are in every count that users see, whatever rejected them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs
from support.accounting import count_unaccounted, parse_samples

from adapters.http.status_page import render
from replicator.application.operations.lanes import read_status
from replicator.cli import main
from replicator.cli.status import _make_view
from replicator.domain.errors import ExitCode
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import read_config
from replicator.wiring.daemon import DaemonContainer

CONFIG = """\
pipeline: shop
sources:
  feed: {format: canal_json, transport: archive, path: ./in}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead}
tables:
  - match: shop.t
    source: feed
    to: [{sink: lake}]
"""
GOOD = {"data": [{"id": "1", "n": "7"}], "mysqlType": {"id": "int", "n": "int"}}
UNKNOWN_KEY = {**GOOD, "pkNames": ["elsewhere"]}
NO_NUMBER = {"data": [{"id": "3", "n": "seven"}], "mysqlType": GOOD["mysqlType"]}
OTHER_TABLE = {**GOOD, "table": "u"}
DDL = {"data": None, "isDdl": True, "type": "ALTER", "sql": "ALTER TABLE t ADD m int"}
GARBAGE = "no JSON"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "in").mkdir()
    return tmp_path


def write_archive(project: Path, *messages: dict[str, Any] | str) -> None:
    """Writes an archive of these messages."""
    known = {"database": "shop", "table": "t", "type": "INSERT", "isDdl": False, "pkNames": ["id"], "es": 1_700_000_000_000}
    values = [one if isinstance(one, str) else json.dumps({**known, "old": None, "sql": "", **one}) for one in messages]
    record = {"topic": "canal", "partition": 0, "timestamp": 1_700_000_000_000, "headers": [], "key": None}
    lines = (json.dumps({**record, "offset": number, "value": value}) for number, value in enumerate(values))
    (project / "in" / "0001.jsonl").write_text("".join(f"{line}\n" for line in lines))


def run_once(project: Path) -> tuple[DaemonContainer, ExitCode]:
    container = DaemonContainer(loaded=read_config(project / "config" / "replicator.yaml", None, ()))
    return container, container.supervisor().run(once=True)


def test_rejected_records_are_in_every_count(project: Path) -> None:
    write_archive(project, GOOD, UNKNOWN_KEY, UNKNOWN_KEY, NO_NUMBER, OTHER_TABLE, DDL, GARBAGE)
    with capture_logs() as logged:
        container, code = run_once(project)
    assert code is ExitCode.OK and container.supervisor().find_why_nothing_came() is None
    status, metrics = container.views().status(), container.telemetry().text().decode()
    assert count_unaccounted(status, metrics, "lake") == {"feed": (0, 0)}
    found = {(one["table"], one["stage"], one["code"]): one["records"] for one in status["rejects"]}
    assert found == {
        ("shop.t", "route", "MALFORMED"): 2, ("shop.t", "decode", "OUT_OF_RANGE"): 1, ("", "route", "MALFORMED"): 1,
    }  # fmt: skip
    assert found == {
        (labels["table"], labels["stage"], labels["code"]): value
        for name, labels, value in parse_samples(metrics)
        if name == "replicator_rejects_total"
    }
    assert {(group["table"], group["lane"]): group["open"] for group in status["dead_letters"]} == {
        ("shop.t", ""): 3, ("", ""): 1,
    }  # fmt: skip
    assert [lane["dead_letters"] for lane in status["lanes"]] == [3]
    assert ("replicator_dead_letters", {"source": "feed", "table": "shop.t", "lane": ""}, 3) in parse_samples(metrics)
    # The first of each kind is logged, with what to do about it.
    warned = [entry for entry in logged if entry["log_level"] == "warning" and "rejected" in entry["event"]]
    assert sorted((entry["table"], entry["code"]) for entry in warned) == [
        ("?", "MALFORMED"), ("shop.t", "MALFORMED"), ("shop.t", "OUT_OF_RANGE"),
    ]  # fmt: skip
    assert all("dlq explain" in entry["next_step"] for entry in warned)
    assert "`schema`" in next(e["next_step"] for e in warned if (e["table"], e["code"]) == ("shop.t", "MALFORMED"))
    # People see them on the page, and in `status`, also while nothing runs.
    assert "1 record of table ? rejected" in render(status) and "2 records of table shop.t rejected" in render(status)
    for report in (status, read_status(ConfiguredComponents(container.loaded()))):
        text = _make_view(report, 200).plain
        assert "source feed: 4 open dead letters" in text and text.splitlines()[4].endswith(" 3"), text
    config = ("--config", str(project / "config" / "replicator.yaml"))
    listed, planned = (CliRunner().invoke(main, [*command, *config]).stdout for command in (("lanes", "list"), ("plan",)))
    assert listed == "lake.t  stopped  3 open dead letters\n"
    assert planned.splitlines()[1:] == ["    3 open dead letters", "1 lane"]
    answer = json.loads(CliRunner().invoke(main, ["plan", "--json", *config]).stdout)
    assert [lane["dead_letters"] for lane in answer["result"]] == [3]


def test_run_that_rejected_everything_is_not_ok(project: Path) -> None:
    write_archive(project, UNKNOWN_KEY, UNKNOWN_KEY)
    for _ in range(2):  # The second finds no new dead letter: it is no more ok than the first.
        container, _ = run_once(project)
        problem = container.supervisor().find_why_nothing_came()
        assert problem is not None and problem.exit_code is ExitCode.REJECTS
        assert "Rejected: 2 records" in problem.sentence
    assert container.unmatched() == [], "the table is known from what was refused"


def test_records_rejected_by_every_run_count_once(project: Path) -> None:
    """No lane remembers a line that is no record. A scheduled run fails for rejects since the last run."""
    write_archive(project, GOOD)
    archive = project / "in" / "0001.jsonl"
    ended = []
    for more in (f"{GARBAGE}\n", "", f"{GARBAGE}\n", ""):
        archive.write_text(archive.read_text() + more)
        container, code = run_once(project)
        problem = container.supervisor().find_why_nothing_came()
        ended.append((code, container.supervisor().rejected_count, problem and problem.exit_code))
    assert ended == [
        (ExitCode.OK, 1, None), (ExitCode.OK, 1, None), (ExitCode.OK, 2, ExitCode.REJECTS), (ExitCode.OK, 2, None),
    ]  # fmt: skip


def test_run_without_configured_tables_is_not_ok(project: Path) -> None:
    write_archive(project, OTHER_TABLE)
    container, _ = run_once(project)
    problem = container.supervisor().find_why_nothing_came()
    assert problem is not None and problem.exit_code is ExitCode.ENVIRONMENT and "no entry of `tables`" in problem.sentence
