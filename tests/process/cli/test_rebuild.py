"""`replicator replay`: a target rebuilt from the event log, beside the lane's own target."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from paths import GOLDEN
from support.cli_program import parse_answer, run_program
from support.next_layer import LONG_ON_SPARK

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./dead_letters}
tables:
  - {match: public.orders, source: recorded, to: [{sink: lake, into: orders}]}
  - match: public.customers
    source: recorded
    keys: [id]
    to: [{sink: raw}, {sink: lake}, {sink: lake, into: customers_history, policy: scd2}]
  - {match: '^public\\.(a)udit_log(e|$)', source: recorded, policy: append, to: [{sink: lake, into: '{1}_e'}]}
  - {match: public.order_items, source: recorded, to: [{sink: raw}, {sink: lake}]}
http: {address: "127.0.0.1:0"}
"""
OF_THE_RUN = "_cdc_applied_at"
LATE = "2026-11-20T17:47:26.858000+00:00"
"""Between the changes that the recorded topics hold."""


@pytest.fixture(scope="module")
def read_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop that has caught up. Tests do not write into it."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    (folder / "archive").mkdir()
    write_archive(folder, 1_000)
    ran = run_program(folder, "run", "--until-caught-up", "-q")
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def shop(read_shop: Path, tmp_path: Path) -> Path:
    """A private copy of the shop."""
    return Path(shutil.copytree(read_shop, tmp_path / "shop"))


def write_archive(shop: Path, below: int) -> None:
    """Writes the archive up to an offset."""
    for table in ("customers", "order_items", "audit_log"):
        name = f"cdc.public.{table}.jsonl"
        lines = (SAMPLES / name).read_text().splitlines(keepends=True)
        (shop / "archive" / name).write_text("".join(one for one in lines if json.loads(one)["offset"] < below))


def replay(shop: Path, *words: str, code: int = 0, key: str = "result") -> dict[str, Any]:
    done = run_program(shop, "replay", *words, "--json", "-q", seconds=300)
    assert done.returncode == code, done.stdout + done.stderr
    return parse_answer(done)[key]


def read_rows(shop: Path, table: str) -> list[str]:
    found = DeltaTable(str(shop / "lake" / table)).to_pyarrow_table().drop_columns([OF_THE_RUN])
    return sorted(map(repr, found.select(sorted(found.column_names)).to_pylist()))


def read_event_times(shop: Path, table: str) -> dict[str, str]:
    """The event id of each version, with its time."""
    found = DeltaTable(str(shop / "lake" / table)).to_pyarrow_table().to_pylist()
    return {row["_event_id"]: row["_cdc_ts"].isoformat() for row in found}


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_rebuilt_target_equals_the_live_one(shop: Path, engine: str) -> None:
    """Under both policies. The lane's own target and position stay unchanged, and the program continues afterwards."""
    settings = ("--set", f"engine={engine}")
    before = read_rows(shop, "customers")
    said = replay(shop, "public.customers", "--lane", "lake.customers", "--into", "again", *settings)
    assert said["lane"] == "lake.again" and said["rejected"] == 3 and said["applied"] > 5
    assert read_rows(shop, "again") == before == read_rows(shop, "customers")
    words = ("--into", "versions", "--policy", "scd2", "--until", LATE)
    replay(shop, "public.customers", "--lane", "lake.customers", *words, *settings)
    assert set(read_event_times(shop, "versions")) == {
        e for e, at in read_event_times(shop, "customers_history").items() if at <= LATE
    }
    ran = run_program(shop, "run", "--until-caught-up", "--json", "-q")
    assert {lane["counts"]["applied"] for lane in json.loads(ran.stdout)["result"]["lanes"]} == {0}


def test_repeated_replay_applies_later_changes(shop: Path) -> None:
    shutil.rmtree(shop / "lake")
    shutil.rmtree(shop / "state")
    write_archive(shop, 5)
    run_program(shop, "run", "--until-caught-up", "-q")
    replay(shop, "public.order_items", "--into", "again")
    first = read_rows(shop, "again")
    write_archive(shop, 1_000)
    run_program(shop, "run", "--until-caught-up", "-q")
    replay(shop, "public.order_items", "--into", "again")
    assert first != read_rows(shop, "again") == read_rows(shop, "order_items")


def test_replay_of_a_period(shop: Path) -> None:
    """Until a time: the rows at that time. Since a time: the changes after it."""
    replay(shop, "public.customers", "--lane", "lake.customers_history", "--into", "late", "--since", LATE)
    replay(shop, "public.customers", "--lane", "lake.customers_history", "--into", "early", "--until", LATE)
    began = read_event_times(shop, "customers_history")
    early, late = ({event for event, at in began.items() if (at <= LATE) is first} for first in (True, False))
    assert set(read_event_times(shop, "early")) == early and len(early) > 1
    assert set(read_event_times(shop, "late")) == late and len(late) > 1


def test_rows_as_of_a_source_time(read_shop: Path) -> None:
    """Before the target was rebuilt, and with versions: row by row as in the history of each row."""
    shop = read_shop
    for table, keys in (("customers", ("id",)), ("order_items", ("order_id", "line_no"))):
        told = {
            words: run_command(shop, "history", f"public.{table}", *words)
            for words in {tuple(str(row[key]) for key in keys) for row in run_command(shop, "query", table)}
        }
        for at in ("2026-11-20T17:46:50+00:00", "2026-11-20T17:47:26.856259+00:00", "2027-01-01T00:00:00+00:00"):
            found = run_command(shop, "query", f"public.{table}", "--as-of", at, "--from-log")
            rows = {tuple(str(row[key]) for key in keys): row for row in found}
            for words, entries in told.items():
                then = [e["after"] for e in entries if datetime.fromisoformat(e["at"]) <= datetime.fromisoformat(at)]
                row, last = rows.get(words), then[-1] if then else None
                values = row and {name: row[name] for name in row if name[0] != "_"}
                assert values == (last and select_columns(row, last)), (at, words)
    then = ("query", "public.customers", "--as-of", "2026-11-20T17:46:50+0000")
    assert len(to_sorted_rows(run_command(shop, *then))) == 2 and to_sorted_rows(
        run_command(shop, *then, "--from-log")
    ) == to_sorted_rows(run_command(shop, *then))


def to_sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the commit time, sorted: a query promises no order."""
    told = [{name: value for name, value in row.items() if name != OF_THE_RUN} for row in rows]
    return sorted(told, key=json.dumps)


def select_columns(row: dict[str, Any] | None, entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry.get(name) for name in row or () if name[0] != "_"}


def run_command(shop: Path, *words: str) -> Any:
    done = run_program(shop, *words, "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    return parse_answer(done)["result"]


REFUSED = {
    "several lanes": (("public.customers", "--into", "again"), "has several lanes"),
    "another table's lane": (("public.order_items", "--lane", "lake.customers", "--into", "x"), "has no lane"),
    "no table": (("public.nothing", "--into", "again"), "no entry of `tables`"),
    "a target of the config": (("public.order_items", "--into", "orders"), "is a target of the config"),
    "its own target": (("public.order_items", "--into", "order_items"), "is a target of the config"),
    "a target that a pattern brought about": (("public.order_items", "--into", "a_e"), "is a target of the config"),
    "a name that leads elsewhere": (("public.order_items", "--into", "/../../x"), "no slashes"),
    "no name": (("public.order_items", "--into", ""), "must be the name of a table"),
    "a name made of groups": (("public.order_items", "--into", "{1}"), "must not contain a group such as {schema}"),
    "somebody's table": (("public.order_items", "--into", "foreign"), "no replay on this machine created it"),
    "no event log": (("public.orders", "--into", "again"), "has no event log"),
}


def test_impossible_replays_are_refused(shop: Path) -> None:
    write_deltalake(str(shop / "lake" / "foreign"), pa.table({"id": [1]}))
    for words, sentence in REFUSED.values():
        refused = replay(shop, *words, code=2, key="error")
        assert sentence in refused["sentence"] and refused["next_step"]
    replay(shop, "public.order_items", "--into", "again")
    words = ("public.order_items", "--into", "again", "--until", "2026-11-20T17:47:26.854600+00:00")
    refused = replay(shop, *words, code=2, key="error")
    assert "started with other options" in refused["sentence"] and "replicator drop lake.again" in refused["next_step"]
    dropped = run_program(shop, "drop", "lake.again", "--yes")
    assert dropped.returncode == 0, dropped.stdout + dropped.stderr
    replay(shop, *words)
    assert read_rows(shop, "again") != read_rows(shop, "order_items")


ROWS = """\
pipeline: rows
sources:
  feed: {format: rows, transport: archive, path: ./archive, operation_column: op}
  topic: {format: rows, transport: archive, path: ./topic}
  folder: {format: rows, transport: files, path: ./folder, files: csv, csv: {header: true}, settle: 0 seconds}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./dead_letters}
defaults: {keys: [id]}
tables:
  - {match: items, source: feed, schema: {id: int64, price: int64}, to: [{sink: lake}, {sink: raw}]}
  - {match: users, source: topic, schema: {id: int64, name: string}, to: [{sink: lake}, {sink: raw}]}
  - {match: names, source: folder, schema: {id: int64, name: string}, to: [{sink: lake}, {sink: raw}]}
http: {address: "127.0.0.1:0"}
"""


def test_records_of_row_sources_are_read_by_their_own_decoder(tmp_path: Path) -> None:
    """Not as rows of the event log's own table."""
    for folder in ("config", "archive", "topic", "folder/names"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "config" / "replicator.yaml").write_text(ROWS)
    (tmp_path / "folder" / "names" / "000001.csv").write_text("id,name\n1,Ada\n2,\n")
    price = {"topic": "items", "partition": 0, "headers": None, "key": None}
    lines = [
        {**price, "offset": at, "timestamp": 1000 * at, "value": json.dumps({"id": key, "price": at, "op": op})}
        for at, (key, op) in enumerate([(1, "c"), (2, "c"), (1, "u"), (2, "d")])
    ]
    (tmp_path / "archive" / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Rows that say no operation: the last one of a key counts, and one without a value deletes it.
    upserts = [(1, "Ada"), (2, "Bob"), (3, "Eve"), (1, "Eda"), (2, None), (3, None), (3, "Eva")]
    lines = [
        {"topic": "users", "partition": 0, "offset": at, "key": json.dumps({"id": key})}
        | {"value": None if name is None else json.dumps({"id": key, "name": name})}
        for at, (key, name) in enumerate(upserts)
    ]
    (tmp_path / "topic" / "users.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = run_program(tmp_path, "run", "--until-caught-up", "-q")
    assert ran.returncode == 0, ran.stderr
    users = DeltaTable(str(tmp_path / "lake" / "users")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in users) == [(1, "Eda"), (3, "Eva")]
    for table in ("items", "names", "users"):
        said = replay(tmp_path, table, "--lane", f"lake.{table}", "--into", f"{table}_again")
        assert said["rejected"] == 0 and read_rows(tmp_path, f"{table}_again") == read_rows(tmp_path, table) != []
    then = run_command(tmp_path, "query", "items", "--as-of", "1970-01-01T00:00:01+0000", "--from-log")
    assert sorted((row["id"], row["price"]) for row in then) == [(1, 0), (2, 1)]
