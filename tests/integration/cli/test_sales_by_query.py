"""A database that is asked, by the whole program: the worked example, the engines in turns, and kills at any moment."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.cli_program import run_program, start_program
from support.next_layer import run_until_caught_up
from support.queried_database import QueriedDatabase

EXAMPLE = PROJECT / "config" / "examples" / "sales-by-query.yaml"
KILLS = int(os.environ.get("REPLICATOR_KILLS", "5"))
SEED = int(os.environ.get("REPLICATOR_SEED", "20191120"))
LOADED = {
    (1, "2019-11-11", "Robert", "323.00"),
    (2, "2019-11-11", "Lee", "500.00"),
    (3, "2019-11-12", "Robert", "136.00"),
    (4, "2019-11-13", "Lee", "211.00"),
}
MERGED = (LOADED - {(2, "2019-11-11", "Lee", "500.00")}) | {
    (2, "2019-11-11", "Lee", "175.00"),
    (5, "2019-11-14", "Robert", "233.00"),
}


def postgres_url(server: Any) -> str:
    name = dict(part.split("=") for part in server.database().split())["dbname"]
    return f"postgresql://tester@127.0.0.1:{server.port}/{name}"


MARIADB = pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.long])
"""What MariaDB answers, `sources/test_query.py` asks by default."""


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.postgres), MARIADB])
def queried_database(request) -> QueriedDatabase:
    if request.param == "mariadb":
        return QueriedDatabase(request.getfixturevalue("mariadb_server").database())
    return QueriedDatabase(postgres_url(request.getfixturevalue("postgres_server")))


def of_lake(folder: Path, table: str = "sales") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(folder / "deltalake-sales" / table)).to_pyarrow_table().to_pylist()
    return found


def sales(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {(row["id"], str(row["date"]), row["name"], str(row["sales"])) for row in rows}


def change(asked: QueriedDatabase) -> None:
    """What is modified after 2019-11-20 00:00:00, and a delete, which nobody sees."""
    asked.run("UPDATE sales SET sales = 150, modified = '2019-11-20 10:00:00' WHERE id = 2")
    asked.run("UPDATE sales SET sales = 175, modified = '2019-11-20 10:00:00' WHERE id = 2")
    asked.add_sales((5, "2019-11-14", "Robert", "233.00", "2019-11-20 10:00:00"))
    asked.run("DELETE FROM sales WHERE id = 1")


@pytest.mark.timeout(600)
def test_worked_example(queried_database, tmp_path, monkeypatch):
    """A full load, then modified rows are merged by id."""
    monkeypatch.setenv("SALES_DSN", queried_database.url)
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "config" / "replicator.yaml")
    queried_database.make_sales()
    quiet = ("--set", "http.address=127.0.0.1:0")
    run_until_caught_up(tmp_path, "local", *quiet)
    assert sales(of_lake(tmp_path)) == LOADED
    change(queried_database)
    run_until_caught_up(tmp_path, "local", *quiet)
    assert sales(of_lake(tmp_path)) == MERGED
    versions = Counter(row["id"] for row in of_lake(tmp_path, "sales_history"))
    assert versions == {1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
    open_ = [row for row in of_lake(tmp_path, "sales_history") if row["_cdc_end_seq_1"] is None]
    assert sales(open_) == MERGED


@pytest.mark.timeout(600)
def test_start_after_skips_older_rows(queried_database, tmp_path, monkeypatch):
    monkeypatch.setenv("SALES_DSN", queried_database.url)
    (tmp_path / "config").mkdir()
    text = EXAMPLE.read_text().replace("# start_after", "start_after")
    (tmp_path / "config" / "replicator.yaml").write_text(text)
    queried_database.make_sales()
    change(queried_database)
    run_until_caught_up(tmp_path, "local", "--set", "http.address=127.0.0.1:0")
    assert sales(of_lake(tmp_path)) == MERGED - LOADED


def test_doctor_checks_the_columns(queried_database, tmp_path, monkeypatch):
    monkeypatch.setenv("SALES_DSN", queried_database.url)
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "config" / "replicator.yaml")
    said = run_program(tmp_path, "doctor").stdout
    assert "The database has no table sales" in said
    queried_database.make_sales()
    said = run_program(tmp_path, "doctor").stdout
    assert "sales can be queried: 5 columns." in said and "A query does not see deleted rows" in said
    said = run_program(tmp_path, "doctor", "--set", "sources.sales.cursor_column=changed").stdout
    assert "sales has no column 'changed'" in said
    said = run_program(tmp_path, "doctor", "--set", "tables[0].keys=[name]").stdout
    assert "has no unique index on (name)" in said
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_local_and_spark_runs_alternate(postgres_server, tmp_path, monkeypatch):
    """Each engine resumes with the journal of the other."""
    asked = QueriedDatabase(postgres_url(postgres_server))
    monkeypatch.setenv("SALES_DSN", asked.url)
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "config" / "replicator.yaml")
    asked.make_sales()
    run_until_caught_up(tmp_path, "spark", "--set", "http.address=127.0.0.1:0")
    assert sales(of_lake(tmp_path)) == LOADED
    change(asked)
    run_until_caught_up(tmp_path, "local", "--set", "http.address=127.0.0.1:0")
    assert sales(of_lake(tmp_path)) == MERGED
    asked.run("UPDATE sales SET sales = 1, modified = '2019-11-20 10:01:00' WHERE id = 5")
    run_until_caught_up(tmp_path, "spark", "--set", "http.address=127.0.0.1:0")
    assert (5, "2019-11-14", "Robert", "1.00") in sales(of_lake(tmp_path))


KILLED = """\
pipeline: killed
sources:
  items:
    format: rows
    transport: query
    dsn: ${ITEMS_DSN}
    table: items
    cursor_column: modified
    overlap: 1 minute
    every: 100 milliseconds
sinks:
  lake: {kind: delta, path: ./deltalake-sales}
  mirror: {kind: postgres, dsn: "${MIRROR_DSN}", schema: public}
dead_letters: {path: ./dead_letters}
http: {address: "127.0.0.1:0"}
tables:
  - match: items
    source: items
    keys: [part, id]
    deletes: ignore
    to:
      - {sink: lake}
      - {sink: lake, into: all_items, policy: append}
      - {sink: lake, into: items_history, policy: scd2}
      - {sink: mirror, into: items_copy}
      - {sink: mirror, into: all_items, policy: append}
      - {sink: mirror, into: items_history, policy: scd2}
"""


@contextmanager
def writing(asked: QueriedDatabase, chance: random.Random) -> Iterator[None]:
    """Rows come and change, in transactions of which some commit late; `rev` counts the changes of a row."""
    stop = threading.Event()

    def one() -> None:
        with asked.engine.connect() as connection:
            for _ in range(chance.randrange(1, 6)):
                key = (f"p{chance.randrange(3)}", chance.randrange(40))
                back = chance.choice([0, 0, 1, 10])
                connection.exec_driver_sql(
                    "INSERT INTO items VALUES (%(part)s, %(id)s, 1, clock_timestamp() - make_interval(secs => %(back)s)) "
                    "ON CONFLICT (part, id) DO UPDATE SET rev = items.rev + 1, modified = excluded.modified",
                    {"part": key[0], "id": key[1], "back": back},
                )
            stop.wait(chance.choice([0, 0.01, 0.3]))
            connection.commit()

    def until() -> None:
        while not stop.is_set():
            one()

    writer = threading.Thread(target=until)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [SEED])
def test_kill_at_any_step_loses_and_doubles_nothing(postgres_server, tmp_path, monkeypatch, seed):
    """Every change that was read is in every target once, and the targets end as the database."""
    chance = random.Random(seed)
    asked, mirror = QueriedDatabase(postgres_url(postgres_server)), postgres_url(postgres_server)
    monkeypatch.setenv("ITEMS_DSN", asked.url)
    monkeypatch.setenv("MIRROR_DSN", mirror)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(KILLED)
    asked.run("CREATE TABLE items (part text, id int, rev int, modified timestamptz NOT NULL, PRIMARY KEY (part, id))")
    with writing(asked, chance):
        for _ in range(KILLS):
            program = start_program(tmp_path, "run", "-q")
            time.sleep(chance.uniform(0.5, 5.0))
            assert program.poll() is None
            program.kill()
            program.wait()
    run_until_caught_up(tmp_path, "local")
    with asked.engine.connect() as connection:
        there = {tuple(row) for row in connection.exec_driver_sql("SELECT part, id, rev FROM items")}
    for current, every, history in (lake_of(tmp_path), mirror_of(mirror)):
        assert sorted(current) == sorted(there)
        assert max(Counter(every).values()) == 1 and there <= set(every)
        assert sorted(history) == sorted(every)
        last = {row[:2]: row for row in sorted(every)}
        assert set(last.values()) == there


def lake_of(folder: Path) -> list[list[tuple[Any, ...]]]:
    tables = ("items", "all_items", "items_history")
    return [[(r["part"], r["id"], r["rev"]) for r in of_lake(folder, table)] for table in tables]


def mirror_of(url: str) -> list[list[tuple[Any, ...]]]:
    with psycopg.connect(url) as connection:
        tables = ("items_copy", "all_items", "items_history")
        return [connection.execute(f"SELECT part, id, rev FROM {table}").fetchall() for table in tables]
