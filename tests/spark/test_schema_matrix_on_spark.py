"""Kinds of change x mode x sink on Spark: targets end as the documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.schema_changes import Project
from support.schema_matrix import CASES, MODES, SINKS, check_lane, make_project, name_table, read_outcomes
from support.spark_case import list_spark_arguments

pytestmark = pytest.mark.postgres

SAID = read_outcomes()
FEW = [("evolve", "column renamed as `renamed_columns` declares"), ("evolve", "key column widened")]
"""Few, since each table is some jobs for each of its writes: what renames and casts a target there. What a mode makes of a
change is decided for both engines by the same code, of which `tests/component/test_schema_matrix.py` tries every case."""
PARTS = 4
"""In which all of them are tried."""


def run_cases(folder: Path, server: Any, chosen: list[tuple[str, str]]) -> Project:
    project = make_project(folder, server.database(), chosen)
    lanes = project.run(*list_spark_arguments())
    for mode, change in chosen:
        for sink in SINKS:
            check_lane(project, lanes[f"{sink}.{name_table(CASES[change], mode)}"], change, SAID[change][mode])
    return project


@pytest.mark.timeout(600)
def test_documented_schema_changes(tmp_path: Path, postgres_server: Any) -> None:
    run_cases(tmp_path, postgres_server, FEW)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_accepted_schema_is_applied(tmp_path: Path, postgres_server: Any) -> None:
    """As in `tests/component/test_schema_matrix.py`. The sink contracts cover added columns on Spark."""
    project = run_cases(tmp_path, postgres_server, [("quarantine", "column added")])
    assert project.run_command("lanes", "resume", "lake.added_quarantine", "--accept-schema", "2")["exit"] == 0
    lane = project.run()["lake.added_quarantine"]  # The two engines take turns.
    check_lane(project, lane, "column added", "added")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_every_documented_schema_change(tmp_path: Path, postgres_server: Any, mode: str, part: int) -> None:
    run_cases(tmp_path, postgres_server, [(mode, change) for change in list(CASES)[part::PARTS]])
