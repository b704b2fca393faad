"""Late changes, from the config to the dead letters."""

from __future__ import annotations

import json
from pathlib import Path

from paths import GOLDEN
from support.cli_program import parse_answer, run_program

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./lake/_replicator/dead_letters}
tables:
  - match: public.products
    source: recorded
    to: [{sink: lake}, {sink: lake, into: changes, policy: append, watermark: 1 minute}]
http: {address: "127.0.0.1:0"}
"""
TOPIC = "cdc.public.products"


def make_record(offset: int, second: int, op: str = "u") -> str:
    """A change of one row at that second, with that log position."""
    known = json.loads((SAMPLES / f"{TOPIC}.jsonl").read_text().splitlines()[0])
    event = json.loads(known["value"])
    payload = event["payload"]
    payload["op"], payload["before"] = op, None
    place = 30_000_000 + offset
    times = {"ts_ms": second * 1000, "ts_us": second * 1_000_000, "ts_ns": second * 1_000_000_000}
    payload["source"] |= {"snapshot": "false", "lsn": place, "sequence": f'["{place - 1}","{place}"]', **times}
    return json.dumps({**known, "offset": offset, "value": json.dumps(event)}) + "\n"


def run_with_records(folder: Path, *records: str) -> dict:
    """Runs over the archive with more records, and returns the report of the lane of changes."""
    with (folder / "archive" / f"{TOPIC}.jsonl").open("a") as more:
        more.writelines(records)
    done = run_program(folder, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    return next(lane for lane in parse_answer(done)["result"]["lanes"] if lane["id"] == "lake.changes")


def run_command(folder: Path, *command: str) -> list[dict]:
    return json.loads(run_program(folder, *command, "--json").stdout)["result"]


def test_late_changes_are_rejected_and_counted(tmp_path):
    """Only in the lane with a watermark. It resumes at the watermark of the run before."""
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    first = run_with_records(tmp_path, make_record(0, 1_000), make_record(1, 900), make_record(2, 940, "d"))
    assert (first["counts"]["applied"], first["counts"]["rejected"]) == (2, 1)
    second = run_with_records(tmp_path, make_record(3, 939), make_record(4, 5_000), make_record(5, 4_940))
    assert (second["counts"]["applied"], second["counts"]["rejected"]) == (2, 1)
    letters = sorted(run_command(tmp_path, "dlq", "list"), key=lambda letter: letter["event_id"])
    assert [(letter["event_id"], letter["lane"], letter["code"]) for letter in letters] == [
        (f"{TOPIC}-0-1", "lake.changes", "LATE"),
        (f"{TOPIC}-0-3", "lake.changes", "LATE"),
    ]
    assert letters[1]["sentence"] == (
        "its event time 1970-01-01 00:15:39 UTC is below the watermark of its partition, 1970-01-01 00:15:40 UTC. A longer "
        "'watermark' accepts such changes from now on. `replicator lanes resync lake.changes` also loads the rejected ones"
    )
    assert '"sku"' in letters[1]["record"]
    assert len(run_command(tmp_path, "query", "changes")) == 4
    plans = {lane["lane"]: lane for lane in run_command(tmp_path, "plan", "products")}
    assert {name: plan["watermark"] for name, plan in plans.items()} == {"lake.products": None, "lake.changes": "0:01:00"}
    assert "late" in plans["lake.changes"]["stages"] and "late" not in plans["lake.products"]["stages"]
    assert "policy append, late after 0:01:00" in run_program(tmp_path, "plan", "products").stdout
