"""Remedies for lanes that cannot resume at their position: each one is followed as written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

COLUMNS = [ID, make_column("name", "string")]
ARCHIVE = "recorded: {format: debezium_json, transport: archive, path: ./archive}"
LAKE = "  lake: {kind: delta, path: ./lake}\n"
LOG = "  raw: {kind: event_log, path: ./events}\n"
NEXT = ("-c", "config/next.yaml")
Follow = Callable[[Project, str], None]


def make_record(number: int, offset: int | None = None) -> Mapping[str, Any]:
    """A new row. Its log position is its number, at any offset."""
    made = make_archive_record("t", number, COLUMNS, [ID], after={"id": number, "name": f"v{number}"})
    return {**made, "offset": number if offset is None else offset}


def make_project(folder: Path, *changes: tuple[str, str]) -> Project:
    project = Project(folder, {"t": ""})
    project.configure(*changes)
    project.feed("a", [make_record(0), make_record(1)])
    return project


def run_until_stopped(project: Project, *more: str, lane: str = "lake.t") -> tuple[str, str]:
    """The error and the next step of a run that ends with code 4, or 1 if the sink lacks something."""
    answer = project.run_command("run", "--until-caught-up", *more)
    [lane_of] = [one for one in answer["result"]["lanes"] if one["id"] == lane]
    told = answer["error"] or {"sentence": lane_of["error"], "next_step": lane_of["next_step"]}
    assert answer["exit"] in (1, 4) and told["next_step"], answer
    return told["sentence"], told["next_step"]


def run_to_end(project: Project, *more: str) -> list[int]:
    """The ids in the target of a running lane."""
    answer = project.run_command("run", "--until-caught-up", *more)
    assert answer["exit"] == 0, answer
    assert {lane["status"] for lane in answer["result"]["lanes"]} == {"running"}
    return [row["id"] for row in project.rows("lake", "t")]


def follow_command(command: str, *more: str) -> Follow:
    """Runs the command in the sentence."""
    yes = ("--yes",) if command == "resync" else ()

    def follow(project: Project, step: str) -> None:
        said = re.search(rf"`replicator (lanes {command}[^`]*)`", step)
        assert said is not None, step
        assert project.run_command(*said[1].replace("LANE", "lake.t").split(), *more, *yes)["exit"] == 0

    return follow


@pytest.mark.parametrize(
    ("archive", "why", "follow", "ids"),
    [
        ((4, 5), "Records 2 to 3 of cdc.public.t[0] are not in the files", follow_command("resync"), [4, 5]),
        ((4, 5), "Records 2 to 3 of cdc.public.t[0] are not in the files", follow_command("skip"), [0, 1, 4, 5]),
        ((0,), "Offset 2 of cdc.public.t[0] lies above the end of the files at 1", follow_command("resync"), [9]),
        ((0,), "Offset 2 of cdc.public.t[0] lies above the end of the files at 1", follow_command("skip"), [0, 1, 9]),
    ],
)
def test_remedy_for_deleted_records(tmp_path, archive, why, follow, ids):
    """For later records, and for all records if the files were written again."""
    project = make_project(tmp_path)
    run_to_end(project)
    (tmp_path / "archive" / "a.jsonl").unlink()
    project.feed("b", [make_record(9 if offset == 0 else offset, offset) for offset in archive])
    sentence, step = run_until_stopped(project)
    assert why in sentence
    follow(project, step)
    assert run_to_end(project) == ids


def test_resync_keeps_rows_that_the_source_no_longer_has(tmp_path):
    """The first advised command keeps them; the one that would not says so."""
    project = make_project(tmp_path)
    run_to_end(project)
    (tmp_path / "archive" / "a.jsonl").unlink()
    project.feed("b", [make_record(4), make_record(5)])
    _, step = run_until_stopped(project)
    assert step.index("lanes skip lake.t") < step.index("lanes resync lake.t --accept-missing`")
    refused = project.run_command("lanes", "resync", "lake.t", "--yes")
    assert refused["exit"] == 4 and "begins at offset 4 of cdc.public.t[0]" in refused["error"]["sentence"]
    assert "lanes resync lake.t --accept-missing`" in refused["error"]["next_step"]
    assert [row["id"] for row in project.rows("lake", "t")] == [0, 1]
    follow_command("skip")(project, step)
    assert run_to_end(project) == [0, 1, 4, 5]


def find_newest(folder: Path) -> Path:
    return max(folder.glob("[0-9]*.json"))


def find_position_file(project: Project) -> Path:
    return find_newest(project.folder / "lake" / "_replicator" / "positions" / "changing" / "lake.t")


def find_schema_file(project: Project) -> Path:
    return find_newest(project.folder / "lake" / "_replicator" / "schemas" / "t")


def find_log_entry(project: Project) -> Path:
    return find_newest(project.folder / "lake" / "t" / "_delta_log")


def find_data_file(project: Project) -> Path:
    [file] = (project.folder / "lake" / "t").glob("*.parquet")
    return file


def remove_table(project: Project, step: str) -> None:
    """Removes the folder in the sentence, then loads the table again."""
    said = re.search(r"remove the folder (\S+), and", step)
    assert said is not None, step
    shutil.rmtree(said[1])
    follow_command("resync")(project, step)


def remove_folder(project: Project, step: str) -> None:
    assert "Restore the folder, or remove it" in step
    shutil.rmtree(find_schema_file(project).parent)


@pytest.mark.parametrize(
    ("file", "damage", "follow"),
    [
        (find_position_file, None, follow_command("resync")),
        (find_position_file, "{", follow_command("resync")),
        (find_position_file, "{", None),
        (find_schema_file, "{", remove_folder),
        (find_schema_file, "{", None),
        (find_log_entry, "{", remove_table),
        (find_log_entry, "{", None),
        (find_data_file, None, follow_command("resync")),
        (find_data_file, None, None),
    ],
)
def test_remedy_for_a_missing_or_damaged_file_of_the_lake(tmp_path, file, damage, follow):
    """Every error first advises to restore the file, which needs no command."""
    project = make_project(tmp_path)
    run_to_end(project)
    broken = file(project)
    whole = broken.read_bytes()
    if damage is None:
        broken.unlink()
    else:
        broken.write_text(damage)
    project.feed("b", [make_archive_record("t", 2, COLUMNS, [ID], op="u", after={"id": 1, "name": "new"}), make_record(3)])
    sentence, step = run_until_stopped(project)
    assert re.search("is damaged|is missing|is gone", sentence) and step.startswith("Restore ")
    if follow is None:
        broken.write_bytes(whole)
    else:
        follow(project, step)
    assert run_to_end(project) == [0, 1, 3]
    assert project.rows("lake", "t")[1]["name"] == "new"


def test_remedy_for_missing_positions_of_an_event_log(tmp_path):
    """The lane cannot be reloaded by itself; the error of that command has the remedy."""
    project = make_project(tmp_path, (LAKE, LAKE + LOG), ("[{sink: lake}]", "[{sink: lake}, {sink: raw}]"))
    run_to_end(project)
    find_newest(tmp_path / "events" / "_replicator" / "positions" / "changing" / "raw.recorded").unlink()
    _, step = run_until_stopped(project, lane="raw.recorded")
    said = re.search(r"`replicator (lanes resync [^`]*)`", step)
    assert said is not None
    answer = project.run_command(*said[1].split(), "--yes")
    folder = re.search(r"stop the daemon and remove the folder (\S+):", answer["error"]["next_step"])
    assert answer["exit"] == 4 and folder is not None
    shutil.rmtree(folder[1])
    assert run_to_end(project) == [0, 1]
    assert DeltaTable(str(tmp_path / "events")).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("follow", ["another place", "skip"])
def test_remedy_for_an_event_log_of_another_pipeline(tmp_path, follow):
    project = make_project(tmp_path, (LAKE, LAKE + LOG), ("[{sink: lake}]", "[{sink: lake}, {sink: raw}]"))
    run_to_end(project)
    project.configure(("pipeline: changing", "pipeline: other"), (LAKE, LAKE.replace("./lake", "./second")))
    project.feed("b", [make_record(2)])
    _, step = run_until_stopped(project, lane="raw.recorded")
    if follow == "skip":
        follow_command("skip")(project, step)
    else:
        assert step.startswith("Give this log another location")
        project.configure(("./events", "./others"))
    run_to_end(project)
    found = DeltaTable(str(tmp_path / ("events" if follow == "skip" else "others"))).to_pyarrow_table()
    assert sorted(found["offset"].to_pylist()) == [0, 1, 2]


def test_refused_skip_reports_the_valid_positions(tmp_path):
    project = make_project(tmp_path)

    def expect_refusal(until: str) -> str:
        answer = project.run_command("lanes", "skip", "lake.t", "--until", until)
        assert answer["exit"] == 2
        return str(answer["error"]["next_step"])

    run_to_end(project)
    project.feed("b", [make_record(2)])
    assert expect_refusal("two") == "Write TOPIC:PARTITION:OFFSET[,...]."
    assert expect_refusal("cdc.public.t:0:1") == "`replicator lanes resync lake.t` loads it again."
    partition = re.fullmatch(r"Its partitions are: (\S+)\.", expect_refusal("cdc.public.x:0:3"))
    assert partition is not None
    end = re.fullmatch(r"The source ends at (\S+)\.", expect_refusal(f"{partition[1]}:99"))
    assert end is not None and end[1] == "cdc.public.t:0:3"
    assert project.run_command("lanes", "skip", "lake.t", "--until", end[1])["exit"] == 0
    assert run_to_end(project) == [0, 1]


def rewrite_row(path: str) -> None:
    DeltaTable(path).update(predicate="id = 1", updates={"v": "'x'"})


def lose_log(path: str) -> None:
    """Truncates the table's log, like a writer with a short log retention."""
    DeltaTable(path).alter.set_table_description("kept briefly")
    DeltaTable(path).create_checkpoint()
    Path(path, "_delta_log", "00000000000000000001.json").unlink()


def vacuum(path: str) -> None:
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)


def enable_change_feed(path: str) -> None:
    DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def use_change_feed(project: Project, step: str) -> None:
    """Reads the table by its change data feed."""
    assert "Write `changes: feed` for this source (the table needs delta.enableChangeDataFeed)" in step
    enable_change_feed(str(project.folder / "plain" / "t"))
    project.configure(("path: ./plain/t}", "path: ./plain/t, changes: feed}"))
    follow_command("resync")(project, step)


ALL, NOT_LOST = [1, 2, 3, 4], [1, 2, 4]


@pytest.mark.parametrize(
    ("happens", "why", "follow", "ids"),
    [
        (rewrite_row, "changes or deletes rows (UPDATE)", use_change_feed, ALL),
        (rewrite_row, "changes or deletes rows (UPDATE)", follow_command("skip"), ALL),
        (lose_log, "is no longer in its log", follow_command("resync"), ALL),
        (lose_log, "is no longer in its log", follow_command("skip"), ALL),
        (vacuum, "cannot be read any more", follow_command("resync"), ALL),
        (vacuum, "cannot be read any more", follow_command("skip"), NOT_LOST),
    ],
)
def test_remedy_for_a_delta_table_that_cannot_be_read_further(tmp_path, happens, why, follow, ids):
    """Version 1 appends row 3, version 2 row 4. Skipped rows are missing, or arrive with the next full read."""
    plain = str(tmp_path / "plain" / "t")
    source = "recorded: {format: rows, transport: delta, path: ./plain/t}"
    project = make_project(tmp_path, (ARCHIVE, source), ("{match: public.t,", "{match: t, keys: [id],"))

    def append(*ids: int) -> None:
        write_deltalake(plain, pa.table({"id": pa.array(ids, pa.int64()), "v": ["a"] * len(ids)}), mode="append")

    append(1, 2)
    assert run_to_end(project) == [1, 2]
    append(3)
    happens(plain)
    append(4)
    sentence, step = run_until_stopped(project)
    assert why in sentence
    follow(project, step)
    assert run_to_end(project) == ids


def test_remedy_for_a_version_without_change_data_feed(tmp_path):
    plain = str(tmp_path / "plain" / "t")
    source = "recorded: {format: rows, transport: delta, path: ./plain/t, changes: feed}"
    project = make_project(tmp_path, (ARCHIVE, source), ("{match: public.t,", "{match: t, keys: [id],"))
    on = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(plain, pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "a"]}), configuration=on)
    assert run_to_end(project) == [1, 2]
    DeltaTable(plain).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    DeltaTable(plain).delete("id = 2")
    enable_change_feed(plain)
    _, step = run_until_stopped(project)
    assert step.startswith("Set delta.enableChangeDataFeed on the table.")
    follow_command("resync")(project, step)
    assert run_to_end(project) == [1]


def make_log_projects(folder: Path) -> Project:
    """A pipeline that records a log, and another one (`NEXT`) that reads it."""
    project = make_project(folder, (LAKE, LAKE + LOG), ("[{sink: lake}]", "[{sink: raw}]"))
    config = folder / "config" / "replicator.yaml"
    source = 'recorded: {format: debezium_json, transport: delta, path: ./events, topics: ["cdc.public.*"]}'
    text = config.read_text().replace(ARCHIVE, source).replace(LOG, "").replace("sink: raw", "sink: lake")
    (folder / "config" / "next.yaml").write_text(text.replace("pipeline: changing", "pipeline: next"))
    assert project.run_command("run", "--until-caught-up")["exit"] == 0
    return project


@pytest.mark.parametrize(
    ("follow", "ids"), [(follow_command("resync", *NEXT), [3]), (follow_command("skip", *NEXT), [0, 1, 3])]
)
def test_remedy_for_an_event_log_that_lost_records(tmp_path, follow, ids):
    project = make_log_projects(tmp_path)
    run_to_end(project, *NEXT)
    project.feed("b", [make_record(2), make_record(3)])
    assert project.run_command("run", "--until-caught-up")["exit"] == 0
    events = DeltaTable(str(tmp_path / "events"))
    events.alter.set_table_properties({"delta.appendOnly": "false"})
    events.delete('"offset" < 3')
    sentence, step = run_until_stopped(project, *NEXT)
    assert "Records 2 to 2 of cdc.public.t[0] are not in the event log" in sentence
    follow(project, step)
    assert run_to_end(project, *NEXT) == ids
