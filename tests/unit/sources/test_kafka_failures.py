"""What the clients of Kafka make of errors, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from pyspark.errors import ArithmeticException

from adapters.kafka.errors import DISALLOWED, translated
from adapters.kafka.requests import Requests
from adapters.sinks.dead_letters_kafka.options import TopicOptions
from adapters.sinks.dead_letters_kafka.topic import CutMeanwhile, LettersTopic
from adapters.sources.kafka.cluster import Cluster
from adapters.sources.kafka.options import KafkaOptions
from adapters.sources.kafka.reader import Reader
from adapters.sources.kafka.spark.errors import translated as translated_on_spark
from replicator.domain.errors import EnvironmentProblem, Fatal, Retryable
from replicator.domain.position import TopicPartition

OPTIONS = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
DENIED = KafkaError(KafkaError._AUTHENTICATION)
OFFSETS = [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET]


def ask(requests: Requests, *, fails: bool = True, poll: Callable[[], None] = lambda: None) -> None:
    with requests.request("Asking failed", poll):
        if fails:
            raise TimeoutError


def test_a_refusal_from_before_the_requests_failed_is_not_their_reason() -> None:
    cluster = Cluster(KafkaOptions.read(OPTIONS))
    cluster.remember(DENIED)
    with pytest.raises(Retryable):
        cluster.names(0.1)
    requests, reported = Requests(KafkaOptions.read(OPTIONS)), [DENIED]
    # The client has had it since before, and reports it when it is polled.
    with pytest.raises(Retryable):
        ask(requests, poll=lambda: requests.remember(reported.pop()) if reported else None)


def test_a_refusal_while_requests_fail_is_their_reason_until_one_succeeds() -> None:
    requests = Requests(KafkaOptions.read(OPTIONS))
    with pytest.raises(Retryable):
        ask(requests)
    requests.remember(DENIED)
    with pytest.raises(EnvironmentProblem, match="_AUTHENTICATION"):
        ask(requests)
    requests.remember(DENIED)
    ask(requests, fails=False)
    with pytest.raises(Retryable):
        ask(requests)


@pytest.mark.parametrize("code", OFFSETS)
def test_dead_letters_that_are_deleted_meanwhile_are_read_or_cut_again(code: int) -> None:
    topic = LettersTopic(TopicOptions.read({"bootstrap_servers": "127.0.0.1:1", "topic": "letters"}))
    message = Message(topic="letters", partition=0, error=KafkaError(code))
    with pytest.raises(CutMeanwhile, match="letters were deleted while it was read"):
        topic._after(message, 5, lambda *_: None)
    refused: Future[None] = Future()
    refused.set_exception(KafkaException(KafkaError(code)))
    topic._admin = SimpleNamespace(delete_records=lambda _: {"": refused}, poll=lambda _: None)
    with pytest.raises(CutMeanwhile, match="letters were deleted while it was cut") as caught:
        topic.cut(5)
    assert "lanes" not in caught.value.next_step


@pytest.fixture
def reader() -> Iterator[Reader]:
    with closing(Reader(KafkaOptions.read(OPTIONS), lambda _: None)) as made:
        yield made


@pytest.mark.parametrize(("named", "offset"), [(7, 7), (-1001, 5)])
def test_a_damaged_batch_is_named_by_its_offset(reader: Reader, named: int, offset: int) -> None:
    reader.next[TopicPartition("t", 0)] = 5
    error = KafkaError(KafkaError._BAD_COMPRESSION)
    with pytest.raises(Fatal, match=rf"^Reading t\[0\] at offset {offset} failed: ") as caught:
        reader._event(Message(topic="t", partition=0, offset=named, error=error), error)
    for step in (caught.value.next_step, translated_on_spark(ArithmeticException("long overflow")).next_step):
        assert "`replicator lanes skip LANE --until TOPIC:PARTITION:N` for each lane" in step


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
def test_the_next_step_fits_the_error(code: int, step: str) -> None:
    assert translated(KafkaError(code), "Writing failed").next_step.startswith(step)
