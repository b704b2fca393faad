"""The Kafka source against a real broker."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from servers.kafka import make_producer
from support.kafka_fixtures import BatchCollector, Broker, FollowingRun

from adapters.sources.kafka.cluster import Cluster
from adapters.sources.kafka.options import KafkaSettings
from adapters.sources.kafka.reader import PartitionReader
from adapters.sources.kafka.source import KafkaSource
from adapters.sources.kafka.topic_poller import MAX_REFUSALS, TopicPoller
from replicator.domain.change import RAW
from replicator.domain.errors import DataLoss, Retryable
from replicator.domain.position import Position, TopicPartition

pytestmark = pytest.mark.stack
Make = Callable[..., KafkaSource]
Follow = Callable[..., FollowingRun]


def run_once(source: KafkaSource, start: Position | None = None) -> BatchCollector:
    seen = BatchCollector(start or Position())
    source.run(start or Position(), seen, threading.Event(), once=True)
    return seen


def make_position(topic: str, offset: int, partition: int = 0) -> Position:
    return Position({TopicPartition(topic, partition): offset})


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def test_frame_holds_records_as_they_were_sent(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    producer = make_producer(broker.address)
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    producer.produce(topic, key=b"k\x00", value=b"v", headers=headers, timestamp=1_700_000_000_123)
    producer.produce(topic, key=None, value=None, headers=[])
    producer.produce(topic, key=b"", value=b"")
    assert producer.flush(20) == 0
    # The broker may return them in several answers.
    batches = [b for b in run_once(source_of(topic)).batches if b.records]
    assert all(b.frame.schema == RAW for b in batches)
    rows = [row for b in batches for row in b.frame.to_pylist()]
    assert rows[0]["headers"] == [{"name": n, "value": v} for n, v in headers]
    assert (rows[0]["key"], rows[0]["value"]) == (b"k\x00", b"v")
    assert rows[0]["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert (rows[1]["key"], rows[1]["value"], rows[1]["headers"]) == (None, None, None)
    assert (rows[2]["key"], rows[2]["value"]) == (b"", b"")
    assert sum(b.size for b in batches) == 3
    assert all(b.identity == {topic: broker.topic_id(topic)} for b in batches)


def test_run_once_ends_at_the_end_and_resumes_from_there(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic, partitions=2)
    broker.produce(topic, numbers(7))
    seen = run_once(source_of(topic))
    assert seen.offsets(topic) == list(range(7))
    assert seen.position == {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0}
    broker.produce(topic, numbers(3))
    later = run_once(source_of(topic), Position(seen.position))
    assert later.offsets(topic) == [7, 8, 9]


def test_run_once_does_not_read_records_that_arrive_during_it(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(5))
    seen, more = BatchCollector(), itertools.chain([True], itertools.repeat(False))

    def apply(batch: object) -> None:
        if next(more):
            broker.produce(topic, numbers(5))
        seen(batch)  # type: ignore[arg-type]

    source_of(topic).run(Position(), apply, threading.Event(), once=True)
    assert seen.offsets(topic) == list(range(5))


def test_batches_are_bounded_and_ordered_over_topics(broker: Broker, source_of: Make) -> None:
    prefix = f"many.{uuid4().hex[:8]}"
    names = [f"{prefix}.{n}" for n in "abc"]
    broker.create(*names, partitions=2)
    for name, partition in itertools.product(names, range(2)):
        broker.produce(name, numbers(500), partition)
    seen = run_once(source_of(f"{prefix}.*", batch_records=100, batch_bytes=1000))
    for name, partition in itertools.product(names, range(2)):
        assert seen.offsets(name, partition) == list(range(500))
    assert max(b.records for b in seen.batches) <= 501
    assert len([b for b in seen.batches if b.records]) > 5


def test_error_of_consume_batch_ends_the_run(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(1))

    def fail(_batch: object) -> None:
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        source_of(topic).run(Position(), fail, threading.Event(), once=False)


def test_position_covers_aborted_records_and_markers(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.transact(topic, numbers(3))
    broker.transact(topic, numbers(4), commit=False)
    broker.transact(topic, numbers(2))
    broker.transact(topic, numbers(5), commit=False)
    source = source_of(topic)
    seen = run_once(source)
    assert seen.offsets(topic) == [0, 1, 2, 9, 10]
    assert seen.position == dict(source.end()) == {TopicPartition(topic, 0): 18}
    assert run_once(source, Position(seen.position)).rows == []
    assert source.losses(Position(seen.position), {}) == {}


def test_open_transaction_is_not_read_before_its_commit(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    producer = make_producer(broker.address, **{"transactional.id": f"t-{uuid4()}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, value=b"open")
    assert producer.flush(20) == 0
    source = source_of(topic)
    assert run_once(source).rows == []
    producer.commit_transaction(20)
    broker.await_ends_of_transactions(topic)
    assert run_once(source).offsets(topic) == [0]


def test_markers_advance_the_position_while_streaming(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str
) -> None:
    broker.create(topic)
    run = follow_source(source_of(topic))
    broker.transact(topic, numbers(2))
    run.await_condition(lambda: run.seen.position.get(TopicPartition(topic, 0)) == 3)
    assert run.end().offsets(topic) == [0, 1]


def test_idle_source_sends_an_empty_batch_every_second(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str
) -> None:
    broker.create(topic)
    run = follow_source(source_of(topic))
    run.await_condition(lambda: len(run.seen.batches) >= 4, 8)
    assert not any(b.records for b in run.end().batches)


def test_new_topics_and_partitions_are_read_from_their_start(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str
) -> None:
    broker.create(topic)
    run = follow_source(source_of(f"{topic}*", start_from="latest"))
    run.await_condition(lambda: bool(run.seen.batches))
    other = f"{topic}2"
    broker.create(other)
    broker.produce(other, numbers(3))
    broker.grow(topic, 2)
    broker.produce(topic, numbers(2), partition=1)
    run.await_condition(lambda: len(run.seen.rows) == 5)
    seen = run.end()
    assert seen.offsets(other) == [0, 1, 2]
    assert seen.offsets(topic, 1) == [0, 1]
    assert set(seen.batches[-1].identity) == {topic, other}


def test_known_topics_do_not_wait_for_checks_of_new_topics(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks get no answer until more records of the old topic have arrived. New topics start one at a time."""
    checks: list[str] = []
    seen_enough = threading.Event()

    def hold_call(check: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wait(*args: Any, **named: Any) -> Any:
            checks.append(name)
            count = len(run.seen.offsets(topic))
            broker.produce(topic, numbers(3))
            run.await_condition(lambda: len(run.seen.offsets(topic)) >= count + 3 or seen_enough.is_set())
            return check(*args, **named)

        return wait

    broker.create(topic)
    run = follow_source(source_of(f"{topic}*"))
    run.await_condition(lambda: bool(run.seen.batches))
    monkeypatch.setattr(TopicPoller, "_find_new", hold_call(TopicPoller._find_new, "search"))
    monkeypatch.setattr(PartitionReader, "_reaches_broker", hold_call(PartitionReader._reaches_broker, "look"))
    fresh = [f"{topic}.{n}" for n in range(8)]
    broker.create(*fresh)
    for name in fresh:
        broker.produce(name, numbers(1))
    run.await_condition(lambda: {t for t, _, _ in run.seen.rows} == {topic, *fresh}, 300)
    seen_enough.set()  # A check that is held from now on would get no more records.
    begun: set[str] = {topic}
    for batch in run.seen.batches:
        found = {place.topic for place in batch.span.end}
        assert len(found - begun) <= 1
        begun |= found


def test_pattern_without_topics_waits_for_one(broker: Broker, source_of: Make, follow_source: Follow, topic: str) -> None:
    source = source_of(f"^{topic}$")
    assert set(source.unmatched()) == {f"^{topic}$"}
    run = follow_source(source)
    run.await_condition(lambda: bool(run.seen.batches))
    broker.create(topic)
    broker.produce(topic, numbers(1))
    run.await_condition(lambda: run.seen.offsets(topic) == [0])
    assert not source.unmatched()


def test_start_from_sets_the_first_offset(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(4))
    between = datetime.now(UTC) + timedelta(seconds=1)
    producer = make_producer(broker.address)
    producer.produce(topic, value=b"late", timestamp=int(between.timestamp() * 1000) + 1)
    assert producer.flush(20) == 0
    assert source_of(topic).start() == make_position(topic, 0)
    assert source_of(topic, start_from="latest").start() == make_position(topic, 5)
    assert source_of(topic, start_from=between.isoformat()).start() == make_position(topic, 4)
    after = (between + timedelta(hours=1)).isoformat()
    assert source_of(topic, start_from=after).start() == make_position(topic, 5)
    broker.delete_below(topic, 2)
    assert source_of(topic).start() == make_position(topic, 2)


@pytest.mark.parametrize("start_from", ["latest", "2200-01-01T00:00:00+00:00"])
def test_topic_created_during_an_outage_is_read_from_its_start(
    broker: Broker, source_of: Make, topic: str, start_from: str
) -> None:
    broker.create(topic, f"{topic}2")
    for name in (topic, f"{topic}2"):
        broker.produce(name, numbers(3))
    seen = run_once(source_of(f"{topic}*", start_from=start_from), make_position(topic, 2))
    assert (seen.offsets(topic), seen.offsets(f"{topic}2")) == ([2], [0, 1, 2])


def test_read_is_exact_and_safe_within_consume_batch(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic, partitions=2)
    broker.produce(topic, numbers(10))
    broker.transact(topic, numbers(3), commit=False)
    broker.produce(topic, numbers(10))
    source, inner = source_of(topic), BatchCollector(make_position(topic, 4))

    def apply(batch: object) -> None:
        if not inner.batches:
            until = Position({TopicPartition(topic, 0): 16, TopicPartition(topic, 1): 0})
            source.read(make_position(topic, 4), until, inner, threading.Event())

    source.run(Position(), apply, threading.Event(), once=True)
    assert inner.offsets(topic) == [*range(4, 10), 14, 15]
    assert inner.position == {TopicPartition(topic, 0): 16}
    tail = BatchCollector(make_position(topic, 8))
    source.read(make_position(topic, 8), make_position(topic, 12), tail, threading.Event())
    assert tail.offsets(topic) == [8, 9]
    assert tail.position == dict(make_position(topic, 12))


def test_read_of_a_topic_does_not_describe_other_topics(
    broker: Broker, source_of: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(topic, *(f"{topic}.{n}" for n in range(3)))
    broker.produce(topic, numbers(2))
    described_topics: set[str] = set()
    described, offsets = Cluster.describe_topics, Cluster._offsets

    def describe(cluster: Cluster, names: Iterable[str], *args: Any, **named: Any) -> Any:
        names = set(names)
        described_topics.update(names)
        return described(cluster, names, *args, **named)

    def find(cluster: Cluster, partitions: Iterable[TopicPartition], *args: Any, **named: Any) -> Any:
        partitions = tuple(partitions)
        described_topics.update(p.topic for p in partitions)
        return offsets(cluster, partitions, *args, **named)

    monkeypatch.setattr(Cluster, "describe_topics", describe)
    monkeypatch.setattr(Cluster, "_offsets", find)
    seen = BatchCollector()
    source_of(f"{topic}*").read(make_position(topic, 0), make_position(topic, 2), seen, threading.Event())
    assert seen.offsets(topic) == [0, 1]
    assert described_topics == {topic}


def test_losses_describe_each_kind_of_data_loss(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(10))
    broker.delete_below(topic, 5)
    source, place = source_of(topic, "gone"), TopicPartition(topic, 0)
    assert source.losses(make_position(topic, 5), {topic: broker.topic_id(topic)}) == {}
    assert source.losses(make_position(topic, 10), {}) == {}
    assert "Records 2 to 4" in source.losses(make_position(topic, 2), {})[place]
    assert "above the stream's end at 10" in source.losses(make_position(topic, 11), {})[place]
    assert "created again" in source.losses(make_position(topic, 7), {topic: "another"})[place]
    assert "is gone" in source.losses(make_position("gone", 0), {})[TopicPartition("gone", 0)]
    assert "is gone" in source.losses(make_position(topic, 0, 3), {})[TopicPartition(topic, 3)]
    assert source.losses(make_position("not.mine", 3), {}) == {}


@pytest.mark.parametrize("offset", [2, 11])
def test_offset_out_of_range_is_data_loss(broker: Broker, source_of: Make, topic: str, offset: int) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(10))
    broker.delete_below(topic, 5)
    with pytest.raises(DataLoss, match="resync"):
        run_once(source_of(topic), make_position(topic, offset))
    with pytest.raises(DataLoss):
        source_of(topic).read(
            make_position(topic, min(offset, 9)), make_position(topic, max(offset, 9)), BatchCollector(), threading.Event()
        )


def test_records_deleted_during_a_read_are_data_loss(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, [b"x" * 1000] * 1000)
    calls = itertools.count()

    def apply(batch: object) -> None:
        if next(calls) == 1:
            broker.produce(topic, [b"y" * 1000] * 20000)
            broker.delete_below(topic, 20_900)

    small = {"queued.max.messages.kbytes": 64, "fetch.message.max.bytes": 20000}
    source = source_of(topic, batch_records=100, options=small)
    with pytest.raises(DataLoss, match="are gone from the broker"):
        source.run(Position(), apply, threading.Event(), once=False)


def test_refused_offset_that_the_broker_has_is_read_again(broker: Broker, topic: str) -> None:
    """A broker that has just taken over a partition may refuse offsets that it has."""
    broker.create(topic)
    broker.produce(topic, numbers(10))
    options = KafkaSettings.read({"bootstrap_servers": broker.address, "topics": [topic], "batch_records": 3})
    cluster, place = Cluster(options), TopicPartition(topic, 0)
    watch = TopicPoller(cluster, cluster.topics(), 5, grow=False)
    with closing(PartitionReader(options, cluster.note_error)) as reader:
        reader.assign({place: 0}, {place: 10})
        reader._refused[place] = "out of range"
        seen: list[int] = []
        while not reader.is_finished():
            for refused, reason in reader.take_refused().items():
                watch.confirm_loss(refused, reader.next[refused], reason)
                reader.resume(refused)
            seen += [o for chunk in reader.gather(1).chunks for o in chunk["offset"].to_pylist()]
        assert seen == [*range(10)]
    watch = TopicPoller(cluster, cluster.topics(), 5, grow=False)
    for _ in range(MAX_REFUSALS):
        watch.confirm_loss(place, 10, "out of range")
    with pytest.raises(DataLoss, match="cannot be read on from offset 10: out of range"):
        watch.confirm_loss(place, 10, "out of range")
    with pytest.raises(DataLoss, match="above the stream's end"):
        watch.confirm_loss(place, 11, "out of range")


def test_topic_created_again_is_data_loss_while_streaming(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str
) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(5))
    run = follow_source(source_of(topic))
    run.await_condition(lambda: len(run.seen.rows) == 5)
    broker.recreate(topic)
    broker.produce(topic, numbers(20, first=100))
    error = run.get_failure(DataLoss)
    assert topic in str(error)
    assert "lanes resync" in str(error)
    assert not [v for v in run.seen.values if v in numbers(20, first=100)]


def test_deleted_topic_is_data_loss_while_streaming(
    broker: Broker, source_of: Make, follow_source: Follow, topic: str
) -> None:
    broker.create(topic)
    run = follow_source(source_of(topic))
    run.await_condition(lambda: bool(run.seen.batches))
    broker.delete(topic)
    assert "is gone" in str(run.get_failure(DataLoss))


def test_committed_offsets_are_visible_in_the_group(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic, partitions=2)
    group = f"g-{uuid4()}"
    source = source_of(topic, group_id=group)
    source.committed(make_position(topic, 3))
    source.committed(Position({**make_position(topic, 5), **make_position(topic, 1, 1)}))
    source.close()
    assert broker.committed(group, topic, 2) == [5, 1]
    source.close()


def test_group_offsets_and_members_do_not_affect_reading(
    broker: Broker, source_of: Make, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The offsets of the group are reset. Another consumer joins the group and gets its partitions."""
    broker.create(topic)
    broker.produce(topic, numbers(6))
    group = f"g-{uuid4()}"
    source = source_of(topic, group_id=group)
    reset = ConsumerGroupTopicPartitions(group, [KafkaPartition(topic, 0, 0)])
    source.committed(make_position(topic, 3))
    source.close()
    broker.admin.alter_consumer_group_offsets([reset])[group].result(20)
    with closing(Consumer({"bootstrap.servers": broker.address, "group.id": group})) as other:
        other.subscribe([topic])
        while not other.assignment():
            other.poll(0.1)
        assert run_once(source, make_position(topic, 3)).offsets(topic) == [3, 4, 5]
        source.committed(make_position(topic, 6))
        source.close()
    assert "were not published" in caplog.text
    source.committed(make_position(topic, 6))
    source.close()
    assert broker.committed(group, topic) == [6]


def test_message_of_ten_megabytes_is_read(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, [b"a" * 10_000_000, b"b", b"c" * 10_000_000])
    seen = run_once(source_of(topic))
    assert [len(v or b"") for v in seen.values] == [10_000_000, 1, 10_000_000]


def test_end_is_after_the_last_record(broker: Broker, source_of: Make, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, numbers(3))
    assert source_of(topic).end() == make_position(topic, 3)


def test_missing_broker_is_retryable(source_of: Make) -> None:
    source = KafkaSource({"bootstrap_servers": "127.0.0.1:9", "topics": ["t"], "patience_seconds": 0.5})
    with pytest.raises(Retryable, match=re.escape("127.0.0.1:9")):
        run_once(source)
