"""The config that `replicator init` writes, from the description of a source. `replicator check` accepts every one."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from ruamel.yaml import YAML

from replicator.domain.patterns import matches
from replicator.ports.source import DiscoveredSource, DiscoveredTable
from replicator.settings import check_document
from replicator.settings.document import Origin, parse_document
from replicator.settings.starting_config import build_starting_config
from replicator.wiring.configuration import list_plugins

DSN = "postgresql://u:p@h/d"
LAKE = {"lake": {"kind": "delta", "path": "./lake"}}
MIRROR = {"target": {"kind": "postgres", "dsn": "${TARGET_DSN}", "schema": "public"}}
KAFKA = {"format": "debezium_json", "transport": "kafka", "bootstrap_servers": "b:9092", "topics": ["shop.public.*"]}


def describe(*tables: DiscoveredTable, **settings: Any) -> DiscoveredSource:
    return DiscoveredSource("shop", "a test", {**KAFKA, **settings}, tables)


def keyed(*names: str) -> list[DiscoveredTable]:
    return [DiscoveredTable(name, ("id",), 1) for name in names]


def check(text: str, root: Any) -> None:
    document = parse_document(text, lambda line, _: Origin("made", line + 1))
    check_document(document, root, environ={"SOURCE_DSN": DSN, "TARGET_DSN": DSN}, plugins=list_plugins())


@pytest.fixture
def build(tmp_path):
    """Builds the config, checks it, and returns the entries of `tables` by their `match`."""

    def build(*tables: DiscoveredTable, sinks: Any = LAKE) -> dict[str, dict[str, Any]]:
        text = build_starting_config([describe(*tables)], sinks)
        check(text, tmp_path)
        return {entry["match"]: entry for entry in YAML(typ="safe").load(text)["tables"]}

    return build


def test_whole_config(tmp_path):
    database = {"dsn": "${SOURCE_DSN}", "publication": "replicator_shop", "slot": "replicator_shop"}
    connect = {"url": "${CONNECT_URL:-http://localhost:8083}", "connector": "shop"}
    source = describe(*keyed("public.orders"), DiscoveredTable("public.audit"), database=database, connect=connect)
    text = build_starting_config([source], LAKE | MIRROR)
    check(text, tmp_path)
    assert text == dedent("""\
        # yaml-language-server: $schema=./schema.json
        # Made by `replicator init` from a test.
        # `replicator check` validates this file, `replicator plan` shows what will run.
        sources:
          shop:
            format: debezium_json
            transport: kafka
            bootstrap_servers: b:9092
            topics: [shop.public.*]
            database:                           # only `replicator doctor`, `backfill` and `diff` connect to it
              dsn: ${SOURCE_DSN}
              publication: replicator_shop
              slot: replicator_shop
            connect:                            # only `replicator doctor` connects to it
              url: ${CONNECT_URL:-http://localhost:8083}
              connector: shop

        sinks:
          lake:
            kind: delta
            path: ./lake
          target:
            kind: postgres
            dsn: ${TARGET_DSN}
            schema: public

        tables:                                 # the most specific match wins, whole
          - match: public.*                     # current rows: orders
            source: shop
            policy: scd1
            to: [{sink: lake}, {sink: target}]
          - match: public.audit                 # no key: each change is a row
            source: shop
            policy: append
            to: [{sink: lake}, {sink: target}]
        """)


def test_equal_tables_are_one_glob(build):
    entries = build(*keyed(*(f"public.t{number}" for number in range(50))), *keyed("sales.a", "sales.b"))
    assert {match: entry["policy"] for match, entry in entries.items()} == {"public.*": "scd1", "sales.*": "scd1"}


def test_comment_of_a_glob_names_some_tables():
    text = build_starting_config([describe(*keyed(*(f"public.t{number}" for number in range(50))))], LAKE)
    assert "# current rows: t0, t1, t2, t3, t4, t5, t6, t7 and 42 more\n" in text


def test_tables_without_keys_are_a_glob_with_append(build):
    assert build(DiscoveredTable("log.a"), DiscoveredTable("log.b")).keys() == {"log.*"}
    assert build(DiscoveredTable("log.a"))["log.*"]["policy"] == "append"


def test_tables_of_one_name_have_different_targets(build):
    entries = build(*keyed("public.orders", "sales.orders", "sales.items"))
    into = {match: entry.get("into") for match, entry in entries.items() if not match.startswith("^")}
    assert into == {"public.orders": "public_orders", "sales.orders": "sales_orders", "sales.*": None}


def test_schema_of_namesakes_alone_has_an_entry_for_later_tables(build):
    entries = build(
        *keyed("public.orders", "public.items", "Sales $1.orders"), DiscoveredTable("Sales $1.items"), sinks=LAKE | MIRROR
    )
    later = [match for match in entries if match.startswith("^")]
    assert {match: (entries[match]["policy"], entries[match]["into"]) for match in later} == {
        r"^public\.(.*)": ("scd1", "public_{1}"),
        r"^Sales\ \$1\.(.*)": ("scd1", "Sales__1_{1}"),
    }
    assert [matches(match, name) for match, name in zip(later, ("public.new", "Sales $1.new"), strict=True)] == [True, True]
    assert entries["Sales $1.items"]["into"] == "Sales__1_items"


def test_tables_of_one_name_and_schema_have_the_source_in_the_target(tmp_path):
    sources = [
        DiscoveredSource(name, "a test", {**KAFKA, "topics": [f"{name}.*"]}, keyed("public.orders")) for name in ("a", "b")
    ]
    text = build_starting_config(sources, LAKE)
    check(text, tmp_path)
    found = [(entry["source"], entry["match"], entry["into"]) for entry in YAML(typ="safe").load(text)["tables"]]
    assert found == [
        ("a", "public.orders", "a_public_orders"),
        ("a", r"^public\.(.*)", "a_public_{1}"),
        ("b", "public.orders", "b_public_orders"),
        ("b", r"^public\.(.*)", "b_public_{1}"),
    ]


def test_targets_of_namesakes_differ(build):
    entries = build(*keyed("a.b_c", "z.b_c", "a_b.c", "a.c", "x.z_b_c", "x.a_b_c_"))
    found = [entry["into"] for match, entry in entries.items() if not match.startswith("^") and "*" not in match]
    assert found == ["a_b_c", "a_c", "z_b_c_", "a_b_c__"]


def test_settings_of_a_table_are_in_an_entry_of_its_own(build):
    entries = build(DiscoveredTable("public.staff", ("id",), settings={"sequence_by": ["at"]}), *keyed("public.orders"))
    assert entries["public.staff"]["sequence_by"] == ["at"]
    assert "sequence_by" not in entries["public.*"]


def test_table_without_a_schema_is_named(build):
    assert build(*keyed("orders")).keys() == {"orders"}


@pytest.mark.parametrize(
    "name", ["Weird: Täble!", "a, b #c", "a\nb", "x" * 63, "null", "'", '"', "a[b]", "${X}", "*", "?", "["]
)
def test_hostile_names_are_written_and_matched(build, name):
    assert build(*keyed(f"public.{name}")).keys() == {"public.*"}
    found = build(DiscoveredTable(f"public.{name}"), *keyed("public.orders"))
    match = next(match for match in found if match != "public.*").replace("$${", "${")
    assert matches(match, f"public.{name}") and not matches(match, "public.other")


@pytest.mark.parametrize("schema", ["*", "^a", "a?", "[a]"])
def test_hostile_schemas_are_matched_alone(build, schema):
    match, other = build(*keyed(f"{schema}.t", "public.orders"))
    assert matches(match, f"{schema}.t") and not matches(match, "public.orders")
    assert other == "public.*"


def test_postgres_target_alone_is_enough(build):
    assert build(*keyed("public.orders"), sinks=MIRROR)["public.*"]["to"] == [{"sink": "target"}]
