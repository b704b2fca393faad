"""Private columns of queried databases and of full exports, through the whole program."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.cli_program import parse_answer, run_program
from support.next_layer import run_until_caught_up
from support.queried_database import QueriedDatabase

from adapters.arrow.masks import make_text_mask
from replicator.domain.transform.columns import Mask

pytestmark = pytest.mark.slow

KEY = "only-for-these-tests-0123456789"
CONFIG = """\
pipeline: shop
sources:
  asked: {{format: rows, transport: query, dsn: "sqlite:///asked.db", table: asked, cursor_column: modified}}
  people: {{format: rows, transport: snapshots, path: ./people}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
defaults: {{keys: [id], deletes: ignore}}
tables:
  - {{match: asked, source: asked{columns}, to: [{{sink: raw}}, {{sink: lake}}]}}
  - {{match: people, source: people{columns}, to: [{{sink: raw}}, {{sink: lake}}]}}
http: {{address: "127.0.0.1:0"}}
"""
MASKED = (
    ', columns: {id: {mask: hmac, key: "${MASK_KEY}"}, email: {mask: truncate, key: "${MASK_KEY}", length: 2}, phone: drop}'
)
ALICE, BOB = (47110815, "alice@example.com", "0176-55"), (47120816, "bob@example.com", "0176-55")
CLEAR = ("47110815", "47120816", "alice@", "bob@", "0176-55", KEY)
SOURCES = ("asked", "people")


def mask_value(value: object, length: int | None = None) -> str:
    return make_text_mask(Mask("hmac" if length is None else "truncate", KEY.encode(), length or 0))(str(value))


def write_config(folder: Path, columns: str) -> None:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "replicator.yaml").write_text(
        CONFIG.format(columns=columns).replace("sqlite:///asked.db", f"sqlite:///{folder / 'asked.db'}")
    )


def insert_people(folder: Path, day: int, *people: tuple[Any, ...]) -> None:
    """Inserts people into the database, and writes a snapshot of all."""
    database = QueriedDatabase(f"sqlite:///{folder / 'asked.db'}")
    for one in people:
        said = f"{one!r}"[:-1]
        database.run(f"INSERT OR REPLACE INTO asked VALUES {said}, '2024-01-0{day} 00:00:00')")
    names = ("id", "email", "phone")
    pq.write_table(
        pa.table({name: [one[i] for one in people] for i, name in enumerate(names)}), folder / "people" / f"{day}.parquet"
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASK_KEY", KEY)
    (tmp_path / "people").mkdir()
    QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}").run(
        "CREATE TABLE asked (id bigint PRIMARY KEY, email text, phone text, modified timestamp NOT NULL)"
    )
    insert_people(tmp_path, 1, ALICE, BOB)
    return tmp_path


def read_target(shop: Path, name: str) -> dict[Any, Any]:
    return {row["id"]: row["email"] for row in DeltaTable(str(shop / "lake" / name)).to_pyarrow_table().to_pylist()}


def read_stored_text(shop: Path) -> str:
    """All stored content of the program, decoded."""
    files = [file for folder in ("lake", "state") for file in (shop / folder).rglob("*") if file.is_file()]
    of_rows = [file for file in files if file.suffix == ".parquet"]
    texts = [file.read_bytes().decode(errors="replace") for file in files if file not in of_rows]
    return "\n".join([*texts, *(repr(pq.read_table(file, partitioning=None).to_pylist()) for file in of_rows)])


def test_no_stored_file_holds_private_values(shop: Path) -> None:
    write_config(shop, MASKED)
    run_until_caught_up(shop, "local")
    insert_people(shop, 2, (ALICE[0], "alice@example.org", ALICE[2]), BOB)
    run_until_caught_up(shop, "local")
    expected = {mask_value(ALICE[0]): mask_value("alice@example.org", 2), mask_value(BOB[0]): mask_value(BOB[1], 2)}
    assert {name: read_target(shop, name) for name in SOURCES} == dict.fromkeys(SOURCES, expected)
    assert [value for value in CLEAR if value in read_stored_text(shop)] == []
    for name in SOURCES:
        done = run_program(shop, "replay", name, "--into", f"{name}_again", "--json", "-q")
        assert done.returncode == 0, done.stdout + done.stderr
        assert read_target(shop, f"{name}_again") == expected
        done = run_program(shop, "forget", name, str(ALICE[0]), "--yes", "--json", "-q")
        assert done.returncode == 0, done.stdout + done.stderr
        assert parse_answer(done)["result"]["removed"][f"lake.{name}"] > 0
        assert list(read_target(shop, name)) == [mask_value(BOB[0])]
    assert [value for value in CLEAR if value in read_stored_text(shop)] == []


def test_mask_added_later_stops_the_run_with_a_remedy(shop: Path) -> None:
    write_config(shop, "")
    run_until_caught_up(shop, "local")
    write_config(shop, MASKED)
    done = run_program(shop, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == 4, done.stdout + done.stderr
    told_by = done.stdout + done.stderr
    assert "another mask of" in told_by and "Remove the folder" in told_by
    shutil.rmtree(shop / "state" / "shop" / "kept")
    for words in [("lanes", "resync", f"raw.{name}") for name in SOURCES] + [("drop", f"lake.{name}") for name in SOURCES]:
        done = run_program(shop, *words, "--yes", "--json", "-q")
        assert done.returncode == 0, done.stdout + done.stderr
    run_until_caught_up(shop, "local")
    for name in SOURCES:
        assert sorted(read_target(shop, name)) == sorted([mask_value(ALICE[0]), mask_value(BOB[0])])
