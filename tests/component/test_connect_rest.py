"""Reports of Kafka Connect just after a restart: the answers of a worker, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from adapters.stack.connect import ConnectRest
from adapters.stack.embedded import register, require_running
from replicator.domain.errors import EnvironmentProblem

Tasks = list[tuple[str, str]]


@contextmanager
def serve_states(answers: Tasks) -> Iterator[ConnectRest]:
    """A worker whose connector has one task. Each request returns the next (state, trace); the last one is repeated."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state, trace = answers[0] if len(answers) == 1 else answers.pop(0)
            connector = "PAUSED" if state == "PAUSED" else "RUNNING"
            status = {"connector": {"state": connector}, "tasks": [{"state": state, "trace": trace}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path.endswith("/resume"):
                answers[:] = [("RUNNING", "")]
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield ConnectRest(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_failure_before_a_restart_is_not_reported_as_new() -> None:
    answers = [("FAILED", "refused"), ("FAILED", "refused"), ("RESTARTING", ""), ("RUNNING", "")]
    with serve_states(answers) as rest:
        rest.wait_running("it", 5, before=rest.state("it"))
    assert answers == [("RUNNING", "")], "it waits until the task runs, and no longer"


def test_start_resumes_a_paused_connector() -> None:
    with serve_states([("PAUSED", "")]) as rest:
        with pytest.raises(EnvironmentProblem, match="which resumes it"):
            require_running(rest, "it")
        register(rest, "it", {}, 5)


@pytest.mark.parametrize("after", [[("FAILED", "no slot")], [("RESTARTING", ""), ("FAILED", "no slot")]])
def test_new_failure_is_reported_at_once(after: Tasks) -> None:
    with serve_states([("FAILED", "refused"), *after]) as rest, pytest.raises(EnvironmentProblem, match="no slot"):
        rest.wait_running("it", 5, before=rest.state("it"))
