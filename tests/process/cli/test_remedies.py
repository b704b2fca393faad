"""Remedies of suspended lanes: each one, followed as written, lets the lane run."""

from __future__ import annotations

import re

import pytest
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

NAME, NOTE, N, BYTES = (
    make_column("name", "string"),
    make_column("note", "string"),
    make_column("n", "int32"),
    make_column("n", "bytes"),
)
OLD = [ID, NAME, N]


def follow_in_config(was: str, now: str):
    """Writes the suggested setting into the config, at the line in the sentence."""

    def follow(project: Project, step: str) -> None:
        said = re.search(r"`schema_changes: (\{[^}]+\})` \(config/replicator\.yaml:(\d+)\)", step)
        assert said is not None and said[1] == now, step
        config = project.folder / "config" / "replicator.yaml"
        lines = config.read_text().splitlines()
        entry = lines[int(said[2]) - 1]
        assert "public.t" in entry and was in entry
        lines[int(said[2]) - 1] = entry.replace(was, f"sink: lake, schema_changes: {now}")
        config.write_text("\n".join(lines))

    return follow


def follow_by_command(pattern: str, *more: str):
    """Runs the command in the sentence."""

    def follow(project: Project, step: str) -> None:
        said = re.search(rf"`replicator ({pattern})`", step)
        assert said is not None, step
        assert project.run_command(*said[1].split(), *more)["exit"] == 0

    return follow


def remove_older_records(project: Project, step: str) -> None:
    """Makes the source begin at the new schema, then drops the lane."""
    assert "The new schema begins at cdc.public.t:0:2." in step
    (project.folder / "archive" / "old.jsonl").unlink()
    follow_by_command(r"drop lake\.t", "--yes")(project, step)


@pytest.mark.parametrize(
    ("mode", "new", "keys", "follow"),
    [
        (
            "evolve",
            [ID, NAME, BYTES],
            [ID],
            follow_in_config("sink: lake, schema_changes: evolve", "{type_changed: try_evolve}"),
        ),
        ("evolve", [ID, NAME, BYTES], [ID], remove_older_records),
        ("fail", [ID, NAME, BYTES], [ID], remove_older_records),
        ("quarantine", [ID, NAME, BYTES], [ID], remove_older_records),
        ("evolve", OLD, [ID, NAME], remove_older_records),
        ("fail", [*OLD, NOTE], [ID], follow_in_config("sink: lake, schema_changes: fail", "{added: evolve}")),
        ("fail", [*OLD, NOTE], [ID], follow_by_command(r"lanes resume lake\.t --accept-schema 2")),
        ("quarantine", [*OLD, NOTE], [ID], follow_by_command(r"lanes resume lake\.t --accept-schema 2")),
        ("quarantine", [ID, NAME], [ID], follow_by_command(r"lanes resume lake\.t --accept-schema 2")),
    ],
)
def test_lane_runs_after_its_remedy(tmp_path, mode, new, keys, follow):
    project = Project(tmp_path, {"t": f", schema_changes: {mode}"})
    values = {"id": 2, "name": "b", "n": "AAAA" if BYTES in new else 2, "note": "x"}
    old = [make_archive_record("t", i, OLD, [ID], after={"id": i, "name": "a", "n": 1}) for i in range(2)]
    project.feed("old", old)
    project.feed("young", [make_archive_record("t", 2, new, keys, after={c["field"]: values[c["field"]] for c in new})])
    stopped = project.run()["lake.t"]
    assert stopped["status"] == "suspended"
    follow(project, stopped["next_step"])
    lane = project.run()["lake.t"]
    assert (lane["status"], lane["position"]) == ("running", {"cdc.public.t": {"0": 3}}), lane["error"]
