"""Errors of the Kafka clients, without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import ArithmeticException

from adapters import event_log
from adapters.kafka.clients import DISALLOWED, Requests, translate_error
from adapters.sinks.kafka import DeadLetterTopic, TopicTruncated
from adapters.sources.kafka import topic_poller
from adapters.sources.kafka.check import LaneBacklog, check_retention
from adapters.sources.kafka.cluster import Cluster, Topic
from adapters.sources.kafka.options import KafkaSettings
from adapters.sources.kafka.reader import PartitionReader, RecordBuffer
from adapters.sources.kafka.source import GroupOffsets, KafkaSource, StreamLoop
from adapters.sources.kafka.spark import translate_query_error
from adapters.sources.kafka.topic_poller import MAX_REFUSALS, FetchFailures, TopicPoller
from adapters.stores import DeadLetterSettings
from replicator.domain.errors import DataLoss, EnvironmentProblem, Fatal, Retryable, refuse_losses
from replicator.domain.position import Position, TopicPartition

OPTIONS = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
DENIED = KafkaError(KafkaError._AUTHENTICATION)
OFFSETS = [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET]


def make_event(partition: int, offset: int | None, error: KafkaError) -> Any:
    """An error of topic `t` as a consumer gets it. Messages of the client cannot be made."""
    said = {"topic": "t", "partition": partition, "offset": offset, "error": error}
    return SimpleNamespace(**{name: (lambda value=value: value) for name, value in said.items()})


def ask(requests: Requests, *, fails: bool = False, poll: Callable[[], None] = lambda: None) -> None:
    with requests.request("Asking failed", poll):
        if fails:
            raise TimeoutError


def test_refusal_before_the_failure_is_not_its_reason() -> None:
    requests, reported = Requests(KafkaSettings.read(OPTIONS)), [DENIED]
    ask(requests)
    requests.note_error(DENIED)
    with pytest.raises(Retryable):
        ask(requests, fails=True)
    ask(requests)
    # The client has had it since before, and reports it when it is polled.
    with pytest.raises(Retryable):
        ask(requests, fails=True, poll=lambda: requests.note_error(reported.pop()) if reported else None)


def test_refusal_before_the_first_request_is_its_reason() -> None:
    """A client with token login requests one when it is created."""
    cluster = Cluster(KafkaSettings.read(OPTIONS))
    cluster.note_error(DENIED)
    with pytest.raises(EnvironmentProblem, match="_AUTHENTICATION"):
        cluster.names(0.1)


def test_refusal_during_failures_is_their_reason_until_a_success() -> None:
    requests = Requests(KafkaSettings.read(OPTIONS))
    ask(requests)
    with pytest.raises(Retryable):
        ask(requests, fails=True)
    requests.note_error(DENIED)
    with pytest.raises(EnvironmentProblem, match="_AUTHENTICATION"):
        ask(requests, fails=True)
    requests.note_error(DENIED)
    ask(requests)
    with pytest.raises(Retryable):
        ask(requests, fails=True)


@pytest.mark.parametrize("code", OFFSETS)
def test_dead_letters_deleted_during_the_read_are_read_again(code: int) -> None:
    topic = DeadLetterTopic(DeadLetterSettings.read({"bootstrap_servers": "127.0.0.1:1", "topic": "letters"}))
    message = make_event(0, None, KafkaError(code))
    with pytest.raises(TopicTruncated, match="letters were deleted while it was read"):
        topic._next_offset(message, 5, lambda *_: None)
    refused: Future[None] = Future()
    refused.set_exception(KafkaException(KafkaError(code)))
    topic._requests._admin = SimpleNamespace(delete_records=lambda _: {"": refused}, poll=lambda _: None)
    with pytest.raises(TopicTruncated, match="letters were deleted while it was cut") as caught:
        topic.truncate_before(5)
    assert "lanes" not in caught.value.next_step


@pytest.fixture
def reader() -> Iterator[PartitionReader]:
    with closing(PartitionReader(KafkaSettings.read(OPTIONS), lambda _: None)) as made:
        yield made


@pytest.mark.parametrize(("named", "offset"), [(7, 7), (None, 5)])
def test_damaged_batch_is_reported_with_its_offset(reader: PartitionReader, named: int | None, offset: int) -> None:
    reader.next[TopicPartition("t", 0)] = 5
    error = KafkaError(KafkaError._BAD_COMPRESSION)
    with pytest.raises(Fatal, match=rf"^Reading t\[0\] at offset {offset} failed: ") as caught:
        reader._handle_event(make_event(0, named, error), error)
    for step in (caught.value.next_step, translate_query_error(ArithmeticException("long overflow")).next_step):
        assert "`replicator lanes skip LANE --until TOPIC:PARTITION:N` for each lane" in step


PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_refused_offset_of_a_finished_partition_is_ignored(reader: PartitionReader) -> None:
    refusal = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)
    reader.assign({PLACE: 0, OTHER: 0}, {PLACE: 5, OTHER: 5})
    for partition in (PLACE, OTHER):
        reader._handle_event(make_event(partition.partition, 0, refusal), refusal)
    reader._at_end(PLACE, 5)
    refused = reader.take_refused()
    assert list(refused) == [OTHER]
    for partition in refused:
        reader.resume(partition)
    reader._handle_event(make_event(0, 5, refusal), refusal)
    assert reader.take_refused() == {}


class Fetches:
    """A reader one of whose partitions fails in every fetch while `error` is set; the other one delivers."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self.error: KafkaError | None = KafkaError(KafkaError.INVALID_MSG)

    def __call__(self, wait: float) -> RecordBuffer:
        time.sleep(0.05)
        self._reader.next[OTHER] += 1
        if self.error is not None:
            self._reader._handle_event(make_event(0, 7, self.error), self.error)
        return RecordBuffer()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> KafkaSource:
    """A source whose broker answers every question about topics."""
    monkeypatch.setattr(Cluster, "describe_topics", lambda *_, **__: {"t": Topic("1", 2)})
    return KafkaSource({**OPTIONS, "patience_seconds": 0.5})


def follow(source: KafkaSource, reader: PartitionReader) -> None:
    """At most some seconds."""
    until = time.monotonic() + 10
    stop: Any = SimpleNamespace(is_set=lambda: time.monotonic() > until)
    reader._assigned = {PLACE, OTHER}
    reader.next = {PLACE: 7, OTHER: 0}
    reader._batch_ends = dict(reader.next)
    with closing(TopicPoller(source._cluster, {"t": Topic("1", 2)}, 30, grow=False)) as looked:
        StreamLoop(reader, looked, source._failures).run(lambda _: None, stop)


def test_partition_that_fails_for_long_is_an_outage(
    source: KafkaSource, reader: PartitionReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetches = Fetches(reader)
    monkeypatch.setattr(reader, "gather", fetches)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Retryable, match=r"^Reading t\[0\] at offset 7 has failed for .* s: .*\(INVALID_MSG\)") as caught:
            follow(source, reader)
        # The next run reads the other partition for as long.
        assert time.monotonic() - began >= 0.5 and reader.next[OTHER] >= 5
        assert "lanes skip LANE --until" in caught.value.next_step
        with pytest.raises(Retryable, match="has failed for"):
            source.committed(Position())
    assert [r.message for r in caplog.records if r.levelname == "WARNING" and "failed" in r.message] == [
        "Reading t[0] at offset 7 failed: Broker: Invalid message (INVALID_MSG). It is tried again."
    ]
    source._failures.clear({PLACE: 8})
    source.committed(Position())


def test_rare_failures_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(topic_poller, "time", SimpleNamespace(monotonic=lambda: now))
    failures = FetchFailures(30)
    for now in (1.0, 9.0, 18.0, 40.0, 49.0, 58.0, 67.0):  # noqa: B007
        failures.add(PLACE, 7, "odd")
        failures.check()
    now = 71.0
    with pytest.raises(Retryable, match="has failed for 31 s: odd"):
        failures.add(PLACE, 7, "odd")
    with pytest.raises(Retryable):
        failures.check()
    now = 82.0
    failures.clear({PLACE: 7})
    failures.check()


def test_check_covers_changed_topics_and_others_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    topics = {f"t{n}": Topic(str(n), 1) for n in range(40)}
    there = dict(topics)

    def describe_topics(names: Iterable[str], timeout: float) -> dict[str, Topic]:
        asked.append(set(names))
        return {name: there[name] for name in asked[-1] & there.keys()}

    now = 100.0
    monkeypatch.setattr(topic_poller, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(topic_poller, "TOPICS_PER_CHECK", 10)
    looked = TopicPoller(cast(Any, SimpleNamespace(describe_topics=describe_topics)), topics, 30, grow=False)
    known = [TopicPartition(name, 0) for name in topics]
    assert not looked.is_due(["t0"])
    for now in (101.0, 102.0, 103.0, 104.0):  # noqa: B007
        assert looked.is_due(())
        looked.refresh(known, {"t5"})
        assert not looked.is_due(["t5"])
    assert all("t5" in names and len(names) <= 11 for names in asked)
    assert set.union(*asked) == topics.keys()
    assert looked.is_due(asked[0] - {"t5"}), "their last look is long ago"
    del there["t7"]
    for now in (106.0, 106.5, 107.0, 107.5):  # noqa: B007
        looked.refresh(known, ())
    assert looked.is_due(()), "one is missing"
    now = 112.0
    with pytest.raises(DataLoss, match="Topic t7 is gone"):
        looked.refresh(known, ())


def test_partition_with_unknown_first_offset_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts, cluster = {PLACE: -1001, OTHER: 0}, Cluster(KafkaSettings.read(OPTIONS))
    monkeypatch.setattr(cluster, "_offsets", lambda partitions, *_: {p: firsts[p] for p in partitions})
    monkeypatch.setattr(cluster, "partitions", lambda timeout: (PLACE, OTHER))
    monkeypatch.setattr(cluster, "describe_topics", lambda names, timeout: {"t": Topic("1", 2)})
    looked = TopicPoller(cluster, {}, 30, grow=True)
    assert looked._find_new(()).firsts == {OTHER: 0}
    for find_offsets in (cluster.beginnings, cluster.ends, cluster.log_ends):
        with pytest.raises(Retryable, match="does not know the offsets"):
            find_offsets((PLACE, OTHER))
    firsts[PLACE] = 0
    assert looked._find_new({OTHER}).firsts == {PLACE: 0}
    assert cluster.beginnings((PLACE, OTHER)) == firsts


def test_refused_offsets_count_until_a_record_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_poller, "find_losses", lambda *_: {})
    looked: Any = TopicPoller(cast(Any, None), {"t": Topic("1", 1)}, 30, grow=False)
    for offset in range(2 * MAX_REFUSALS):
        looked.confirm_loss(PLACE, offset, "out of range")
    for _ in range(MAX_REFUSALS):
        looked.confirm_loss(PLACE, 100, "out of range")
    with pytest.raises(DataLoss, match="cannot be read on from offset 100"):
        looked.confirm_loss(PLACE, 100, "out of range")


def test_lost_records_have_the_same_next_step_everywhere() -> None:
    both = (
        "`replicator lanes resync LANE` loads the lane again; `replicator lanes skip LANE` accepts the loss; then "
        "`replicator backfill TABLE` loads the rows from the `database` of the source, if it has one."
    )
    for given, step in ((), both), ((event_log.ACCEPT,), f"Restore the event log. Otherwise, {both}"):
        with pytest.raises(DataLoss, match="is gone") as caught:
            refuse_losses({PLACE: "t[0] is gone."}, *given)
        assert caught.value.next_step == step
    [lost, *_] = check_retention(
        LaneBacklog("", "lake.t", Position({PLACE: 1}), {PLACE: 2}, {PLACE: 3}), {}, lambda *_: {}, 0.0
    )
    assert lost.next_step == both.replace("LANE", "lake.t")


def test_group_offsets_that_fail_are_reported_until_they_work(caplog: pytest.LogCaptureFixture) -> None:
    group = GroupOffsets(KafkaSettings.read(OPTIONS))
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    for error in (denied, denied, denied, None, denied):
        group._note_answer(group._generation, error, [])
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and "cdc-python-consumer were not published" in warnings[1]


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (KafkaError._NOT_IMPLEMENTED, "The client or the broker lacks this feature"),
        (KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "The client or the broker lacks this feature"),
        (KafkaError.INVALID_RECORD, "Check cleanup.policy and message.timestamp.* of the topic."),
        (KafkaError.INVALID_TIMESTAMP, "Check cleanup.policy and message.timestamp.* of the topic."),
        (KafkaError.POLICY_VIOLATION, DISALLOWED),
    ],
)
def test_the_next_step_matches_the_error(code: int, step: str) -> None:
    assert translate_error(KafkaError(code), "Writing failed").next_step.startswith(step)
