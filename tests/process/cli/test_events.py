"""Events from the command line, from programs and over HTTP, all in one store."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess

import pytest
from click.testing import CliRunner
from support.cli_program import PROGRAM, WITH_SIGNALS, parse_answer

from replicator import events
from replicator.cli import main
from replicator.domain.errors import ConfigProblem

CONFIG = """
pipeline: shop
sources: {shop: {format: debezium_json, transport: archive, path: ./none.jsonl}}
sinks: {lake: {kind: delta, path: ./lake}}
dead_letters: {path: ./letters}
tables: [{match: "public.*", source: shop, to: [{sink: lake}]}]
event_store: {path: ./lake/events}
serve: {address: "127.0.0.1:0", token: "${EVENTS_TOKEN:-t}"}
"""
ALICE = '{"name": "Alice Johnson", "email": "alice@email.com", "city": "NYC"}'


@pytest.fixture
def shop(tmp_path, monkeypatch):
    file = tmp_path / "config" / "replicator.yaml"
    file.parent.mkdir()
    file.write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return file


def run_command(*arguments):
    done = CliRunner().invoke(main, [*arguments, "--json"])
    answer = parse_answer(done)
    return done.exit_code, answer["result"] if answer["ok"] else answer["error"]["sentence"]


def test_events_of_a_customer_from_three_programs(shop):
    """Customer `C101` of the worked example."""
    code, first = run_command("emit", "Customer", "C101", "CustomerCreated", "--data", ALICE, "--expected-version", "0")
    assert (code, first["event_version"], first["is_new"]) == (0, 1, True)
    moved = {"old_city": "NYC", "new_city": "LA", "change_reason": "relocation"}
    done = events.emit_event("C101", "Customer", "CustomerAddressChanged", moved, {"by": {"id": 7}}, 1)
    assert (done.event_version, done.metadata) == (2, {"by": '{"id":7}'})
    with events.EventStore() as store:
        new = {"old_email": "alice@email.com", "new_email": "alice.new@email.com"}
        store.emit_event("C101", "Customer", "CustomerEmailUpdated", new, event_id="mail")
        assert store.emit_event("C101", "Customer", "CustomerEmailUpdated", {}, event_id="mail").event_data == new
        with pytest.raises(events.VersionConflict):
            store.emit_event("C101", "Customer", "CustomerDeleted", {}, expected_version=2)
        assert store.version("Customer", "C101") == 3
        assert [e.event_version for e in store.events("Customer", until=done.created_at)] == [1, 2]
    code, found = run_command("events", "Customer", "C101")
    assert [e["event_type"] for e in found] == ["CustomerCreated", "CustomerAddressChanged", "CustomerEmailUpdated"]
    assert found[0]["event_data"] == json.loads(ALICE)
    assert (
        run_command("events", "Customer", "--until", found[1]["created_at"][:26] + "+0000", "--limit", "5")[1] == found[:2]
    )
    shown = CliRunner().invoke(main, ["events", "Customer", "C101"]).output
    assert "version 3  CustomerEmailUpdated\n    old_email = alice@email.com" in shown


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--data", "[]"], 1, "event_data is not a JSON object"),
        (["--data", '{"a": '], 1, "event_data is not a JSON object"),
        (["--metadata", '{"a": "\\u0000"}'], 1, "NUL"),
        (["--expected-version", "3"], 1, "at version 0, not 3"),
        (["--set", "event_store=null"], 2, "no event store"),
        (["--set", "limits.message_bytes=10"], 1, "longer than the 10 bytes"),
    ],
)
def test_invalid_events_are_refused(shop, more, code, said):
    found, sentence = run_command("emit", "Customer", "C101", "Created", *more)
    assert (found, said in sentence) == (code, True), sentence
    assert not list((shop.parents[1] / "lake").rglob("*.parquet"))


def test_serve_needs_a_token(shop):
    code, sentence = run_command("serve", "--set", "serve.token=''")
    assert (code, "token" in sentence) == (2, True)


def test_module_needs_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigProblem):
        events.emit_event("C101", "Customer", "Created", {})


@pytest.mark.slow
def test_serve_runs_until_it_is_stopped(shop):
    program = subprocess.Popen(
        [*WITH_SIGNALS, PROGRAM, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "EVENTS_TOKEN": "s3cr3t"},
    )  # fmt: skip
    line = next(line for line in program.stderr if "events: " in line)
    host = line.split("http://")[1].split("/")[0]
    body = {"aggregate_id": "C1", "aggregate_type": "Customer", "event_type": "Created", "event_data": {"a": 1}}
    for token, status in (("s3cr3t", 201), ("wrong", 401)):
        connection = http.client.HTTPConnection(host, timeout=30)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        connection.request("POST", "/events", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == status, answer.read()
    program.send_signal(signal.SIGTERM)
    out, log = program.communicate(timeout=60)
    assert (program.returncode, "stopped cleanly" in out) == (0, True), log
    assert "s3cr3t" not in out + log + line
    assert [e["event_data"] for e in run_command("events", "Customer")[1]] == [{"a": "1"}]
