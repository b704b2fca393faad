"""A queried source resumes without its journal, from the position that the sink has committed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.cli_program import run_program

CONFIG = """\
pipeline: shop
sources:
  sales:
    format: rows
    transport: query
    dsn: sqlite:///{folder}/sales.db
    table: sales
    cursor_column: modified
sinks:
  lake: {{kind: delta, path: ./lake}}
dead_letters: {{path: ./dead_letters}}
tables:
  - {{match: sales, source: sales, keys: [id], deletes: ignore, to: [{{sink: lake, policy: {policy}}}]}}
http: {{address: "127.0.0.1:0"}}
"""


def insert_sales(folder: Path, *rows: tuple[int, int, str]) -> None:
    with sqlite3.connect(folder / "sales.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS sales (id INTEGER PRIMARY KEY, amount INTEGER, modified TIMESTAMP)")
        database.executemany(
            "INSERT OR REPLACE INTO sales VALUES (?, ?, ?)",
            [(number, amount, f"2024-01-{day}.000000") for number, amount, day in rows],
        )


def query_sales(folder: Path) -> list[dict[str, Any]]:
    said = run_program(folder, "query", "sales", "--json", "-q")
    return list(json.loads(said.stdout)["result"])


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_rows_in_the_sink_are_not_read_again(tmp_path: Path, policy: str) -> None:
    """The machine with the journal is lost while rows change."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.format(folder=tmp_path, policy=policy))
    insert_sales(tmp_path, (1, 10, "01 10:00:00"), (2, 20, "02 10:00:00"), (3, 30, "03 10:00:00"))
    assert run_program(tmp_path, "run", "--until-caught-up", "-q").returncode == 0
    first = {row["id"]: row for row in query_sales(tmp_path)}
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    insert_sales(tmp_path, (4, 40, "03 10:00:00"), (2, 21, "03 11:00:00"))
    border = max(row["modified"] for row in first.values())
    assert border == "2024-01-03T10:00:00"
    run = ("run", "--until-caught-up", "-q", "--set", "sources.sales.start_after=2024-01-03 09:55:00")
    stopped = run_program(tmp_path, *run)
    assert stopped.returncode == 4 and "--until sales:0:0" in stopped.stderr
    assert run_program(tmp_path, "lanes", "skip", "lake.sales", "--until", "sales:0:0").returncode == 0
    assert run_program(tmp_path, *run).returncode == 0
    rows = query_sales(tmp_path)
    current = {row["id"]: row["amount"] for row in rows if not row.get("__END_AT")}
    assert current == {1: 10, 2: 21, 3: 30, 4: 40}
    assert len(rows) == (5 if policy == "scd2" else 4)
    assert [row for row in rows if row["id"] == 1] == [first[1]], "what lies below the border is not read"
