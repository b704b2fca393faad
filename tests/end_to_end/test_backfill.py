"""`replicator backfill` of PostgreSQL tables while their rows change."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from support.registered_source import drop_source, make_slot_name

from .daemon import Daemon, await_condition
from .mirrored_items import list_current_differences, read_histories
from .stack import World, execute_statements
from .test_incremental_snapshot import Clerk
from .topics import Record

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

ROWS = 2_000
CREATE = f"""
CREATE TABLE items (id int PRIMARY KEY, note text, turn int);
INSERT INTO items SELECT i, 'as it was', 0 FROM generate_series(1, {ROWS}) i"""
SINKS = ("lake", "target")
Rows = dict[int, dict[str, Any]]


def prepare_world(world: World, script: str = CREATE, **more: Any) -> World:
    """The table, a pipeline with its rows and history in a lake and in PostgreSQL, and a log of its records."""
    world.execute(script)
    world.overrides[0] = f'sources.shop.topics=["{world.topic("items")}"]'
    world.overrides.append(f"sources.shop.database.slot={make_slot_name(world.prefix)}")
    lanes = [{"sink": sink, **kind} for sink in SINKS for kind in ({}, {"into": "versions", "policy": "scd2"})]
    world.rewrite_config({"tables": [{"match": "public.items", "source": "shop", "to": [{"sink": "raw"}, *lanes], **more}]})
    return world


def find_journal(world: World) -> Path:
    (folder,) = (world.folder / "state").glob("*/backfills/shop/public.items")
    return folder


def read_journal(world: World) -> list[dict[str, Any]]:
    """The payloads in the journal of the last backfill."""
    files = sorted(find_journal(world).glob("*.parquet"))
    return [json.loads(value)["payload"] for file in files for value in pq.read_table(file)["value"].to_pylist()]


def read_rows(payloads: Iterable[Mapping[str, Any]]) -> Rows:
    return {p["after"]["id"]: p["after"] for p in payloads if p["op"] == "r"}


def get_position(payloads: Sequence[Mapping[str, Any]]) -> int:
    [found] = {json.loads(p["source"]["sequence"])[0] for p in payloads if p["op"] == "r"}
    return int(found)


def select_records_between(world: World, low: int, high: int) -> list[Record]:
    """The connector's records whose preceding commit is between two positions."""
    found = []
    for record in world.topics.read([world.topic("items")]):
        if record.payload is not None:
            commit, own = json.loads(record.payload["source"]["sequence"])
            if low <= int(commit or own) < high:
                found.append(record)
    return found


def replay_changes(rows: Rows, records: Iterable[Record]) -> Rows:
    """The rows after the changes."""
    now = dict(rows)
    for payload in (record.payload for record in records):
        assert payload is not None
        if payload["op"] == "d":
            now.pop(payload["before"]["id"], None)
        else:
            now[payload["after"]["id"]] = payload["after"]
    return now


def await_current(world: World, daemon: Daemon) -> None:
    """Waits until the connector has sent all commits and the daemon has applied them."""
    daemon.await_condition(lambda: not list_current_differences(world), "the targets equal the source", seconds=120)


def test_backfill_of_a_changing_table_is_exact(world: World) -> None:
    """The first snapshot plus the changes between both positions equals the second snapshot, row by row."""
    prepare_world(world).register(**{"snapshot.mode": "no_data"})
    daemon = world.daemon()
    daemon.await_condition(daemon.status, "the daemon answers")  # Without one the command would be the pipeline.
    with Clerk(world.source):
        first = world.get_result("backfill", "public.items")
        before = read_journal(world)
        assert first["rows"] == len(read_rows(before)) > ROWS / 2
        second = world.get_result("backfill", "public.items")
        after = read_journal(world)
    assert second["rows"] == len(read_rows(after)) and not second["resumed"]
    await_current(world, daemon)
    low = get_position(before)
    meanwhile = select_records_between(world, low, get_position(after))
    assert len(meanwhile) > 10
    assert replay_changes(read_rows(before), meanwhile) == read_rows(after)
    assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
    lanes = ["lake.items", "lake.versions", "target.items", "target.versions"]
    assert first["deletes_of"] == lanes and first["without"] == []
    expected = compute_versions(read_rows(before), select_records_between(world, low, 1 << 62))
    for sink, rows in read_histories(world).items():
        later = [r for r in rows if r["_cdc_last_seq_1"] >= low]
        assert sorted((r["id"], r["note"], r["turn"], r["_cdc_end_seq_1"] is None) for r in later) == expected, sink
    assert daemon.stop() == 0


def compute_versions(rows: Rows, records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """The versions of these rows after the changes, and whether each is open."""
    now, ended = dict(rows), []
    for payload in (record.payload for record in records):
        assert payload is not None
        new, old = payload["after"], None
        key = (new or payload["before"])["id"]
        old = now.get(key)
        if old is not None and old != new:
            ended.append((old["id"], old["note"], old["turn"], False))
        now = {**now, key: new} if new is not None else {k: row for k, row in now.items() if k != key}
    return sorted([*ended, *((r["id"], r["note"], r["turn"], True) for r in now.values())])


def test_deletes_lost_with_the_slot_are_found(world: World) -> None:
    """The slot is lost, so the stream never delivers these changes. The next backfill finds them, without a daemon."""
    prepare_world(world).register(**{"snapshot.mode": "no_data"})
    assert world.get_result("backfill", "public.items")["rows"] == ROWS
    assert list_current_differences(world) == []
    drop_source(world.stack, world.prefix)
    world.execute("DELETE FROM items WHERE id % 10 = 0")
    world.execute("UPDATE items SET note = 'unseen' WHERE id % 10 = 1")
    world.execute("INSERT INTO items VALUES (5005, 'unseen too', 1)")
    again = f"{world.prefix}again"
    world.register(again, **{"snapshot.mode": "no_data", "topic.prefix": world.prefix})
    world.overrides.append(f"sources.shop.database.slot={make_slot_name(again)}")
    world.execute("UPDATE items SET note = 'seen' WHERE id % 10 = 2")
    world.execute("DELETE FROM items WHERE id % 10 = 3")
    found = world.get_result("backfill", "public.items")
    assert found["rows"] == ROWS - 2 * ROWS // 10 + 1
    await_condition(
        lambda: world.run_until_caught_up() == 0 and not list_current_differences(world), "the targets equal the source"
    )
    assert found["deleted"] >= ROWS // 10
    for sink, rows in read_histories(world).items():
        unchanged = [r for r in rows if r["id"] % 10 == 4]
        assert len(unchanged) == ROWS // 10, f"{sink}: what did not change has one version"
        assert len([r for r in rows if r["id"] % 10 == 1]) == 2 * ROWS // 10, sink
        assert [r for r in rows if r["id"] % 10 == 0 and r["_cdc_end_seq_1"] is None] == [], sink
    assert world.dead_letters() == []


def test_backfill_stores_rows_with_the_types_of_debezium(world: World) -> None:
    """The columns of a target are the same, whether a backfill or Debezium delivers its first row."""
    prepare_world(world, TYPES, keys=["id"]).register(**{"snapshot.mode": "initial"})
    await_condition(lambda: len(world.topics.read([world.topic("items")])) == 4, "the connector has read the rows")
    world.get_result("backfill", "public.items")
    sent = {r.payload["after"]["id"]: r for r in world.topics.read([world.topic("items")]) if r.payload}
    files = sorted(find_journal(world).glob("*.parquet"))
    mine = [json.loads(v) for f in files for v in pq.read_table(f)["value"].to_pylist()]
    assert len(mine) == 4
    for event in mine:
        theirs = json.loads(sent[event["payload"]["after"]["id"]].value or b"")
        assert normalize_row(event["payload"]["after"]) == normalize_row(theirs["payload"]["after"])
        assert list_column_types(event["schema"]) == list_column_types(theirs["schema"])


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN money_of_us AS numeric(12,3);
CREATE TABLE items (id int PRIMARY KEY, s smallint, b bigint NOT NULL, o oid, f boolean, r real, d double precision,
    n numeric(10,2), w numeric(38,10), v numeric, m money_of_us, day date, t time, t3 time(3), ts timestamp,
    ts3 timestamp(2),
    at timestamptz, at3 timestamptz(3), tx text, vc varchar(20), c char(6), u uuid, j json, jb jsonb, x xml,
    e mood, i inet, ci cidr, ma macaddr, by bytea, li int[], lb bigint[], lt text[], lo boolean[],
    made int GENERATED ALWAYS AS (id * 2) STORED);
INSERT INTO items (id, b) VALUES (1, 0);
INSERT INTO items VALUES (2, 1, 9223372036854775807, 4294967295, true, 1.1, 1e-300, -0.01,
    -1234567890123456789012345678.0123456789, -123.4500, 0.001, '0001-01-01', '00:00', '23:59:59.999',
    '1900-01-01 00:00:00.000001', '2024-02-29 12:00:00.12',
    '2024-02-29 12:00:00.123456+05', '1969-12-31 23:59:59.9+00', 'äöü "quoted" \\ % {}', '', 'ab',
    '00000000-0000-0000-0000-000000000001',
    '{"a":  1}', '{"b": [1, 2.50]}', '<a>1</a>', 'ok', '10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', '\\x00ff10',
    '{1,NULL,-3}', '{}', '{"a","b,c",NULL}', '{true,false}');
INSERT INTO items VALUES (3, -32768, -9223372036854775808, 0, false, 'NaN', 'Infinity', 99999999.99, 0, 1e20, -999999999.999,
    '9999-12-31', '12:30:00.000001', '12:30', '9999-12-31 23:59:59.999999', '1969-12-31', '1970-01-01 00:00:00+00',
    '2024-06-01 00:00:00+02', E'line\\nbreak\\ttab', 'x', 'abcdef', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '[]', 'null',
    '<b/>', 'sad', '::1', '2001:db8::/32', 'ff:ff:ff:ff:ff:ff', '', '{}', '{9223372036854775807}', '{}', '{NULL}');
INSERT INTO items (id, b, v, by) VALUES (4, 4, 0.000, repeat('x', 200)::bytea)"""


def normalize_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and times as values, independent of their encoded length."""

    def number(value: Any) -> Any:
        return int.from_bytes(base64.b64decode(value), "big", signed=True)

    out = dict(row)
    for name in ("n", "w", "m"):
        out[name] = None if row[name] is None else number(row[name])
    out["v"] = None if row["v"] is None else (row["v"]["scale"], number(row["v"]["value"]))
    for name in ("at", "at3"):
        out[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    return out


def list_column_types(schema: Mapping[str, Any]) -> list[Any]:
    """The parts of the schema that decide the columns' types."""
    [after] = [field for field in schema["fields"] if field["field"] == "after"]
    return [
        (
            f["field"],
            f["type"],
            f.get("name"),
            f.get("parameters", {}).get("scale"),
            f["optional"],
            (f.get("items") or {}).get("type"),
        )
        for f in after["fields"]
    ]


def test_killed_backfill_resumes(world: World) -> None:
    """Stored pieces stay. Rows read later have higher positions, and the stream delivers the deletes in between."""
    prepare_world(world, CREATE.replace(str(ROWS), "52000")).register(**{"snapshot.mode": "no_data"})
    process = subprocess.Popen(world.arguments("backfill", "public.items"), cwd=world.folder, env=world.environ)
    await_condition(
        lambda: list((world.folder / "state").glob("*/backfills/shop/public.items/*.parquet")), "a piece is written down"
    )
    process.kill()
    process.wait()
    pieces = len(list(find_journal(world).glob("*.parquet")))
    assert pieces == 1, "it was killed in the midst of it"
    execute_statements(
        world.source, "DELETE FROM items WHERE id % 30 = 0; UPDATE items SET note = 'later' WHERE id % 30 = 1"
    )
    outcome = world.get_result("backfill", "public.items")
    assert outcome["resumed"] and outcome["rows"] < 52_000
    last = world.topics.ends([world.topic("items")])[world.topic("items"), 0]
    await_condition(
        lambda: len(select_records_between(world, 0, 1 << 62)) >= 2 * 52_000 // 30,
        f"the connector has sent what was changed, to {last}",
    )
    assert world.run_until_caught_up() == 0
    assert list_current_differences(world) == [] and world.dead_letters() == []


def test_impossible_backfills_are_refused(world: World) -> None:
    prepare_world(world)
    without_slot = world.answer("backfill", "public.items", code=3)
    assert "slot" in without_slot["error"]["sentence"] and "no_data" in without_slot["error"]["next_step"]
    assert "matches 'public.nothing'" in world.answer("backfill", "public.nothing", code=2)["error"]["sentence"]
    admin = world.stack.dsn("source", world.databases["source"], superuser=True)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (make_slot_name(world.prefix),))
        try:
            world.execute("CREATE TABLE spans (id int PRIMARY KEY, i interval); CREATE TABLE keyless (id int)")
            world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": [{"sink": "lake"}]}]})
            refused = world.answer("backfill", "public.spans", code=2)["error"]["sentence"]
            assert "Column i" in refused and "interval" in refused
            assert "no primary key" in world.answer("backfill", "public.keyless", code=2)["error"]["sentence"]
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (make_slot_name(world.prefix),))
