"""Unexpected input of a pipeline: new topics and columns, existing tables of users, unusual names and records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from . import compare
from .shops import (
    LOGS,
    await_caught_up,
    await_equal,
    await_no_difference,
    await_snapshot,
    read_log_rows,
    read_mirror_rows,
    read_source_rows,
)
from .stack import World, execute_statements
from .topics import Record

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_new_topics_and_columns_are_replicated_during_the_run(shop: World) -> None:
    world, daemon = shop, shop.daemon()
    await_equal(world, daemon)
    world.execute("CREATE TABLE suppliers (id int PRIMARY KEY, name text, since date)")
    world.execute("INSERT INTO suppliers VALUES (1, 'first', '2024-02-29'), (2, NULL, NULL)")
    await_equal(world, daemon, ["suppliers"])
    world.execute("ALTER TABLE suppliers ADD rating numeric(4,1), ADD tags text[], ADD seen timestamptz")
    world.execute("INSERT INTO suppliers VALUES (3, 'third', NULL, 9.5, '{a,NULL}', now())")
    world.execute("UPDATE suppliers SET rating = 0.1, tags = '{}' WHERE id < 3")
    world.execute("ALTER TABLE customers ADD COLUMN loyalty bigint; UPDATE customers SET loyalty = id * 5000000000")
    await_equal(world, daemon, ["suppliers", "customers"])
    await_caught_up(world, daemon)
    for log in LOGS:
        assert {row["topic"] for row in read_log_rows(world, log)} >= {world.topic("suppliers"), world.topic("customers")}
    assert world.dead_letters() == []
    assert daemon.stop() == 0


# -- tables that are there already -------------------------------------------------------------------------------------

OTHERS = """
CREATE TABLE customers (
    id integer PRIMARY KEY, first_name varchar(4), last_name text, note text DEFAULT 'mine', email text, active boolean
);
INSERT INTO customers (id, first_name, note) VALUES (1, 'mine', 'kept'), (2000, 'mine', 'not of the source');
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, status integer);
CREATE TABLE products (id bigint PRIMARY KEY, name text, price numeric(3, 2), stock_quantity bigint, attributes text);
"""


def test_existing_targets_with_other_columns_and_types(shop: World) -> None:
    """They are used as they are: missing columns are added, their own columns stay. A value that does not fit is
    rejected, never cut or rounded. A type that fits no value stops the lane with a remedy."""
    world = shop
    execute_statements(world.target, OTHERS)
    daemon = world.daemon()
    await_equal(world, daemon, mirrors=("lake", "datalake"))
    await_caught_up(world, daemon, [f"target.{table}" for table in ("customers", "products", "order_items")])
    too_long = {key for key, row in read_source_rows(world, "customers").items() if len(row["first_name"]) > 4}
    dear = {key for key, row in read_source_rows(world, "products").items() if row["price"] >= 10}
    check_customers(world, too_long)
    check_all_except(world, "products", dear)
    letters = Counter((d["table"], d["lane"], d["code"]) for d in world.dead_letters())
    assert letters == {
        ("public.customers", "target.customers", "OUT_OF_RANGE"): len(too_long),
        ("public.products", "target.products", "OUT_OF_RANGE"): len(dear),
    }
    lane = daemon.await_status("target.orders", "suspended")
    assert "status" in lane["error"] and "TEXT" in lane["next_step"]
    execute_statements(world.target, "ALTER TABLE orders ALTER status TYPE text")
    world.get_result("lanes", "resume", "target.orders")
    await_equal(world, daemon, ["orders", "order_items"])
    assert daemon.stop() == 0


def check_all_except(world: World, table: str, rejected: Collection[Any]) -> None:
    """The target has the source's rows, without the rejected ones."""
    wanted = {key: row for key, row in read_source_rows(world, table).items() if key not in rejected}
    assert rejected and wanted
    found = {key: row for key, row in read_mirror_rows(world, "target", table).items() if key != (2000,)}
    assert compare.list_differences(wanted, found) == []


def check_customers(world: World, rejected: Collection[Any]) -> None:
    check_all_except(world, "customers", rejected)
    found = read_mirror_rows(world, "target", "customers")
    assert (found[1,]["note"], found[2000,]["note"], found[2000,]["first_name"]) == ("kept", "not of the source", "mine")
    assert {row["note"] for key, row in found.items() if key not in ((1,), (2000,))} == {"mine"}


# -- names -------------------------------------------------------------------------------------------------------------

HOSTILE = (
    'quote"d; DROP TABLE customers; --',
    "../../escape",
    "Case",
    "case",
    "l" + "o" * 60 + "ng",
    "per%cent {0} $1 %s",
    "select",
    "_delta_log",
)
"""Names of tables. The connector makes topics of them that the broker allows; what they are called the events say. (Columns
that differ in case only the connector refuses.)"""
INTO = {"../../escape": "/escape"}
"""A target's name is what follows the last dot of its table's."""
COLUMNS = ('a"b; DROP TABLE x; --', "C", "x" * 63, "%s", "{0}", "order", "with space", "_cdc", "a.b", "ünï")


def hostile_table(name: str) -> sql.Composed:
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(c)) for c in COLUMNS)
    return sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {})").format(sql.Identifier(name), columns)


def test_hostile_table_names(world: World) -> None:
    with psycopg.connect(world.source) as source:
        for name in HOSTILE:
            source.execute(hostile_table(name))
            values = sql.SQL("INSERT INTO {} SELECT i, {} FROM generate_series(1, 3) i").format(
                sql.Identifier(name), sql.SQL(", ").join(sql.Literal(f"{name}/{c}") for c in COLUMNS)
            )
            source.execute(values)
    world.register()
    before = list_outside_files(world)
    daemon = world.daemon()
    await_no_difference(lambda: list_hostile_differences(world), "every hostile table is in every target", daemon)
    with psycopg.connect(world.source) as source:
        for name in HOSTILE:
            quoted = sql.Identifier(name)
            source.execute(
                sql.SQL("UPDATE {} SET {} = {} WHERE id = 2").format(quoted, sql.Identifier("C"), sql.Literal("'; --"))
            )
            source.execute(sql.SQL("DELETE FROM {} WHERE id = 3").format(quoted))
    await_no_difference(
        lambda: list_hostile_differences(world), "every hostile table is in every target after changes", daemon
    )
    check_one_of_two_cases(daemon.lanes())
    assert list_outside_files(world) == before
    assert world.dead_letters() == []
    # The lake may be behind the other targets.
    await_no_difference(lambda: list_query_differences(world), "a query finds every change in the lake", daemon)
    assert daemon.stop() == 0


def check_one_of_two_cases(lanes: Mapping[str, Mapping[str, Any]]) -> None:
    """Some disks do not distinguish upper and lower case in folder names. The lake keeps the first table, and reports
    the second."""
    suspended = {name: lane for name, lane in lanes.items() if lane["status"] != "running"}
    assert list(suspended) in (["lake.case"], ["lake.Case"])
    (lane,) = suspended.values()
    assert "differ in case only" in lane["error"] and "into" in lane["next_step"]


def list_hostile_differences(world: World) -> list[str]:
    lines: list[str] = []
    for name in HOSTILE:
        expected, into = read_source_rows(world, name), INTO.get(name, name)
        for mirror in ("datalake", "target"):
            found = read_mirror_rows(world, mirror, into)
            lines += [f"{mirror}.{name}: {d}" for d in compare.list_differences(expected, found)]
    folders = {p.parent.name for p in world.lake.glob("*/_delta_log")} - {"cdc_events", "_replicator"}
    return [*lines, *([] if len(folders) == len(HOSTILE) - 1 else [f"the lake has {sorted(folders)}"])]


def list_query_differences(world: World) -> list[str]:
    lines = []
    for name in (INTO.get(n, n) for n in HOSTILE if n.lower() != "case"):
        rows = world.get_result("query", f"lake.{name}", "--where", "id = 2 AND \"C\" LIKE '%--'")
        if [row[COLUMNS[0]].endswith(f"{name}/{COLUMNS[0]}") for row in rows] != [True]:
            lines.append(f"lake.{name}: {rows}")
    return lines


def list_outside_files(world: World) -> set[Path]:
    """All files next to the folders of a pipeline. No table name may add one."""
    allowed = {"deltalake", "state"}
    beside = {p for p in world.folder.iterdir() if p.name not in allowed and not p.name.startswith("daemon-")}
    return beside | set(world.folder.parent.iterdir()) | set(world.folder.parent.parent.iterdir())


# -- records -----------------------------------------------------------------------------------------------------------


def test_malformed_records_are_dead_letters(shop: World) -> None:
    """Each has its code, and is in the event logs. The records around them are applied."""
    world, daemon = shop, shop.daemon()
    await_equal(world, daemon)
    template = next(r for r in world.topics.read([world.topic("customers")]) if r.payload)
    bad = make_bad_records(json.loads(template.key or b""), json.loads(template.value or b""))
    world.topics.produce(world.topic("customers"), [(key, value) for _, key, value in bad])
    world.execute("UPDATE customers SET city = 'after the bad records'")
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    records = world.topics.read([world.topic("customers")])
    first = next(r.offset for r in records if r.value == b"{not json")
    letters = {d["event_id"]: d for d in world.dead_letters()}
    for number, (code, _, value) in enumerate(bad):
        found = letters.pop(f"{world.topic('customers')}-0-{first + number}")
        assert found["code"] == code, (value, found)
        assert found["sentence"] and found["state"] == "open"
    assert letters == {}
    records = world.topics.read(world.topics.names(f"{world.prefix}.public."))
    for log in LOGS:
        rows = read_log_rows(world, log)
        assert compare.list_log_errors(rows, records) == []
        wrong = Counter(row["error"].partition(":")[0] for row in rows if row["error"] is not None)
        assert wrong == {"MALFORMED": 5}  # The others can be read, and are wrong as changes of their table.
    daemon.await_running()
    assert daemon.stop() == 0


def make_bad_records(key: Mapping[str, Any], value: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The error code and content of each invalid record, made from a record of the connector."""
    payload = value["payload"]
    without_id = {**payload, "after": {k: v for k, v in payload["after"].items() if k != "id"}}
    null_id = {**payload, "after": {**payload["after"], "id": None}}
    nested: Any = 1
    for _ in range(200):
        nested = [nested]
    return [
        ("MALFORMED", key, b"{not json"),
        ("MALFORMED", key, b""),
        ("MALFORMED", key, b"\xff\xfe\x00"),
        ("MALFORMED", key, b"[1, 2]"),
        ("MALFORMED", key, {"schema": value["schema"], "payload": [1]}),
        ("MALFORMED", key, {"schema": value["schema"], "payload": {**payload, "after": nested}}),
        ("UNKNOWN_OPERATION", key, {**value, "payload": {**payload, "op": "x"}}),
        ("UNKNOWN_OPERATION", key, {**value, "payload": {**payload, "op": None}}),
        ("NULL_KEY", key, {**value, "payload": without_id}),
        ("NULL_KEY", None, {**value, "payload": null_id}),
        (
            "NO_SEQUENCE",
            key,
            {**value, "payload": {**payload, "source": {**payload["source"], "lsn": None, "sequence": None}}},
        ),
    ]


def test_names_too_long_for_postgresql_are_refused_with_a_remedy(shop: World) -> None:
    """The source allows them. The lake replicates them; the PostgreSQL lanes name the config to write, and other lanes
    continue."""
    world = shop
    long_name = "a_table_whose_name_has_more_characters_than_postgresql_keeps_of_one"
    assert len(long_name) > 63
    await_snapshot(world)
    records = [r for r in world.topics.read([world.topic("customers")]) if r.payload]
    world.topics.create(world.topic(long_name))
    world.topics.produce(world.topic(long_name), [(r.key, set_table(r, long_name)) for r in records])
    daemon = world.daemon()
    for mirror in ("datalake", "target"):
        lane = daemon.await_status(f"{mirror}.{long_name}", "suspended")
        assert "63" in lane["error"] and "into" in lane["next_step"] and lane["exit_code"] == 2
    await_equal(world, daemon)
    await_no_difference(lambda: list_lake_differences(world, long_name), "the lake has the rows", daemon)
    assert daemon.stop() == 0


def set_table(record: Record, table: str) -> dict[str, Any]:
    """The same change in another table."""
    value = json.loads(record.value or b"")
    value["payload"]["source"]["table"] = table
    return dict(value)


def list_lake_differences(world: World, table: str) -> list[str]:
    return compare.list_differences(read_source_rows(world, "customers"), read_mirror_rows(world, "lake", table))
