"""Dropped tables whose stream reports the drop: the reaction of a lane, also after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.schema_changes import Project, Row, make_canal_record

TOPIC = "flat"
DROP = ("ERASE", None)


def make_inserts(*ids: int, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("INSERT", {"id": i, "name": f"n{i}", **more}) for i in ids]


def stream(*statements: tuple[str, Any], start: int = 0, table: str = "t") -> list[Row]:
    """Records of one topic, starting at this offset. A statement `TABLE:OPERATION` belongs to that other table."""
    out = []
    for offset, (statement, row) in enumerate(statements, start):
        named, _, kind = statement.rpartition(":")
        out.append({**make_canal_record(named or table, offset, kind, row), "topic": TOPIC})
    return out


def project(folder: Path, rules: str, *tables: str) -> Project:
    more = f", schema_changes: {rules}" if rules else ""
    return Project(folder, {"t": more, **dict.fromkeys(tables, "")}, flat=lambda _: True)


def feed_records(to: Project, name: str, records: Sequence[Row]) -> None:
    to.feed(name, records, "flat")


def list_ids(of: Project, table: str = "t") -> list[int]:
    return [row["id"] for row in of.rows("lake", table)]


def list_schemas(of: Project, lane: str = "lake.t") -> list[tuple[int, str, Any, list[str]]]:
    lanes = of.run_command("schema", "history", lane)["result"]
    (found,) = lanes["lanes"] if isinstance(lanes, dict) else lanes
    return [(v["number"], v["state"], v["position"], v["changes"]) for v in found["schemas"]]


def make_position(offset: int) -> dict[str, dict[str, int]]:
    return {TOPIC: {"0": offset}}


GONE = ["the table was dropped"]


def test_drop_within_a_batch_stops_the_lane_of_its_table(tmp_path):
    """The lane stops below the drop. Changes of its table and of another one precede and follow the drop."""
    here = project(tmp_path, "{table_dropped: fail}", "other")
    other = [("other:INSERT", {"id": i, "name": "o"}) for i in range(3)]
    before, behind = [*make_inserts(1), other[0], *make_inserts(2), other[1]], [other[2], *make_inserts(3, note="x")]
    feed_records(here, "a", stream(*before, DROP, ("other:ERASE", None), *behind))
    lanes = here.run()
    lane = lanes["lake.t"]
    assert (lane["status"], lane["position"]) == ("suspended", make_position(4))
    assert lane["error"] == "The schema of table public.t changed: the table was dropped."
    assert "`schema_changes: {table_dropped: evolve}` (config/replicator.yaml:" in lane["next_step"]
    assert "`replicator lanes resume lake.t --accept-schema 2`" in lane["next_step"]
    assert list_ids(here) == [1, 2]
    assert lanes["lake.other"]["error"] is None and list_ids(here, "other") == [0, 1, 2]
    assert list_schemas(here)[1:] == [(2, "pending", make_position(4), GONE)]
    assert list_schemas(here, "lake.other")[1:] == [(2, "applied", make_position(5), GONE)]


def test_lane_waiting_for_an_accepted_drop_waits_after_a_restart(tmp_path):
    here = project(tmp_path, "quarantine")
    feed_records(here, "a", stream(*make_inserts(1), DROP))
    for _ in range(2):
        lane = here.run()["lake.t"]
        assert (lane["status"], lane["position"]) == ("suspended", make_position(1))
        assert "--accept-schema 2` continues the lane" in lane["next_step"]
    feed_records(here, "b", stream(*make_inserts(2), start=2))
    assert here.run()["lake.t"]["status"] == "suspended" and list_ids(here) == [1]
    assert here.run_command("lanes", "resume", "lake.t", "--accept-schema", "2")["exit"] == 0
    for _ in range(2):
        assert here.run()["lake.t"]["error"] is None
        assert list_ids(here) == [1, 2]
        assert list_schemas(here)[1:] == [(2, "applied", make_position(1), GONE)]
    feed_records(here, "c", stream(DROP, start=3))
    assert "--accept-schema 3`" in here.run()["lake.t"]["next_step"], "another drop needs another decision"


def test_drop_without_later_records_is_stored_once(tmp_path):
    """Also if the program has seen no row since its start, and if the drop is read again."""
    here = project(tmp_path, "")
    feed_records(here, "a", stream(*make_inserts(1)))
    here.run()
    feed_records(here, "b", stream(DROP, start=1))
    for _ in range(2):
        assert here.run()["lake.t"]["error"] is None
        assert list_schemas(here)[1:] == [(2, "applied", make_position(1), GONE)]
    feed_records(here, "c", stream(*make_inserts(1, note="x"), start=2))
    assert here.run()["lake.t"]["error"] is None
    added = ["column 'note' (string (varchar(40))) was added"]
    assert list_schemas(here)[1:] == [(2, "applied", make_position(1), GONE), (3, "applied", make_position(2), added)]
    assert here.rows("lake", "t") == [{"id": 1, "name": "n1", "note": "x"}]


@pytest.mark.parametrize("before", [[], [("other:INSERT", {"id": 1, "name": "o"})]], ids=["alone", "behind another table"])
def test_schema_of_a_recreated_table_is_checked_after_the_drop(tmp_path, before):
    """Its schema changes at its first record, not at the start of the batch."""
    here = project(tmp_path, "{table_dropped: fail, added: quarantine}", "other")
    feed_records(here, "a", stream(*make_inserts(1)))
    here.run()
    feed_records(here, "b", stream(*before, DROP, *make_inserts(2, note="x"), start=1))
    offset = 1 + len(before)
    lane = here.run()["lake.t"]
    assert lane["error"].endswith("the table was dropped.")
    assert here.run_command("lanes", "resume", "lake.t", "--accept-schema", "2")["exit"] == 0
    lane = here.run()["lake.t"]
    assert "'note'" in lane["error"] and "--accept-schema 3" in lane["next_step"]
    met = [(state, where) for _, state, where, _ in list_schemas(here)[1:]]
    assert met == [("applied", make_position(offset)), ("pending", make_position(offset + 1))]
    assert list_ids(here) == [1]


def test_drop_of_an_unknown_table_is_ignored(tmp_path):
    """A drop before the first row of the table, of no table, or of an unconfigured table."""
    here = project(tmp_path, "fail")
    none = [{**make_canal_record("", 2, "ERASE"), "topic": TOPIC}]
    feed_records(
        here, "a", [*stream(DROP, ("else:ERASE", None)), *none, *stream(*make_inserts(1), ("else:ERASE", None), start=3)]
    )
    assert here.run()["lake.t"]["error"] is None
    assert list_ids(here) == [1] and len(list_schemas(here)) == 1


def test_drop_in_another_topic_is_ignored(tmp_path):
    """It has no position among the records of the table."""
    here = project(tmp_path, "fail")
    feed_records(here, "a", [*stream(*make_inserts(1)), {**make_canal_record("t", 0, "ERASE"), "topic": "statements"}])
    feed_records(here, "b", stream(*make_inserts(2), start=1))
    assert here.run()["lake.t"]["error"] is None
    assert list_ids(here) == [1, 2]


def test_reloaded_lane_passes_an_accepted_drop(tmp_path):
    here = project(tmp_path, "quarantine")
    feed_records(here, "a", stream(*make_inserts(1), DROP, *make_inserts(2)))
    here.run()
    assert here.run_command("lanes", "resume", "lake.t", "--accept-schema", "2")["exit"] == 0
    here.run()
    assert here.run_command("lanes", "resync", "lake.t", "--yes")["exit"] == 0
    assert here.run()["lake.t"]["error"] is None
    assert list_ids(here) == [1, 2]


def test_status_and_plan_show_the_drop(tmp_path):
    here = project(tmp_path, "{table_dropped: quarantine}")
    feed_records(here, "a", stream(*make_inserts(1), DROP))
    here.run()
    (lane,) = here.run_command("status")["result"]["lanes"]
    assert lane["schemas"][-1]["changes"] == GONE and lane["schemas"][-1]["state"] == "pending"
    (planned,) = here.run_command("plan")["result"]
    assert planned["schema_changes"] == "table_dropped: quarantine, others: evolve"
    assert planned["schemas"][-1]["changes"] == GONE
