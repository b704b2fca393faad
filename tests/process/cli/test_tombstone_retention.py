"""Retention of deletes, from the config to the dead letters."""

from __future__ import annotations

import json
import time
from pathlib import Path

from paths import GOLDEN
from support.cli_program import parse_answer, run_program

from adapters.delta.lake import Lake
from adapters.delta.tables import open_table

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
    to: [{sink: lake, tombstone_retention: 1 second}, {sink: lake, into: kept, tombstone_retention: off}]
http: {address: "127.0.0.1:0"}
"""
TOPIC = "cdc.public.products"


def make_record(offset: int, place: int, key: int, op: str = "u") -> str:
    """A change of the row of that key, with that log position."""
    known = json.loads((SAMPLES / f"{TOPIC}.jsonl").read_text().splitlines()[0])
    event, name = json.loads(known["value"]), json.loads(known["key"])
    payload = event["payload"]
    row = {**payload["after"], "sku": f"row-{key}"}
    name["payload"]["sku"] = f"row-{key}"
    payload |= {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}
    payload["source"] |= {"snapshot": "false", "lsn": place, "sequence": f'["{place}","{place}"]'}
    return json.dumps({**known, "offset": offset, "key": json.dumps(name), "value": json.dumps(event)}) + "\n"


def run_with_records(folder: Path, *records: str) -> tuple[dict[str, dict], str]:
    """Runs over the archive with more records. Returns the reported lanes, and the log."""
    with (folder / "archive" / f"{TOPIC}.jsonl").open("a") as more:
        more.writelines(records)
    done = run_program(folder, "run", "--until-caught-up", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return {lane["id"]: lane for lane in parse_answer(done)["result"]["lanes"]}, done.stderr


def test_tombstones_are_purged_after_their_retention(tmp_path):
    """A change older than the tombstone is LATE after the purge, and superseded before it. Log and status report the
    progress, and the next run resumes there."""
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    run_with_records(tmp_path, make_record(0, 1_000, 1, "c"), make_record(1, 2_000, 1, "d"), make_record(2, 2_100, 2, "c"))
    time.sleep(1.2)
    lanes, log = run_with_records(tmp_path, make_record(3, 1_500, 1), make_record(4, 3_000, 3, "d"))
    assert [lanes[n]["counts"]["rejected"] for n in ("lake.products", "lake.kept")] == [1, 0]
    assert [lanes[n]["counts"]["superseded"] for n in ("lake.products", "lake.kept")] == [0, 1]
    assert log.count("deletes forgotten") == 1
    said = lanes["lake.products"]["tombstones"]
    assert (said["retention"], said["forgotten"]["up_to"]) == ("0:00:01", [2_000, 2_000, 0])
    assert lanes["lake.kept"]["tombstones"] == {"retention": None, "forgotten": None}
    ledgers = {
        into: open_table(Lake.from_path(str(tmp_path / "lake")).tombstones(into)).count() for into in ("products", "kept")
    }
    assert ledgers == {"products": 1, "kept": 2}
    time.sleep(1.2)
    lanes, _ = run_with_records(tmp_path, make_record(5, 1_600, 1), make_record(6, 2_050, 2))
    assert [lanes[n]["counts"]["rejected"] for n in ("lake.products", "lake.kept")] == [1, 0]
    stored = json.loads(run_program(tmp_path, "status", "--json").stdout)["result"]["lanes"]
    assert {lane["id"]: lane["tombstones"] for lane in stored}["lake.products"]["retention"] == "0:00:01"
    told = run_program(tmp_path, "status", "-v").stdout
    assert "lake.products  0:00:01; removed up to (3000, 3000, 0), before " in told and "lake.kept  for ever\n" in told
    letters = json.loads(run_program(tmp_path, "dlq", "list", "--json").stdout)["result"]
    assert [(letter["lane"], letter["code"]) for letter in letters] == [("lake.products", "LATE")] * 2
    assert all("tombstone_retention" in letter["sentence"] for letter in letters)
