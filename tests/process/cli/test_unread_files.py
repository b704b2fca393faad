"""Files that a run does not read are reported at its end, and the run fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.debezium_events import ID
from support.schema_changes import Project, make_archive_record

pytestmark = pytest.mark.slow

AGO = 1_700_000_000


def add_nothing(_: Path) -> str:
    return "holds none whose name ends in .jsonl, .jsonl.gz, .parquet"


def add_other_ending(folder: Path) -> str:
    (folder / "x.txt").write_text("{}")
    return add_nothing(folder)


def add_invalid_parquet(folder: Path) -> str:
    (folder / "x.parquet").write_text("{}")
    os.utime(folder / "x.parquet", (AGO, AGO))
    return "x.parquet cannot be read, and nothing is writing it any more"


def add_invalid_gzip(folder: Path) -> str:
    (folder / "x.jsonl.gz").write_text("{}")
    return "x.jsonl.gz is damaged"


@pytest.mark.parametrize("put", [add_nothing, add_other_ending, add_invalid_parquet, add_invalid_gzip])
def test_unread_files_are_reported(tmp_path: Path, put: Callable[[Path], str]) -> None:
    project = Project(tmp_path / "project", {"t": ""})
    sentence = put(project.folder / "archive")
    answer = project.run_command("run", "--until-caught-up")
    assert (answer["exit"], answer["error"]["code"]) == (3, 3)
    assert "archive" in answer["error"]["sentence"] and sentence in answer["error"]["sentence"]
    assert answer["error"]["next_step"]


def test_growing_and_finished_files_are_no_problem(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", {"t": ""})
    project.feed("a", [make_archive_record("t", 0, [ID], [ID], after={"id": 1})])
    (project.folder / "archive" / "b.parquet").write_text("PAR1")
    for _ in range(2):
        assert project.run_command("run", "--until-caught-up")["exit"] == 0
        (project.folder / "archive" / "b.parquet").touch()
    os.utime(project.folder / "archive" / "b.parquet", (AGO, AGO))
    assert project.run_command("run", "--until-caught-up")["exit"] == 3
