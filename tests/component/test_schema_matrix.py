"""Every kind of change x mode x sink: the outcome in the targets equals the table in the docs, which this test reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.schema_changes import Project
from support.schema_matrix import CASES, MODES, OUTCOMES, SINKS, check_lane, make_project, name_table, read_outcomes

pytestmark = pytest.mark.postgres

DOCUMENTED = read_outcomes()
Lanes = Mapping[str, Mapping[str, Any]]


def test_docs_list_exactly_the_tested_cases():
    assert list(DOCUMENTED) == list(CASES)
    assert {word for row in DOCUMENTED.values() for word in row.values()} == set(OUTCOMES)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> tuple[Project, Lanes]:
    """All cases in one run of the program."""
    project = make_project(tmp_path_factory.mktemp("matrix"), postgres_server.database(), product(MODES, CASES))
    return project, project.run()


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CASES)
def test_outcome_equals_the_docs(finished_run: tuple[Project, Lanes], change: str, mode: str, sink: str):
    project, lanes = finished_run
    check_lane(project, lanes[f"{sink}.{name_table(CASES[change], mode)}"], change, DOCUMENTED[change][mode])


def test_accepted_schema_evolves(tmp_path: Path, postgres_server: Any):
    """Also when the lane is loaded again."""
    waiting = [change for change in CASES if DOCUMENTED[change]["quarantine"] == "waits"]
    project = make_project(tmp_path, postgres_server.database(), [("quarantine", change) for change in waiting])
    lanes = project.run()
    for number, lane in enumerate(lanes):
        if number < len(SINKS):  # The answer to a wrong number does not depend on the change.
            answer = project.run_command("lanes", "resume", lane, "--accept-schema", "1")
            assert answer["exit"] == 2 and "It waits for schema 2" in answer["error"]["next_step"]
        assert project.run_command("lanes", "resume", lane, "--accept-schema", "2")["exit"] == 0
    lanes = project.run()
    for lane in (f"{sink}.again_quarantine" for sink in SINKS):  # The table changed twice, and each change waits.
        assert project.run_command("lanes", "resume", lane, "--accept-schema", "3")["exit"] == 0
    lanes = project.run()
    followed = [change for change in waiting if CASES[change].name != "retyped"]
    check_followed(project, lanes, followed)
    for change in followed:
        for sink in SINKS:
            lane = f"{sink}.{name_table(CASES[change], 'quarantine')}"
            assert project.run_command("lanes", "resync", lane, "--yes")["exit"] == 0
    lanes = project.run()
    check_followed(project, lanes, followed)
    for sink in SINKS:  # A type that no target supports stops the lane, accepted or not.
        lane = lanes[f"{sink}.retyped_quarantine"]
        assert lane["status"] == "suspended" and "drop" in lane["next_step"]


def check_followed(project: Project, lanes: Lanes, followed: list[str]) -> None:
    for change in followed:
        for sink in SINKS:
            check_lane(
                project, lanes[f"{sink}.{name_table(CASES[change], 'quarantine')}"], change, DOCUMENTED[change]["evolve"]
            )
