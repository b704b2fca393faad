"""Kinds of change x mode x sink on Spark: what becomes of targets is what the table in the docs says, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.schema_changes import Project
from support.schema_matrix import (
    CASES,
    MODES,
    OUTCOMES,
    SINKS,
    archive_of,
    check,
    is_flat,
    outcomes,
    table_of,
    tables,
)
from support.spark_case import on_spark

pytestmark = pytest.mark.postgres

SAID = outcomes()
FEW = [
    ("evolve", "column renamed as `renamed_columns` declares"),
    ("evolve", "key column widened"),
    ("quarantine", "column added"),
]
"""Few, since each table is some jobs for each of its writes: what renames and casts a target there. What a mode makes of a
change is decided for both engines by the same code, of which `tests/component/test_schema_matrix.py` tries every case."""
PARTS = 4
"""In which all of them are tried."""


def run_cases(folder: Path, server: Any, chosen: list[tuple[str, str]]) -> Project:
    said = tables()
    cases = {table_of(CASES[change], mode): (change, mode) for mode, change in chosen}
    project = Project(folder, {table: said[table] for table in cases}, server.database(), flat=is_flat)
    for table, (change, _) in cases.items():
        project.feed(table, CASES[change].records(table), archive_of(CASES[change]))
    lanes = project.run(*on_spark())
    for table, (change, mode) in cases.items():
        for sink in SINKS:
            check(project, lanes[f"{sink}.{table}"], CASES[change], OUTCOMES[SAID[change][mode]](CASES[change]))
    return project


@pytest.mark.timeout(600)
def test_what_the_docs_say_happens(tmp_path: Path, postgres_server: Any) -> None:
    project = run_cases(tmp_path, postgres_server, FEW)
    assert project.ask("lanes", "resume", "lake.added_quarantine", "--accept-schema", "2")["exit"] == 0
    lane = project.run()["lake.added_quarantine"]  # The two engines take turns.
    check(project, lane, CASES["column added"], OUTCOMES["added"](CASES["column added"]))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_what_the_docs_say_happens_with_every_change(tmp_path: Path, postgres_server: Any, mode: str, part: int) -> None:
    run_cases(tmp_path, postgres_server, [(mode, change) for change in list(CASES)[part::PARTS]])
