"""What doctor says of a whole system, on the embedded stack."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from paths import PROJECT
from support.cli_program import run_program
from support.registered_source import drop_source, register_source

from adapters.observability.checks.connect import ConnectCheck
from adapters.observability.checks.source_database import SourceDatabaseCheck
from adapters.sources.kafka.check import KafkaCheck
from adapters.stack import EmbeddedStack
from replicator.ports.runtime import Diagnosis

CONNECTOR = "postgres-source-connector"
pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def until(condition: Callable[[], Any], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def errors(found: Any) -> list[Diagnosis]:
    return [d for d in found if d.severity == "error"]


def connect(stack: EmbeddedStack, connector: str = CONNECTOR) -> list[Diagnosis]:
    return list(
        ConnectCheck("connect", {"url": f"http://127.0.0.1:{stack.home.ports.connect}", "connector": connector}).diagnose()
    )


def kafka(stack: EmbeddedStack, *topics: str, **options: Any) -> list[Diagnosis]:
    given = {"bootstrap_servers": stack.bootstrap_servers, "topics": list(topics), **options}
    return list(KafkaCheck("source shop", given).diagnose())


class Doctor:
    """The command, in a folder with the shipped config."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        shutil.copytree(PROJECT / "config", folder / "config")
        self.folder = folder
        self.environment = {
            "KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "SOURCE_DSN": stack.dsn("source"),
            "DATALAKE_DSN": stack.dsn("datalake"),
            "TARGET_DSN": stack.dsn("target"),
            "CONNECT_URL": f"http://127.0.0.1:{stack.home.ports.connect}",
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ("doctor", *arguments, "--set", "http.address=127.0.0.1:1")
        return run_program(self.folder, *command, **{**self.environment, **environment})


@pytest.fixture
def doctor(stack: EmbeddedStack, tmp_path: Path) -> Doctor:
    return Doctor(stack, tmp_path)


def test_healthy_system_has_no_problems(stack, doctor):
    until(lambda: not [d for d in kafka(stack, "cdc.public.*") if d.severity != "ok"])
    done = doctor.run("--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 problems" in done.stdout and "✗" not in done.stdout
    answer = json.loads(doctor.run("--json").stdout)
    assert (answer["command"], answer["ok"], answer["error"]) == ("doctor", True, None)
    subjects = dict.fromkeys(d["subject"] for d in answer["result"])
    source = ["source shop", "database of source shop", "connect of source shop"]
    sinks = ["sink lake", "sink raw", "sink raw_pg", "sink datalake", "sink target"]
    assert list(subjects) == [*source, *sinks, "dead letters", "machine"]
    assert set(answer["result"][0]) == {"severity", "subject", "sentence", "next_step"}


def test_all_problems_are_reported_at_once_without_passwords(doctor):
    wrong = "postgresql://target_user:wr0ng-word@"
    environment = {
        "TARGET_DSN": doctor.environment["TARGET_DSN"].replace("postgresql://target_user:target_password@", wrong),
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "CONNECT_URL": "http://127.0.0.1:1",
    }
    done = doctor.run(**environment)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("✗")]
    assert [line.split(":")[0] for line in failed] == ["✗ source shop", "✗ connect of source shop", "✗ sink target"]
    for line in failed:
        assert lines[lines.index(line) + 1].startswith("    "), "what to do"
    assert "password authentication failed" in done.stdout
    assert "wr0ng-word" not in done.stdout + done.stderr
    answer = json.loads(doctor.run("--json", **environment).stdout)
    assert answer["ok"] is False and len([d for d in answer["result"] if d["severity"] == "error"]) == 3


def test_lake_path_that_is_a_file_is_an_error(doctor):
    (doctor.folder / "deltalake").write_text("a file")
    done = doctor.run()
    assert done.returncode == 3
    assert f"{doctor.folder / 'deltalake'} is a file, not a folder." in done.stdout


def test_server_without_logical_decoding_is_an_error(stack):
    options = {"dsn": stack.dsn("datalake"), "publication": "cdc_publication", "slot": "cdc_slot", "tables": []}
    sentences = [d.sentence for d in errors(SourceDatabaseCheck("database", options).diagnose())]
    assert sentences == [
        "wal_level is replica, so nothing can be decoded from the log.",
        "Role datalake_user may not replicate.",
        "There is no publication cdc_publication.",
    ]


def test_failed_and_paused_connectors_are_reported(stack):
    stack.create_database("source", "lame")
    with psycopg.connect(stack.dsn("source", "lame"), autocommit=True) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = register_source(stack, "lame", "lame")
    try:
        with psycopg.connect(stack.dsn("source", "lame", superuser=True), autocommit=True) as source:
            source.execute("DROP PUBLICATION cdc_publication")
        stack.rest.restart(name)
        until(lambda: errors(connect(stack, name)))
        (problem,) = errors(connect(stack, name))
        assert problem.sentence.startswith(f"Task 0 of connector {name} has failed: ")
        assert "ublication" in problem.sentence and "\n" not in problem.sentence and "org.apache" not in problem.sentence
        assert "CREATE PUBLICATION" in problem.next_step and "/restart?includeTasks=true" in problem.next_step
        command = Request(f"http://127.0.0.1:{stack.home.ports.connect}/connectors/{name}/pause", method="PUT")
        urlopen(command, timeout=20).close()
        until(lambda: [d for d in connect(stack, name) if d.severity == "warning"])
        warning = next(d for d in connect(stack, name) if d.severity == "warning")
        assert warning.sentence.endswith("is PAUSED.") and warning.next_step.endswith(f"/connectors/{name}/resume")
    finally:
        drop_source(stack, "lame")


def test_unregistered_connector_is_an_error(stack):
    (problem,) = connect(stack, "typo")
    assert problem.sentence == f"Connector typo is not registered; there is {CONNECTOR}."
    assert problem.next_step.startswith("Correct `connect.connector` of the source, or register it")


def test_topic_pattern_without_match_is_a_warning(stack):
    (warning,) = [d for d in kafka(stack, "cdc.public.*", "cdc.privat.*") if d.severity == "warning"]
    assert (
        warning.sentence.startswith("No topic matches 'cdc.privat.*'; similar ones are ")
        and "topic.prefix" in warning.next_step
    )
    assert "cdc.public.customers" in warning.sentence


def test_replication_factor_is_checked_in_production_only(stack):
    assert not [d for d in kafka(stack, "cdc.public.*") if d.severity != "ok"]
    (warning,) = [d for d in kafka(stack, "cdc.public.*", production=True) if d.severity != "ok"]
    assert "replication factor below 3" in warning.sentence


@pytest.fixture
def make_aged_topic(stack: EmbeddedStack) -> Callable[..., str]:
    """Makes a topic of ten records of some age."""

    def make(name: str, age: float, **settings: str) -> str:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        config = {k.replace("_", "."): v for k, v in settings.items()}
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(20)
        producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
        for _ in range(10):
            producer.produce(name, b"x", partition=0, timestamp=int((time.time() - age) * 1000))
        assert producer.flush(20) == 0
        return name

    return make


@pytest.mark.parametrize(("age", "severity"), [(60, "ok"), (2400, "warning"), (3500, "error")])
def test_retention_time_is_compared_with_the_lag_of_a_lane(stack, make_aged_topic, age, severity):
    topic = make_aged_topic(f"aged.{age}", age, retention_ms="3600000")
    found = [d for d in kafka(stack, topic, positions={"lake.t": {topic: {"0": 3}}}) if "lake.t" in d.sentence]
    assert [d.severity for d in found] == [severity], found
    assert severity == "ok" or ("1.0 hours" in found[0].sentence and "retention.ms" in found[0].next_step)
    assert not [d for d in kafka(stack, topic, positions={"lake.t": {topic: {"0": 10}}}) if "lake.t" in d.sentence]


def test_retention_size_and_deleted_records_are_reported(stack, make_aged_topic):
    topic = make_aged_topic("aged.size", 60, retention_bytes="1000000")
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    for future in admin.delete_records([KafkaPartition(topic, 0, 2)]).values():
        future.result(20)
    positions = {"lake.a": {topic: {"0": 1}}, "lake.b": {topic: {"0": 3}}, "lake.c": {topic: {"0": 8}}}
    found = {d.sentence.split()[1]: d for d in kafka(stack, topic, positions=positions) if d.sentence.startswith("Lane")}
    assert [(name, d.severity) for name, d in found.items()] == [
        ("lake.a", "error"),
        ("lake.b", "warning"),
        ("lake.c", "ok"),
    ]
    assert "no longer has" in found["lake.a"].sentence and "lanes resync lake.a" in found["lake.a"].next_step
    assert "88% of" in found["lake.b"].sentence and "retention.bytes" in found["lake.b"].next_step
