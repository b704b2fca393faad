"""Every kind of change x mode x sink: what becomes of targets is what the table in the docs says, which is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.schema_changes import Project
from support.schema_matrix import (
    CASES,
    MODES,
    OUTCOMES,
    SINKS,
    Case,
    archive_of,
    check,
    is_flat,
    outcomes,
    table_of,
    tables,
)

pytestmark = pytest.mark.postgres

SAID = outcomes()
Lanes = Mapping[str, Mapping[str, Any]]


def test_the_docs_name_every_case_and_no_other():
    assert list(SAID) == list(CASES)
    assert {word for row in SAID.values() for word in row.values()} == set(OUTCOMES)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> tuple[Project, Lanes]:
    """All of it in one run of the program."""
    project = Project(tmp_path_factory.mktemp("matrix"), tables(), postgres_server.database(), flat=is_flat)
    for table, case in each():
        project.feed(table, case.records(table), archive_of(case))
    return project, project.run()


def each() -> Iterator[tuple[str, Case]]:
    return ((table_of(case, mode), case) for case in CASES.values() for mode in MODES)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CASES)
def test_what_the_docs_say_happens(ran: tuple[Project, Lanes], change: str, mode: str, sink: str):
    project, lanes = ran
    case = CASES[change]
    table = table_of(case, mode)
    check(project, lanes[f"{sink}.{table}"], case, OUTCOMES[SAID[change][mode]](case))


def test_a_schema_that_was_accepted_evolves(tmp_path: Path, postgres_server: Any):
    """Also once more, when the lane is loaded again."""
    waiting = {table_of(case, "quarantine"): case for change, case in CASES.items() if SAID[change]["quarantine"] == "waits"}
    said = tables()
    project = Project(tmp_path, {table: said[table] for table in waiting}, postgres_server.database(), flat=is_flat)
    for table, case in waiting.items():
        project.feed(table, case.records(table), archive_of(case))
    lanes = project.run()
    for lane in lanes:
        answer = project.ask("lanes", "resume", lane, "--accept-schema", "1")
        assert answer["exit"] == 2 and "It waits for schema 2" in answer["error"]["next_step"]
        assert project.ask("lanes", "resume", lane, "--accept-schema", "2")["exit"] == 0
    lanes = project.run()
    for lane in (f"{sink}.again_quarantine" for sink in SINKS):  # It changed twice, and each change waits.
        assert project.ask("lanes", "resume", lane, "--accept-schema", "3")["exit"] == 0
    lanes = project.run()
    followed = {t: c for t, c in waiting.items() if c.name != "retyped"}
    check_followed(project, lanes, followed)
    for table in followed:
        for sink in SINKS:
            assert project.ask("lanes", "resync", f"{sink}.{table}", "--yes")["exit"] == 0
    lanes = project.run()
    check_followed(project, lanes, followed)
    for sink in SINKS:  # a type that no target can follow stops the lane whoever accepts it
        lane = lanes[f"{sink}.retyped_quarantine"]
        assert lane["status"] == "suspended" and "drop" in lane["next_step"]


def check_followed(project: Project, lanes: Lanes, followed: Mapping[str, Case]) -> None:
    for table, case in followed.items():
        change = next(name for name, other in CASES.items() if other is case)
        for sink in SINKS:
            check(project, lanes[f"{sink}.{table}"], case, OUTCOMES[SAID[change]["evolve"]](case))
