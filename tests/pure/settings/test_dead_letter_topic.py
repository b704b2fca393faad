"""Dead letters in a Kafka topic: options and refusals."""

from __future__ import annotations

import pytest

PLACE = "  path: ./lake/_replicator/dead_letters"
TOPIC = "  topic: rejects\n  bootstrap_servers: localhost:29092"


def test_options_of_a_topic(folder):
    folder.change(PLACE, TOPIC + "\n  security: {sasl.password: secret}\n  options: {compression.type: zstd}")
    said = folder.load().settings.dead_letters
    assert (said.topic, said.bootstrap_servers, said.options) == ("rejects", "localhost:29092", {"compression.type": "zstd"})
    assert "secret" not in repr(said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("  topic: rejects", "needs 'bootstrap_servers'"),
        (TOPIC + "\n  path: ./d", "needs exactly one of 'path', 'dsn' and 'topic'"),
        (TOPIC + "\n  schema: s", "has a 'schema', which means nothing without 'dsn'"),
        (PLACE + "\n  bootstrap_servers: b:1", "has 'bootstrap_servers', which means nothing without 'topic'"),
        (PLACE + "\n  security: {sasl.password: hidden}", "has 'security', which means nothing without 'topic'"),
        (PLACE + "\n  options: {linger.ms: 5}", "has 'options', which means nothing without 'topic'"),
        ("  topic: 'cdc.*'\n  bootstrap_servers: b:1", "dead_letters.topic"),
        (TOPIC + "\n  options: {acks: 1}", "correctness depends on it"),
        (TOPIC + "\n  options: {bootstrap.servers: b}", "write 'bootstrap_servers' instead"),
        (TOPIC + "\n  options: {sasl.password: hidden}", "write security settings under 'security'"),
        (TOPIC + "\n  security: {linger.ms: 5}", "others go under 'options'"),
    ],
)
def test_invalid_options_are_refused(folder, said, why):
    folder.change(PLACE, said)
    found = folder.only()
    assert why in found.message and found.line >= 32 and "hidden" not in str(found)


@pytest.mark.parametrize("topic", ["cdc.public.rejects", "cdc.public.dead-letters"])
def test_source_that_reads_the_topic_is_refused(folder, topic):
    folder.change(PLACE, f"  topic: {topic}\n  bootstrap_servers: other:1,localhost:29092")
    found = folder.only()
    assert f"also reads '{topic}', the topic of the dead letters" in found.message
    folder.change(PLACE, f"  topic: {topic}\n  bootstrap_servers: other:1")
    folder.load()
