"""`replicator record`: an archive holds the records of its topic."""

import json
import threading

import pyarrow as pa
import pytest
from click.testing import CliRunner

from adapters.sources.files.source import ArchiveSource
from adapters.sources.kafka.source import KafkaSource
from replicator.cli import main

CONFIG = """
pipeline: recording
sources:
  shop: {{format: debezium_json, transport: kafka, bootstrap_servers: "{broker}", topics: ["other.*"]}}
sinks:
  lake: {{kind: delta, path: ./lake}}
dead_letters: {{path: ./dead_letters}}
tables:
  - {{match: public.*, source: shop, to: [{{sink: lake}}]}}
"""


@pytest.fixture
def record(broker, tmp_path):
    """Runs `replicator record` in a separate project, and returns its JSON output and its result."""
    config = tmp_path / "config" / "replicator.yaml"
    config.parent.mkdir()
    config.write_text(CONFIG.format(broker=broker.address))

    def run(*arguments):
        done = CliRunner().invoke(main, ["record", *map(str, arguments), "-c", str(config), "--json"], standalone_mode=False)
        return json.loads(done.stdout.splitlines()[-1]), done

    return run


def read_records(source):
    """All records of a source, ordered by topic, partition and offset."""
    parts = []
    source.run(source.start(), lambda batch: parts.append(batch.frame), threading.Event(), once=True)
    source.close()
    return pa.concat_tables(parts).sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_archive_has_the_same_records_as_its_topic(broker, record, tmp_path, suffix):
    topic = f"recorded.{suffix}.rows"
    broker.create(topic, partitions=2)
    for partition in (0, 1):
        headers = [("text", b"x"), ("bytes", b"\xff"), ("none", None)]
        broker.produce(topic, [b'{"id": 1}', b"\xff\x00", None], partition=partition, headers=headers)
    file = tmp_path / f"recorded.{suffix}"
    output, _ = record(f"recorded.{suffix}.*", file)
    assert output["result"] == {"path": str(file), "records": 6}
    kafka = KafkaSource({"bootstrap_servers": broker.address, "topics": [topic]})
    archived = read_records(ArchiveSource({"format": "debezium_json", "path": str(file)}))
    assert archived.to_pylist() == read_records(kafka).to_pylist()
    assert archived.num_rows == 6


def test_existing_file_and_missing_topic_are_refused(record, tmp_path):
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert record("recorded.*", there)[0]["error"]["code"] == 2
    assert there.read_text() == "mine"
    output, _ = record("no.such.topic", tmp_path / "none.jsonl")
    assert output["error"]["code"] == 3 and "no.such.topic" in output["error"]["sentence"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "there.jsonl"]
