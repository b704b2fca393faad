"""Connections to a MariaDB server that accepts them and never answers end at a timeout."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.sources.backfill import mariadb
from adapters.sources.backfill.mariadb import MariaDbBackfill, MariaDbCheck
from adapters.sources.query import database
from adapters.sources.query.database import QueryCheck, QueryDatabase
from adapters.sources.query.options import QuerySettings
from replicator.domain.errors import Retryable

QUERY = {"table": "sales", "cursor_column": "id", "keys": ("id",)}


@pytest.fixture
def dsn() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"mariadb://cdc:cdc@127.0.0.1:{silent.getsockname()[1]}/shop"


@pytest.fixture(autouse=True)
def _limit_duration() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 20


def test_doctor_reports_a_server_that_does_not_answer(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BRIEF", 1)
    monkeypatch.setattr(mariadb, "ANSWER_SECONDS", 1)
    for one in (QueryCheck("source", {"dsn": dsn, **QUERY}), MariaDbCheck("source", {"dsn": dsn})):
        (found,) = one.diagnose()
        assert found.severity == "error" and "timed out" in found.sentence and found.next_step


def test_read_timeout_of_the_url_limits_the_wait(dsn: str, tmp_path: Path) -> None:
    patient = f"{dsn}?read_timeout=1"
    with (
        pytest.raises(Retryable, match="timed out") as refused,
        QueryDatabase(QuerySettings.read({"dsn": patient, "state": ".", **QUERY})).connect(),
    ):
        pass
    assert "read_timeout" in refused.value.next_step
    with pytest.raises(Retryable, match="timed out"):
        MariaDbBackfill({"dsn": patient, "table": "shop.sales", "state": str(tmp_path)}).rows(print)
