"""Rules for columns that records do not have yet, or no longer have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

pytestmark = pytest.mark.slow

KEY = "only-for-these-tests-0123456789"
NAME, PHONE = make_column("name", "string"), make_column("phone", "string")
CONFIG = """\
pipeline: changing
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
  - {{match: public.t, source: recorded{schema}{table}, to: [{{sink: raw}}, {{sink: lake{entry}}}]}}
http: {{address: "127.0.0.1:0"}}
"""
DECLARED = ", schema: {id: int64, name: string, phone: string}"
MASK, DROP = ', columns: {phone: {mask: hmac, key: "${MASK_KEY}"}}', ", columns: {phone: drop}"
LONG = pytest.mark.long
RULES = [
    ("entry", MASK), ("table", DROP), pytest.param("entry", DROP, marks=LONG), pytest.param("table", MASK, marks=LONG),
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("MASK_KEY", KEY)
    return Project(tmp_path / "project", {"t": ""})


def write_config(project: Project, **said: str) -> None:
    text = CONFIG.format(**{"schema": DECLARED, "table": "", "entry": "", **said})
    (project.folder / "config" / "replicator.yaml").write_text(text)


def feed_record(project: Project, offset: int, columns: list[Any], **row: Any) -> dict[str, Any]:
    """The lane after the program has read one more record."""
    project.feed(f"part{offset}", [make_archive_record("t", offset, columns, [ID], after=row)])
    return project.run()["lake.t"]


@pytest.mark.parametrize(("level", "rule"), RULES)
def test_column_that_appears_and_disappears(project: Project, level: str, rule: str) -> None:
    """The program starts again for each record, so that it has no memory of the others."""
    write_config(project, **{level: rule})
    for offset, columns in enumerate(([ID, NAME], [ID, NAME, PHONE], [ID, NAME])):
        row = {"id": offset, "name": "a"} | ({"phone": "sentinel"} if PHONE in columns else {})
        lane = feed_record(project, offset, columns, **row)
        assert (lane["status"], lane["error"]) == ("running", None)
    rows = project.rows("lake", "t")
    assert [row["id"] for row in rows] == [0, 1, 2]
    if rule == DROP:
        assert all("phone" not in row for row in rows)
    else:
        assert [bool(row["phone"]) for row in rows] == [False, True, False]
    assert "sentinel" not in repr(rows)
    assert level == "entry" or "sentinel" not in repr(project.rows("lake", "cdc_events"))


@pytest.mark.parametrize("level", ["table", "entry"])
def test_unknown_column_in_a_rule_suspends_the_lane(project: Project, level: str) -> None:
    write_config(project, schema="", **{level: MASK})
    lane = feed_record(project, 0, [ID, NAME], id=0, name="a")
    assert lane["status"] == "suspended"
    assert "'phone'" in lane["error"] and "declare all columns of the table with `schema:" in lane["next_step"]
    assert json.dumps(project.run_command("plan")).count(KEY) == 0


@pytest.mark.parametrize("behind", [False, True])
def test_event_log_stops_at_a_misspelt_mask(project: Project, behind: bool) -> None:
    """The log is alone, or later than other lanes (`behind`). It continues when the name is correct, and when a schema
    change removes the column."""
    log = ", to: [{sink: raw}, {sink: lake}]", ", to: [{sink: raw}]"
    write_config(project, schema="", table=MASK)
    if behind:
        project.configure(("{sink: raw}, ", ""), ("phone", "mail"))
        feed_record(project, 0, [ID, NAME, MAIL], id=0, name="a", mail="sentinel")
        project.configure(("{sink: lake}", "{sink: raw}, {sink: lake}"), ("mail", "phone"))
    else:
        project.configure(log)
    project.feed(
        "part1", [make_archive_record("t", 1, [ID, NAME, MAIL], [ID], after={"id": 1, "name": "a", "mail": "sentinel"})]
    )
    planned = project.run_command("plan")["result"]
    assert "names column 'phone'" in next(lane["problem"] for lane in planned if lane["lane"] == "raw.recorded")
    lane = project.run()["raw.recorded"]
    assert lane["status"] == "suspended" and "names column 'phone'" in lane["error"]
    stored = b"".join(file.read_bytes() for file in (project.folder / "lake").rglob("*") if file.is_file())
    assert b"sentinel" not in stored
    project.configure(("phone", "mail"))
    project.feed("part2", [make_archive_record("t", 2, [ID, NAME], [ID], after={"id": 2, "name": "b"})])
    assert project.run()["raw.recorded"]["status"] == "running"
    rows = project.rows("lake", "cdc_events")
    assert len(rows) == 2 + behind and "sentinel" not in repr(rows)


MAIL = make_column("mail", "string")
RENAMED = ", renamed_columns: {phone: mail}"


@pytest.mark.parametrize(("place", "rule"), RULES)
def test_private_column_renamed_by_the_source_stays_private(project: Project, place: str, rule: str) -> None:
    """Only records declare its columns, and the mask applies to the new name without a rule of its own."""
    said = {"table": rule + RENAMED} if place == "table" else {"table": rule, "entry": RENAMED}
    write_config(project, schema="", **said)
    for offset, columns in enumerate(([ID, PHONE], [ID, MAIL], [ID, MAIL])):
        row = {"id": offset, columns[1]["field"]: "sentinel"}
        lane = feed_record(project, offset, columns, **row)
        assert (lane["status"], lane["error"]) == ("running", None)
    rows = project.rows("lake", "t")
    assert "sentinel" not in repr(rows) + repr(project.rows("lake", "cdc_events"))
    if rule == MASK:
        assert len({row["mail"] for row in rows}) == 1 and len(rows[0]["mail"]) == 64
        assert "phone" not in rows[0]
    else:
        assert all(not {"phone", "mail"} & row.keys() for row in rows)


def test_private_column_renamed_without_a_rule_suspends_the_lane(project: Project) -> None:
    write_config(project, schema="", table=MASK)
    feed_record(project, 0, [ID, PHONE], id=0, phone="sentinel")
    lane = feed_record(project, 1, [ID, MAIL], id=1, mail="x")
    assert lane["status"] == "suspended" and "renamed_columns" in lane["next_step"]
