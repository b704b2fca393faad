"""Dead letters in a topic, on a real broker: what others see there, and what can go wrong with a topic."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition, admin
from servers.kafka import Broker

from adapters.sinks import kafka
from adapters.sinks.kafka import DeadLetterLog, DeadLetterMessage, DeadLetterTopicCheck, KafkaDeadLetters
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError, Retryable
from replicator.ports.stores import DeadLetter
from replicator.testing.stores_contract import make_dead_letter

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

Make = Callable[..., KafkaDeadLetters]


@pytest.fixture
def dead_letters(broker: Broker) -> dict[str, Any]:
    return {"bootstrap_servers": broker.address, "topic": f"letters-{uuid4()}", "pipeline": "shop"}


def read_messages(broker: Broker, topic: str) -> list[Any]:
    """The messages of the topic, as somebody else reads them."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "x", "enable.auto.commit": "false"})
    place = TopicPartition(topic, 0)
    low, high = consumer.get_watermark_offsets(place, timeout=10)
    consumer.assign([TopicPartition(topic, 0, low)])
    found: list[Any] = []
    while len(found) < high - low:
        found += [m for m in consumer.consume(100, 1) if not m.error()]
    consumer.close()
    return found


def bounds(broker: Broker, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "x"})
    found: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return found


def configure(broker: Broker, topic: str, name: str, value: str) -> None:
    """As kafka-configs does it."""
    entry = admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
    wanted = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    broker.admin.incremental_alter_configs([wanted])[wanted].result(20)


def await_written(store: KafkaDeadLetters, wanted: DeadLetter) -> None:
    """The broker goes by another setting a moment after it has taken it."""
    until = time.monotonic() + 20
    while wanted not in store.read():
        with suppress(ReplicatorError):
            store.write([wanted])
        assert time.monotonic() < until


def test_message_has_the_headers_of_connect(broker: Broker, dead_letters: dict[str, Any]) -> None:
    """Key and value are those of the record. Its own headers come first, then Connect's, then Replicator's."""
    store = KafkaDeadLetters(dead_letters)
    headers = json.dumps([["trace", "a"], ["bytes", {"base64": "/w=="}], ["none", None]])
    store.write([replace(make_dead_letter(1), headers=headers)])
    (message,) = read_messages(broker, dead_letters["topic"])
    assert (message.key(), message.value()) == (b"\x00key", b"\xff\x00")
    assert message.headers()[:3] == [("trace", b"a"), ("bytes", b"\xff"), ("none", None)]
    said = {name: value.decode() for name, value in message.headers()[3:] if value is not None}
    assert {name: value for name, value in said.items() if name.startswith("__connect.errors.")} == {
        "__connect.errors.topic": "cdc.items",
        "__connect.errors.partition": "0",
        "__connect.errors.offset": "1",
        "__connect.errors.connector.name": "shop",
        "__connect.errors.task.id": "0",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.class.name": "replicator.decode",
        "__connect.errors.exception.class.name": "replicator.MALFORMED",
        "__connect.errors.exception.message": "not JSON",
        "__connect.errors.exception.stacktrace": "replicator.MALFORMED: not JSON\n\tat replicator.decode(cdc.items-0-1)\n",
    }
    ours = {
        "code": "MALFORMED",
        "sentence": "not JSON",
        "stage": "decode",
        "key_hash": "ab12",
        "attempts": "1",
        "lane": "lake.items",
    }
    assert {name: said[f"replicator.{name}"] for name in ours} == ours
    assert said["replicator.first_seen"] == said["replicator.last_seen"] == "2024-02-29T12:00:00+00:00"
    assert said["replicator.retry"] == "replicator dlq replay --event 'cdc.items-0-1' --lane 'lake.items'"


ODD = [
    replace(make_dead_letter(1), key=b"", record=b"", headers="[]"),
    replace(make_dead_letter(2), key=None, record=None, headers=None, timestamp=None),
    # A record that was a letter before, of somebody else.
    replace(
        make_dead_letter(3),
        timestamp=None,
        headers=json.dumps([["replicator.timestamp", "2020-01-01T00:00:00+00:00"], ["replicator.event", "removed"]]),
    ),
    replace(make_dead_letter(4), headers=json.dumps([["a\0b", "c"], ["", None], ["a\0b", None]])),
    replace(make_dead_letter(5), record=b"x" * 20_000_000),
]


def test_unusual_dead_letters_are_read_back_unchanged(dead_letters: dict[str, Any]) -> None:
    KafkaDeadLetters(dead_letters).write(ODD)
    assert sorted(KafkaDeadLetters(dead_letters).read(), key=lambda each: each.offset) == ODD


def test_created_topic_has_unlimited_retention(broker: Broker, dead_letters: dict[str, Any]) -> None:
    KafkaDeadLetters(dead_letters).write([make_dead_letter(1)])
    assert [found.severity for found in DeadLetterTopicCheck("letters", dead_letters).diagnose()] == ["ok"]
    found = DeadLetterTopicCheck("letters", {**dead_letters, "production": True}).diagnose()
    assert [(each.severity, "replication factor of 1" in each.sentence) for each in found] == [
        ("ok", False),
        ("warning", True),
    ]


def test_messages_of_connectors_and_other_pipelines_are_ignored(broker: Broker, dead_letters: dict[str, Any]) -> None:
    """They may write into the same topic."""
    topic = dead_letters["topic"]
    broker.create(topic)
    broker.produce(topic, [b"of a connector"], headers=[("__connect.errors.topic", b"x"), ("replicator.event", b"\xff")])
    store, other = KafkaDeadLetters(dead_letters), KafkaDeadLetters({**dead_letters, "pipeline": "other"})
    store.write([make_dead_letter(1)])
    other.write([make_dead_letter(1), make_dead_letter(2)])
    assert list(store.read()) == [make_dead_letter(1)]
    store.remove(store.read())
    assert (list(store.read()), len(other.read())) == ([], 2)
    assert bounds(broker, topic)[0] == 0
    assert read_messages(broker, topic)[0].value() == b"of a connector"


def test_purge_deletes_messages_before_the_first_open_letter(broker: Broker, dead_letters: dict[str, Any]) -> None:
    """If no letter is open, it deletes all messages."""
    store, topic = KafkaDeadLetters(dead_letters), dead_letters["topic"]
    store.write([make_dead_letter(1), make_dead_letter(2), make_dead_letter(3)])
    store.write([make_dead_letter(2, minutes=1)])
    found = {each.offset: each for each in store.read()}
    store.remove([found[3]])
    assert bounds(broker, topic) == (0, 5)
    store.remove([found[1]])
    assert bounds(broker, topic) == (1, 6)
    again = KafkaDeadLetters(dead_letters)
    assert list(again.read()) == [found[2]] and found[2].attempts == 2
    again.remove([found[2]])
    assert bounds(broker, topic) == (7, 7) and list(store.read()) == []
    store.write([make_dead_letter(2, minutes=9)])
    assert list(again.read()) == [make_dead_letter(2, minutes=9)]


def test_compacted_topic_is_refused(broker: Broker, dead_letters: dict[str, Any]) -> None:
    broker.create(dead_letters["topic"], config={"cleanup.policy": "compact"})
    with pytest.raises(ConfigProblem, match="compacted") as refused:
        KafkaDeadLetters(dead_letters).write([make_dead_letter(1)])
    assert bounds(broker, dead_letters["topic"]) == (0, 0)
    assert [found.severity for found in DeadLetterTopicCheck("letters", dead_letters).diagnose()] == ["ok", "error"]
    assert "Set its cleanup.policy to delete" in refused.value.next_step
    configure(broker, dead_letters["topic"], "cleanup.policy", "delete")
    await_written(KafkaDeadLetters(dead_letters), make_dead_letter(1))


def test_topic_with_limited_retention_is_reported(broker: Broker, dead_letters: dict[str, Any]) -> None:
    broker.create(dead_letters["topic"], config={"retention.ms": "604800000"})
    (_, warning) = DeadLetterTopicCheck("letters", dead_letters).diagnose()
    assert (warning.severity, "by retention.ms" in warning.sentence) == ("warning", True)
    assert "retention.ms=-1" in warning.next_step


def test_record_too_large_for_the_topic_is_reported(broker: Broker, dead_letters: dict[str, Any]) -> None:
    broker.create(dead_letters["topic"], config={"max.message.bytes": "5000"})
    store = KafkaDeadLetters(dead_letters)
    long = replace(make_dead_letter(1), record=b"x" * 10_000)
    with pytest.raises(EnvironmentProblem, match=r"max\.message\.bytes") as refused:
        store.write([long])
    store.write([make_dead_letter(2)])
    assert list(store.read()) == [make_dead_letter(2)]
    assert refused.value.next_step == "Raise it with kafka-configs."
    configure(broker, dead_letters["topic"], "max.message.bytes", "50000")
    await_written(store, long)


def test_store_resumes_after_a_broker_outage(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store never reports a letter as written that the broker does not have."""
    monkeypatch.setattr(kafka, "DURABLE", {**kafka.DURABLE, "message.timeout.ms": "2000"})
    store = KafkaDeadLetters({"bootstrap_servers": own_broker.address, "topic": "letters", "pipeline": "shop"})
    store.write([make_dead_letter(1)])
    own_broker.service.kill()
    with pytest.raises(Retryable):
        store.write([make_dead_letter(2)])
    with pytest.raises(Retryable):
        store.read()
    own_broker.start()
    store.write([make_dead_letter(2), make_dead_letter(3)])
    assert {each.offset for each in store.read()} == {1, 2, 3}


def test_write_during_a_count_is_not_blocked(dead_letters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store, take = KafkaDeadLetters(dead_letters), DeadLetterLog.apply_message
    store.write([make_dead_letter(1)])
    writing = threading.Thread(target=store.write, args=([make_dead_letter(2)],), daemon=True)

    def written_meanwhile(journal: DeadLetterLog, offset: int, message: DeadLetterMessage) -> None:
        monkeypatch.setattr(DeadLetterLog, "apply_message", take)
        writing.start()
        writing.join(60)
        assert not writing.is_alive()
        take(journal, offset, message)

    monkeypatch.setattr(DeadLetterLog, "apply_message", written_meanwhile)
    assert sum(store.count_open().values()) == 1
    assert sum(store.count_open().values()) == 2


def test_several_processes_write_at_once(dead_letters: dict[str, Any]) -> None:
    program = (
        "import json, sys; from adapters.sinks.kafka import KafkaDeadLetters\n"
        "from replicator.testing.stores_contract import make_dead_letter\n"
        "store = KafkaDeadLetters(json.loads(sys.argv[1]))\n"
        "for i in range(10): store.write([make_dead_letter(i), make_dead_letter(100 * int(sys.argv[2]) + i)])"
    )
    command = [sys.executable, "-c", program, json.dumps(dead_letters)]
    writers = [subprocess.Popen([*command, str(number)]) for number in (1, 2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = {each.offset: each.attempts for each in KafkaDeadLetters(dead_letters).read()}
    assert found == {i: 2 if i < 10 else 1 for i in (*range(10), *range(100, 110), *range(200, 210))}


def test_invalid_options_are_refused() -> None:
    for wrong in ({}, {"topic": "a b"}, {"topic": "a", "options": {"acks": "0"}}):
        with pytest.raises(ConfigProblem, match="options of dead_letters"):
            KafkaDeadLetters({"bootstrap_servers": "b:1", **wrong})


def test_store_is_found_by_entry_point() -> None:
    (found,) = entry_points(group="replicator.dead_letters", name="kafka")
    assert found.load() is KafkaDeadLetters
