"""Lineage in a file and on a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from adapters.observability.openlineage import FileLineage, HttpLineage
from replicator.application.operations.refresh import ProjectionRefresher, to_dataset
from replicator.domain.errors import EnvironmentProblem, Retryable
from replicator.domain.projection import InputVersion, Projection, RefreshRecord, RefreshWork
from replicator.ports.projector import RefreshStart, ReplaceResult


class Server(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[tuple[str | None, dict[str, object]]] = []
        self.code = 201

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/v1/lineage"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.headers["Authorization"], json.loads(body)))
        if not self.server.code:
            self.wfile.write(b"\x15\x03\x01\x00\x02\x02\x46")  # A TLS alert.
            return
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    threading.Thread(target=started.serve_forever, daemon=True).start()
    yield started
    started.shutdown()
    started.server_close()


def test_file_gets_a_line_for_each_event(tmp_path):
    file = tmp_path / "folder" / "lineage.jsonl"
    for number in range(2):
        FileLineage({"path": str(file)}).send_event({"number": number, "text": "line\nend"})
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == [0, 1]
    with pytest.raises(EnvironmentProblem):
        FileLineage({"path": str(tmp_path)}).send_event({})


def test_server_gets_a_request_for_each_event(server):
    HttpLineage({"url": server.url, "token": "t0ken"}).send_event({"number": 1})
    HttpLineage({"url": server.url}).send_event({"number": 2})
    assert server.taken == [("Bearer t0ken", {"number": 1}), (None, {"number": 2})]
    server.code = 401
    with pytest.raises(EnvironmentProblem, match="401"):
        HttpLineage({"url": server.url}).send_event({})


@pytest.mark.parametrize("token", ["s3cr3t\nx", "s3cr3t€"])
def test_token_that_no_header_can_hold_is_refused_and_not_shown(server, token):
    with pytest.raises(EnvironmentProblem, match="token") as refused:
        HttpLineage({"url": server.url, "token": token}).send_event({})
    assert "s3cr3t" not in str(refused.value) and not server.taken


class Projector:
    """A projector without data, which reports a successful write."""

    @contextmanager
    def open_refresh(self, projection):
        yield RefreshStart({"users": InputVersion("u", 1)}, None, {"users": "/lake/users", "lake.gold": "/lake/gold"})

    def find_affected_groups(self, projection, one, since, until):
        raise AssertionError("no refresh preceded")

    def replace(self, projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        return ReplaceResult(1, 2)


@pytest.mark.parametrize("fault", ["away", "no HTTP"])
def test_refresh_succeeds_without_a_lineage_server(server, fault):
    server.code = 0
    if fault == "away":
        server.shutdown()
        server.server_close()
    away = HttpLineage({"url": server.url})
    with pytest.raises(Retryable):
        away.send_event({})
    done = ProjectionRefresher(Projector(), "tests", away).refresh(Projection("gold", "SELECT 1", (), "lake", "gold"))
    assert (done.version, done.rows) == (1, 2)


def test_dataset_names_come_from_locations():
    assert to_dataset("/a/lake/users") == ("file", "/a/lake/users")
    assert to_dataset("s3://bucket/lake/users") == ("s3://bucket", "lake/users")
