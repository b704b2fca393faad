"""A pipeline whose source is the event log of another pipeline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.cli_program import parse_answer, run_program
from support.next_layer import LONG_ON_SPARK, add_pipeline, run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

TABLES = ("products", "orders")
NEXT = """\
pipeline: next
sources:
  recorded: {format: debezium_json, transport: delta, path: ./lake/cdc_events, topics: ["cdc.public.*", "archive:*"]}
sinks:
  lake: {kind: delta, path: ./next}
dead_letters: {path: ./next/_replicator/dead_letters}
tables:
  - match: public.*
    source: recorded
    to: [{sink: lake}]
http: {address: "127.0.0.1:0"}
"""


def read_rows(lake: Path, table: str) -> list[dict]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table().drop_columns(["_cdc_applied_at"]).to_pylist()
    return sorted(found, key=lambda row: row["_event_id"])


def assert_equal_lakes(project: Path) -> None:
    for table in TABLES:
        assert read_rows(project / "next", table), table
        assert read_rows(project / "next", table) == read_rows(project / "lake", table)


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_second_lake_equals_the_first(project: Path, engine: str) -> None:
    said = run_until_caught_up(project, engine, *add_pipeline(project, NEXT))
    assert {lane["status"] for lane in said["result"]["lanes"]} == {"running"}
    assert_equal_lakes(project)
    stores = [project / lake / "_replicator" / "dead_letters" for lake in ("lake", "next")]
    letters = [DeltaTable(str(store)).to_pyarrow_table() for store in stores]
    assert len({(tuple(t["event_id"].to_pylist()), tuple(t["code"].to_pylist())) for t in letters}) == 1
    again = run_until_caught_up(project, "local", *add_pipeline(project, NEXT))
    assert all(lane["counts"]["applied"] == 0 for lane in again["result"]["lanes"])


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_lane_resumes_from_the_log_and_from_the_topics(project: Path, engine: str) -> None:
    """Positions are those of the recorded topics, whichever source delivers the records. `engine` reads the log."""
    shutil.rmtree(project / "lake")
    archive = project / "archive"
    whole = {file.name: file.read_text().splitlines(keepends=True) for file in archive.iterdir()}

    def record(lines: int) -> None:
        for name, text in whole.items():
            (archive / name).write_text("".join(text[:lines]))

    from_archive = NEXT.replace("transport: delta", "transport: archive").replace("./lake/cdc_events", "./archive")
    from_archive = from_archive.replace(', topics: ["cdc.public.*", "archive:*"]', "")
    for lines, config, reader in ((2, from_archive, "local"), (4, NEXT, engine), (100, from_archive, "local")):
        record(lines)
        run_until_caught_up(project, "local")
        run_until_caught_up(project, reader, *add_pipeline(project, config))
    assert_equal_lakes(project)


def test_log_that_lost_records_stops_with_code_4(project: Path) -> None:
    config = add_pipeline(project, NEXT)
    run_until_caught_up(project, "local", *config)
    log = DeltaTable(str(project / "lake" / "cdc_events"))
    log.alter.set_table_properties({"delta.appendOnly": "false"})
    log.delete("topic = 'cdc.public.orders'")
    shutil.rmtree(project / "lake" / "cdc_events" / "_replicator")
    said = run_until_caught_up(project, "local", *config, code=4)
    assert "The event log holds no record of cdc.public.orders" in json.dumps(said)
    assert "replicator lanes resync" in json.dumps(said)


def test_doctor_checks_the_log(project: Path) -> None:
    done = run_program(project, "doctor", "--json", *add_pipeline(project, NEXT))
    found = {d["subject"]: d for d in parse_answer(done)["result"]}
    assert "The event log" in found["source recorded"]["sentence"] and found["source recorded"]["severity"] == "ok"


def test_plain_table_is_refused_with_the_reason(project: Path) -> None:
    config = add_pipeline(project, NEXT.replace("./lake/cdc_events", "./lake/products"))
    done = run_program(project, "run", "--until-caught-up", "-q", *config)
    assert done.returncode == 2
    assert "is not an event log: it lacks the column(s)" in done.stderr and "`format: rows`" in done.stderr
