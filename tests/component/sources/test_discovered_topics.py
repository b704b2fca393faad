"""Discovery of topics at a broker by `replicator init`. The written config runs unchanged."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from paths import GOLDEN
from servers.kafka import make_producer
from support.cli_program import run_program
from support.recorded_topics import read_recorded_frame

from adapters.sources.discovery.kafka import discover_topics
from replicator.cli import main
from replicator.domain.errors import ConfigProblem, Retryable

RECORDED = GOLDEN / "decoders" / "debezium" / "postgres"


@pytest.fixture(scope="module")
def prefix(broker) -> str:
    """Prefix of a shop's topics: four recorded topics, a feed of rows, an empty topic and a topic of plain text."""
    prefix = f"shop{uuid4().hex[:8]}"
    producer = make_producer(broker.address)
    names = ("public.orders", "public.customers", "public.audit_log", "transaction")
    broker.create(*(f"{prefix}.{name}" for name in names), f"{prefix}-empty", f"{prefix}-text")
    broker.create(f"{prefix}-feed", partitions=3)
    for name in names:
        for record in read_recorded_frame(RECORDED / f"cdc.{name}.jsonl").to_pylist():
            producer.produce(f"{prefix}.{name}", key=record["key"], value=record["value"], partition=0)
    for number in range(30):
        value = json.dumps({"id": number, "name": f"n{number}"})
        producer.produce(f"{prefix}-feed", key=json.dumps({"id": number}), value=value, partition=number % 3)
    producer.produce(f"{prefix}-text", value="plain text", partition=0)
    assert producer.flush(60) == 0
    return prefix


def test_topics_are_found_and_their_glob_is_preserved(broker, prefix):
    (found,) = discover_topics(f"kafka://{broker.address}/{prefix}.*", None)
    assert found.name == "kafka" and found.title == f"debezium_json in Kafka at {broker.address}"
    assert found.settings == {
        "format": "debezium_json",
        "transport": "kafka",
        "bootstrap_servers": broker.address,
        "topics": [f"{prefix}.*"],
    }
    assert {table.name: table.keys for table in found.tables} == {
        "public.audit_log": (),
        "public.customers": ("id",),
        "public.orders": ("id",),
    }


def test_topics_are_listed_if_others_share_their_prefix(broker, prefix):
    topics = (f"{prefix}.public.orders", f"{prefix}.public.customers", "nothing.*")
    (found,) = discover_topics(f"kafka://{broker.address}/{','.join(topics)}", None)
    assert found.settings["topics"] == [f"{prefix}.public.customers", f"{prefix}.public.orders"]
    assert found.steps == ["# Left out, because no topic matches: nothing.*"]


def test_each_format_is_a_source_and_other_topics_are_listed(broker, prefix):
    rows, debezium = discover_topics(f"kafka://{broker.address}/{prefix}*", None)
    assert (debezium.name, rows.name, rows.settings["topics"]) == ("debezium_json", "rows", [f"{prefix}-feed"])
    (feed,) = rows.tables
    assert feed.settings == {"keys": ["id"], "schema": {"id": "int64", "name": "string"}}
    left = f"{prefix}-empty, {prefix}-text, {prefix}.transaction"
    assert [*rows.steps, *debezium.steps] == [f"# Left out, because no table was recognised: {left}"]


def test_url_without_topics_finds_all_but_internal_topics(broker, prefix):
    broker.create(f"_{prefix}")
    found = [topic for source in discover_topics(f"kafka://{broker.address}", None) for topic in source.settings["topics"]]
    assert f"{prefix}-feed" in found and not any(topic.startswith("_") for topic in found)


def test_prefixes_with_equal_table_names_are_separate_sources(broker, prefix):
    twin = f"twin{prefix}.public.orders"
    broker.create(twin)
    producer = make_producer(broker.address)
    for record in read_recorded_frame(RECORDED / "cdc.public.orders.jsonl").to_pylist():
        producer.produce(twin, key=record["key"], value=record["value"])
    assert producer.flush(60) == 0
    found = discover_topics(f"kafka://{broker.address}/{prefix}.*,{twin}", None)
    assert {source.name: source.settings["topics"] for source in found} == {
        f"kafka_{prefix}": [f"{prefix}.*"],
        f"kafka_twin{prefix}": [twin],
    }


def test_unknown_topic_and_broker_are_refused(broker, prefix):
    with pytest.raises(ConfigProblem, match=r"no topic at .* matches nothing\.here") as refused:
        discover_topics(f"kafka://{broker.address}/nothing.here", None)
    assert f"{prefix}-feed" in refused.value.next_step
    with pytest.raises(Retryable, match="could not be listed"):
        discover_topics("kafka://127.0.0.1:1/a", None)


def test_written_config_runs_unchanged(broker, prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", "--from", f"kafka://{broker.address}/{prefix}*"])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / ".env").exists()
    for arguments in (["check"], ["run", "--until-caught-up", "--set", "http.address=127.0.0.1:0"]):
        ended = run_program(tmp_path, *arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {name: len(DeltaTable(tmp_path / "lake" / name).to_pyarrow_table()) for name in ("customers", "orders")}
    assert all(rows.values())
    assert len(DeltaTable(tmp_path / "lake" / f"{prefix}-feed").to_pyarrow_table()) == 30
    assert len(DeltaTable(tmp_path / "lake" / "audit_log").to_pyarrow_table()) > 0
