"""The shipped example of rows in files, a feed that arrives in any order: into a lake, and into PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.cli_program import run_program
from support.employees import FEED, NAMES, STAYS, VERSIONS
from support.next_layer import LONG_ON_SPARK, run_until_caught_up
from support.rows_folder import encode_rows, write_closed_file

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
"""The program starts several times in each."""

EXAMPLE = PROJECT / "config" / "examples" / "rows-in-files.yaml"
MIRROR = '  mirror: {kind: postgres, dsn: "%s", schema: staff}\n'
INTO = "      - {sink: mirror}\n      - {sink: mirror, into: employees_history, policy: scd2}\n"
OTHERS = "\n    files: %s\n"
SCHEMA = "    schema: {id: int64, name: string, role: string, country: string, sequenceNum: int64}\n"
CSV = "\n    files: csv                        # or jsonl: JSON Lines, without the next line\n    csv: {header: true}\n"


def staff(folder: Path, kind: str = "csv", dsn: str = "") -> Path:
    """The example, with another kind of files and another sink."""
    text = EXAMPLE.read_text()
    assert CSV in text
    text = text.replace(CSV, CSV if kind == "csv" else OTHERS % kind)
    if kind == "parquet":
        assert SCHEMA in text
        text = text.replace(SCHEMA, "")
    if dsn:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        text = text.replace("sinks:\n", "sinks:\n" + MIRROR % url) + INTO
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(text + 'http: {address: "127.0.0.1:0"}\n')
    return folder


def add(project: Path, number: int, rows: list[tuple], kind: str = "csv") -> None:
    """CSV may have its columns in any order; what is text in it is a number in JSON."""
    columns = NAMES[::-1] if kind == "csv" else NAMES
    named = [dict(zip(NAMES, row, strict=True)) for row in rows]
    content = encode_rows([{name: row[name] for name in columns} for row in named], kind)
    write_closed_file(project / "feed" / "employees" / f"{number:06}.{kind}", content)


def lake(project: Path, name: str) -> list[dict[str, Any]]:
    return DeltaTable(str(project / "deltalake-staff" / name)).to_pyarrow_table().to_pylist()


def mirror(dsn: str, name: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute(f"SELECT * FROM staff.{name}").fetchall()


def check(current: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    assert {name for row in current for name in row if not name.startswith("_")} == {"id", "name", "role", "country"}
    assert sorted((r["id"], r["name"], r["role"]) for r in current) == STAYS
    ends = [(r["id"], r["name"], r["role"], r["__START_AT"], r["__END_AT"]) for r in history]
    assert sorted(ends) == VERSIONS


@pytest.mark.parametrize(
    ("kind", "step"), [pytest.param("csv", 8, marks=pytest.mark.long), ("csv", 3), ("jsonl", 8), ("parquet", 8)]
)
def test_employees(tmp_path: Path, postgres_dsn: str, kind: str, step: int) -> None:
    """In both sinks, in one run or row by row, in the order of the feed and in reverse."""
    staff(tmp_path, kind, postgres_dsn)
    feed = FEED if step != 3 else FEED[::-1]
    for number, rows in enumerate(batched_rows(feed, step), 1):
        add(tmp_path, number, rows, kind)
        run_until_caught_up(tmp_path, "local")
    check(lake(tmp_path, "employees"), lake(tmp_path, "employees_history"))
    check(mirror(postgres_dsn, "employees"), mirror(postgres_dsn, "employees_history"))
    again = run_until_caught_up(tmp_path, "local")
    assert [lane["counts"]["applied"] for lane in again["result"]["lanes"]] == [0] * 4


def batched_rows(rows: list[tuple], size: int) -> list[list[tuple]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("engine", [LONG_ON_SPARK])
def test_employees_on_spark(tmp_path: Path, engine: str, kind: str) -> None:
    """Local and Spark runs alternate."""
    staff(tmp_path, kind)
    late = [FEED[5], FEED[7]]
    add(tmp_path, 1, [row for row in FEED if row not in late], kind)
    run_until_caught_up(tmp_path, engine)
    add(tmp_path, 2, late, kind)
    run_until_caught_up(tmp_path, "local")
    check(lake(tmp_path, "employees"), lake(tmp_path, "employees_history"))


def test_bad_rows_are_dead_letters(tmp_path: Path) -> None:
    """Rows that cannot be read, have an unknown operation, or have no sequence value. The other rows are applied."""
    add(staff(tmp_path), 1, FEED)
    header = b"id,name,role,country,operation,sequenceNum\n"
    bad = header + b"7,x,y,NL,INSERT\n7,x,y,NL,MERGE,9\nseven,x,y,NL,INSERT,9\n7,x,y,NL,INSERT,\n"
    write_closed_file(tmp_path / "feed" / "employees" / "000002.csv", bad)
    run_until_caught_up(tmp_path, "local")
    check(lake(tmp_path, "employees"), lake(tmp_path, "employees_history"))
    letters = json.loads(run_program(tmp_path, "dlq", "list", "--json").stdout)["result"]
    assert {letter["code"] for letter in letters} == {"MALFORMED", "UNKNOWN_OPERATION", "OUT_OF_RANGE", "SEQUENCE"}
    said = sorted(letter["sentence"].rpartition(" (")[2] for letter in letters if letter["code"] != "SEQUENCE")
    assert said == [f"line {line} of file 2)" for line in (2, 3, 4)]
    assert any("the row has 5 columns, expected: 6 (line 2" in letter["sentence"] for letter in letters)


def test_rows_of_a_file_without_operation_column_are_dead_letters(tmp_path: Path) -> None:
    """Each dead letter has the file and the position in it. The rows of other files are applied."""
    add(staff(tmp_path), 1, FEED)
    write_closed_file(
        tmp_path / "feed" / "employees" / "000002.csv", b"id,name,role,country,sequenceNum\n7,x,y,NL,9\n8,x,y,NL,10\n"
    )
    run_until_caught_up(tmp_path, "local")
    check(lake(tmp_path, "employees"), lake(tmp_path, "employees_history"))
    letters = json.loads(run_program(tmp_path, "dlq", "list", "--json").stdout)["result"]
    assert [letter["code"] for letter in letters] == ["UNKNOWN_OPERATION"] * 2
    for row, letter in enumerate(sorted(letters, key=lambda one: one["sentence"]), 2):
        assert "column 'operation' holds no operation" in letter["sentence"], letter
        assert letter["sentence"].endswith(f"(line {row} of file 2)"), letter


@pytest.mark.parametrize("words", [{}, {"operations": {"create": "INSERT", "update": ["UPDATE"], "delete": "DELETE"}}])
def test_employees_as_records(tmp_path: Path, words: dict[str, Any]) -> None:
    """JSON records from an archive, without key or schema. If two rows have the same sequence value, the order of the
    log decides."""
    staff(tmp_path, "jsonl")
    (tmp_path / "archive").mkdir()
    rows = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in FEED]
    known = {"topic": "employees", "partition": 0, "timestamp": None, "headers": None, "key": None}
    records = [json.dumps({**known, "offset": n, "value": row}) + "\n" for n, row in enumerate(rows)]
    (tmp_path / "archive" / "employees.jsonl").write_text("".join(records))
    config = tmp_path / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("transport: files", "transport: archive").replace(OTHERS % "jsonl", "\n"))
    said = [f"sources.staff.{name}={json.dumps(value)}" for name, value in {"path": "./archive", **words}.items()]
    run_until_caught_up(tmp_path, "local", *(part for one in said for part in ("--set", one)))
    check(lake(tmp_path, "employees"), lake(tmp_path, "employees_history"))


def test_lag_of_a_waiting_file_is_unknown(tmp_path: Path) -> None:
    """Positions in files do not count records."""
    staff(tmp_path, "parquet")
    config = tmp_path / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("sequence_by: sequenceNum", "sequence_by: sequencenum"))
    add(tmp_path, 1, FEED, "parquet")
    said = run_until_caught_up(tmp_path, "local", code=2)["result"]
    assert {(lane["status"], lane["lag_records"]) for lane in said["lanes"]} == {("suspended", None)}
    assert [source["lag_records"] for source in said["sources"]] == [None]
