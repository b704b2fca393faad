"""The daemon compares its targets by schedule, and stops at once during a comparison."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from paths import GOLDEN
from support.cli_program import parse_answer, run_program, start_program

pytestmark = pytest.mark.slow
"""The daemon runs for seconds."""

TOPIC = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.order_items.jsonl"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
defaults: {verify: {every: 1 second}}
tables:
  - match: public.order_items
    source: recorded
    to: [{sink: raw}, {sink: lake}, {sink: lake, into: never, verify: {every: off}}]
http: {address: "127.0.0.1:0"}
"""


def test_daemon_compares_by_schedule(tmp_path: Path) -> None:
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    shutil.copy(TOPIC, tmp_path / "archive")
    kept = tmp_path / "state" / "shop" / "diffs"
    program = start_program(tmp_path, "run", "-q")
    try:
        deadline = time.monotonic() + 100
        while len(files := sorted(kept.glob("*/*.json"))) < 2:
            assert time.monotonic() < deadline, files
            time.sleep(0.2)
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(20) == 0
    assert {file.parent.name for file in files} == {"lake.order_items"}
    run = json.loads(files[0].read_text())
    assert (run["error"], run["rows"], run["missing"], run["extra"], run["different"]) == (None, 3, 0, 0, 0)
    assert run_program(tmp_path, "diff", "order_items", "-q").returncode == 0
    shown = parse_answer(run_program(tmp_path, "status", "--json", "-q"))["result"]["comparisons"]
    assert [(one["lane"], one["equal"], one["against"]) for one in shown] == [
        ("lake.order_items", True, "log"),
        ("lake.never", True, "log"),
    ]
    assert shown[0]["begun"] > run["begun"]
