"""Debezium's events of every database, in process and on Spark, into a lake and PostgreSQL: the rows that must be left."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import sql
from support.cli_program import parse_answer, run_program
from support.debezium_cases import CASES, ON_SPARK, Case, Row, list_archives
from support.small_spark import SMALL

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]
ALL = frozenset(case.archive for case in CASES)


def project(folder: Path, dsn: str, engine: str, cases: tuple[Case, ...]) -> Path:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    found = dict(list_archives(folder / "archives"))
    archive = {"format": "debezium_json", "transport": "archive"}
    mirror = {"kind": "postgres", "dsn": url, "schema": "mirror"}
    to = [{"sink": "lake"}, {"sink": "mirror"}]
    document = {
        "pipeline": "databases",
        "engine": engine,
        "spark": SMALL,
        "sources": {case.archive: {**archive, "path": str(found[case.archive]), **case.source} for case in cases},
        "sinks": {"lake": {"kind": "delta", "path": "./lake"}, "mirror": mirror},
        "dead_letters": {"path": "./dead_letters"},
        "tables": [{"match": c.table, "source": c.archive, "into": c.into, "to": to, **c.told} for c in cases],
        "http": {"address": "127.0.0.1:0"},
    }
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(json.dumps(document))
    return folder


def run(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run_program(folder, *arguments, "--json", "-q", seconds=850)
    assert done.returncode == code, done.stdout + done.stderr
    return dict(parse_answer(done))


def plain(value: Any) -> Any:
    """Values in a form that both kinds of target have."""
    if isinstance(value, Decimal | datetime):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value


def sort_rows(rows: Any) -> list[Row]:
    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


def in_lake(folder: Path, case: Case) -> list[Row]:
    table = DeltaTable(str(folder / "lake" / case.into)).to_pyarrow_table()
    return sort_rows(tuple(row[name] for name in case.columns) for row in table.to_pylist())


def in_postgres(dsn: str, case: Case) -> list[Row]:
    columns = sql.SQL(", ").join(map(sql.Identifier, case.columns))
    with psycopg.connect(dsn) as connection:
        query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier("mirror", case.into))
        return sort_rows(connection.execute(query).fetchall())


@pytest.mark.parametrize(
    ("engine", "archives"),
    [("local", ALL), *(pytest.param("spark", part, marks=pytest.mark.long) for part in (ON_SPARK, ALL - ON_SPARK))],
    ids=["local", "spark-some", "spark-others"],
)
def test_targets_have_the_rows_of_every_database(
    tmp_path: Path, postgres_dsn: str, engine: str, archives: frozenset[str]
) -> None:
    cases = tuple(case for case in CASES if case.archive in archives)
    said = run(project(tmp_path, postgres_dsn, engine, cases), "run", "--until-caught-up")
    assert {lane["id"]: lane["counts"]["rejected"] for lane in said["result"]["lanes"]} == {
        f"{sink}.{case.into}": case.rejected for case in cases for sink in ("lake", "mirror")
    }
    wanted = {case.into: sort_rows(case.rows) for case in cases}
    assert {case.into: in_lake(tmp_path, case) for case in cases} == wanted
    assert {case.into: in_postgres(postgres_dsn, case) for case in cases} == wanted


def test_records_without_log_positions_are_refused_with_a_remedy(tmp_path: Path, postgres_dsn: str) -> None:
    (case,) = [case for case in CASES if case.archive == "paimon"]
    told = {name: said for name, said in case.told.items() if name != "sequence_by"}
    refused = Case(case.archive, case.table, case.columns, (), told)
    said = run(project(tmp_path, postgres_dsn, "local", (refused,)), "run", "--until-caught-up", code=2)
    for lane in said["result"]["lanes"]:
        assert (lane["status"], lane["exit_code"]) == ("suspended", 2)
        assert "table test.product contain no position in their source's log" in lane["error"]
        assert "sequence_by" in lane["next_step"] and "replicator.yaml:" in lane["next_step"]
