"""The Kafka source of Spark without a broker: security settings of the Java client, and new partitions."""

from threading import Event
from types import SimpleNamespace

import pytest

from adapters.sources.kafka import spark as spark_source
from adapters.sources.kafka.spark import java_client
from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition


def test_no_settings_without_security():
    assert java_client({}) == {}


def test_certificates_are_passed_as_text(tmp_path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"-- {name} --")
    found = java_client(
        {
            "security.protocol": "ssl",
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert found == {
        "security.protocol": "ssl",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-- ca --",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-- cert --",
        "ssl.keystore.key": "-- key --",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert str(tmp_path) not in str(found)


@pytest.mark.parametrize("spelling", ["sasl.mechanism", "sasl.mechanisms"])
def test_password_with_quotes_is_escaped(spelling):
    found = java_client({spelling: "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": 'a"b\\c'})
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert found["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\"b\\\\c";'
    )


@pytest.mark.parametrize(
    ("setting", "value"), [("enable.ssl.certificate.verification", "false"), ("sasl.mechanism", "GSSAPI")]
)
def test_setting_without_counterpart_is_refused(setting, value):
    with pytest.raises(ConfigProblem, match=setting):
        java_client({setting: value})


def test_missing_certificate_is_reported_without_its_path(tmp_path):
    with pytest.raises(ConfigProblem, match=r"ssl\.ca\.location"):
        java_client({"ssl.ca.location": str(tmp_path / "none")})


def test_partition_found_while_batches_arrive_is_announced(monkeypatch):
    """The query ends after the batch that was read, so that a new one has the partition."""
    monkeypatch.setattr(spark_source, "cache_with_size", lambda frame: (frame, 1, 1))
    monkeypatch.setattr(spark_source, "to_session", lambda frame, _: frame)
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)
    batches = [spark_source.MicroBatch(None, Position({old: n})) for n in (1, 2)]
    query = SimpleNamespace(next=lambda _: batches.pop(0) if batches else None, has_ended=lambda: True, close=lambda: None)
    poller = SimpleNamespace(is_due=lambda _: True, refresh=lambda *_: {new: 0}, note_answer=lambda: None, identity={})
    spans = []
    run = spark_source._SparkRun(lambda *_, **__: query, poller, lambda batch: spans.append(batch.span.end), None, None)
    run.announce(Position({old: 0}))
    run.stream(Event(), once=False)
    assert spans == [Position({old: 0}), Position({old: 1}), Position({new: 0})]
    assert len(batches) == 1
