"""`replicator lanes`: the result of each command, with and without a daemon."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from support.cli_program import start_program

from adapters.stack.layout import find_free_port
from replicator.application.problem import Stopped
from replicator.application.state_folder import InstanceLock
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.settings import load_settings
from replicator.wiring import daemon, daemon_client

ORDERS = "cdc.public.orders:0"


@pytest.fixture(params=["stopped", pytest.param("running", marks=pytest.mark.slow)])
def pipeline(request, project, run_json):
    """The project with or without a daemon, and a function that lists its lanes."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{find_free_port()}"))
    program = None
    if request.param == "running":
        program = start_program(project, "run")
        deadline = time.monotonic() + 60
        while [lane["status"] for lane in run_json("status")["result"]["lanes"]] != ["running"] * 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield lambda: {lane["id"]: lane for lane in run_json("status")["result"]["lanes"]}
    if program is not None:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0


NOWHERE = {
    "cdc.public.orders:7:1": "reads no partition cdc.public.orders[7]",
    "cdc.public.products:0:1": "reads no partition cdc.public.products[0]",
    f"{ORDERS}:-1": "is not a position",
    f"{ORDERS}:1": "1 is below",
    f"{ORDERS}:99999": "99999 is above the end",
    f"{ORDERS}:{2**63}": "above the end",
}


def test_skip_to_an_invalid_position_is_refused(pipeline, run_json):
    before = pipeline()["lake.orders"]
    for until, words in NOWHERE.items():
        said = run_json("lanes", "skip", "lake.orders", "--until", until, code=2)
        assert words in said["error"]["sentence"] and said["error"]["next_step"]
        after = pipeline()["lake.orders"]
        assert (after["status"], after["position"], after["error"]) == (before["status"], before["position"], None)


def test_skip_and_resync(pipeline, run_json, project):
    lane = pipeline()["lake.orders"]
    to = lane["position"]["cdc.public.orders"]["0"]
    if lane["status"] == "stopped":  # a lane that runs would have read it by then
        archive = project / "archive" / "cdc.public.orders.jsonl"
        record = json.loads(archive.read_text().splitlines()[-2])
        archive.write_text(archive.read_text() + json.dumps({**record, "offset": to}) + "\n")
        to += 1
    said = run_json("lanes", "skip", "lake.orders", "--until", f"{ORDERS}:{to}")
    assert said["result"] == {"lane": "lake.orders"} and said["summary"].startswith("lake.orders: position moved")
    assert pipeline()["lake.orders"]["position"]["cdc.public.orders"]["0"] == to
    assert run_json("lanes", "resync", "lake.orders", "--yes")["result"] == {"lane": "lake.orders"}
    lanes = pipeline()
    assert lanes["lake.orders"]["status"] != "suspended" and lanes["lake.products"]["position"]


def test_lane_of_an_instance_that_does_not_answer_stays_as_it_is(run_json, project):
    """It would write on, behind a position that the command has removed."""
    lock = InstanceLock(project / "state" / "shop", "shop")
    before = run_json("status")["result"]["lanes"]
    lock.acquire()
    for command in (["resync", "--yes"], ["skip", f"--until={ORDERS}:99"], ["resume", "--accept-schema", "2"]):
        said = run_json("lanes", command[0], "lake.orders", *command[1:], code=5)["error"]
        assert "Another instance of pipeline shop runs" in said["sentence"] and "Stop it first" in said["next_step"]
    lock.release()
    assert run_json("status")["result"]["lanes"] == before


def test_resync_needs_a_confirmation(run_cli, monkeypatch):
    result = run_cli("lanes", "resync", "lake.orders")
    assert result.exit_code == 2 and "Repeat on a terminal, or add --yes." in result.output
    refused = json.loads(run_cli("lanes", "resync", "lake.orders", "--json").stdout)
    assert refused["error"]["sentence"] == "lake.orders was not emptied: a confirmation needs a terminal"
    monkeypatch.setattr("replicator.cli.session.is_on_terminal", lambda: True)
    result = run_cli("lanes", "resync", "lake.orders", input="n\n")
    assert result.exit_code == 1 and "Delete all rows of lake.orders" in result.output


def test_command_waits_for_its_lane_up_to_a_limit():
    def ending():
        raise Stopped

    done: Future[None] = Future()
    with pytest.raises(EnvironmentProblem, match="Lane a has not answered within 0 s"):
        daemon.await_answer(lambda: done, "a", 0.01)
    threading.Timer(0.05, lambda: done.set_exception(ConfigProblem("no", next_step="do"))).start()
    with pytest.raises(ConfigProblem, match=r"no\. do"):
        daemon.await_answer(lambda: done, "a", 5)
    with pytest.raises(EnvironmentProblem, match="ending"):
        daemon.await_answer(ending, "a")
    daemon.await_answer(lambda: None, "a")


class SilentDaemon(BaseHTTPRequestHandler):
    """A daemon that publishes its status and answers no command."""

    state: ClassVar[dict[str, str]] = {}

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"pipeline": "shop", "lanes": [], **self.state}).encode())

    def do_POST(self):
        self.close_connection = True

    def log_message(self, *_args):
        """Nothing."""


@pytest.fixture
def silent(project):
    """The configuration with the address of a silent daemon."""
    server = HTTPServer(("127.0.0.1", 0), SilentDaemon)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield load_settings(project / "config" / "replicator.yaml", overrides=[f"http.address=127.0.0.1:{server.server_port}"])
    server.shutdown()


def test_interrupted_answer_of_the_daemon_is_an_error(silent):
    with pytest.raises(EnvironmentProblem, match="did not confirm the command for lane"):
        daemon_client.ask_control(silent, "resync", "lake.orders", None)


def test_daemon_of_another_configuration_is_not_used(silent, monkeypatch):
    """It has the same port and pipeline name, like a second copy of an example."""
    assert daemon_client.ask_status(silent) is not None
    monkeypatch.setattr(SilentDaemon, "state", {"state": "/srv/other/state/shop"})
    assert daemon_client.ask_status(silent) is None
    assert daemon_client.ask_control(silent, "resync", "lake.orders", None) is False
