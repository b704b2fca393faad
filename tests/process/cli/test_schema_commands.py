"""`replicator schema history`, and past and pending schemas in `status` and `plan`."""

from __future__ import annotations

import signal
import time

import pytest
from support.cli_program import start_program
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

from adapters.stack.layout import find_free_port

NAME, NOTE, MORE = (make_column(name, "string") for name in ("name", "note", "more"))
RECORDS = [
    make_archive_record("t", 0, [ID, NAME], [ID], after={"id": 1, "name": "a"}),
    make_archive_record("t", 1, [ID, NAME, NOTE], [ID], after={"id": 2, "name": "b", "note": "x"}),
    make_archive_record("t", 2, [ID, NOTE], [ID], after={"id": 3, "note": "y"}),
]
CHANGES = [[], ["column 'note' (string) was added"], ["column 'name' was dropped"]]
FROM_A_DATABASE = (
    "sources={recorded: {format: debezium_json, transport: kafka, bootstrap_servers: '127.0.0.1:1', topics: [t], "
    "database: {dsn: 'postgresql://nobody@127.0.0.1:1/nothing', publication: p, slot: s}}}"
)
"""The same source, as `backfill` takes it; nobody listens there."""


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path / "project", {"t": ", schema_changes: {dropped: quarantine}"})
    project.feed("a", RECORDS)
    return project


@pytest.mark.parametrize("name", ["public.t", "t", "lake.t"])
def test_every_version_has_position_and_time(project, name):
    project.run()
    (lane,) = project.run_command("schema", "history", name)["result"]
    assert [v["number"] for v in lane["schemas"]] == [1, 2, 3]
    assert [v["changes"] for v in lane["schemas"]] == CHANGES
    assert [v["position"]["cdc.public.t"]["0"] for v in lane["schemas"]] == [0, 1, 2]
    assert [v["state"] for v in lane["schemas"]] == ["applied", "applied", "pending"]
    assert all(v["at"].startswith("20") for v in lane["schemas"])
    assert [c["name"] for c in lane["schemas"][1]["target"]] == ["id", "name", "note"]


def test_unknown_table_is_refused(project):
    project.run()
    answer = project.run_command("schema", "history", "tt")
    assert answer["exit"] == 2 and answer["error"]["next_step"] == "The tables are: public.t."


def test_past_and_pending_changes_in_status_and_plan(project):
    lanes = project.run()
    for lane in (
        lanes["lake.t"],
        project.run_command("status")["result"]["lanes"][0],
        project.run_command("plan", "t")["result"][0],
    ):
        assert [(v["number"], v["state"], v["changes"]) for v in lane["schemas"]] == [
            (1, "applied", CHANGES[0]),
            (2, "applied", CHANGES[1]),
            (3, "pending", CHANGES[2]),
        ]
    assert project.run_command("plan")["result"][0]["schema_changes"] == "dropped: quarantine, others: evolve"


def test_text_output(project, monkeypatch):
    from click.testing import CliRunner

    from replicator.cli import main

    project.run()
    monkeypatch.chdir(project.folder)
    history = CliRunner().invoke(main, ["schema", "history", "t", "-q"]).stdout
    assert "pending  cdc.public.t:0:2  column 'name' was dropped" in history and "the first" in history
    status = CliRunner().invoke(main, ["status", "-v"]).stdout
    assert "lake.t waits for schema 3: column 'name' was dropped" in status and "schemas: number" in status
    plan = CliRunner().invoke(main, ["plan", "-q"]).stdout
    assert "schema changes: dropped: quarantine, others: evolve" in plan and "column 'name' was dropped" in plan
    assert "the first" not in plan and "the first" in CliRunner().invoke(main, ["plan", "t", "-q"]).stdout


@pytest.mark.slow
def test_daemon_resumes_at_the_record_when_the_schema_is_accepted(project):
    config = project.folder / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{find_free_port()}"))
    # A second lane, so that the program does not end when the first one waits.
    config.write_text(config.read_text().replace("to: [", "to: [{sink: lake, into: other}, "))
    program = start_program(project.folder, "run", "-q")
    try:
        waiting = _lane(project, "suspended")
        assert waiting["position"] == {"cdc.public.t": {"0": 2}}
        assert waiting["next_step"].startswith("`replicator lanes resume lake.t --accept-schema 3` continues the lane")
        refused = project.run_command("lanes", "resume", "lake.t", "--accept-schema", "2")
        assert refused["exit"] == 2 and "It waits for schema 3" in refused["error"]["next_step"]
        assert _lane(project, "suspended")["position"] == {"cdc.public.t": {"0": 2}}
        for command in (
            ["resume", "lake.t"],
            ["skip", "lake.t", "--until", "cdc.public.t:0:2"],
            ["resync", "lake.t", "--yes"],
        ):
            again = project.run_command("lanes", *command)
            assert again["exit"] == waiting["exit_code"] != 0, command
            assert again["error"]["sentence"] == f"Lane lake.t is suspended again: {waiting['error']}", command
            assert again["error"]["next_step"] == waiting["next_step"], command
        useless = project.run_command("backfill", "public.t", "--set", FROM_A_DATABASE)
        assert useless["error"]["sentence"] == f"Lane lake.t is suspended: {waiting['error']}", "before a row is read"
        assert waiting["next_step"] in useless["error"]["next_step"] and useless["exit"] == 1
        assert project.run_command("lanes", "resume", "lake.t", "--accept-schema", "3")["exit"] == 0
        assert _lane(project, "running", 3)["schemas"][2]["state"] == "applied"
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    assert project.rows("lake", "t")[2] == {"id": 3, "name": None, "note": "y"}


def _lane(project, status, end=2):
    deadline = time.monotonic() + 60
    while True:
        lanes = {lane["id"]: lane for lane in project.run_command("status")["result"]["lanes"]}
        lane = lanes.get("lake.t")
        if lane and lane["status"] == status and lane["position"] == {"cdc.public.t": {"0": end}}:
            return lane
        assert time.monotonic() < deadline, lane
        time.sleep(0.2)
