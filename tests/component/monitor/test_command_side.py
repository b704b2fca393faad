"""`POST /events`: accepted clients, and answers."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from adapters.http.server import HttpServer
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.domain.events import EventLimits
from replicator.ports.runtime import Endpoints
from replicator.testing.stores_contract import FakeEventStore
from replicator.wiring.adapters import EventEmitter

TOKEN = "Ü-token"
MOST = 2_000
NO_READS: Any = None
CREATED = {
    "aggregate_id": "C101",
    "aggregate_type": "Customer",
    "event_type": "CustomerCreated",
    "event_data": {"name": "Alice Johnson", "limit": 1.10, "vip": None, "tags": ["a", {"b": 1}]},
}


@pytest.fixture
def store():
    return FakeEventStore()


@pytest.fixture
def post(store):
    emitting = EventEmitter(store, EventLimits(MOST, entries=10, depth=5), patience=0)
    side = HttpServer({"token": TOKEN, "message_bytes": MOST})
    client = TestClient(side.app(emitting.emit, NO_READS), raise_server_exceptions=False)

    def send(body, token=TOKEN, kind="application/json"):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": kind, **({"authorization": f"Bearer {token}".encode()} if token else {})}
        return client.post("/events", content=content, headers=headers)

    return send


def test_event_is_stored(post, store):
    answer = post({**CREATED, "metadata": {"who": "me"}, "expected_version": 0})
    assert answer.status_code == 201
    body = answer.json()
    (event,) = store.read("Customer", "C101")
    assert body == {
        "event_id": event.event_id,
        "event_type": "CustomerCreated",
        "aggregate_id": "C101",
        "aggregate_type": "Customer",
        "event_data": {"name": "Alice Johnson", "limit": "1.1", "vip": None, "tags": '["a",{"b":1}]'},
        "metadata": {"who": "me"},
        "event_version": 1,
        "created_at": body["created_at"],
        "is_new": True,
    }
    assert body["event_data"] == event.event_data


def test_numbers_keep_their_digits(post, store):
    data = b'{"a": 1.10, "b": 12345678901234567890.5}'
    post(b'{"aggregate_id": "1", "aggregate_type": "T", "event_type": "E", "event_data": ' + data + b"}")
    assert store.read("T")[0].event_data == {"a": "1.10", "b": "12345678901234567890.5"}


def test_repeated_event_returns_the_stored_one(post, store):
    first = post({**CREATED, "event_id": "e1", "expected_version": 0})
    again = post({**CREATED, "event_id": "e1", "expected_version": 0, "event_data": {}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "is_new": False}
    assert len(store.events) == 1


def test_version_conflict_returns_the_stored_version(post):
    post(CREATED)
    answer = post({**CREATED, "expected_version": 0})
    assert answer.status_code == 409
    assert {name: answer.json()[name] for name in ("expected", "found")} == {"expected": 0, "found": 1}


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_request_without_the_token_is_refused(post, store, token):
    assert post(CREATED, token=token).status_code == 401
    assert not store.events


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b'{"event_data": {"a": ' + b"[" * 1000, 400, "not JSON"),
        (b"[]", 422, "object"),
        ({**CREATED, "aggregate_id": None}, 422, "aggregate_id"),
        ({**CREATED, "aggregate_id": " "}, 422, "aggregate_id is empty"),
        ({**CREATED, "aggregate_id": 7}, 422, "aggregate_id"),
        ({**CREATED, "aggregate_type": "x" * 241}, 422, "aggregate_type"),
        ({**CREATED, "event_type": ""}, 422, "event_type is empty"),
        ({**CREATED, "event_id": ""}, 422, "event_id is empty"),
        ({**CREATED, "event_id": "a\0b"}, 422, "NUL"),
        ({**CREATED, "event_data": []}, 422, "event_data"),
        ({**CREATED, "event_data": {"a": "\0"}}, 422, "NUL"),
        (
            b'{"aggregate_id": "1", "aggregate_type": "T", "event_type": "E", "event_data": {"a": "\\ud800"}}',
            400,
            "not JSON",
        ),
        ({**CREATED, "event_data": {str(n): 1 for n in range(11)}}, 422, "10 entries"),
        ({**CREATED, "event_data": {"a": [[[[[[1]]]]]]}}, 422, "5 levels"),
        ({**CREATED, "metadata": "x"}, 422, "metadata"),
        ({**CREATED, "expected_version": -1}, 422, "expected_version"),
        ({**CREATED, "expected_version": "1"}, 422, "expected_version"),
        ({**CREATED, "expected_version": True}, 422, "expected_version"),
        ({**CREATED, "expectedVersion": 1}, 422, "expectedVersion"),
        ({name: value for name, value in CREATED.items() if name != "event_data"}, 422, "event_data"),
        ({**CREATED, "event_data": {"a": "x" * MOST}}, 413, "2000 bytes"),
    ],
)
def test_invalid_event_is_refused(post, store, body, status, message):
    answer = post(body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]
    assert not store.events


def test_other_content_type_is_refused(post):
    """Pages of other sites can send only such types."""
    assert post(CREATED, kind="text/plain").status_code == 415


def test_unreachable_store_returns_503_without_details(post, store, monkeypatch):
    def away(_events):
        raise Retryable("secret-host is away")

    monkeypatch.setattr(store, "append", away)
    answer = post(CREATED)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "secret-host" not in answer.text


def test_token_is_required(store):
    for options in ({}, {"token": None}):
        with pytest.raises(ConfigProblem, match="token"):
            HttpServer(options).start(Endpoints(store.append, NO_READS))


def test_close_waits_for_open_requests(store):
    """After `close` no request is answered. A taken address is reported."""
    began, go = threading.Event(), threading.Event()

    def slow(events):
        began.set()
        assert go.wait(10)
        return store.append(events)

    side = HttpServer({"token": "t", "address": "127.0.0.1:0"})
    host = side.start(Endpoints(slow, NO_READS)).removeprefix("http://")
    with pytest.raises(EnvironmentProblem, match="serve"):
        HttpServer({"token": "t", "address": host}).start(Endpoints(slow, NO_READS))
    connection = http.client.HTTPConnection(host, timeout=10)
    headers = {"authorization": "Bearer t", "content-type": "application/json"}
    connection.request("POST", "/events", json.dumps(CREATED), headers)
    assert began.wait(10)
    closing = threading.Thread(target=side.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    go.set()
    assert connection.getresponse().status == 201
    closing.join(10)
    assert len(store.events) == 1
    with pytest.raises(OSError):
        http.client.HTTPConnection(host, timeout=2).request("GET", "/livez")
