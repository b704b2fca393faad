"""Remedies that `dlq explain` and errors of state files name: after each one, the record is applied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record, make_canal_record

from replicator.domain.errors import FIX_SOURCE

NAME = make_column("name", "string")
COLUMNS = [ID, NAME]
MATCH = "{match: public.t,"
FORMAT = "format: debezium_json"


def make_record(number: int, name: Any = "a", offset: int | None = None, **more: Any) -> dict[str, Any]:
    """A change of the row with this key."""
    row = {"id": number, "name": name}
    return dict(make_archive_record("t", number if offset is None else offset, COLUMNS, [ID], after=row, **more))


def make_schemaless_record(number: int) -> dict[str, Any]:
    """A change without schema."""
    made = make_record(number)
    return {**made, "value": json.dumps(json.loads(made["value"])["payload"])}


def explain_dead_letter(project: Project) -> str:
    """The remedy of the only dead letter."""
    [letter] = project.run_command("dlq", "list")["result"]
    [told] = project.run_command("dlq", "explain", letter["event_id"])["result"]
    return str(told["what_to_do"])


def replay_dead_letters(project: Project) -> list[int]:
    """The ids in the lake after a retry of the dead letters. The next run must not change the rows."""
    said = project.run_command("dlq", "replay")
    assert said["exit"] == 0, said
    rows = project.rows("lake", "t")
    assert project.run()["lake.t"]["status"] == "running" and project.rows("lake", "t") == rows
    return [row["id"] for row in rows]


@pytest.mark.parametrize(
    ("records", "before", "remedy", "change"),
    [
        (  # Another format.
            [make_canal_record("t", 0, "INSERT", {"id": 0, "name": "a"})],
            ("", ""),
            "set `format: canal_json` for the source",
            (FORMAT, "format: canal_json"),
        ),
        (  # A column that cannot be read, of records without a schema.
            [make_schemaless_record(0)],
            (MATCH, f"{MATCH} schema: {{id: int64, name: 'list<string>'}},"),
            "declare the columns under `schema` of the table. Then replay the record",
            ("'list<string>'", "string"),
        ),
        (
            [{**make_record(0), "key": None}, make_record(1)],
            ("", ""),
            "Name the key columns with `keys`, and replay the record",
            (MATCH, f"{MATCH} keys: [id],"),
        ),
        (
            [make_record(0, "x" * 3000), make_record(1)],
            ("pipeline: changing\n", "pipeline: changing\nlimits: {message_bytes: 2KiB}\n"),
            "Raise the limit that the reason names, under `limits`",
            ("2KiB", "16KiB"),
        ),
    ],
)
def test_dead_letter_is_applied_after_its_remedy(
    tmp_path: Path, records: Any, before: tuple[str, str], remedy: str, change: tuple[str, str]
) -> None:
    project = Project(tmp_path, {"t": ""})
    project.configure(before)
    project.feed("a", records)
    project.run()
    step = explain_dead_letter(project)
    assert remedy in step, step
    project.configure(change)
    assert replay_dead_letters(project) == list(range(len(records)))


def test_text_in_a_number_column_is_applied_after_the_column_becomes_text(tmp_path: Path) -> None:
    project = Project(tmp_path, {"t": ""})
    project.configure((FORMAT, "format: canal_json"), (MATCH, f"{MATCH} schema: {{name: int32}},"))
    project.feed("a", [make_canal_record("t", 0, "INSERT", {"id": 0, "name": "12 kg"})])
    project.run()
    assert [letter["code"] for letter in project.run_command("dlq", "list")["result"]] == ["OUT_OF_RANGE"]
    assert "declare it as `string`" in explain_dead_letter(project)
    project.configure(("name: int32", "name: string"))
    assert replay_dead_letters(project) == [0]
    assert project.rows("lake", "t") == [{"id": 0, "name": "12 kg"}]


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("keys", "Name the key columns with `keys`"), ("sequence_by", "Name other columns in `sequence_by`")],
)
def test_remedy_for_columns_that_rows_do_not_have(tmp_path: Path, option: str, remedy: str) -> None:
    """Other columns are another rule, so the lane is reloaded, and with it the rejected record."""
    project = Project(tmp_path, {"t": ""})
    project.configure((MATCH, f"{MATCH} {option}: [name],"))
    project.feed("a", [make_record(0, None), make_record(1)])
    project.run()
    step = explain_dead_letter(project)
    assert remedy in step and "`replicator lanes resync LANE`" in step
    project.configure((f"{option}: [name]", f"{option}: [id]"))
    lane = project.run()["lake.t"]
    assert lane["status"] == "suspended" and "`replicator lanes resync lake.t`" in lane["next_step"]
    assert project.run_command("lanes", "resync", "lake.t", "--yes")["exit"] == 0
    project.run()
    assert replay_dead_letters(project) == [0, 1]


STOPS = ("pipeline: changing\n", "pipeline: changing\non_reject: stop_lane\n")


def explain_stop(project: Project, *records: Any) -> str:
    """The remedy for the only record at which the lane stopped. Nothing else was written."""
    project.configure(STOPS)
    project.feed("a", records)
    lane = project.run()["lake.t"]
    assert lane["status"] == "suspended" and "`replicator dlq explain" in lane["next_step"], lane
    return explain_dead_letter(project)


def check_lane_continues(project: Project, *ids: int) -> None:
    lane = project.run()["lake.t"]
    assert (lane["status"], lane["position"]) == ("running", {"cdc.public.t": {"0": 3}}), lane["error"]
    assert [row["id"] for row in project.rows("lake", "t")] == list(ids)


@pytest.mark.parametrize("on_reject", ["continue", "hold_key"])
def test_stopped_lane_continues_without_the_record(tmp_path: Path, on_reject: str) -> None:
    """A purge alone is not enough while `on_reject` stops the lane there."""
    project = Project(tmp_path, {"t": ""})
    step = explain_stop(project, make_record(0), make_invalid_record(1, 1), make_record(2))
    assert "To continue without it, set `on_reject` to continue or hold_key" in step
    project.configure(("stop_lane", on_reject))
    check_lane_continues(project, 0, 2)


def test_stopped_lane_skips_the_record(tmp_path: Path) -> None:
    project = Project(tmp_path, {"t": ""})
    project.feed("0", [make_record(0)])
    assert project.run()["lake.t"]["status"] == "running"
    said = re.search(
        r"`replicator (lanes skip) LANE (--until \S+)`", explain_stop(project, make_invalid_record(1, 1), make_record(2))
    )
    assert said is not None
    assert project.run_command(*said[1].split(), "lake.t", *said[2].split())["exit"] == 0
    check_lane_continues(project, 0, 2)


@pytest.mark.parametrize("replays", [False, True])
def test_stopped_lane_applies_the_record_after_a_config_change(tmp_path: Path, replays: bool) -> None:
    """Whether or not it was retried before."""
    project = Project(tmp_path, {"t": ""})
    project.configure((MATCH, f"{MATCH} schema: {{id: int64, name: 'list<string>'}},"))
    step = explain_stop(
        project,
        make_schemaless_record(0),
        *({**make_schemaless_record(n), "value": make_schemaless_record(n)["value"].replace('"a"', "null")} for n in (1, 2)),
    )
    assert "declare the columns under `schema` of the table. Then replay the record" in step
    assert "read it again after a restart" in step
    project.configure(("'list<string>'", "string"))
    if replays:
        assert project.run_command("dlq", "replay")["result"] == {"replayed": 1, "rejected": 0, "left": {}}
        assert "stop_lane" not in explain_dead_letter(project)
    check_lane_continues(project, 0, 1, 2)


def test_record_of_unknown_table_stops_all_lanes(tmp_path: Path) -> None:
    project = Project(tmp_path, {"t": ""})
    project.configure(STOPS, ("pipeline: changing\n", "pipeline: changing\nlimits: {message_bytes: 2KiB}\n"))
    project.feed("a", [make_record(0, "x" * 3000), make_record(1), make_record(2)])
    assert project.run_command("run", "--until-caught-up")["exit"] == 4
    step = explain_dead_letter(project)
    assert "Raise the limit that the reason names" in step and step.endswith("set `on_reject` to continue or hold_key."), (
        step
    )
    project.configure(("stop_lane", "continue"))
    check_lane_continues(project, 1, 2)


def make_change_without_position(number: int, offset: int) -> dict[str, Any]:
    """A change without a position in its source's log."""
    made = make_record(number, offset=offset)
    value = json.loads(made["value"])
    value["payload"]["source"] |= {"lsn": None, "sequence": None}
    return {**made, "value": json.dumps(value)}


def make_invalid_record(number: int, offset: int) -> dict[str, Any]:
    """A change whose row does not fit its schema."""
    made = make_record(number, offset=offset)
    return {**made, "value": made["value"].replace('"name":"a"', '"name":7')}


@pytest.mark.parametrize(
    ("make", "code"), [(make_change_without_position, "NO_SEQUENCE"), (make_invalid_record, "MALFORMED")]
)
def test_next_change_of_the_row_updates_the_targets(tmp_path: Path, make: Any, code: str) -> None:
    project = Project(tmp_path, {"t": ""})
    project.feed("a", [make_record(0), make(1, 1)])
    project.run()
    assert [letter["code"] for letter in project.run_command("dlq", "list")["result"]] == [code]
    assert FIX_SOURCE in explain_dead_letter(project) and "`sequence_by`" not in explain_dead_letter(project)
    project.feed("b", [make_record(1, "b", offset=2)])
    assert project.run()["lake.t"]["status"] == "running"
    assert project.rows("lake", "t") == [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    assert project.run_command("dlq", "purge", "--yes")["result"] == {"purged": 1}
    assert project.run_command("dlq", "list")["result"] == []


@pytest.mark.parametrize("said", ["sequence_by: [id]", "tombstones: delete"])
def test_remedy_for_records_without_log_positions(tmp_path: Path, said: str) -> None:
    project = Project(tmp_path, {"t": ""})
    project.feed(
        "a", [make_change_without_position(0, 0), make_change_without_position(1, 1), make_change_without_position(0, 2)]
    )
    lane = project.run()["lake.t"]
    assert lane["status"] == "suspended" and f"`{said}`" in lane["next_step"], lane["next_step"]
    project.configure((MATCH, f"{MATCH} {said},"))
    lane = project.run()["lake.t"]
    assert (lane["status"], lane["position"]) == ("running", {"cdc.public.t": {"0": 3}}), lane["error"]
    assert [row["id"] for row in project.rows("lake", "t")] == [0, 1]


def test_register_of_a_source_can_be_removed(tmp_path: Path) -> None:
    project = Project(tmp_path, {"t": ""})
    project.feed("a", [make_record(0), make_record(1)])
    project.run()
    file = tmp_path / "state" / "changing" / "sources" / "recorded.json"
    file.write_text("{")
    said = project.run_command("run", "--until-caught-up")
    assert said["exit"] == 3 and str(file) in said["error"]["sentence"] and "Remove the file" in said["error"]["next_step"]
    file.unlink()
    project.feed("b", [make_record(0, "b", offset=2)])
    assert project.run()["lake.t"]["counts"]["applied"] == 1, "nothing is applied twice"
    assert project.rows("lake", "t") == [{"id": 0, "name": "b"}, {"id": 1, "name": "a"}]
