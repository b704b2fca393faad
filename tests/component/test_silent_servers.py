"""A server that accepts connections and requests, and never answers: each wait ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from adapters.delta.errors import translate_errors
from adapters.delta.stored_folder import StoredFolder
from adapters.delta.tables import open_table
from adapters.kafka import schema_registry
from adapters.object_store import options
from adapters.observability import openlineage
from replicator.domain.errors import Retryable
from replicator.ports.options import RegistrySettings

LONGEST = 20.0
"""Enough for timeouts of one second with one or two retries."""


@pytest.fixture
def silent_server() -> Iterator[str]:
    """HOST:PORT of the server."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def accept_all() -> None:
        with suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])

    threading.Thread(target=accept_all, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    assert accepted, "no client has connected"
    for one in (listener, *accepted):
        one.close()


@pytest.fixture
def folder(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> StoredFolder:
    for name in ("RETRY_SECONDS", "CONNECT_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(options, name, 1)
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-west-1"}
    at = {"endpoint": f"http://{silent_server}", "allow_http": True}
    return StoredFolder.from_path("s3://bucket/lake/t", options.Storage.model_validate({**keys, **at}))


@pytest.fixture(autouse=True)
def _limit_duration() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < LONGEST


def test_wait_for_a_schema_registry_ends(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SECONDS", 1)
    with pytest.raises(Retryable, match="does not answer"):
        schema_registry.Registry(RegistrySettings.model_validate({"url": f"http://{silent_server}"})).read_schema(1)


def test_wait_for_an_object_store_ends(folder: StoredFolder) -> None:
    with pytest.raises(Retryable, match="the object store of s3://bucket/lake/t"):
        folder.has_table()


def test_wait_of_delta_rs_for_an_object_store_ends(folder: StoredFolder) -> None:
    with pytest.raises(Retryable, match="the object store of"), translate_errors("t"):
        open_table(folder)


def test_wait_for_a_lineage_server_ends(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openlineage, "SECONDS", 1.0)
    with pytest.raises(Retryable, match="does not answer"):
        openlineage.HttpLineage({"url": f"http://{silent_server}/api/v1/lineage"}).send_event({"number": 1})
