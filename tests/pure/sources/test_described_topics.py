"""What `replicator init` finds out from some records of a topic."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from paths import GOLDEN
from support.recorded_topics import TOPICS, read_recorded_frame

from adapters.sources.discovery.kafka import discover_topics
from adapters.sources.discovery.records import describe_topic, keep_globs, list_sources
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.ports.source import DiscoveredTable

MESSAGES = GOLDEN / "decoders" / "messages"
DEBEZIUM = GOLDEN / "decoders" / "debezium"
OGG = {
    "table": "S.T",
    "op_type": "I",
    "op_ts": "2026-01-01 00:00:00",
    "pos": "1",
    "after": {"ID": 1},
    "primary_keys": ["ID"],
}


def to_frame(*values: Any, key: Any = None) -> pa.Table:
    """Records in the topic `t`: bytes, or objects as JSON."""
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "key": to_bytes(key), "value": to_bytes(value)}
        for n, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, schema=RAW)


def to_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def read_lines(name: str) -> pa.Table:
    return to_frame(*(line.encode() for line in (MESSAGES / name).read_text().splitlines()))


def describe(frame: pa.Table) -> tuple[str, dict[str, tuple[str, ...]]]:
    form, tables = describe_topic("t", frame)
    return form, {table.name: table.keys for table in tables}


@pytest.mark.parametrize("path", TOPICS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_topic_of_debezium_has_its_table(path):
    """Flattened rows do not tell their settings. Topics of schema changes, marks and messages have no tables."""
    form, tables = describe(read_recorded_frame(path))
    if path.parent.name == "postgres-flattened":
        assert (form, tables) == ("", {})
        return
    assert form == "debezium_json"
    name = path.stem.removesuffix("-1").removesuffix("-2").removesuffix("-3").split(".", 1)[-1]
    if "." in name and path.parent.name not in ("sqlserver", "seatunnel-all-types"):
        assert tables.keys() == {name}


@pytest.mark.parametrize(
    ("name", "keys"),
    [("customers", ("id",)), ("order_items", ("order_id", "line_no")), ("audit_log", ())],
)
@pytest.mark.parametrize("folder", ["postgres/cdc", "postgres-schemaless/cdcj"])
def test_keys_are_those_of_the_records(folder, name, keys):
    (table,) = describe_topic("t", read_recorded_frame(DEBEZIUM / f"{folder}.public.{name}.jsonl"))[1]
    assert (table.name, table.keys) == (f"public.{name}", keys)
    assert bool(table.settings) == ("schemaless" in folder) == bool(table.note)


def test_messages_of_other_formats():
    assert describe(read_lines("canal-products.jsonl"))[0] == "canal_json"
    assert describe(read_lines("maxwell-products.jsonl"))[0] == "maxwell_json"
    assert describe(to_frame(OGG)) == ("ogg_json", {"S.T": ("ID",)})


def test_canal_and_maxwell_name_tables_and_keys():
    canal = {"database": "d", "table": "t", "type": "INSERT", "isDdl": False, "pkNames": ["id"], "mysqlType": {"id": "int"}}
    assert describe(to_frame({**canal, "data": [{"id": "1"}]})) == ("canal_json", {"d.t": ("id",)})
    maxwell = {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {"id": 1, "v": "x"}}
    key = {"database": "d", "table": "t", "pk.id": 1}
    assert describe(to_frame(maxwell, key=key)) == ("maxwell_json", {"d.t": ("id",)})


def test_avro_has_the_name_of_its_topic_and_a_key_if_messages_have_one():
    avro = b"\0\0\0\0\x07" + b"x" * 9
    for key, keys in ((avro, ("of the message",)), (None, ())):
        form, (table,) = describe_topic("shop.public.orders", to_frame(avro, key=key))
        assert (form, table.name, table.keys) == ("debezium_avro", "public.orders", keys)


def test_rows_have_types_and_keys_by_their_values():
    rows = [{"id": 1, "a": True, "b": 1.5, "c": None, "d": [1]}, {"id": 2, "b": 2, "c": "x", "e": None, "f": 1}, {"f": "x"}]
    form, (table,) = describe_topic("feed.t", to_frame(*rows, key={"id": 1}))
    schema = {"id": "int64", "a": "bool", "b": "float64", "c": "string", "d": "string", "e": "string", "f": "string"}
    assert (form, table.name, table.keys) == ("rows", "feed.t", ("id",))
    assert table.settings == {"keys": ["id"], "schema": schema}
    with_schema = {"schema": {"type": "struct"}, "payload": {"id": 1}}
    assert describe(to_frame({"id": 1}, key=with_schema)) == ("rows", {"t": ("id",)})
    assert describe(to_frame({"id": 1}, key=b"7")) == ("rows", {"t": ()})


@pytest.mark.parametrize("value", [b"plain text", b"[1]", b"", None, b"{", b'"x"'])
def test_other_records_have_no_format(value):
    assert describe(to_frame(value)) == ("", {})


def test_most_records_decide_and_deletes_do_not_count():
    debezium = read_recorded_frame(DEBEZIUM / "postgres" / "cdc.public.orders.jsonl").slice(0, 3)
    mixed = pa.concat_tables([debezium, to_frame(b"text", None, OGG)])
    assert describe(mixed)[0] == "debezium_json"


def test_sources_are_one_for_each_format():
    orders, audit = DiscoveredTable("public.orders", ("id",)), DiscoveredTable("d.t")
    described = {
        "a": ("debezium_json", [orders]),
        "b": ("debezium_json", [orders]),
        "c": ("debezium_json", []),
        "d": ("", []),
        "e": ("debezium_avro", [audit]),
    }
    json_source, avro = list_sources("kafka", "a test", described, lambda topics: {"topics": topics})
    assert (json_source.name, json_source.settings) == ("debezium_json", {"format": "debezium_json", "topics": ["a", "b"]})
    assert list(json_source.tables) == [orders]
    assert json_source.steps == ["# Left out, because no table was recognised: c, d"]
    assert avro.settings["registry"] == {"url": "${SCHEMA_REGISTRY_URL:-http://localhost:8081}"} and not avro.steps
    assert list_sources("kafka", "a test", {"a": described["a"]}, lambda _: {})[0].name == "kafka"
    with pytest.raises(ConfigProblem, match="a test has no records of a known format in c, d"):
        list_sources("kafka", "a test", {key: described[key] for key in "cd"}, lambda _: {})


@pytest.mark.parametrize("url", ["kafka://app:hunter2@b:9092/t", "kafka://app:hunter2/x@b", "kafka:///t"])
def test_url_with_a_login_or_without_brokers_is_refused_and_not_printed(url):
    with pytest.raises(ConfigProblem, match=r"^a URL of Kafka has brokers") as refused:
        discover_topics(url, None)
    assert "hunter2" not in str(refused.value)


def test_tables_of_one_name_with_several_prefixes_are_sources_of_their_own():
    orders, items = DiscoveredTable("public.orders", ("id",)), DiscoveredTable("public.items", ("id",))
    described = {
        "cdc.public.orders": ("debezium_json", [orders]),
        "cdc.public.items": ("debezium_json", [items]),
        "db-2.public.orders": ("debezium_json", [orders]),
    }
    cdc, other = list_sources("kafka", "a test", described, lambda topics: {"topics": topics})
    assert (cdc.name, cdc.settings["topics"]) == ("kafka_cdc", ["cdc.public.orders", "cdc.public.items"])
    assert (other.name, other.settings["topics"]) == ("kafka_db_2", ["db-2.public.orders"])
    assert other.title == "debezium_json in a test, topics of db-2"
    assert cdc.steps == ["# Tables of one name have topics with several prefixes. Each prefix is a source: cdc, db-2"]
    apart = {"cdc.public.items": described["cdc.public.items"], "db-2.public.orders": described["db-2.public.orders"]}
    assert [source.name for source in list_sources("kafka", "a test", apart, lambda _: {})] == ["kafka"]


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["a.*"], ["a.*"]),
        (["a.*", "b"], ["a.*"]),
        (["a.t", "^a[.].*"], ["^a[.].*"]),
        (["*"], []),
        (["x.*"], []),
        (["b*"], []),
    ],
)
def test_globs_of_one_format_are_kept(patterns, kept):
    table = DiscoveredTable("t")
    described = {"a.t": ("canal_json", [table]), "a.marks": ("canal_json", []), "b": ("rows", [table]), "b.empty": ("", [])}
    assert keep_globs(patterns, ["a.t"], described) == kept
