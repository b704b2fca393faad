"""`replicator import`: the config of pairs of connectors, and what is said of the settings that it does not carry over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner
from paths import PROJECT
from ruamel.yaml import YAML

from replicator.cli import main

SECRETS = ("source-pw-7", "target-pw-7", "registry-pw-7")
SOURCE = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "cdc",
    "table.include.list": "public.orders, public\\.items",
    "database.hostname": "shop-db",
    "database.dbname": "shop",
    "database.password": SECRETS[0],
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
SINK = {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "topics": "cdc.public.orders,cdc.public.items",
    "connection.url": "jdbc:postgresql://warehouse:5432/mirror?currentSchema=shop",
    "connection.username": "writer",
    "connection.password": SECRETS[1],
    "insert.mode": "upsert",
    "primary.key.mode": "record_key",
    "delete.enabled": "true",
    "schema.evolution": "basic",
}
CONFLUENT = {
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "topics.regex": "cdc\\.public\\..*",
    "connection.url": "jdbc:postgresql://warehouse/mirror",
    "connection.user": "writer",
    "connection.password": SECRETS[1],
}
UNWRAP = {"transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState"}
LAST_PART = {
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": "([^.]+)\\.([^.]+)\\.([^.]+)",
    "transforms.route.replacement": "$3",
}
AVRO = {
    "key.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter.schema.registry.url": "http://registry:8081",
    "value.converter.basic.auth.user.info": f"reader:{SECRETS[2]}",
}
VALUES = {"SCHEMA_REGISTRY_URL": "http://registry:8081", "TARGET_DSN": "postgresql://a:b@c/d"}
ALL_TABLES = {**SOURCE, "table.include.list": "public.*"}


def write(folder: Path, *connectors: dict[str, str]) -> list[str]:
    for number, config in enumerate(connectors):
        (folder / f"{number}.json").write_text(json.dumps({"name": f"shop-{number}", "config": config}))
    return [str(folder / f"{number}.json") for number in range(len(connectors))]


def run(*arguments: str, code: int = 0, **options: Any):
    done = CliRunner().invoke(main, ["import", *arguments], **options)
    assert done.exit_code == code, done.output
    assert not any(secret in done.output for secret in SECRETS)
    return done


def import_pair(folder: Path, *connectors: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The config, which `check` has found nothing wrong with, and the reasons by setting."""
    result = json.loads(run(*write(folder, *connectors), "--json").stdout)["result"]
    assert set(result) == {"config", "left_out"}
    assert_checked(folder, result["config"])
    return YAML(typ="safe", pure=True).load(result["config"]), {one["setting"]: one["reason"] for one in result["left_out"]}


def assert_checked(folder: Path, text: str) -> None:
    config = folder / "config" / "replicator.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(text)
    environment = {name: VALUES.get(name, "value") for name in re.findall(r"\$\{(\w+)\}", text)}
    done = CliRunner().invoke(main, ["check", "-c", str(config), "--json"], env={"REPLICATOR_ENV": None, **environment})
    said = json.loads(done.stdout)
    assert (said["ok"], said["result"]["warnings"], said["result"]["hints"]) == (True, [], []), done.output


def test_json_with_upsert(tmp_path):
    done = run(*write(tmp_path, SOURCE, SINK))
    assert done.stderr == ""
    assert done.stdout == dedent("""\
        # yaml-language-server: $schema=./schema.json
        # Made by `replicator import` of these connectors (docs/how-to/import-a-kafka-connect-setup.md): shop-0, shop-1
        pipeline: cdc
        sources:
          cdc:
            format: debezium_json
            transport: kafka
            bootstrap_servers: ${KAFKA_BOOTSTRAP_SERVERS:-localhost:9092}
            topics:
              - cdc.public.orders
              - cdc.public.items
        sinks:
          target:
            kind: postgres
            dsn: postgresql://writer:${TARGET_PASSWORD}@warehouse:5432/mirror
            schema: shop
        defaults:
          policy: scd1
          deletes: hard
          schema_changes: evolve
        tables:
          - match: public.orders
            source: cdc
            to:
              - sink: target
                into: cdc_public_orders
          - match: public.items
            source: cdc
            to:
              - sink: target
                into: cdc_public_items
        """)
    assert_checked(tmp_path, done.stdout)


def test_avro_with_a_registry(tmp_path):
    config, left_out = import_pair(tmp_path, {**SOURCE, **AVRO}, SINK)
    login = {"user": "reader", "password": "${REGISTRY_PASSWORD}"}
    assert config["sources"]["cdc"]["format"] == "debezium_avro" and not left_out
    assert config["sources"]["cdc"]["registry"] == {"url": "http://registry:8081", **login}


def test_registry_that_the_worker_fills_in(tmp_path):
    url = {"value.converter.schema.registry.url": "${env:REGISTRY}"}
    config, left_out = import_pair(tmp_path, {**SOURCE, **AVRO, **url}, SINK)
    assert config["sources"]["cdc"]["registry"]["url"] == "${SCHEMA_REGISTRY_URL}" and [*left_out] == [*url]


def test_insert_is_append(tmp_path):
    config, left_out = import_pair(tmp_path, SOURCE, {**CONFLUENT, "auto.create": "true", "pk.mode": "none"})
    assert config["defaults"] == {"policy": "append", "schema_changes": {"added": "fail", "others": "ignore"}}
    assert config["sources"]["cdc"]["topics"] == ["cdc.public.orders", "cdc.public.items"]
    assert [table["to"] for table in config["tables"]] == [[{"sink": "target"}], [{"sink": "target"}]]
    assert set(left_out) == {"insert.mode", "auto.create"} and "scd1" in left_out["insert.mode"]


def test_all_tables_of_a_schema_under_names_made_of_theirs(tmp_path):
    sink = {**{name: value for name, value in SINK.items() if name != "topics"}, "topics.regex": "cdc\\.public\\..*"}
    config, left_out = import_pair(tmp_path, ALL_TABLES, sink)
    assert config["sources"]["cdc"]["topics"] == ["^(?:cdc\\.public\\..*)$"] and not left_out
    (table,) = config["tables"]
    assert table["match"] == "^public\\.(?P<table>.+)$"
    assert table["to"] == [{"sink": "target", "into": "cdc_public_{table}"}]


@pytest.mark.parametrize(("quoted", "into"), [("true", "cdc_public_Orders"), ("false", "cdc_public_orders")])
def test_names_without_quotes_are_in_small_letters(tmp_path, quoted, into):
    source, sink = {**SOURCE, "table.include.list": "public.Orders"}, {**SINK, "topics": "cdc.public.Orders"}
    config, _ = import_pair(tmp_path, source, {**sink, "quote.identifiers": quoted})
    assert config["tables"][0]["to"] == [{"sink": "target", "into": into}]


def test_sink_that_flattens_and_routes(tmp_path):
    """The topics hold whole change events, and the target is called as the last part of the topic."""
    unwrap = {**UNWRAP, "transforms.unwrap.drop.tombstones": "false", "transforms.unwrap.add.fields": "op,source.ts_ms"}
    upsert = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id", "delete.enabled": "true"}
    sink = {**CONFLUENT, **upsert, **unwrap, **LAST_PART, "transforms": "unwrap,route", "auto.evolve": "true"}
    config, left_out = import_pair(tmp_path, ALL_TABLES, sink)
    assert "flattened" not in config["sources"]["cdc"] and "metadata" in left_out.pop("transforms.unwrap.add.fields")
    assert config["tables"] == [{"match": "public.*", "source": "cdc", "keys": ["id"], "to": [{"sink": "target"}]}]
    assert config["defaults"] == {"policy": "scd1", "deletes": "hard", "schema_changes": "evolve"} and not left_out


@pytest.mark.parametrize(
    ("unwrap", "tombstones", "deletes", "left_out"),
    [
        ({}, "delete", "hard", set()),
        ({"delete.tombstone.handling.mode": "rewrite", "add.fields": "op,source.lsn"}, "ignore", "soft", {"mode"}),
        ({"delete.tombstone.handling.mode": "rewrite"}, "ignore", "soft", {"mode", "fields"}),
        ({"delete.handling.mode": "rewrite", "drop.tombstones": "false"}, "delete", "hard", set()),
        ({"delete.handling.mode": "drop", "add.headers": "lsn:place"}, "ignore", "ignore", set()),
    ],
)
def test_source_that_flattens(tmp_path, unwrap, tombstones, deletes, left_out):
    source = {**SOURCE, "transforms": "unwrap", **UNWRAP, **{f"transforms.unwrap.{k}": v for k, v in unwrap.items()}}
    config, left = import_pair(tmp_path, {**source, "provide.transaction.metadata": "true"}, SINK)
    assert config["sources"]["cdc"]["flattened"] is True
    assert (config["defaults"]["tombstones"], config["defaults"]["deletes"]) == (tombstones, deletes)
    assert config["defaults"].get("tombstone_retention") == ("off" if deletes == "soft" else None)
    left.pop("provide.transaction.metadata")
    assert {name.rpartition(".")[2] for name in left} == left_out


def test_flattened_avro_is_refused(tmp_path):
    done = run(*write(tmp_path, {**SOURCE, **AVRO, "transforms": "unwrap", **UNWRAP}, SINK), code=2)
    assert "flattens records in Avro" in done.stderr and done.stdout == ""


def test_source_that_routes(tmp_path):
    source = {**SOURCE, **LAST_PART, "transforms": "route"}
    config, left_out = import_pair(tmp_path, source, {**SINK, "topics": "orders,nowhere"})
    assert config["sources"]["cdc"]["topics"] == ["orders"] and [*left_out] == ["topics"]
    assert config["tables"] == [{"match": "public.orders", "source": "cdc", "to": [{"sink": "target"}]}]


def test_router_of_some_topics_is_left_out_of_patterns(tmp_path):
    route = {**LAST_PART, "transforms.route.regex": "cdc\\.public\\.(a|b)", "transforms": "route"}
    _, left_out = import_pair(tmp_path, ALL_TABLES, {**CONFLUENT, **route})
    assert "some topics only" in left_out["transforms.route.regex"]


def test_two_shards_have_targets_of_their_own(tmp_path):
    shards = {
        "transforms": "shards",
        "transforms.shards.type": "io.debezium.transforms.ByLogicalTableRouter",
        "transforms.shards.topic.regex": "cdc\\.shop_\\d\\.orders",
        "transforms.shards.topic.replacement": "all_orders",
    }
    source = {**SOURCE, "table.include.list": "shop_1.orders,shop_2.orders"}
    sink = {**SINK, **shards, "topics": "cdc.shop_1.orders,cdc.shop_2.orders"}
    config, left_out = import_pair(tmp_path, source, sink)
    assert [table["to"][0]["into"] for table in config["tables"]] == ["all_orders", "shop_2_orders"]
    assert set(left_out) == {"table.name.format"}


def test_schemas_of_targets_are_sinks(tmp_path):
    source = {**SOURCE, "table.include.list": "public.orders,sales.items"}
    sink = {
        **SINK,
        "topics": "cdc.public.orders,cdc.sales.items",
        "collection.name.format": "${source.schema}.${source.table}",
    }
    config, left_out = import_pair(tmp_path, source, sink)
    assert {name: one["schema"] for name, one in config["sinks"].items()} == {"target": "public", "target_sales": "sales"}
    assert [table["to"] for table in config["tables"]] == [[{"sink": "target"}], [{"sink": "target_sales"}]]
    assert not left_out


def test_two_sinks_of_a_table(tmp_path):
    """A table that one sink names and the other one matches has both in its entry: the most specific one counts."""
    other = {**CONFLUENT, **LAST_PART, "transforms": "route", "connection.url": "jdbc:postgresql://lake/d"}
    config, _ = import_pair(tmp_path, ALL_TABLES, {**SINK, "topics": "cdc.public.orders"}, other)
    assert [table["match"] for table in config["tables"]] == ["public.orders", "public.*"]
    assert [entry["sink"] for entry in config["tables"][0]["to"]] == ["shop-1", "shop-2"]
    assert config["sinks"]["shop-2"]["dsn"] == "postgresql://writer:${SHOP_2_PASSWORD}@lake/d"
    assert "defaults" not in config and {entry["policy"] for entry in config["tables"][0]["to"]} == {"scd1", "append"}


def test_two_sinks_of_one_database_are_one(tmp_path):
    one, other = ({**SINK, "topics": f"cdc.public.{table}"} for table in ("orders", "items"))
    config, _ = import_pair(tmp_path, SOURCE, one, other)
    assert [*config["sinks"]] == ["target"] and [len(table["to"]) for table in config["tables"]] == [1, 1]


def test_transactions_where_all_tables_are_read(tmp_path):
    source = {**SOURCE, "provide.transaction.metadata": "true"}
    config, left_out = import_pair(tmp_path, source, SINK)
    assert config["sources"]["cdc"]["transactions"] == {"topic": "cdc.transaction"} and not left_out
    assert config["sources"]["cdc"]["topics"][-1] == "cdc.transaction"
    config, left_out = import_pair(tmp_path, source, {**SINK, "topics": "cdc.public.orders"})
    assert "transactions" not in config["sources"]["cdc"] and [*left_out] == ["provide.transaction.metadata"]


def test_address_that_the_worker_fills_in(tmp_path):
    config, left_out = import_pair(tmp_path, SOURCE, {**SINK, "connection.url": "${env:TARGET}"})
    assert config["sinks"]["target"]["dsn"] == "${TARGET_DSN}" and "set TARGET_DSN" in left_out["connection.url"]


def test_records_without_schema(tmp_path):
    source = {**SOURCE, "value.converter.schemas.enable": "false", "decimal.handling.mode": "string"}
    config, left_out = import_pair(tmp_path, source, SINK)
    assert config["sources"]["cdc"]["decimals"] == "text" and "schema" in left_out["value.converter.schemas.enable"]


def test_compacted_topics_and_databases_of_mariadb(tmp_path):
    source = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "topic.prefix": "7.shop",
        "database.include.list": "inventory",
        "topic.creation.default.cleanup.policy": "compact",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "heartbeat.interval.ms": "1000",
        "signal.data.collection": "inventory.signals",
    }
    sink = {name: value for name, value in SINK.items() if name != "topics"}
    config, left_out = import_pair(tmp_path, source, {**sink, "collection.name.format": "${source.table}"})
    assert config["pipeline"] == "c_7_shop" and config["sources"]["c_7_shop"]["topics"] == ["7.shop.inventory.*"]
    assert config["tables"][0]["match"] == "inventory.*" and config["defaults"]["tombstones"] == "delete"
    assert set(left_out) == {"heartbeat.interval.ms", "signal.data.collection"}


def test_settings_that_are_left_out_say_what_to_do_and_hide_secrets(tmp_path):
    more = {
        "batch.size": "500",
        "consumer.override.sasl.jaas.config": f"Login required password='{SECRETS[1]}'",
        "errors.deadletterqueue.topic.name": "rejected",
        "transforms": "mask",
        "transforms.mask.type": "org.apache.kafka.connect.transforms.MaskField$Value",
        "hibernate.note": f"jdbc://writer:{SECRETS[1]}@db password={SECRETS[1]}",
        "connection.url": f"jdbc:postgresql://db/d?user=a%40b&password={SECRETS[1]}&sslmode=require&prepareThreshold=0",
        "connection.username": "",
    }
    done = run(*write(tmp_path, SOURCE, {**SINK, **more}))
    assert "dsn: postgresql://a%40b:${TARGET_PASSWORD}@db/d?sslmode=require\n" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 6 and all(re.fullmatch(r"not carried over: \S+?=.+: .+", line) for line in lines), done.stderr
    assert "not carried over: consumer.override.sasl.jaas.config=***: write librdkafka's setting" in done.stderr
    assert "`columns` (drop, rename, cast, mask" in done.stderr and "connection.url?prepareThreshold=0" in done.stderr
    assert "docs/how-to/recover-dead-letters.md" in done.stderr and "batch.size=500: replicator sizes batches" in done.stderr


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"connector.class": "com.example.Sink"}, "is a com.example.Sink, which cannot be imported"),
        ({"connection.url": "jdbc:mysql://${env:HOST}/shop"}, "writes to jdbc:mysql, and not to PostgreSQL"),
        ({"connection.url": f"oracle:{SECRETS[1]}"}, "writes to no JDBC URL"),
        ({"connector.class": SOURCE["connector.class"]}, "JDBC sink connectors, not 2 and 0"),
        ({"topics": "elsewhere"}, "shop-1 reads no topic of connector shop-0"),
        ({"topics": "", "topics.regex": "("}, "topics.regex of connector shop-1 cannot be read"),
    ],
)
def test_sink_without_a_config_is_refused(tmp_path, changes, why):
    done = run(*write(tmp_path, SOURCE, {**SINK, **changes}), code=2)
    assert why in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic.prefix": "${env:PREFIX}"}, "does not say its topic.prefix"),
        ({"value.converter": "io.confluent.connect.protobuf.ProtobufConverter"}, "has the ProtobufConverter"),
    ],
)
def test_source_without_a_config_is_refused(tmp_path, changes, why):
    assert why in run(*write(tmp_path, {**SOURCE, **changes}, SINK), code=2).stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"no json {SECRETS[1]}", "is not JSON"),
        ("[1]", "is not a connector"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "UTF-8"),
    ],
)
def test_file_that_is_no_connector_is_refused(tmp_path, text, why):
    source, other = write(tmp_path, SOURCE, SINK)
    Path(other).write_bytes(text.encode(errors="surrogateescape"))
    assert why in run(source, other, code=2).stderr
    assert "nothing.json cannot be read: No such file" in run(source, "nothing.json", code=2).stderr


def test_config_of_standard_input(tmp_path):
    """Without a name around it."""
    source, _ = write(tmp_path, SOURCE, SINK)
    assert "\n    to:\n" in run(source, "-", input=json.dumps(SINK)).stdout


def test_file_is_written_once(tmp_path):
    files, out = write(tmp_path, SOURCE, SINK), tmp_path / "replicator.yaml"
    done = run(*files, "--out", str(out))
    assert done.stdout == f"{out}: written, 0 settings not carried over\n"
    assert out.read_text() == run(*files).stdout
    out.write_text("mine")
    assert "File exists" in run(*files, "--out", str(out), code=2).stderr and out.read_text() == "mine"


def test_example_of_the_page(tmp_path):
    page = (PROJECT / "docs" / "how-to" / "import-a-kafka-connect-setup.md").read_text()
    blocks = re.findall(r"```(json|yaml|text)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["json", "json", "yaml", "text"]
    for name, (_, text) in zip(("shop-source.json", "shop-target.json"), blocks, strict=False):
        (tmp_path / name).write_text(text)
    done = run(*(str(tmp_path / name) for name in ("shop-source.json", "shop-target.json")))
    assert (done.stdout, done.stderr) == (blocks[2][1], blocks[3][1])
    assert_checked(tmp_path, done.stdout)
