"""The event store in PostgreSQL, in addition to its contract."""

from __future__ import annotations

import psycopg
import pytest
from support.event_writers import read_written_versions, start_event_writer, start_writing

from adapters.sinks.postgres.event_store import PostgresEventStore
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.domain.events import EventLimits, make_event
from replicator.testing.stores_contract import make_sample_event
from replicator.wiring.adapters import EventEmitter

pytestmark = pytest.mark.postgres
RELATION = "events.events"


@pytest.fixture
def store(postgres_dsn):
    opened = PostgresEventStore({"dsn": postgres_dsn})
    yield opened
    opened.close()


def test_table_accepts_only_inserts(store, postgres_dsn):
    store.append([make_sample_event(1)])
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        for statement in (f"UPDATE {RELATION} SET event_type = ''", f"DELETE FROM {RELATION}", f"TRUNCATE {RELATION}"):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="appended only"):
                connection.execute(statement)
    assert len(store.read("Customer")) == 1


@pytest.mark.parametrize("statement", [f"DROP TABLE {RELATION}", f"ALTER TABLE {RELATION} RENAME TO earlier"])
def test_table_that_was_removed_is_created_again(postgres_dsn, statement):
    """The function of its trigger stayed."""
    for number in (1, 2):
        store = PostgresEventStore({"dsn": postgres_dsn})
        store.append([make_sample_event(number)])
        store.close()
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            assert connection.execute(f"SELECT event_id FROM {RELATION}").fetchall() == [(f"event-{number}",)]
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="appended only"):
                connection.execute(f"DELETE FROM {RELATION}")
            connection.execute(statement if number == 1 else "SELECT 1")


def test_table_of_another_program_is_refused(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.taken (event_id text)")
    with pytest.raises(ConfigProblem, match=r"public\.taken"):
        PostgresEventStore({"dsn": postgres_dsn, "schema": "public", "table": "taken"}).append([make_sample_event(1)])


def test_role_with_insert_access_can_append(store, postgres_dsn):
    store.append([make_sample_event(1)])
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS events_writer")
        connection.execute("CREATE ROLE events_writer LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA events TO events_writer; GRANT SELECT ON {RELATION} TO events_writer")
        info = psycopg.conninfo.conninfo_to_dict(postgres_dsn)
        theirs = PostgresEventStore({"dsn": psycopg.conninfo.make_conninfo(**info | {"user": "events_writer"})})
        with pytest.raises(EnvironmentProblem):
            theirs.append([make_sample_event(2)])
        connection.execute(f"GRANT INSERT ON {RELATION} TO events_writer")
        assert theirs.append([make_sample_event(2)])[0].event.event_version == 2
        theirs.close()


def test_version_of_a_writer_without_a_lock_is_skipped(store, postgres_dsn):
    """That version is taken, so the next event gets the next one."""
    store.append([make_sample_event(1)])
    heads = store._table._read_heads

    def insert_meanwhile(cursor, aggregates):
        found = heads(cursor, aggregates)
        if found["Customer", "C101"].version == 1:
            with psycopg.connect(postgres_dsn, autocommit=True) as other:
                other.execute(
                    f"INSERT INTO {RELATION} SELECT 'theirs', event_type, aggregate_id, aggregate_type, event_data,"
                    f" metadata, 2, created_at FROM {RELATION}"
                )
        return found

    store._table._read_heads = insert_meanwhile
    assert store.append([make_sample_event(2)])[0].event.event_version == 3
    assert [e.event_id for e in store.read("Customer")] == ["event-1", "theirs", "event-2"]


def test_event_with_a_lost_answer_is_stored_once(store, monkeypatch):
    """The commit succeeded, and its answer was lost. The same id is stored once, whichever attempt stored it."""
    append, lost = store.append, []

    def lose_answer(events):
        done = append(events)
        if not lost:
            lost.append(done)
            raise Retryable("the connection is gone")
        return done

    monkeypatch.setattr(store, "append", lose_answer)
    (done,) = EventEmitter(store, EventLimits()).emit([make_event("C101", "Customer", "Created", {}, expected_version=0)])
    assert done.event == lost[0][0].event
    assert store.version("Customer", "C101") == 1


def test_racing_processes_append_versions_without_gaps(postgres_dsn, store):
    writers = [start_event_writer("postgres", {"dsn": postgres_dsn}, name, 20, expecting=True) for name in "ab"]
    start_writing(writers)
    acknowledged = [read_written_versions(each) for each in writers]
    found = store.read("Customer", "C101")
    assert sorted(acknowledged[0] + acknowledged[1]) == [e.event_version for e in found] == list(range(1, 41))
