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
    Case,
    Expected,
    archive_of,
    is_flat,
    outcomes,
    table_of,
    tables,
    types_of,
)

pytestmark = pytest.mark.postgres

SINKS = ("lake", "mirror")
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


def check(project: Project, lane: Mapping[str, Any], case: Case, expected: Expected) -> None:
    sink, _, table = lane["id"].partition(".")
    assert (lane["status"] == "suspended") == expected.stopped, lane["error"]
    assert project.rows(sink, table) == expected.rows
    number = SINKS.index(sink)
    assert project.types(sink, table) == {name: kinds[number] for name, kinds in types_of(case, expected).items()}
    assert lane["counts"]["rejected"] == expected.rejected
    if expected.stopped:
        assert lane["position"] == {f"cdc.public.{table}": {"0": 2}}, "at the first record of the new schema"
        assert "--accept-schema 2" in lane["next_step"] or not expected.waits or case.name == "retyped"
        assert "config/replicator.yaml:" in lane["next_step"] or not lane["next_step"].startswith("Allow")


ON_SPARK = [
    ("evolve", "column renamed as `renamed_columns` declares"),
    ("evolve", "key column widened"),
    ("quarantine", "column added"),
]
"""Few, since each table is some jobs for each of its writes: what renames and casts a target there. What a mode makes of a
change is decided for both engines by the same code, of which the test above tries every case."""
PARTS = 4
"""In which all of them are tried there."""


def on_spark(folder: Path, server: Any, chosen: list[tuple[str, str]]) -> Project:
    """What these modes and changes come to on Spark is what the docs say, too."""
    said = tables()
    cases = {table_of(CASES[change], mode): (change, mode) for mode, change in chosen}
    project = Project(folder, {table: said[table] for table in cases}, server.database(), flat=is_flat)
    for table, (change, _) in cases.items():
        project.feed(table, CASES[change].records(table), archive_of(CASES[change]))
    lanes = project.run_on_spark()
    for table, (change, mode) in cases.items():
        for sink in SINKS:
            check(project, lanes[f"{sink}.{table}"], CASES[change], OUTCOMES[SAID[change][mode]](CASES[change]))
    return project


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_does_the_same(tmp_path: Path, postgres_server: Any):
    project = on_spark(tmp_path, postgres_server, ON_SPARK)
    assert project.ask("lanes", "resume", "lake.added_quarantine", "--accept-schema", "2")["exit"] == 0
    lane = project.run()["lake.added_quarantine"]  # in process: the two engines take turns
    check(project, lane, CASES["column added"], OUTCOMES["added"](CASES["column added"]))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_spark_does_the_same_with_every_change(tmp_path: Path, postgres_server: Any, mode: str, part: int):
    on_spark(tmp_path, postgres_server, [(mode, change) for change in list(CASES)[part::PARTS]])


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
