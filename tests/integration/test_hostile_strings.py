"""Texts that try to be more than texts, wherever the source may say one: nothing but rows comes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program
from support.hostile_strings import make_hostile_strings
from support.recorded_shop import Shop, list_suspended_lanes
from support.small_spark import SMALL

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = make_hostile_strings()
SOME = TEXTS if os.environ.get("REPLICATOR_LONG") else TEXTS[::10]
"""Each makes lanes of its own."""


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str) -> Shop:
    return Shop(tmp_path, postgres_dsn)


def test_hostile_keys_and_values(shop: Shop) -> None:
    rows = [(text, text) for text in TEXTS]
    shop.record("cdc.public.t", {"table": "t"}, ("id", "v"), rows)
    lanes = shop.run()
    assert {lane["status"] for lane in lanes.values()} == {"running"}
    assert shop.in_lake("t", ("id", "v")) == shop.in_mirror("t", ("id", "v")) == set(rows)
    shop.check_nothing_else_changed()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_hostile_keys_values_and_columns_on_spark(shop: Shop) -> None:
    """Executors write the same targets and event logs with the same names."""
    rows = [(text, text) for text in TEXTS]
    shop.record("cdc.public.t", {"table": "t"}, ("id", "v"), rows)
    columns = ["the key", *(text for text in TEXTS if not too_long(text) and not is_ours(text))][:101]
    values = tuple(str(n) for n in range(len(columns)))
    shop.record("cdc.public.wide", {"table": "wide"}, columns, [values])
    lanes = shop.run("--set", "engine=spark", "--set", f"spark={json.dumps(SMALL)}")
    assert {lane["status"] for lane in lanes.values()} == {"running"}
    assert shop.in_lake("t", ("id", "v")) == shop.in_mirror("t", ("id", "v")) == set(rows)
    assert shop.in_lake("wide", columns) == shop.in_mirror("wide", columns) == {values}
    assert len(shop.list_log_records()) == len(rows) + 1
    shop.check_nothing_else_changed()


def test_hostile_keys_of_rejected_records(shop: Shop) -> None:
    """Dead letters hold the whole record. Their descriptions do not quote it."""
    place = {"topic": "cdc.public.t", "partition": 0, "timestamp": 1, "headers": None}
    with (shop.folder / "archive" / "all.jsonl").open("w") as archive:
        for offset, text in enumerate(TEXTS):
            archive.write(json.dumps({**place, "offset": offset, "key": text, "value": text}) + "\n")
    shop.run()
    letters = DeltaTable(str(shop.folder / "dead_letters")).to_pyarrow_table().to_pylist()
    assert {(row["key"].decode(), row["record"].decode()) for row in letters} == {(text, text) for text in TEXTS}
    assert {row["code"] for row in letters} == {"MALFORMED"}
    said = run_program(shop.folder, "dlq", "list", "--limit", "1000", "--json")
    assert len(json.loads(said.stdout)["result"]) == len(TEXTS)
    shop.check_nothing_else_changed()


def too_long(text: str) -> bool:
    return len(text.encode()) > 63


def is_ours(column: str) -> bool:
    return column == "_op" or column.startswith("_cdc_")


def test_hostile_column_names(shop: Shop) -> None:
    """Ten per table. Reserved names, and names that PostgreSQL would truncate, are refused by name."""
    tables = {f"t{at}": ["the key", *TEXTS[at : at + 10]] for at in range(0, len(TEXTS), 10)}
    values = tuple(str(n) for n in range(11))
    for name, columns in tables.items():
        shop.record(f"cdc.public.{name}", {"table": name}, columns, [values])
    errors = list_suspended_lanes(shop.run())
    for name, columns in tables.items():
        ours, cut = any(c.startswith("_cdc_") for c in columns), any(map(too_long, columns))
        for lane, wrong, read in ((f"lake.{name}", ours, shop.in_lake), (f"mirror.{name}", ours or cut, shop.in_mirror)):
            assert (lane in errors) == wrong, (lane, errors.get(lane))
            assert wrong or read(name, columns) == {values}
    assert len(shop.list_log_records()) == len(tables)
    shop.check_nothing_else_changed()


def target_of(name: str) -> str:
    """A target is called as what follows the last dot of its table's name."""
    return name.rpartition(".")[2]


def test_hostile_table_names(shop: Shop) -> None:
    """The first of several tables with the same target keeps it. An empty name, and a name too long for PostgreSQL, are
    refused."""
    for at, name in enumerate(SOME):
        shop.record(f"cdc.public.t{at}", {"table": name}, ("id", "v"), [("1", name)])
    errors = list_suspended_lanes(shop.run())
    first: dict[str, str] = {}
    for name in SOME:
        into = target_of(name)
        if first.setdefault(into, name) != name:
            assert {f"{sink}.{into} (public.{name})" for sink in ("lake", "mirror")} <= errors.keys()
            continue
        for sink, read, wrong in (("lake", shop.in_lake, False), ("mirror", shop.in_mirror, too_long(into))):
            assert (f"{sink}.{into}" in errors) == (wrong or not into), (sink, into)
            assert wrong or not into or read(into, ("id", "v")) == {("1", name)}
    assert len(shop.list_log_records()) == len(SOME)
    shop.check_nothing_else_changed()


def test_hostile_schema_and_topic_names(shop: Shop) -> None:
    for at, text in enumerate(SOME):
        shop.record(text, {"schema": text, "table": f"t{at}"}, ("id", "v"), [("1", text)])
    assert not list_suspended_lanes(shop.run())
    for at, text in enumerate(SOME):
        assert shop.in_lake(f"t{at}", ("id", "v")) == shop.in_mirror(f"t{at}", ("id", "v")) == {("1", text)}
    assert [(topic, table) for topic, _, table in shop.list_log_records()] == sorted(
        (t, f"{t}.t{n}") for n, t in enumerate(SOME)
    )
    shop.check_nothing_else_changed()


def test_topic_name_too_long_for_a_folder_suspends_the_event_log_only(shop: Shop) -> None:
    """Kafka has no such topics. The error is reported, and the other sinks continue."""
    shop.record("é" * 45, {"table": "t"}, ("id", "v"), [("1", "v")])
    errors = list_suspended_lanes(shop.run())
    assert list(errors) == ["raw.recorded"] and "longer name" in errors["raw.recorded"]
    assert shop.in_lake("t", ("id", "v")) == shop.in_mirror("t", ("id", "v")) == {("1", "v")}
    shop.check_nothing_else_changed()
