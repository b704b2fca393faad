"""Records that are large in every way: within the limits they are rows, beyond them rejects, and others go on. One key that
takes all changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.cli_program import parse_answer, run_program
from support.debezium_events import ID, make_column, make_payload
from support.recorded_shop import Shop, list_suspended_lanes
from support.schema_changes import Project, make_archive_record

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

MB = 1_000_000
WIDER = "limits: {columns: 3000}\n"


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str) -> Shop:
    return Shop(tmp_path, postgres_dsn, WIDER)


def rejects(shop: Shop) -> list[tuple[str, str]]:
    """The table and the code of every reject."""
    done = run_program(shop.folder, "dlq", "list", "--json")
    return sorted(
        (row["event_id"].rpartition("-")[0].rpartition("-")[0], row["code"]) for row in parse_answer(done)["result"]
    )


def print_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("size", [5 * MB, pytest.param(20 * MB, marks=pytest.mark.long)])
def test_records_of_many_megabytes(tmp_path: Path, postgres_dsn: str, size: int) -> None:
    shop = Shop(tmp_path, postgres_dsn, f"limits: {{message_bytes: {size + 3 * MB}}}\n")
    long = "".join(f"{n:09}\n" for n in range(size // 10))
    shop.record("cdc.public.t", {"table": "t"}, ("id", "v"), [("1", "a"), ("2", long), ("3", 2 * long), ("4", "b")])
    assert not list_suspended_lanes(shop.run())
    for read in (shop.in_lake, shop.in_mirror):
        assert {(key, print_of(value)) for key, value in read("t", ("id", "v"))} == {
            ("1", print_of("a")),
            ("2", print_of(long)),
            ("4", print_of("b")),
        }
    assert rejects(shop) == [("cdc.public.t", "TOO_LARGE")]
    shop.check_nothing_else_changed()


@pytest.mark.long
def test_thousands_of_columns(shop: Shop) -> None:
    """A PostgreSQL table can have 1,600, including Replicator's own."""
    widths = {"narrow": 1_500, "wide": 2_900, "wider": 3_100}
    for name, width in widths.items():
        values = tuple(str(n) for n in range(width))
        shop.record(f"cdc.public.{name}", {"table": name}, [f"c{n}" for n in range(width)], [values])
    errors = list_suspended_lanes(shop.run())
    assert list(errors) == ["mirror.wide"] and "1600" in errors["mirror.wide"]
    columns = ("c0", "c1499")
    assert shop.in_mirror("narrow", columns) == shop.in_lake("narrow", columns) == {("0", "1499")}
    assert shop.in_lake("wide", ("c0", "c2899")) == {("0", "2899")}
    assert {table for table, _ in rejects(shop)} == {"cdc.public.wider"}
    shop.check_nothing_else_changed()


TO = "[{sink: raw}, {sink: lake}, {sink: mirror}]"
DECLARED = f"  - {{match: 'public.deep*', source: recorded, schema: {{id: int64, v: string}}, to: {TO}}}\n"


def test_deeply_nested_values(tmp_path: Path, postgres_dsn: str) -> None:
    """A value that is too deep rejects only its own record."""
    shop = Shop(tmp_path, postgres_dsn)
    config = shop.folder / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("http:", f"{DECLARED}http:"))
    with (shop.folder / "archive" / "all.jsonl").open("w") as archive:
        for name, depth in (("deep", 50), ("deeper", 100), ("deepest", 100_000), ("deep_not", 0)):
            value = json.dumps(make_payload("c", after={"id": 1, "v": "DEEP"}, source={"table": name}))
            said = value.replace('"DEEP"', "[" * depth + "]" * depth) if depth else value
            record = {"topic": f"cdc.public.{name}", "partition": 0, "offset": 1, "timestamp": 1, "headers": None}
            archive.write(json.dumps({**record, "key": '{"id": 1}', "value": said}) + "\n")
    assert not list_suspended_lanes(shop.run())
    assert shop.in_lake("deep_not", ("id", "v")) == shop.in_mirror("deep_not", ("id", "v")) == {(1, "DEEP")}
    too_deep = [(f"cdc.public.{name}", "TOO_LARGE") for name in ("deeper", "deepest")]
    assert rejects(shop) == too_deep
    assert shop.in_lake("deep", ("id", "v")) == shop.in_mirror("deep", ("id", "v")) == {(1, "[" * 50 + "]" * 50)}
    shop.check_nothing_else_changed()


NUMBER = make_column("n", "int32")
EACH = "{sink: lake}, {sink: mirror}"
OF_ALL_POLICIES = ", ".join(
    f"{{sink: {sink}, into: {policy}, policy: {policy}}}"
    for sink in ("lake", "mirror")
    for policy in ("scd1", "scd2", "append")
)


@pytest.mark.parametrize("changes", [1_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_all_changes_have_one_key(tmp_path: Path, postgres_dsn: str, changes: int) -> None:
    project = Project(tmp_path, {"t": ""}, postgres_dsn)
    project.configure((EACH, OF_ALL_POLICIES), ("pipeline: changing", "pipeline: changing\nlimits: {batch_bytes: 256KiB}"))
    project.feed(
        "a",
        (
            make_archive_record("t", n, [ID, NUMBER], [ID], op="u" if n else "c", after={"id": 1, "n": n})
            for n in range(changes)
        ),
    )
    assert not list_suspended_lanes(project.run())
    for sink in ("lake", "mirror"):
        assert project.rows(sink, "scd1") == [{"id": 1, "n": changes - 1}]
        assert sorted(row["n"] for row in project.rows(sink, "append")) == list(range(changes))
        history = project._lake("scd2") if sink == "lake" else project._mirror("scd2")
        versions = sorted((row["n"], row["_cdc_seq_1"], row["_cdc_end_seq_1"]) for row in history)
        ends = [*(start for _, start, _ in versions[1:]), None]
        assert [(n, end) for n, _, end in versions] == list(enumerate(ends)) and len(versions) == changes
