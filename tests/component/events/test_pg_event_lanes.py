"""Lanes of the event store in PostgreSQL, in addition to their contract."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from support.races import run_before

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import event_store
from adapters.sinks.postgres.event_store import PostgresEventLanes, PostgresEventStore
from replicator.domain.errors import DataLoss, Fatal, ReplicatorError
from replicator.testing.event_lanes_contract import OutboxRecords, SentEvent, make_sample_event, refuse_gaps
from replicator.testing.sink_base import fail_on_rejects, refuse_rejects

pytestmark = pytest.mark.postgres
ENGINE = LocalEngine()


@pytest.fixture
def place(postgres_dsn):
    return {"dsn": postgres_dsn}


@pytest.fixture
def sink(place):
    opened = PostgresEventLanes(place)
    yield opened
    opened.close()


@pytest.fixture
def store(place):
    opened = PostgresEventStore(place)
    yield opened
    opened.close()


def apply_write(sink, write, reject=refuse_rejects):
    sink.prepare(write.lane, write.plan)
    return sink.apply([write], reject)[write.lane.id].counts


def test_events_and_position_are_one_transaction(sink, store, postgres_dsn):
    """If the connection is killed before the commit, neither is stored."""
    outbox = OutboxRecords({0: [SentEvent(0), SentEvent(1)]})
    apply_write(sink, outbox.make_write(ENGINE, 0, 1))

    def kill():
        with psycopg.connect(postgres_dsn, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE %s",
                ("replicator event store %",),
            )

    run_before(sink, "_commit", kill)
    with pytest.raises(ReplicatorError):
        apply_write(sink, outbox.make_write(ENGINE, 1, 2))
    assert len(store.read("order")) == 1 and sink.state(outbox.lane).position == outbox.make_write(ENGINE, 0, 1).span.end
    assert apply_write(sink, outbox.make_write(ENGINE, 1, 2)).applied == 1
    refuse_gaps(store.read("order"))


@pytest.mark.parametrize("most", [500, 1])
def test_emitter_waits_for_the_lane(sink, store, monkeypatch, postgres_dsn, most):
    """It waits for its aggregates; for all aggregates if the lane has more than one transaction can lock."""
    monkeypatch.setattr(event_store, "MOST_LOCKS", most)
    outbox = OutboxRecords({0: [SentEvent(0), SentEvent(1, "A2")]})
    store.append([make_sample_event(0)])
    done: list[int] = []

    def emit():
        done.append(store.append([make_sample_event(1)])[0].event.event_version)

    waiting = threading.Thread(target=emit)

    def meanwhile():
        waiting.start()
        time.sleep(0.5)
        with psycopg.connect(postgres_dsn, autocommit=True) as other:
            query = "SELECT wait_event FROM pg_stat_activity WHERE application_name LIKE %s AND state = 'active'"
            assert other.execute(query, ("replicator events %",)).fetchall() == [("advisory",)] and not done

    run_before(sink, "_commit", meanwhile)
    apply_write(sink, outbox.make_write(ENGINE, 0, 2))
    waiting.join(20)
    assert done == [3]
    assert [e.event_id for e in store.read("order", "A1")] == ["emitted-0", "sent-0", "emitted-1"]


def test_write_of_many_aggregates_is_applied(sink, store):
    outbox = OutboxRecords({0: [SentEvent(n, f"A{n % 1500}") for n in range(3000)]})
    assert apply_write(sink, outbox.make_write(ENGINE, 0, 3000)).applied == 3000
    found = store.read("order")
    refuse_gaps(found)
    assert len(found) == 3000


def test_id_stored_concurrently_for_another_aggregate_is_a_duplicate(sink, store):
    """The whole transaction is repeated, and the event is a duplicate then."""
    outbox = OutboxRecords({0: [SentEvent(0), SentEvent(1)]})
    heads = sink._events._read_heads

    def store_meanwhile(cursor, aggregates):
        sink._events._read_heads = heads
        store.append([make_sample_event(0, "A9", event_id="sent-0")])
        return heads(cursor, aggregates)

    sink._events._read_heads = store_meanwhile
    counts = apply_write(sink, outbox.make_write(ENGINE, 0, 2))
    assert (counts.applied, counts.duplicate) == (1, 1)
    assert {(e.event_id, e.aggregate_id) for e in store.read("order")} == {("sent-1", "A1"), ("sent-0", "A9")}
    refuse_gaps(store.read("order"))


def test_lane_without_its_store_is_data_loss(sink, postgres_dsn):
    outbox = OutboxRecords({0: [SentEvent(0), SentEvent(1)]})
    apply_write(sink, outbox.make_write(ENGINE, 0, 1))
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA events CASCADE")
    with pytest.raises(DataLoss, match=r"events\.events does not exist any more"):
        apply_write(sink, outbox.make_write(ENGINE, 1, 2))


def test_several_lanes_commit_together(sink, store):
    """If one lane cannot store its rejects, the other one does not commit either."""
    one, other = OutboxRecords({0: [SentEvent(0)]}), OutboxRecords({0: [SentEvent(1, payload="[]")]}, "others")
    writes = [each.make_write(ENGINE, 0, 1) for each in (one, other)]
    for write in writes:
        sink.prepare(write.lane, write.plan)
    with pytest.raises(Fatal, match="disk full"):
        sink.apply(writes, fail_on_rejects)
    assert [sink.state(write.lane) for write in writes] == [None, None] and not store.read("order")
    done = sink.apply(writes, lambda *_: None)
    assert [done[write.lane.id].counts.as_tuple() for write in writes] == [(1, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1)]
