"""Parts of the Kafka source that need no broker."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, Producer

from adapters.kafka.clients import LASTING, REFUSED, is_transient, translate_error
from adapters.sources.kafka.check import TableReaders, check_compaction
from adapters.sources.kafka.cluster import describe_out_of_range, describe_recreated
from adapters.sources.kafka.options import CORRECTNESS, KafkaSettings
from adapters.sources.kafka.reader import PartitionReader
from adapters.sources.kafka.source import KafkaSource
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, Retryable
from replicator.domain.patterns import TopicFilter
from replicator.domain.position import Position, TopicPartition

BASE = {"bootstrap_servers": "127.0.0.1:9", "topics": ["cdc.public.*"]}
SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    ("patterns", "topic", "wanted"),
    [
        (["cdc.public.*"], "cdc.public.customers", True),
        (["cdc.public.*"], "cdc-public.customers", False),
        (["cdc.public.*"], "my.cdc.public.customers", False),
        (["cdc.public.*"], "cdc.transaction", False),
        (["cdc"], "cdc", True),
        (["cdc"], "cdc.public.customers", False),
        (["^cdc[.]p"], "cdc.public.customers", True),
        (["^cdc[.]p"], "x.cdc.public", False),
        (["*"], "__debezium-heartbeat.cdc", True),
        (["*"], "__consumer_offsets", False),
        (["__consumer_offsets"], "__consumer_offsets", True),
    ],
)
def test_topic_filter(patterns: list[str], topic: str, wanted: bool) -> None:
    assert TopicFilter(patterns)(topic) is wanted


def test_patterns_without_topics_are_reported() -> None:
    assert TopicFilter(["a*", "b", "^c"]).find_unmatched(["aa", "b"]) == ("^c",)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"topcs": ["x"]}, "topcs"),
        ({"topics": []}, "topics"),
        ({"topics": ["^("]}, "regular expression"),
        ({"start_from": "yesterday"}, "start_from"),
        ({"start_from": "2026-01-01T00:00:00"}, "zone"),
        ({"options": {"group.id": "x"}}, "group_id"),
        ({"options": {"bootstrap.servers": "x"}}, "bootstrap_servers"),
        ({"options": {"sasl.password": SECRET}}, "security"),
        ({"security": {"fetch.min.bytes": SECRET}}, "options"),
        ({"security": {"sasl.password": [SECRET]}}, "security"),
        ({"batch_records": 0}, "batch_records"),
        *(({"options": {name: "x"}}, name) for name in CORRECTNESS),
    ],
)
def test_invalid_options_are_reported_without_secrets(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigProblem) as caught:
        KafkaSource({**BASE, **wrong})
    assert named in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_options_passed_to_librdkafka() -> None:
    more = {"options": {"fetch.min.bytes": 5, "client.id": "me"}, "security": {"sasl.password": SECRET}}
    options = KafkaSettings.read({**BASE, **more})
    consumer, client = options.consumer(), options.client_settings()
    assert CORRECTNESS.items() <= consumer.items()
    assert (consumer["fetch.min.bytes"], consumer["group.id"]) == ("5", "cdc-python-consumer")
    assert consumer["sasl.password"] == client["sasl.password"] == SECRET
    assert client["client.id"] == "me"
    assert "fetch.min.bytes" not in client
    assert SECRET not in repr(options)
    assert options.hide_secrets(f"x {SECRET}") == "x ***"


@pytest.mark.parametrize("wrong", [{"options": {"no.such": "1"}}, {"security": {"security.protocol": SECRET}}])
def test_settings_refused_by_librdkafka_are_reported(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigProblem) as caught:
        source = KafkaSource({**BASE, **wrong})
        PartitionReader(source._options, lambda _: None)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


CODES = {
    code: name
    for name in dir(KafkaError)
    if name.isupper() and isinstance(code := getattr(KafkaError, name), int) and name not in ("NO_ERROR", "_PARTITION_EOF")
}


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_every_kafka_error_has_a_kind_and_a_sentence(code: int) -> None:
    error = translate_error(KafkaError(code), "Reading failed", "the source")
    assert str(error).startswith("Reading failed: ") and CODES[code] in error.sentence
    assert error.next_step and "{" not in error.next_step
    lasting = code in LASTING or code in REFUSED
    assert isinstance(error, Fatal) is lasting
    assert is_transient(KafkaError(code)) is not lasting


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._NOENT, Retryable),  # list_offsets: no leader of the partition is known
        (KafkaError._ALL_BROKERS_DOWN, Retryable),
        (KafkaError.UNKNOWN, Retryable),
        (KafkaError._AUTHENTICATION, EnvironmentProblem),
        (KafkaError._SSL, EnvironmentProblem),
        (KafkaError.DELEGATION_TOKEN_EXPIRED, EnvironmentProblem),
        (KafkaError._INVALID_ARG, ConfigProblem),
        (KafkaError.UNSUPPORTED_VERSION, Fatal),
    ],
)
def test_kinds_of_errors(code: int, kind: type[Exception]) -> None:
    assert type(translate_error(KafkaError(code), "Reading failed")) is kind


def test_offsets_out_of_range() -> None:
    place = TopicPartition("t", 0)
    assert not describe_out_of_range(place, 3, 3, 5)
    assert not describe_out_of_range(place, 5, 3, 5)
    assert "2 to 2" in describe_out_of_range(place, 2, 3, 5)
    assert "above" in describe_out_of_range(place, 6, 3, 5)
    assert not describe_recreated("t", "a", {"t": "a"})
    assert not describe_recreated("t", "a", {})
    assert "created again" in describe_recreated("t", "b", {"t": "a"})


@pytest.fixture
def reader() -> Iterator[PartitionReader]:
    """Of the client's own mock cluster, whose topic `t` has 50 records in each of two partitions."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    servers = ",".join(f"{b.host}:{b.port}" for b in producer.list_topics(timeout=10).brokers.values())
    for n in range(100):
        producer.produce("t", value=b"%d" % n, partition=n % 2, headers=[("h", b"x")] if n % 3 else None)
    assert producer.flush(10) == 0
    options = KafkaSettings.read({**BASE, "bootstrap_servers": servers})
    with closing(PartitionReader(options, lambda _: None, wait_ms=50)) as reader:
        yield reader


def test_refused_offset_is_fetched_again(reader: PartitionReader) -> None:
    place = TopicPartition("t", 0)
    reader.assign({place: 10}, {place: 20})
    reader._refused[place] = "out of range"
    assert reader.take_refused() == {place: "out of range"} and not reader.take_refused()
    reader.resume(place)
    seen: list[int] = []
    while not reader.is_finished():
        seen += [o for chunk in reader.gather(0.2).chunks for o in chunk["offset"].to_pylist()]
    assert seen == [*range(10, 20)]


def test_records_are_delivered_once_with_their_headers(reader: PartitionReader) -> None:
    even, odd = TopicPartition("t", 0), TopicPartition("t", 1)
    reader.assign({even: 10, odd: 0}, {even: 30, odd: 50})
    span, rows = None, []
    while not reader.is_finished():
        batch = reader.to_batch(reader.gather(0.2), {})
        span = batch.span if span is None else span.then(batch.span)
        rows += batch.frame.to_pylist()
    assert span is not None
    assert (span.start, span.end) == (Position({even: 10, odd: 0}), Position({even: 30, odd: 50}))
    assert [r["offset"] for r in rows if r["partition"] == 0] == list(range(10, 30))
    assert [r["offset"] for r in rows if r["partition"] == 1] == list(range(50))
    assert all((r["headers"] is None) == (int(r["value"]) % 3 == 0) for r in rows)


EVERY = TableReaders(every=["lake under scd2", "event log raw"])
MISSING = TableReaders(ignores_tombstones=["lake under scd1"])
COMPACT = {"cleanup.policy": "compact"}


def of_compaction(topic: str, readers: dict[str, TableReaders], settings: dict[str, str] = COMPACT) -> list[str]:
    found = list(check_compaction("source shop", {topic: settings}, readers))
    assert {d.severity for d in found} <= {"warning"} and all(d.next_step for d in found)
    return [d.sentence for d in found]


def test_compacted_topic_is_a_warning_if_every_change_is_needed() -> None:
    [text] = of_compaction("cdc.public.orders", {"public.*": EVERY})
    assert "cdc.public.orders is compacted" in text and "lake under scd2, event log raw want every change" in text
    [text] = of_compaction("cdc.public.orders", {"*": MISSING}, {"cleanup.policy": "compact,delete"})
    assert "message without a value. These messages are ignored by lake under scd1" in text


def test_no_warning_for_other_topics_and_other_lanes() -> None:
    assert of_compaction("cdc.public.orders", {"public.*": EVERY}, {"cleanup.policy": "delete"}) == []
    assert of_compaction("cdc.public.orders", {"public.*": EVERY, "public.orders": TableReaders()}) == []
    assert of_compaction("cdc.public.orders", {"other.*": EVERY}) == []
    assert len(of_compaction("orders", {"orders": EVERY})) == 1
