"""Remedies for invalid keys, and for columns that no key may be: each one is followed as written."""

from __future__ import annotations

import re

import pytest
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

NAME = make_column("name", "string")
OTHER = make_column("ID", "int64", optional=False)
RATE = make_column("rate", "double", optional=False)
ENTRY, TO = "{match: public.t,", "{sink: lake"
RENAMED = (ENTRY, f"{ENTRY} columns: {{ID: {{rename: other}}}},")
KEYED = (ENTRY, f"{ENTRY} keys: [id],")
APPENDED = (TO, f"{TO}, policy: append")


def feed_keyed_records(folder, columns, keys, said=""):
    """Two records whose key has the columns `keys`. Without columns there is no key."""
    project = Project(folder, {"t": said})
    values = {"id": 1, "name": "a", "ID": 5, "rate": 1.5}
    rows = [{c["field"]: values[c["field"]] for c in columns} | {"id": number} for number in range(2)]
    records = [make_archive_record("t", number, columns, keys, after=row) for number, row in enumerate(rows)]
    project.feed("a", records if keys else [{**one, "key": None} for one in records])
    return project


@pytest.mark.parametrize(
    "case",
    [
        ([ID, NAME], [], "", "Name its key columns with `keys: [...]`", KEYED),
        ([ID, NAME], [], "", "or set `policy: append` for this table", APPENDED),
        ([ID, NAME], [], ", policy: append, sequence_by: [id]", "Name its key columns with `keys: [...]`", KEYED),
        ([ID, NAME], [], ", policy: append, sequence_by: [id]", "or remove 'sequence_by'", (", sequence_by: [id]", "")),
        ([ID, RATE], [RATE], "", "Name another key with `keys`", KEYED),
        ([ID, RATE], [RATE], "", "or set `policy: append`, which needs none", APPENDED),
        ([ID, OTHER], [ID, OTHER], "", "`columns: {'ID': {rename: NAME}}`", RENAMED),
        ([ID, NAME], [ID], ", keys: [idd]", "Correct `keys` of this table", ("[idd]", "[id]")),
        ([ID, NAME], [ID], ", column_list: [name]", "Keep the key columns", ("[name]", "[id, name]")),
        ([ID, NAME], [ID], ", ignore_null_updates_column_list: [id]", "Name other columns.", ("[id]", "[name]")),
        ([ID, NAME], [ID], ", policy: scd2, track_history_column_list: [id]", "besides the key: name.", ("[id]", "[name]")),
    ],
)  # fmt: skip
def test_remedy_for_an_invalid_key(tmp_path, case):
    columns, keys, said, step, change = case
    project = feed_keyed_records(tmp_path, columns, keys, said)
    lane = project.run()["lake.t"]
    assert lane["status"] == "suspended" and step in lane["next_step"]
    project.configure(change)
    lane = project.run()["lake.t"]
    assert (lane["status"], lane["position"]) == ("running", {"cdc.public.t": {"0": 2}}), lane["error"]
    assert [row["id"] for row in project.rows("lake", "t")] == [0, 1]


@pytest.mark.parametrize("said", [KEYED, APPENDED])
def test_remedy_for_a_missing_key_in_an_entry_of_many_tables(tmp_path, said):
    """The entry stays unchanged for its other tables; the remedy is a new entry for this table."""
    project = feed_keyed_records(tmp_path, [ID, NAME], [])
    project.configure((ENTRY, "{match: 'public.*',"))
    step = project.run()["lake.t"]["next_step"]
    assert "every table like public.*. Add an entry for this table, `- match: public.t`, before it" in step
    text = (tmp_path / "config" / "replicator.yaml").read_text()
    [line] = [line for line in text.splitlines() if "match: 'public.*'" in line]
    own = line.replace("'public.*'", "public.t").replace(*said)
    project.configure((line, f"{own}\n{line}"))
    assert project.run()["lake.t"]["status"] == "running"


def test_remedy_for_key_columns_that_differ_in_case(tmp_path):
    """Another key alone is not enough in a lake, whose columns may not differ in case only; the next error has the
    remedy."""
    project = feed_keyed_records(tmp_path, [ID, OTHER], [ID, OTHER])
    assert "Or name another key with `keys`." in project.run()["lake.t"]["next_step"]
    project.configure(KEYED)
    step = project.run()["lake.t"]["next_step"]
    assert "or leave it out with `columns: {'ID': drop}`" in step
    project.configure((KEYED[1], f"{KEYED[1]} columns: {{ID: drop}},"))
    assert project.run()["lake.t"]["status"] == "running"
    assert project.rows("lake", "t") == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize("follow", ["resync", "into"])
def test_remedy_for_rows_written_by_another_key(tmp_path, follow):
    """The config has other keys than the changes of the table."""
    project = feed_keyed_records(tmp_path, [ID, NAME], [ID])
    project.run()
    project.configure((ENTRY, f"{ENTRY} keys: [name],"))
    lane = project.run()["lake.t"]
    assert lane["status"] == "suspended" and "'scd1 by id'" in lane["error"]
    if follow == "resync":
        said = re.search(r"`replicator (lanes resync [^`]+)`", lane["next_step"])
        assert said is not None and project.run_command(*said[1].split(), "--yes")["exit"] == 0
    else:
        said = re.search(r"another name with `into` \(config/replicator\.yaml:(\d+)\)", lane["next_step"])
        lines = (tmp_path / "config" / "replicator.yaml").read_text().splitlines()
        assert said is not None and ENTRY in lines[int(said[1]) - 1]
        project.configure((TO, f"{TO}, into: second"))
    table = "t" if follow == "resync" else "second"
    assert project.run()[f"lake.{table}"]["status"] == "running"
    assert project.rows("lake", table) == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize("follow", ["keys", "run"])
def test_remedy_for_an_erasure_without_a_known_key(tmp_path, follow):
    project = feed_keyed_records(tmp_path, [ID, NAME], [ID])
    forget = ("forget", "public.t", "1", "--yes")
    said = project.run_command(*forget)
    assert said["error"]["next_step"] == "Set `keys` in its entry under `tables`, or run the pipeline first."
    if follow == "keys":
        project.configure(KEYED)
    else:
        project.run()
    assert project.run_command(*forget)["exit"] == 0
    project.run()
    assert project.rows("lake", "t") == [{"id": 0, "name": "a"}]


def test_remedy_for_the_history_of_a_row_without_a_key(tmp_path):
    project = feed_keyed_records(tmp_path, [ID, NAME], [], ", policy: append")
    project.configure(
        ("  lake:", "  raw: {kind: event_log, path: ./events}\n  lake:"),
        ("to: [", "to: [{sink: raw}, "),
    )
    project.run()

    def expect_refusal(*key):
        answer = project.run_command("history", "public.t", *key)
        assert answer["exit"] == 2
        return answer["error"]["next_step"]

    assert expect_refusal("1") == "Set `keys` in its entry under `tables`."
    project.configure(KEYED)
    assert expect_refusal("1", "a") == "Pass a value for each column, in this order."
    assert expect_refusal("one") == "Write the value as `query` shows it."
    assert project.run_command("history", "public.t", "1")["exit"] == 0
