"""A part of the written data is restored from an older copy, or is lost, between two runs. The next run reads the
missing records, and every target equals the source again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

COLUMNS = [ID, make_column("name", "string")]
TO = "to: [{sink: lake}, {sink: mirror}]"
APPENDED = ", ".join(f"{{sink: {sink}, into: added, policy: append}}" for sink in ("lake", "mirror"))
Damage = Callable[[Project, Path], None]


def change(offset: int, key: int, name: str, op: str = "c") -> Mapping[str, Any]:
    return make_archive_record("t", offset, COLUMNS, [ID], op=op, after={"id": key, "name": name})


def restore_older(part: str) -> Damage:
    def put_back(project: Project, copy: Path) -> None:
        shutil.rmtree(project.folder / part)
        shutil.copytree(copy / part, project.folder / part)

    return put_back


def remove_part(part: str) -> Damage:
    return lambda project, _: shutil.rmtree(project.folder / part)


def remove_newest_commit(project: Project, _: Path) -> None:
    max((project.folder / "lake" / "t" / "_delta_log").glob("*.json")).unlink()


def fill_project(folder: Path, dsn: str) -> Project:
    project = Project(folder, {"t": ""}, dsn)
    project.configure((TO, f"{TO[:-1]}, {APPENDED}]"))
    project.feed("a", [change(0, 0, "a"), change(1, 1, "b")])
    project.run()
    return project


def names(project: Project, sink: str) -> tuple[list[str], list[str]]:
    """The names in the current state, and the appended names."""
    current, appended = (sorted(row["name"] for row in project.rows(sink, table)) for table in ("t", "added"))
    return current, appended


@pytest.mark.parametrize(
    "damage",
    [
        restore_older("lake/t"),
        restore_older("lake/added"),
        restore_older("lake"),
        remove_part("lake/t"),
        remove_part("lake"),
        remove_part("state"),
        remove_newest_commit,
    ],
)
def test_missing_data_is_read_again(tmp_path: Path, postgres_dsn: str, damage: Damage) -> None:
    project = fill_project(tmp_path / "project", postgres_dsn)
    shutil.copytree(project.folder, tmp_path / "copy")
    project.feed("b", [change(2, 1, "c", "u"), change(3, 3, "d")])
    project.run()
    damage(project, tmp_path / "copy")
    project.feed("c", [change(4, 4, "e")])
    answer = project.run_command("run", "--until-caught-up")
    assert answer["exit"] == 0, answer
    for sink in ("lake", "mirror"):
        assert names(project, sink) == (["a", "c", "d", "e"], ["a", "b", "c", "d", "e"])


@pytest.mark.parametrize("remedy", ["resync mirror.added --yes", "skip mirror.added --until cdc.public.t:0:2"])
def test_lost_positions_in_postgresql_stop_append_lanes(tmp_path: Path, postgres_dsn: str, remedy: str) -> None:
    """Current state is loaded over the existing rows. A lane that appends stops, and resumes after the advice of its
    message."""
    project = fill_project(tmp_path / "project", postgres_dsn)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("TRUNCATE _replicator.positions")
    project.feed("b", [change(2, 2, "c")])
    lanes = project.run()
    stopped = lanes.pop("mirror.added")
    assert {lane["status"] for lane in lanes.values()} == {"running"}
    assert "which would be appended again" in stopped["error"]
    assert f"`replicator lanes {remedy.partition(' --')[0]}" in stopped["next_step"]
    assert names(project, "mirror") == (["a", "b", "c"], ["a", "b"])
    before = project.run_command("lanes", "skip", "mirror.added", "--until", "cdc.public.t:0:1")
    assert before["exit"] == 4 and "skip mirror.added --until cdc.public.t:0:2`" in before["error"]["next_step"]
    assert project.run_command("lanes", *remedy.split())["exit"] == 0
    assert project.run_command("run", "--until-caught-up")["exit"] == 0
    assert names(project, "mirror") == (["a", "b", "c"], ["a", "b", "c"])


@pytest.mark.parametrize("lane", ["mirror.added", "raw.recorded"])
def test_remaining_records_of_a_lane_are_skipped_with_one_command(tmp_path: Path, postgres_dsn: str, lane: str) -> None:
    """Its positions are lost, and a first command names one of two partitions, so the other one is refused too. The
    message then has the command for all partitions of this lane."""
    project = Project(tmp_path / "project", {"t": ""}, postgres_dsn)
    log = "  raw: {kind: event_log, path: ./log}\n  mirror:"
    project.configure(("  mirror:", log), (TO, f"{TO[:-1]}, {{sink: raw}}, {{sink: mirror, into: added, policy: append}}]"))
    project.feed("a", [change(0, 0, "a"), change(1, 1, "b"), {**change(0, 2, "c"), "partition": 1}])
    other = "  other: {format: debezium_json, transport: archive, path: ./other}\n  recorded:"
    project.configure(
        ("  recorded:", other), ("tables:\n", "tables:\n  - {match: public.u, source: other, to: [{sink: raw}]}\n")
    )
    (project.folder / "other").mkdir()
    project.feed("o", [make_archive_record("u", 0, COLUMNS, [ID], op="c", after={"id": 1, "name": "o"})], archive="other")
    project.run()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("TRUNCATE _replicator.positions")
    project.configure(("pipeline: changing", "pipeline: renamed"))
    project.run()
    assert project.run_command("lanes", "skip", lane, "--until", "cdc.public.t:0:2")["exit"] == 0
    stopped = project.run()[lane]
    assert stopped["status"] == "suspended"
    command = stopped["next_step"].split("`")[-2]
    assert command == f"replicator lanes skip {lane} --until cdc.public.t:0:2,cdc.public.t:1:1"
    assert project.run_command(*command.split()[1:])["exit"] == 0
    project.feed("b", [change(2, 3, "d")])
    assert project.run()[lane]["status"] == "running"
    logged = DeltaTable(project.folder / "log").to_pyarrow_table().num_rows - 1
    assert (logged if lane == "raw.recorded" else len(names(project, "mirror")[1])) == 4
