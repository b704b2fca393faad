"""Connections that break, servers that restart, writers that are killed: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import closing

import psycopg
import pyarrow as pa
import pytest
from paths import PROJECT, TESTS
from support.pg_case import TOPIC, LaneWrites, apply_write, fetch_rows, make_table, open_sink, refuse_any_reject

from adapters.postgres import connection
from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.errors import EnvironmentProblem, Fenced, Retryable

pytestmark = pytest.mark.postgres

TABLE = make_table({"id": pa.int64(), "name": pa.string()})
ROWS = [{"id": i, "name": f"name {i}"} for i in range(50)]
MANY = [{"id": i, "name": f"name {i}"} for i in range(1, 400)]
"""Too many to travel with the statement: they are copied into the staging table."""


def count(dsn: str) -> int:
    return fetch_rows(dsn, "SELECT count(*) FROM mirror.items")[0][0]


def offset(sink: PostgresSink, feed: LaneWrites) -> int:
    state = sink.state(feed.lane)
    return state.position[TOPIC] if state else 0


def kill_when(dsn: str, started: threading.Event, query: str) -> threading.Thread:
    """Ends the sink's backend as soon as it is seen waiting in a statement like `query`."""

    def run() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            started.set()
            for _ in range(2000):
                found = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'replicator sink%%' "
                    "AND datname = current_database() AND query ~ %s AND wait_event = 'PgSleep'",
                    (query,),
                ).fetchall()
                if found:
                    return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("where", "query"),
    [
        ("BEFORE INSERT ON mirror.items FOR EACH ROW", "MERGE"),
        ("AFTER UPDATE ON _replicator.positions FOR EACH ROW", "UPDATE"),
    ],
)
@pytest.mark.parametrize("rows", [ROWS[1:], MANY], ids=["few", "many"])
def test_terminated_backend_is_retryable(postgres_dsn: str, where: str, query: str, rows: list) -> None:
    """During MERGE, and while the position is written: nothing is applied, and the same write is applied once
    afterwards."""
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(ROWS[0]))
        pause = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END'"
        fetch_rows(postgres_dsn, pause)
        fetch_rows(postgres_dsn, f"CREATE TRIGGER pause {where} EXECUTE FUNCTION pause()")
        write, started = feed.write(*rows), threading.Event()
        killer = kill_when(postgres_dsn, started, query)
        started.wait()
        with pytest.raises(Retryable):
            sink.apply([write], refuse_any_reject)
        killer.join()
        fetch_rows(postgres_dsn, f"DROP TRIGGER pause ON {'mirror.items' if query == 'MERGE' else '_replicator.positions'}")
        assert offset(sink, feed) == 1
        assert sink.apply([write], refuse_any_reject)[feed.lane.id].counts.applied == len(rows)
        assert (count(postgres_dsn), offset(sink, feed)) == (len(rows) + 1, len(rows) + 1)


def test_connection_lost_during_copy_is_retryable(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapters.postgres import literals

    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(ROWS[0]))
        encode = literals.to_csv

        def lose(batch: pa.RecordBatch, forms: list[str]) -> memoryview:
            fetch_rows(
                postgres_dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'replicator sink%'",
            )
            return encode(batch, forms)

        write = feed.write(*MANY)
        monkeypatch.setattr(literals, "to_csv", lose)
        with pytest.raises(Retryable):
            sink.apply([write], refuse_any_reject)
        monkeypatch.undo()
        assert sink.apply([write], refuse_any_reject)[feed.lane.id].counts.applied == 399
        assert (count(postgres_dsn), offset(sink, feed)) == (400, 400)


@pytest.mark.parametrize("landed", [True, False])
def test_write_is_applied_once_if_the_answer_of_commit_is_lost(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Whether the commit succeeded or not, the caller reads the state and repeats the write."""
    from adapters.sinks.postgres.lanes import PostgresLanes

    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(ROWS[0]))
        commit = PostgresLanes._commit

        def lose(self, pending, outcomes, completes):
            if landed:
                commit(self, pending, outcomes, completes)
            fetch_rows(
                postgres_dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'replicator sink%'",
            )
            pending.cursor.execute("SELECT 1") if landed else commit(self, pending, outcomes, completes)

        write = feed.write(*ROWS[1:])
        monkeypatch.setattr(PostgresLanes, "_commit", lose)
        with pytest.raises(Retryable):
            sink.apply([write], refuse_any_reject)
        monkeypatch.undo()
        assert offset(sink, feed) == (50 if landed else 1)
        counts = sink.apply([write], refuse_any_reject)[feed.lane.id].counts
        assert (counts.applied, counts.duplicate) == ((0, 49) if landed else (49, 0))
        assert (count(postgres_dsn), offset(sink, feed)) == (50, 50)


def test_writes_resume_after_a_server_restart(postgres_server) -> None:
    server = type(postgres_server)()
    server.start()
    try:
        dsn, feed = server.database(), LaneWrites(TABLE)
        with open_sink(dsn) as sink:
            apply_write(sink, feed.write(ROWS[0]))
            server.run("pg_ctl", "stop", "-w", "-m", "fast")
            write = feed.write(*ROWS[1:])
            for _ in range(2):
                with pytest.raises(Retryable):
                    sink.apply([write], refuse_any_reject)
            with pytest.raises(Retryable):
                sink.state(feed.lane)
            options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
            server.run("pg_ctl", "start", "-w", "-l", str(server.folder / "log"), "-o", options)
            assert sink.apply([write], refuse_any_reject)[feed.lane.id].counts.applied == 49
            assert count(dsn) == 50
    finally:
        server.stop()


def test_instance_with_a_broken_connection_is_fenced(postgres_dsn: str) -> None:
    """When the first instance reconnects, it finds a higher epoch, and stops without finishing its write."""
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as first, open_sink(postgres_dsn) as second:
        apply_write(first, feed.write(ROWS[0]))
        fetch_rows(
            postgres_dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'replicator sink%'",
        )
        write = feed.write(ROWS[1])
        assert apply_write(second, write).counts.applied == 1
        second.close()
        with pytest.raises(Retryable):
            first.apply([write], refuse_any_reject)
        with pytest.raises(Fenced, match="taken over"):
            first.apply([write], refuse_any_reject)
        assert count(postgres_dsn) == 2


def test_backend_of_a_lost_connection_is_terminated_first(postgres_dsn: str) -> None:
    """That backend still holds the lock of the lane and an open transaction."""
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(ROWS[0]))
        lost = sink.session.connection
        lost.execute("BEGIN")
        lost.execute("UPDATE _replicator.positions SET writer = 'late'")
        sink.session._connection = None
        assert apply_write(sink, feed.write(ROWS[1])).counts.applied == 1
        with pytest.raises(psycopg.Error):
            lost.execute("COMMIT")
        lost.close()


def test_second_instance_is_refused_and_the_error_names_the_lock_holder(postgres_dsn: str) -> None:
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as first, open_sink(postgres_dsn) as second:
        apply_write(first, feed.write(ROWS[0]))
        pid = fetch_rows(postgres_dsn, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'")[0][0]
        for call in (lambda: second.prepare(feed.lane, feed.plan), lambda: second.reset(feed.lane)):
            with pytest.raises(Fenced, match=f"server process {pid}, 'replicator sink"):
                call()
        assert apply_write(first, feed.write(ROWS[1])).counts.applied == 1


KILLS = int(os.environ.get("REPLICATOR_KILLS", "10"))
VICTIM = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from support.pg_case import LaneWrites, make_table, refuse_any_reject
import pyarrow as pa
from adapters.sinks.postgres.sink import PostgresSink
feed = LaneWrites(make_table({{"id": pa.int64(), "name": pa.string()}}))
sink = PostgresSink({{"dsn": {dsn!r}, "schema": "mirror"}})
sink.prepare(feed.lane, feed.plan)
state = sink.state(feed.lane)
feed.offset = min(state.position.values()) if state else 0
print("ready", flush=True)
while True:
    start = feed.offset
    sink.apply([feed.write(*({{"id": i, "name": "x" * 50}} for i in range(start, start + 300)))], refuse_any_reject)
    print(feed.offset, flush=True)
"""


@pytest.mark.slow
def test_kill_9_and_immediate_restart_resume_at_the_committed_position(postgres_dsn: str) -> None:
    """A writer is killed many times during its work. The next writer starts at once."""
    code = VICTIM.format(root=str(PROJECT), tests=str(TESTS), dsn=postgres_dsn)
    last = 0
    for round_ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout.readline().strip() == "ready"
            for _ in range(round_ % 3):
                last = max(last, int(victim.stdout.readline()))
            victim.kill()
        rows = count(postgres_dsn)
        states = fetch_rows(
            postgres_dsn, "SELECT (state->'position'->'cdc.public.items'->>'0')::int FROM _replicator.positions"
        )
        assert rows == (states[0][0] or 0) >= last
    assert last > 0
    assert fetch_rows(postgres_dsn, "SELECT count(*), count(DISTINCT id), max(id) + 1 FROM mirror.items") == [
        (rows, rows, rows)
    ]


def test_read_only_role_gets_a_remedy(postgres_dsn: str) -> None:
    fetch_rows(postgres_dsn, "CREATE ROLE reader_of_nothing LOGIN")
    try:
        dsn = postgres_dsn.replace("user=tester", "user=reader_of_nothing")
        with open_sink(dsn) as sink, pytest.raises(EnvironmentProblem, match=r"permission denied.*Grant"):
            apply_write(sink, LaneWrites(TABLE).write(ROWS[0]))
        dsn = postgres_dsn.replace("user=tester", "user=nobody_here")
        with open_sink(dsn) as sink, pytest.raises(EnvironmentProblem, match="refused the connection"):
            apply_write(sink, LaneWrites(TABLE).write(ROWS[0]))
    finally:
        fetch_rows(postgres_dsn, "DROP ROLE reader_of_nothing")


def test_lock_held_by_another_session_times_out_and_is_retryable(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement does not wait for the lock for ever. The repeated write is applied once."""
    monkeypatch.setitem(connection.SETTINGS, "lock_timeout", "200ms")
    feed = LaneWrites(TABLE)
    with open_sink(postgres_dsn) as sink, closing(psycopg.connect(postgres_dsn)) as other:
        apply_write(sink, feed.write(ROWS[0]))
        other.execute("LOCK TABLE mirror.items IN ACCESS EXCLUSIVE MODE")
        write = feed.write(*ROWS[1:])
        for _ in range(2):
            with pytest.raises(Retryable, match=r"lock timeout \(SQLSTATE 55P03\)") as refused:
                sink.apply([write], refuse_any_reject)
        [query] = re.findall(r"`(SELECT .*?)`", refused.value.next_step)
        [pid] = [pid for pid, *held, _ in fetch_rows(postgres_dsn, query) if held == ["mirror.items", "AccessExclusiveLock"]]
        assert pid == other.info.backend_pid
        fetch_rows(postgres_dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
        assert sink.apply([write], refuse_any_reject)[feed.lane.id].counts.applied == len(ROWS) - 1
    assert count(postgres_dsn) == len(ROWS)


def test_unreachable_server_is_retryable(postgres_dsn: str) -> None:
    with open_sink("host=127.0.0.1 port=1 user=x password=secret dbname=x") as sink:
        with pytest.raises(Retryable) as error:
            sink.state(LaneWrites(TABLE).lane)
        assert "secret" not in str(error.value)


def test_unusable_session_is_replaced(postgres_dsn: str) -> None:
    """For example a session opened while the database was read-only, or one with a prepared statement whose table has
    changed."""
    feed, name = LaneWrites(TABLE), psycopg.conninfo.conninfo_to_dict(postgres_dsn)["dbname"]
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(ROWS[0]))
    writable = f"{postgres_dsn} options='-c default_transaction_read_only=off'"
    fetch_rows(postgres_dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with open_sink(postgres_dsn) as sink:
        write = feed.write(ROWS[1])
        for _ in range(2):
            with pytest.raises(Retryable, match="25006"):
                apply_write(sink, write)
        fetch_rows(writable, f"ALTER DATABASE {name} RESET default_transaction_read_only")
        assert apply_write(sink, write).counts.applied == 1
        fetch_rows(postgres_dsn, "ALTER TABLE _replicator.positions ALTER writer TYPE varchar(200)")
        write = feed.write(ROWS[2])
        with pytest.raises(Retryable, match="0A000"):
            apply_write(sink, write)
        assert apply_write(sink, write).counts.applied == 1 and count(postgres_dsn) == 3
