"""One history of transactions in five formats, through the program: equal tables, in which TPC-C's conditions hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from support.archive_files import write_archive
from support.cli_program import parse_answer, run_program
from support.dms_folder import set_old_time
from support.small_spark import SMALL

from benchmarks.tpcc import FORMATS, TABLES, Tpcc, find_violations, make_raw_frame
from benchmarks.tpcc.formats import make_dms_files

Row = Mapping[str, Any]
DECLARED = {"dts_avro", "dms_csv", "canal_json", "maxwell_json"}
"""Formats whose records do not say their types, or say others: of these the tables are declared."""


def write(folder: Path, name: str, history: list[Any]) -> dict[str, Any]:
    """The history in a format, and the source that reads it."""
    if name != "dms_csv":
        folder.mkdir(parents=True)
        frame = make_raw_frame(name, history)
        for number, start in enumerate(range(0, frame.num_rows, 700)):
            write_archive(frame.slice(start, 700), folder / f"{number:04}.jsonl")
        return {"format": name, "transport": "archive", "path": str(folder)}
    for path, text in make_dms_files(history).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text)
        set_old_time(folder / path)
    return {"format": name, "transport": "files", "path": str(folder)}


def configure_format(
    folder: Path, history: list[Any], dsn: str | None, names: Collection[str] = tuple(TABLES), **more: Any
) -> dict[str, Any]:
    """A source, a lake and a schema of a database for each format; of tables with these names."""
    sinks: dict[str, Any] = {}
    tables = []
    sources = {name: write(folder / name, name, history) for name in FORMATS}
    for name in FORMATS:
        sinks[f"{name}_lake"] = {"kind": "delta", "path": f"./lakes/{name}"}
        if dsn:
            sinks[f"{name}_pg"] = {"kind": "postgres", "dsn": url(dsn), "schema": name}
        for table in (TABLES[each] for each in names):
            said: dict[str, Any] = {"schema": dict(table.columns)} if name in DECLARED else {}
            said |= {"keys": list(table.keys)} if table.keys else {"policy": "append"}
            to = [{"sink": sink} for sink in sinks if sink.startswith(name)]
            tables.append({"match": table.path, "source": name, "to": to, **said})
    rest = {"dead_letters": {"path": "./dead_letters"}, "http": {"address": "127.0.0.1:0"}}
    return {"pipeline": "one_history", "sources": sources, "sinks": sinks, "tables": tables, **rest, **more}


def run(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(json.dumps(config))
    done = run_program(folder, "run", "--until-caught-up", "--json", "-q", seconds=1000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lanes: list[dict[str, Any]] = parse_answer(done)["result"]["lanes"]
    return lanes


def url(dsn: str) -> str:
    said = conninfo_to_dict(dsn)
    return f"postgresql://{said['user']}@{said['host']}:{said['port']}/{said['dbname']}"


def in_lake(folder: Path, name: str, table: str) -> list[Row]:
    read = pa.RecordBatchReader.from_stream(DeltaTable(str(folder / "lakes" / name / table)).scan()).read_all()
    return read.select(list(TABLES[table].columns)).to_pylist()


def in_database(dsn: str, name: str, table: str) -> list[Row]:
    columns = sql.SQL(", ").join(map(sql.Identifier, TABLES[table].columns))
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        return connection.execute(sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(name, table))).fetchall()


def same(found: list[Row], wanted: list[Row]) -> bool:
    return Counter(tuple(row.items()) for row in found) == Counter(tuple(row.items()) for row in wanted)


def check(tables: Mapping[str, list[Row]], world: Tpcc) -> None:
    assert find_violations(tables) == []
    for table, rows in tables.items():
        assert same(rows, world.rows(table)), table


@pytest.mark.slow
def test_both_local_sinks_equal_the_history(tmp_path: Path, postgres_dsn: str) -> None:
    world = Tpcc(seed=5, warehouses=2, customers=4)
    lanes = run(tmp_path, configure_format(tmp_path, world.history(150), postgres_dsn))
    assert len(lanes) == 2 * len(FORMATS) * len(TABLES)
    assert sum(lane["counts"]["rejected"] for lane in lanes) == 0
    for name in FORMATS:
        check({table: in_lake(tmp_path, name, table) for table in TABLES}, world)
        check({table: in_database(postgres_dsn, name, table) for table in TABLES}, world)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.long
def test_spark_equals_the_history(tmp_path: Path) -> None:
    """With two tables, because a lane takes seconds on Spark."""
    world, names = Tpcc(seed=7, customers=3, items=8), ("item", "customer")
    history = world.history(60)
    kinds = {(change.table, change.op) for change in history}
    assert {("item", "d"), ("item", "u"), ("item", "c"), ("customer", "u")} <= kinds
    lanes = run(tmp_path, configure_format(tmp_path, history, None, names, engine="spark", spark=SMALL))
    assert sum(lane["counts"]["rejected"] for lane in lanes) == 0
    for name in FORMATS:
        for table in names:
            assert same(in_lake(tmp_path, name, table), world.rows(table)), (name, table)
