"""Statements that cause every kind of PostgreSQL event: each target equals the source, except the values listed here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import psycopg
import pytest

from . import compare
from .compare import Rows
from .conftest import MakeWorld
from .shops import LOGS, MIRRORS, await_caught_up, await_no_difference, read_log_rows, read_mirror_table
from .stack import PROJECT, World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

FOLDER = PROJECT / "tests" / "golden" / "decoders" / "debezium"
"""Its README says where the statements come from."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "customers": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "order_items": ("order_id", "line_no"),
    "trunc_me": ("id",),
}
WIDENED = "alter table customers alter column loyalty type bigint"
"""Up to here the targets follow before the rest is run: the column is there as int when its values outgrow it."""

# The exceptions. A row is named by its key; `None` means that no mirror has it.

REJECTED_ROWS: Mapping[str, Mapping[tuple[Any, ...], None]] = {"customers": {(3,): None}}
"""Its `born` is infinity, which no target type but PostgreSQL's own date has: OUT_OF_RANGE before lanes part."""

NOT_BACKFILLED: Mapping[str, Mapping[tuple[Any, ...], Mapping[str, Any]]] = {
    # PostgreSQL fills an added column with its default, and a renamed one with the values of the old, without an event.
    "customers": {(2,): {"loyalty": None}, (10,): {"loyalty": None}},
    "products": {("SKU-2",): {"product_title": None}, ("SKU-3",): {"product_title": None}},
}
CONNECTOR: Mapping[str, Mapping[tuple[Any, ...], Mapping[str, Any]]] = {
    # The connector sends a numeric NaN as null.
    "customers": {(2,): {"bignum": None}},
}
LEFT_BEHIND: Mapping[str, Mapping[tuple[Any, ...], Mapping[str, Any]]] = {
    # A dropped column, and the old name of a renamed one, stay with the values they had.
    "customers": {(2,): {"smallrate": float("inf")}, (1,): {"smallrate": None}, (600,): {"smallrate": None}},
    "products": {
        ("SKU-2",): {"title": "Gadget"}, ("SKU-3",): {"title": 'Quote " \\ and tab\t'}, ("SKU-1",): {"title": None},
    },
}  # fmt: skip
REJECTS = Counter({("public.customers", "", "OUT_OF_RANGE"): 3})
"""Table, lane (none: before lanes part) and code."""


def read_statements(name: str) -> list[str]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def execute(world: World, script: Iterable[str]) -> None:
    with closing(psycopg.connect(world.source, autocommit=True)) as connection:
        for statement in script:
            connection.execute(statement.encode())


def read_expected_rows(world: World, table: str, *, final: bool) -> Rows:
    """The source's rows in the targets' form, with the exceptions."""
    rows = compare.index_by_key(compare.read_postgres_table(world.source, "public", table), *KEYS[table])
    out = {key: dict(row) for key, row in rows.items() if key not in REJECTED_ROWS.get(table, {})}
    kinds = (NOT_BACKFILLED, CONNECTOR, LEFT_BEHIND) if final else (CONNECTOR,)
    for kind in kinds:
        for key, values in kind.get(table, {}).items():
            out[key].update(values)
    return out if final else {k: {n: v for n, v in row.items() if n != "loyalty"} for k, row in out.items()}


def read_mirror_rows(world: World, mirror: str, table: str) -> Rows:
    return compare.index_by_key(read_mirror_table(world, mirror, table), *KEYS[table])


def list_all_differences(world: World, *, final: bool) -> list[str]:
    lines: list[str] = []
    for table in KEYS:
        wanted = {k: to_target_form(row) for k, row in read_expected_rows(world, table, final=final).items()}
        for mirror in MIRRORS:
            rows = {k: to_target_form(row) for k, row in read_mirror_rows(world, mirror, table).items()}
            lines += [f"{mirror}.{table}: {d}" for d in compare.list_differences(wanted, rows)]
    return lines


def to_target_form(row: Mapping[str, Any]) -> dict[str, Any]:
    """The form of types that exist in one system only: times of day and unlimited numbers as text, intervals as ISO
    8601."""
    out = dict(row)
    if out.get("t") is not None:
        out["t"] = str(out["t"])
    if out.get("bignum") is not None:
        out["bignum"] = str(out["bignum"])
    if out.get("ival") == "1 year 2 mons 3 days 04:05:06.789":
        out["ival"] = "P1Y2M3DT4H5M6.789S"
    return out


@pytest.fixture
def samples(make_world: MakeWorld) -> World:
    world = make_world("samples")
    execute(world, read_statements("schema.sql"))
    world.register(value__converter__replace__null__with__default="false")
    return world


def test_every_target_equals_the_source_except_listed_values(samples: World) -> None:
    world, daemon = samples, samples.daemon()
    changes = read_statements("changes.sql")
    cut = changes.index(WIDENED)
    execute(world, changes[:cut])
    await_no_difference(
        lambda: list_all_differences(world, final=False), "the mirrors equal the source up to the widening", daemon
    )
    execute(world, changes[cut:])
    await_no_difference(
        lambda: list_all_differences(world, final=True), "the mirrors equal the source but for the exceptions", daemon
    )
    await_caught_up(world, daemon, [f"{m}.{t}" for m in MIRRORS for t in KEYS] + [f"{log}.shop" for log in LOGS])
    letters = world.dead_letters()
    seen = Counter((d["table"], d["lane"], d["code"]) for d in letters)
    assert seen == REJECTS
    assert all(d["record"] for d in letters)
    check_logs(world)
    check_table_without_key(world, daemon.lanes())
    assert daemon.stop() == 0


def check_logs(world: World) -> None:
    """The event logs contain all records, also rejected ones and those without a key."""
    records = world.topics.read(world.topics.names(f"{world.prefix}.public."))
    assert {r.topic.rpartition(".")[2] for r in records} == {*KEYS, "audit_log"}
    for log in LOGS:
        assert compare.list_log_errors(read_log_rows(world, log), records) == []


def check_table_without_key(world: World, lanes: Mapping[str, Mapping[str, Any]]) -> None:
    """The lanes are suspended, and name the file and line to change. After that change they have every change."""
    config = (world.folder / "config" / "replicator.yaml").read_text().splitlines()
    for mirror in MIRRORS:
        lane = lanes[f"{mirror}.audit_log"]
        assert (lane["status"], lane["exit_code"]) == ("suspended", 2)
        assert "no key" in lane["error"]
        number = re.search(r"replicator\.yaml:(\d+)", lane["next_step"])
        assert number and f"sink: {mirror}" in config[int(number[1]) - 1]
        assert "policy: append" in lane["next_step"] and "`- match: public.audit_log`" in lane["next_step"]


def test_table_without_key_with_append(samples: World) -> None:
    world = samples
    execute(world, read_statements("changes.sql"))
    to = "[{sink: lake}, {sink: datalake}, {sink: target}]"
    world.overrides.append(f'tables=[{{match: "public.audit_log", source: shop, policy: append, to: {to}}}]')
    daemon = world.daemon()
    names = [f"{mirror}.audit_log" for mirror in MIRRORS]
    for name in names:
        daemon.await_status(name, "running")
    await_caught_up(world, daemon, names)
    records = [r for r in world.topics.read([world.topic("audit_log")]) if r.payload]
    wanted = sorted((r.event_id, *to_image(r.payload or {})) for r in records)
    assert Counter(op for _, op, *_ in wanted) == {"r": 2, "u": 2, "d": 1, "c": 1}
    for mirror in MIRRORS:
        rows = read_mirror_table(world, mirror, "audit_log")
        assert sorted((r["_event_id"], r["_cdc_op"], repr(r["who"]), repr(r["what"]), repr(r["n"])) for r in rows) == wanted
    assert daemon.stop() == 0


def to_image(payload: Mapping[str, Any]) -> tuple[str, str, str, str]:
    row = payload["after"] or payload["before"]
    return (payload["op"], repr(row["who"]), repr(row["what"]), repr(row["n"]))
