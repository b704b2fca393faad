"""Findings of doctor about connector settings that lose values or their order."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from paths import PROJECT

from adapters.kafka.connect_worker import read_offsets
from adapters.observability.checks.connect import ConnectCheck, find_losses
from replicator.cli import main
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.transactions import Connector, find_row_loss

CLASSES = {
    "postgresql": "io.debezium.connector.postgresql.PostgresConnector",
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
}
WELL = {
    "topic.prefix": "cdc",
    "skipped.operations": "none",
    "interval.handling.mode": "string",
    "bigint.unsigned.handling.mode": "precise",
    "provide.transaction.metadata": "true",
}
JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"


def list_losses(kind: str = "postgresql", *wanted: str, **settings: str) -> list[str]:
    """Settings that lose something. Underscores in the names stand for dots."""
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return [loss.setting for loss in find_losses({"connector.class": CLASSES[kind], **WELL, **own}, frozenset(wanted))]


@pytest.mark.parametrize("kind", CLASSES)
def test_good_connector_has_no_losses(kind):
    assert list_losses(kind, "transactions", "tombstones") == []


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("postgresql", "decimal_handling_mode", "double"),
        ("mysql", "time_precision_mode", "connect"),
        ("postgresql", "interval_handling_mode", "numeric"),
        ("mariadb", "binary_handling_mode", "base64"),
        ("mysql", "bigint_unsigned_handling_mode", "long"),
        ("postgresql", "unavailable_value_placeholder", "nothing"),
        ("postgresql", "errors_tolerance", "all"),
        ("mysql", "event_processing_failure_handling_mode", "warn"),
        ("mariadb", "inconsistent_schema_handling_mode", "skip"),
        ("postgresql", "event_converting_failure_handling_mode", "skip"),
        ("mysql", "schema_history_internal_skip_unparseable_ddl", "true"),
        ("mysql", "skipped_operations", "t"),
        ("postgresql", "slot_drop_on_stop", "true"),
        ("mariadb", "provide_transaction_metadata", "false"),
        ("mysql", "transforms_unwrap_delete_tombstone_handling_mode", "drop"),
        ("mysql", "transforms_spread_type", "io.debezium.transforms.partitions.PartitionRouting"),
        ("postgresql", "producer_override_acks", "1"),
        ("postgresql", "producer_override_enable_idempotence", "false"),
    ],
)
def test_setting_that_loses_values_is_reported(kind, setting, value):
    assert list_losses(kind, **{setting: value}) == [setting.replace("_", ".")]
    assert list_losses(kind, **{setting: "${env:NOT_KNOWN}"}) == [], "a value that the worker fills in is unknown"


def test_lossy_default_is_reported_for_its_database_only():
    bare = {"connector.class": CLASSES["postgresql"], "value.converter": JSON, "key.converter": AVRO}
    assert [(loss.setting, loss.value) for loss in find_losses(bare)] == [
        ("interval.handling.mode", "numeric"),
        ("key.converter.ignore.default.for.nullables", "false"),
        ("value.converter.replace.null.with.default", "true"),
        ("skipped.operations", "t"),
    ]
    assert list_losses("mysql", interval_handling_mode="numeric") == []
    assert list(find_losses({"connector.class": "org.example.Other", "decimal.handling.mode": "double"})) == []


def test_some_settings_are_reported_only_if_the_pipeline_needs_them():
    off = {"provide_transaction_metadata": "false", "tombstones_on_delete": "false"}
    assert list_losses("postgresql", **off) == []
    assert list_losses("postgresql", "transactions", **off) == ["provide.transaction.metadata"]
    assert list_losses("postgresql", "tombstones", **off) == ["tombstones.on.delete"]


def test_shipped_connector_loses_nothing():
    config = json.loads((PROJECT / "connectors" / "postgres-source-connector.json").read_text())["config"]
    assert list(find_losses(config, frozenset({"transactions", "tombstones"}))) == []


@pytest.fixture
def worker() -> Iterator[tuple[str, dict[str, Any]]]:
    """The REST interface of a Connect worker whose connectors have these settings. They run unless a state is given."""
    running: dict[str, Any] = {}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, what = (*self.path.split("/")[2:], "", "")[:2]
            version = {"version": running[name]["version"]} if "version" in running.get(name, ()) else {}
            own = {"state": "RUNNING", **running.get(name, {})}
            state = {"connector": {"state": own["state"], **version}, "tasks": [{"id": 0, "state": "RUNNING"}]}
            offsets = {"offsets": [{"partition": {}, "offset": own.get("offset")}]}
            if self.path == "/connector-plugins":
                name, what = "", "plugins"
            plugins = [{"class": CLASSES["postgresql"], "type": "source", "version": "3.5.0.Final"}]
            answers = {"config": running.get(name), "status": state, "offsets": offsets}
            body = {**answers, "": list(running), "plugins": plugins}[what]
            self.send_response(200 if not name or name in running else 404)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            """Requests are not logged."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", running
        server.shutdown()


def test_running_connector_and_its_file_are_both_checked(worker, tmp_path):
    url, running = worker
    (tmp_path / "connectors").mkdir()
    files = {"mine": "cdc", "other": "elsewhere"}
    for name, prefix in files.items():
        config = {"connector.class": CLASSES["mysql"], **WELL, "topic.prefix": prefix, "decimal.handling.mode": "double"}
        (tmp_path / "connectors" / f"{name}.json").write_text(json.dumps({"name": name, "config": config}))
    (tmp_path / "connectors" / "broken.json").write_text("{")
    (tmp_path / "connectors" / "number.json").write_text('{"name": "five", "config": {"topic.prefix": 5}}')
    running["mine"] = {"connector.class": CLASSES["mysql"], **WELL, "time.precision.mode": "connect"}
    running["another"] = {"connector.class": CLASSES["mysql"], **WELL, "topic.prefix": "elsewhere"}
    options = {"url": url, "topics": ["cdc.public.*"], "files": sorted(map(str, (tmp_path / "connectors").glob("*.json")))}
    found = list(ConnectCheck("connect", options).diagnose())
    assert [d.sentence for d in found if d.severity == "warning"] == [
        "connectors/broken.json cannot be read as a connector: JSONDecodeError.",
        "decimal.handling.mode is double in connectors/mine.json: decimals become the nearest double.",
        "connectors/number.json cannot be read as a connector: TypeError.",
        "time.precision.mode is connect in connector mine as it runs: times have milliseconds, and finer parts are cut off.",
    ]
    assert [d.sentence for d in found if d.severity == "ok"] == ["Connector mine runs.", "Task 0 of connector mine runs."]
    del running["mine"]
    (missing,) = ConnectCheck("connect", {**options, "files": []}).diagnose()
    assert missing.severity == "warning" and missing.sentence == f"No connector at {url} writes topics of this source."


@pytest.mark.parametrize(
    "answer",
    [b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"]
    + [
        b"HTTP/1.0 200 OK\r\n\r\n" + body
        for body in (b"[]", b'"x"', b"5", b"{}", b'{"connector": "x"}', b'{"offsets": [1]}')
    ],
)
def test_another_server_than_a_worker_is_reported(answer):
    class Answers(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        (found,) = ConnectCheck("connect", {"url": url, "connector": "mine"}).diagnose()
        with pytest.raises(EnvironmentProblem, match=url):
            read_offsets(url, "mine")
        server.shutdown()
    assert found.severity == "error" and url in found.sentence and found.next_step


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("version", "metadata", "lost"),
    [
        ("3.7.0.Final", "true", None),
        ("3.6.1.Final", "true", "rows of one COPY (connector mine)"),
        ("3.6.1.Final", "false", "rows of one COPY (connector mine)"),
        (None, "true", "rows of one COPY (connector mine)"),
    ],
)
def test_connector_version_that_loses_rows_is_reported(worker, postgres_dsn, version, metadata, lost):
    """The server is too old to lose rows of open transactions. The version of the plugin is used if the connector's is
    unknown."""
    url, running = worker
    running["mine"] = {"connector.class": CLASSES["postgresql"], **WELL, "provide.transaction.metadata": metadata}
    running["mine"] |= {"version": version} if version else {}
    options = {"url": url, "connector": "mine", "topics": ["cdc.public.*"], "dsn": postgres_dsn}
    warnings = [d for d in ConnectCheck("connect", options).diagnose() if d.severity == "warning"]
    assert [d.sentence.partition(": ")[2] for d in warnings] == ([f"{lost}."] if lost else [])
    assert all("3.7.0 or newer" in d.next_step for d in warnings)


@pytest.mark.parametrize(
    ("state", "metadata", "offset", "is_reported"),
    [
        ("STOPPED", "true", {"messageType": "BEGIN"}, True),
        ("FAILED", "true", {"messageType": "INSERT"}, True),
        ("STOPPED", "true", {"messageType": "COMMIT"}, False),
        ("STOPPED", "true", {"snapshot": "INITIAL"}, False),
        ("STOPPED", "true", None, False),
        ("STOPPED", "false", {"messageType": "INSERT"}, False),
        ("RUNNING", "true", {"messageType": "BEGIN"}, False),
    ],
)
def test_connector_stopped_within_a_transaction_is_reported(worker, state, metadata, offset, is_reported):
    url, running = worker
    running["mine"] = {"connector.class": CLASSES["postgresql"], **WELL, "provide.transaction.metadata": metadata}
    running["mine"] |= {"version": "3.7.0.Final", "state": state, "offset": offset}
    found = ConnectCheck("connect", {"url": url, "connector": "mine", "topics": ["cdc.public.*"]}).diagnose()
    sentences = [d.sentence for d in found if "is stopped within" in d.sentence]
    sentence = "Connector mine is stopped within a transaction: it may skip rows of it when it continues."
    assert sentences == ([sentence] if is_reported else [])


@pytest.mark.parametrize(
    ("metadata", "server", "is_reported"),
    [(True, 18, True), (True, 17, True), (True, 16, False), (False, 18, False), (None, None, True), (True, None, True)],
)
def test_rows_of_open_transactions_are_lost_with_newer_servers(metadata, server, is_reported):
    loss = find_row_loss(Connector("postgresql", "3.5.0.Final", metadata), server=server)
    assert loss is not None and ("open meanwhile" in loss.sentence) is is_reported
    assert ("provide.transaction.metadata=false" in loss.next_step) is is_reported
    assert find_row_loss(Connector("mysql", "3.5.0.Final")) is None


CONFIG = """\
pipeline: p
sources:
  s: {format: debezium_json, transport: kafka, bootstrap_servers: "127.0.0.1:1",
      topics: ['^cdc\\.public\\..*', cdc.transaction], transactions: {topic: cdc.transaction},
      options: {socket.timeout.ms: 500}}
sinks: {lake: {kind: delta, path: ./lake}}
dead_letters: {path: ./letters}
tables: [{match: public.*, source: s, to: [{sink: lake}]}]
"""


def test_doctor_checks_connector_files_and_the_given_worker(worker, tmp_path):
    url, running = worker
    running["live"] = {"connector.class": CLASSES["postgresql"], "topic.prefix": "cdc", "skipped.operations": "none"}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "connectors").mkdir()
    filed = {"connector.class": CLASSES["postgresql"], **WELL, "provide.transaction.metadata": "false"}
    (tmp_path / "connectors" / "shop.json").write_text(json.dumps({"name": "shop", "config": filed}))
    arguments = ["doctor", "--json", "-c", str(tmp_path / "config" / "replicator.yaml"), "--connect", url]
    result = CliRunner().invoke(main, arguments)
    found = [d for d in json.loads(result.stdout)["result"] if d["subject"] == "connect of source s"]
    matches = [re.match(r"\S+ is \S+", d["sentence"]) for d in found if d["severity"] == "warning"]
    assert [match[0] for match in matches if match] == [
        "provide.transaction.metadata is false",
        "interval.handling.mode is numeric",
        "provide.transaction.metadata is false",
    ]
    assert all(d["next_step"] for d in found if d["severity"] == "warning")
    wrong = CliRunner().invoke(main, [*arguments[:-1], "localhost:8083"])
    assert wrong.exit_code == 2 and "http://HOST:PORT" in wrong.output
