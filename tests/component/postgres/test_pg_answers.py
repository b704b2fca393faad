"""Connections to a server that no longer answers are noticed. Long statements are not mistaken for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_table, open_sink, refuse_any_reject

from adapters.postgres import connection, literals
from adapters.postgres.connection import PostgresSession
from adapters.sinks.postgres.check import PostgresCheck
from adapters.sources.backfill import PostgresBackfill
from adapters.sources.backfill.postgres import open_walsender
from adapters.sources.query.database import QueryCheck, QueryDatabase
from adapters.sources.query.options import QuerySettings
from replicator.domain.errors import Retryable

pytestmark = pytest.mark.postgres

TABLE = make_table({"id": pa.int64(), "name": pa.string()})


class Middlebox:
    """A proxy that keeps connections open and acknowledges data. After `die` it forwards nothing on existing
    connections. With `closed` it forwards nothing on new ones either. A client that sends the text `dies_of` makes it
    die. With `slow` it delays data of clients."""

    dies_of, slow = b"", False

    def __init__(self, to: tuple[str, int]) -> None:
        self._to, self._born, self.closed = to, 0, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def die(self) -> None:
        self._born += 1

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            self._sockets += [client, server]
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other, self._born), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, born: int) -> None:
        try:
            while data := one.recv(512 if self.slow else 65536):
                if self.dies_of and self.dies_of in data:
                    self.die()
                if self.slow and other.getpeername() == self._to:
                    time.sleep(0.02)
                if born == self._born and not self.closed:
                    other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@pytest.fixture
def middlebox(postgres_dsn: str) -> Iterator[tuple[Middlebox, str]]:
    given = psycopg.conninfo.conninfo_to_dict(postgres_dsn)
    box = Middlebox(("127.0.0.1", int(str(given["port"]))))
    yield box, psycopg.conninfo.make_conninfo(postgres_dsn, port=box.port)
    box.close()


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_AFTER", 0.4), ("SURE_AFTER", 0.4), ("HURRIED", 0.4), ("LOOK_SECONDS", 2.0)):
        monkeypatch.setattr(connection, name, seconds)


def row(number: int) -> dict[str, object]:
    return {"id": number, "name": "x"}


def test_unanswered_statement_is_retried_on_a_new_connection(middlebox: tuple[Middlebox, str], short_timeouts: None) -> None:
    box, dsn = middlebox
    feed = LaneWrites(TABLE)
    with open_sink(dsn) as sink:
        apply_write(sink, feed.write(row(1)))
        box.die()
        write = feed.write(row(2))
        with pytest.raises(Retryable, match="has not answered"):
            sink.apply([write], refuse_any_reject)
        assert sink.apply([write], refuse_any_reject)[feed.lane.id].counts.applied == 1
    assert fetch_rows(dsn, "SELECT id FROM mirror.items ORDER BY id") == [(1,), (2,)]


def test_long_statement_keeps_its_connection(middlebox: tuple[Middlebox, str], short_timeouts: None) -> None:
    _, dsn = middlebox
    feed = LaneWrites(TABLE)
    with open_sink(dsn, answer_timeout="500 milliseconds") as sink:
        apply_write(sink, feed.write(row(1)))
        fetch_rows(
            dsn, "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NEW; END'"
        )
        fetch_rows(dsn, "CREATE TRIGGER pause BEFORE INSERT ON mirror.items FOR EACH ROW EXECUTE FUNCTION pause()")
        assert apply_write(sink, feed.write(row(2))).counts.applied == 1
        assert sink.session.generation == 1


def test_slow_network_keeps_its_connection(
    middlebox: tuple[Middlebox, str], short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data may travel for longer than the time after which the server is checked."""
    monkeypatch.setattr(literals, "MESSAGE_BYTES", 512)
    box, dsn = middlebox
    feed = LaneWrites(TABLE)
    with open_sink(dsn) as sink:
        apply_write(sink, feed.write(row(1)))
        box.slow = True
        assert sink.apply([feed.write(*map(row, range(2, 800)))], refuse_any_reject)[feed.lane.id].counts.applied == 798
        box.slow = False
        assert sink.session.generation == 1


def test_one_failed_check_does_not_end_a_statement(
    middlebox: tuple[Middlebox, str], short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check fails, for example, while the server has too many clients."""
    _, dsn = middlebox
    looks, look = iter([(None, None)]), connection.read_backend_activity
    monkeypatch.setattr(connection, "read_backend_activity", lambda *args: next(looks, look(*args)))
    with open_sink(dsn, answer_timeout="100 milliseconds") as sink, sink.session.cursor("waiting") as cursor:
        assert cursor.execute("SELECT pg_sleep(2)").fetchone() is not None
    assert next(looks, "looked") == "looked"


def test_answer_timeout_applies_while_no_connection_can_be_opened(
    middlebox: tuple[Middlebox, str], short_timeouts: None
) -> None:
    box, dsn = middlebox
    feed = LaneWrites(TABLE)
    with open_sink(dsn, answer_timeout="3 seconds") as sink:
        apply_write(sink, feed.write(row(1)))
        box.closed, began = True, time.monotonic()
        with pytest.raises(Retryable, match="no other connection either"):
            sink.apply([feed.write(row(2))], refuse_any_reject)
        assert time.monotonic() - began > 3


def test_shutdown_does_not_wait_for_an_unanswered_statement(middlebox: tuple[Middlebox, str]) -> None:
    box, dsn = middlebox
    feed = LaneWrites(TABLE)
    with open_sink(dsn) as sink:
        apply_write(sink, feed.write(row(1)))
        box.die()
        threading.Timer(0.5, sink.hurry).start()
        began = time.monotonic()
        with pytest.raises(Retryable, match="has not answered"):
            sink.apply([feed.write(row(2))], refuse_any_reject)
        assert time.monotonic() - began < 20 < connection.LOOK_AFTER


def make_url(dsn: str) -> str:
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    return "postgresql://{user}@{host}:{port}/{dbname}".format(**given)


def create_query_database(dsn: str) -> QueryDatabase:
    fetch_rows(dsn, "CREATE TABLE sales (id bigint PRIMARY KEY)")
    given = {"dsn": make_url(dsn), "table": "sales", "cursor_column": "id", "keys": ("id",), "state": "."}
    return QueryDatabase(QuerySettings.read(given))


def test_query_source_fails_on_an_unanswered_query_and_recovers(
    middlebox: tuple[Middlebox, str], short_timeouts: None
) -> None:
    box, dsn = middlebox
    query_database = create_query_database(dsn)
    with pytest.raises(Retryable, match="has not answered"), query_database.connect() as reading:
        box.die()
        reading.read_highest()
    with query_database.connect() as reading:
        assert reading.read_highest() is None


def test_cancelled_query_source_does_not_wait_for_an_answer(middlebox: tuple[Middlebox, str]) -> None:
    box, dsn = middlebox
    query_database = create_query_database(dsn)
    began = time.monotonic()
    with pytest.raises(Retryable, match="has not answered"), query_database.connect() as reading:
        box.die()
        threading.Timer(0.5, query_database.cancel).start()
        reading.read_highest()
    assert time.monotonic() - began < 20 < connection.LOOK_AFTER


def test_backfill_fails_if_a_replication_command_is_unanswered(
    middlebox: tuple[Middlebox, str], short_timeouts: None, tmp_path: Path
) -> None:
    box, dsn = middlebox
    fetch_rows(dsn, "CREATE TABLE items (id bigint PRIMARY KEY)")
    fetch_rows(dsn, "CREATE PUBLICATION shop FOR TABLE items")
    fetch_rows(dsn, f"SELECT pg_create_logical_replication_slot('{tmp_path.name}', 'pgoutput')")
    options = {"dsn": dsn, "publication": "shop", "slot": tmp_path.name, "table": "public.items", "state": str(tmp_path)}
    try:
        box.dies_of = b"IDENTIFY_SYSTEM"
        with pytest.raises(Retryable, match="has not answered"):
            PostgresBackfill(options).rows(print)
    finally:
        box.dies_of = b""
        fetch_rows(dsn, f"SELECT pg_drop_replication_slot('{tmp_path.name}')")


def test_replication_commands_wait_for_open_transactions(middlebox: tuple[Middlebox, str], short_timeouts: None) -> None:
    _, dsn = middlebox
    fetch_rows(dsn, "CREATE TABLE items (id bigint PRIMARY KEY)")
    with (
        psycopg.connect(dsn) as changing,
        closing(open_walsender(PostgresSession(dsn, "backfill", answer_timeout=0.5))) as sender,
    ):
        changing.execute("INSERT INTO items VALUES (1)")
        began = time.monotonic()
        threading.Timer(4, changing.commit).start()
        assert sender.execute(b"CREATE_REPLICATION_SLOT waiting TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT").fetchone()
        assert time.monotonic() - began > 3


def test_doctor_reports_a_server_that_does_not_answer(middlebox: tuple[Middlebox, str], short_timeouts: None) -> None:
    box, dsn = middlebox
    box.dies_of = b"SELECT"
    given = {"dsn": make_url(dsn), "table": "sales", "cursor_column": "id", "keys": ("id",)}
    for check in (PostgresCheck("target", {"dsn": dsn, "schema": "public"}), QueryCheck("source", given)):
        found = [one for one in check.diagnose() if "has not answered" in one.sentence]
        assert [one.severity for one in found] == ["error"] and found[0].next_step
