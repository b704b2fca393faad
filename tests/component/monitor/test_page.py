"""The daemon's page: content, access, and the names of the metrics."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from adapters.http import http_thread
from adapters.http.status_page import PageMonitor
from adapters.observability.prometheus import PrometheusTelemetry
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.policy.plan import Counts
from replicator.ports.runtime import (
    LaneCommitted,
    LaneUp,
    OpenDeadLetters,
    RecordsRead,
    RecordsRejected,
    SourceLag,
    StreamPace,
    Views,
)
from replicator.ports.source import Pace
from replicator.ports.stores import DeadLetterGroup

HOSTILE = "<script>alert(1)</script>\"'& onclick=x"
NAMES = {
    "records_consumed_total": {"source"},
    "records_ignored_total": {"source", "kind"},
    "rejects_total": {"source", "table", "stage", "code"},
    "dead_letters": {"source", "table", "lane"},
    "changes_total": {"lane", "outcome"},
    "apply_duration_seconds_count": {"lane"},
    "apply_duration_seconds_sum": {"lane"},
    "apply_duration_seconds_bucket": {"lane", "le"},
    "freshness_seconds": {"lane"},
    "lag_records": {"source"},
    "lane_up": {"lane"},
    "build_info": {"version"},
    "spark_batch_duration_seconds": {"source"},
    "spark_input_rows_per_second": {"source"},
    "spark_processed_rows_per_second": {"source"},
    "spark_lag_records": {"source"},
}
"""Every metric of the public contract, and its labels."""


class Daemon:
    """The daemon behind the page."""

    def __init__(self) -> None:
        self.lanes: list[dict[str, Any]] = [self.lane("lake.customers")]
        self.alive = self.ready = True
        self.unready: list[str] = []
        self.sources: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}
        self.commands: list[tuple[str, str, str | None]] = []

    @staticmethod
    def lane(name: str, **changed: Any) -> dict[str, Any]:
        known = {"id": name, "table": "public.customers", "policy": "scd1", "status": "running", "lag_records": 1234}
        return {**known, "lag_seconds": 1.25, "counts": {"applied": 5678, "rejected": 9}, "error": None, **changed}

    def control(self, action: str, lane: str, argument: str | None) -> None:
        if action not in ("pause", "skip"):
            raise ConfigProblem(f"there is no action {action!r}", next_step="There are: pause.")
        self.commands.append((action, lane, argument))

    def views(self) -> Views:
        def status() -> dict[str, Any]:
            state = {"ready": self.ready, "unready": self.unready, **self.more}
            return {"pipeline": "shop", **state, "sources": self.sources, "lanes": self.lanes}

        return Views(status, lambda: self.alive, self.control)

    def client(self, **options: Any) -> TestClient:
        return TestClient(PageMonitor(options, PrometheusTelemetry("1.2.3")).app(self.views()))


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def test_page_shows_every_lane(daemon):
    shown = daemon.client().get("/")
    assert shown.status_code == 200 and shown.headers["content-type"].startswith("text/html")
    for text in ("lake.customers", "public.customers", "running", "1,234", "1.2", "5,678", ">9<"):
        assert text in shown.text
    assert "<script" not in shown.text


@pytest.mark.parametrize("key", ["id", "table", "policy", "status", "error"])
def test_all_values_on_the_page_are_escaped(daemon, key):
    daemon.lanes = [daemon.lane("a", **{key: HOSTILE})]
    shown = daemon.client().get("/").text
    assert "<script" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt;&quot;" in shown
    assert not re.search(r"""<\w+( \w+=("[^"]*"|'[^']*'|[^\s"'>]+))* onclick""", shown), "an attribute was injected"


def test_status_json_has_lanes_and_sources(daemon):
    assert daemon.client().get("/status.json").json() == {
        "pipeline": "shop",
        "ready": True,
        "unready": [],
        "sources": [],
        "lanes": daemon.lanes,
    }


def test_health_endpoints_follow_the_state(daemon):
    client = daemon.client(token="t0ken")
    assert [client.get(path).status_code for path in ("/livez", "/healthz", "/readyz")] == [200, 200, 200]
    daemon.alive = daemon.ready = False
    assert [client.get(path).status_code for path in ("/livez", "/healthz", "/readyz")] == [503, 503, 503]


def test_reasons_for_not_ready_need_the_token(daemon):
    daemon.ready, daemon.unready = False, ["lane lake.orders is suspended"]
    assert daemon.client().get("/readyz").text == "not ok\nlane lake.orders is suspended\n"
    guarded = daemon.client(token="t0ken")
    assert guarded.get("/readyz").text == "not ok\n"
    assert "lake.orders" in guarded.get("/readyz", headers={"authorization": "Bearer t0ken"}).text


def test_unreachable_source_is_shown(daemon):
    assert "away" not in daemon.client().get("/").text
    daemon.sources = [{"name": "shop", "away_since": "2026-01-01T00:00:00+00:00", "error": HOSTILE}]
    page = daemon.client().get("/").text
    assert "source shop is away since 2026-01-01" in page and HOSTILE not in page


def test_open_call_of_a_source_is_shown(daemon):
    daemon.sources = [{"name": "shop", "call": {"doing": HOSTILE, "since": "2026-01-01T00:00:00+00:00"}}]
    page = daemon.client().get("/").text
    assert "source shop: " in page and "since 2026-01-01" in page and HOSTILE not in page


def test_open_call_of_a_sink_is_shown_once(daemon):
    """Not for each of its lanes."""
    call = {"doing": "applying 4,711 changes to customers", "since": "2026-01-01T00:00:00+00:00"}
    daemon.lanes = [daemon.lane(f"{sink}.customers", sink=sink, call=call) for sink in ("mirror", "mirror", "lake<")]
    daemon.lanes.append(daemon.lane("other.customers", sink="other", call=None))
    text = daemon.client().get("/").text
    assert text.count("sink mirror: applying 4,711 changes to customers, since 2026-01-01T00:00:00+00:00") == 1
    assert "sink lake&lt;: applying" in text and "sink other" not in text


def test_open_call_of_the_dead_letter_store_is_shown(daemon):
    daemon.more = {"dead_letter_call": {"doing": "writing", "since": "2026-01-01T00:00:00+00:00", "error": HOSTILE}}
    page = daemon.client().get("/").text
    assert "dead-letter store: writing, since 2026-01-01" in page and HOSTILE not in page


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8090"])
def test_another_host_name_is_refused_without_a_token(daemon, host):
    client = daemon.client()
    for path in ("/", "/status.json", "/metrics", "/livez"):
        assert client.get(path, headers={"host": host}).status_code == 400
    assert client.post("/lanes/a?action=pause", headers={"host": host, "X-Replicator": "1"}).status_code == 400
    assert not daemon.commands


@pytest.mark.parametrize("host", ["localhost:8090", "127.0.0.1:8090", "localhost", "[::1]:8090"])
def test_local_host_names_are_accepted(daemon, host):
    assert daemon.client().get("/status.json", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("address", ["[::1]:0", "127.0.0.2:0"])
def test_page_listens_at_its_address(daemon, address):
    page = PageMonitor({"address": address}, PrometheusTelemetry())
    try:
        with urlopen(f"{page.start(daemon.views())}/livez") as answer:
            assert answer.status == 200
    finally:
        page.close()


def test_configured_token_is_required_everywhere(daemon):
    client = daemon.client(token="t0ken")
    requests = [lambda path=path, **given: client.get(path, **given) for path in ("/", "/status.json", "/metrics")]
    requests.append(lambda **given: client.post("/lanes/a?action=pause", **given))
    for send in requests:
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "t0ke"}, {"Authorization": "Bearer t0kén"}):
            given = {name: value.encode() for name, value in {"X-Replicator": "1", **wrong}.items()}
            answer = send(headers=given)
            assert answer.status_code == 401 and "t0ken" not in answer.text
    assert not daemon.commands
    assert client.get("/status.json", headers={"Authorization": "Bearer t0ken"}).status_code == 200


def test_control_needs_a_header_that_foreign_forms_cannot_set(daemon):
    client = daemon.client()
    refused = client.post("/lanes/lake.customers?action=pause")
    assert refused.status_code == 403 and "X-Replicator" in refused.json()["error"]
    assert client.get("/lanes/lake.customers?action=pause", headers={"X-Replicator": "1"}).status_code == 405
    assert not daemon.commands
    taken = client.post("/lanes/lake.a%2Fb%20c?action=skip&until=t:0:5", headers={"X-Replicator": "1"})
    assert taken.status_code == 200
    assert daemon.commands == [("skip", "lake.a/b c", "t:0:5")]


def test_unknown_command_is_refused_with_the_known_ones(daemon):
    refused = daemon.client().post("/lanes/a?action=explode", headers={"X-Replicator": "1"})
    answer = {"error": "there is no action 'explode'", "next_step": "There are: pause.", "code": 2}
    assert refused.status_code == 409 and refused.json() == answer


def make_telemetry() -> PrometheusTelemetry:
    telemetry = PrometheusTelemetry("1.2.3")
    resolved, open_group = DeadLetterGroup("shop", "public.customers", ""), DeadLetterGroup("shop", "", "")
    for measured in (
        RecordsRead("shop", 7, {"heartbeat": 2}),
        RecordsRejected("shop", "public.customers", "decode", "OUT_OF_RANGE", 3),
        OpenDeadLetters({resolved: 3, open_group: 1}),
        OpenDeadLetters({open_group: 2}),
        LaneCommitted("lake.customers", Counts(1, 2, 3, 4, 5, 6), 0.2, 1),
        SourceLag("shop", 11),
        LaneUp("lake.customers", False),
        StreamPace("shop", "spark", Pace(2.5, 1200.0, 1500.0, 34)),
    ):
        telemetry.record(measured)
    return telemetry


def test_metrics_follow_the_public_contract():
    client = TestClient(PageMonitor({}, make_telemetry()).app(Daemon().views()))
    answer = client.get("/metrics")
    samples = re.findall(r"^replicator_(\w+?)(?:\{(.*?)\})? ", answer.text, re.M)
    labels: dict[str, set[str]] = {}
    for name, inside in samples:
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", inside))
    found = {name: given for name, given in labels.items() if not name.endswith("_created")}
    assert found == NAMES
    assert answer.headers["content-type"].startswith("text/plain")


def test_metrics_contain_the_recorded_values():
    text = make_telemetry().text().decode()
    outcomes = dict(re.findall(r'changes_total\{lane="lake.customers",outcome="(\w+)"\} (\S+)', text))
    assert outcomes == {
        "applied": "1.0", "folded": "2.0", "superseded": "3.0", "duplicate": "4.0", "filtered": "5.0", "rejected": "6.0",
    }  # fmt: skip
    assert 'records_consumed_total{source="shop"} 7.0' in text
    assert re.findall(r"replicator_dead_letters\{(.*)\} (\S+)", text) == [('lane="",source="shop",table=""', "2.0")]
    assert 'lane_up{lane="lake.customers"} 0.0' in text
    assert 'build_info{version="1.2.3"} 1.0' in text
    assert 'replicator_spark_batch_duration_seconds{source="shop"} 2.5' in text
    assert 'replicator_spark_lag_records{source="shop"} 34.0' in text


def test_pace_of_an_engines_stream_is_shown(daemon):
    pace = {"batch_seconds": 2.5, "input_rows_per_second": 1200.0, "processed_rows_per_second": 1500.0, "lag_records": None}
    daemon.sources = [{"name": "<b>", "pace": pace}, {"name": "other", "pace": None}]
    shown = daemon.client().get("/").text
    assert "source &lt;b&gt;: the last batch took 2.5 s, 1,200 rows/s in, 1,500 rows/s applied</p>" in shown


def open_connections(address: str, count: int, sent: bytes) -> list[socket.socket]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    connections = [socket.create_connection((host, int(port)), timeout=20) for _ in range(count)]
    for one in connections:
        with suppress(ConnectionError):
            one.sendall(sent)
    return connections


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHo", id="half a head"),
        pytest.param(b"POST /lanes/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx", id="half a body"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HTTP/1.1\r\nHo", id="half a second one"),
    ],
)
def test_incomplete_request_is_closed_after_a_time(daemon, monkeypatch, sent, caplog):
    """Connections are limited in number, and idle ones are closed for new ones."""
    monkeypatch.setattr(http_thread, "MOST", 20)
    monkeypatch.setattr(http_thread.BoundedProtocol, "_was_full", False)
    monkeypatch.setattr(http_thread, "ARRIVES", 1.0)
    monitor = PageMonitor({"address": "127.0.0.1:0", "token": "secret"}, PrometheusTelemetry("1.2.3"))
    address = monitor.start(daemon.views())
    process = psutil.Process()
    before = process.num_fds()
    try:
        held = open_connections(address, 60, sent)
        until = time.monotonic() + 20
        while process.num_fds() - before > 60 + 20 + 5:  # Sockets of this end, and of the server, which limits them.
            assert time.monotonic() < until
            time.sleep(0.01)
        for one in held:
            with suppress(ConnectionResetError):
                while one.recv(1000):  # Until the server closes it.
                    pass
            one.close()
        with urlopen(f"{address}/livez", timeout=20) as answer:
            assert answer.status == 200
    finally:
        monitor.close()
    refused = [record.levelname for record in caplog.records if "a new connection was closed" in record.message]
    # One warning each time that the server is full; closed connections may make room in between.
    assert 1 <= refused.count("WARNING") <= 3


def test_client_that_does_not_read_its_answer_is_cut_off(monkeypatch):
    """It would count among the connections for ever. One that reads slowly gets the whole answer."""
    monkeypatch.setattr(http_thread, "STALLS", 0.5)
    body = b"x" * 50_000_000
    server = http_thread.ApplicationServer("127.0.0.1:0", "http")
    host, port = server.start(Starlette(routes=[Route("/", lambda _: Response(body))])).removeprefix("http://").split(":")
    connections, until, size = server._server.server_state.connections, time.monotonic() + 20, 0
    try:
        with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as slow:
            silent.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            slow.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            size = len(silent.recv(1)) + len(slow.recv(1))
            assert len(connections) == 2
            while len(connections) == 2:
                assert time.monotonic() < until
                size += len(slow.recv(100_000)) if size < 40_000_000 else 0
                time.sleep(0.01)
            while part := slow.recv(1_000_000):
                size += len(part)
            assert size > len(body)
    finally:
        server.close()


def test_header_above_16_kib_is_refused(daemon):
    """A header of 16 KiB is accepted."""
    monitor = PageMonitor({"address": "127.0.0.1:0"}, PrometheusTelemetry("1.2.3"))
    address = monitor.start(daemon.views())
    begin = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-More: "
    try:
        for size, end, status in ((16 * 1024, b"\r\n\r\n", b"200"), (16 * 1024 + 1, b"", b"400")):
            (one,) = open_connections(address, 1, begin.ljust(size - len(end), b"x") + end)
            with one:
                assert one.recv(1000).split(b" ")[1] == status, size
                while status == b"400" and one.recv(1000):  # Until the server closes it.
                    pass
    finally:
        monitor.close()


def test_taken_address_is_reported_once(daemon, caplog):
    first = PageMonitor({"address": "127.0.0.1:0"}, PrometheusTelemetry())
    try:
        address = first.start(daemon.views()).removeprefix("http://")
        with pytest.raises(EnvironmentProblem, match=f"cannot listen on {address}"):
            PageMonitor({"address": address}, PrometheusTelemetry()).start(daemon.views())
        assert caplog.records == [], "the HTTP library logs nothing itself"
    finally:
        first.close()
        first.close()


@pytest.mark.parametrize(
    ("sentence", "step", "text"),
    [
        ("it is away", "Start it.", "it is away. Start it."),
        ("Gone.", "Look.", "Gone. Look."),
        ("it is away", "", "it is away"),
    ],
)
def test_error_text_is_whole_sentences(sentence, step, text):
    assert str(EnvironmentProblem(sentence, next_step=step)) == text
