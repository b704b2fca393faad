"""A table whose source has transactions is made anew in its place, and compared, like any other."""

from __future__ import annotations

import json
from pathlib import Path

from cli_program import run_program
from deltalake import DeltaTable

RECORDED = Path(__file__).parents[2] / "golden" / "debezium_losses" / "open_transaction" / "archive.jsonl"
CONFIG = """\
pipeline: shop
sources:
  shop: {format: debezium_json, transport: archive, path: ./archive, transactions: {topic: cdc.transaction}}
sinks: {lake: {kind: delta, path: ./lake}, raw: {kind: event_log, path: ./raw}}
dead_letters: {path: ./dead_letters}
tables:
  - {match: public.orders, source: shop, schema: {id: int64, note: string}, to: [{sink: raw}, {sink: lake}]}
  - match: public.order_items
    source: shop
    schema: {id: int64, order_id: int64, price: int32}
    to: [{sink: raw}, {sink: lake}]
"""


def test_replay_leaves_the_topic_of_transactions_out(tmp_path: Path) -> None:
    for name in ("archive", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "archive" / "all.jsonl").write_text(RECORDED.read_text())
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    done = run_program(tmp_path, "run", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    compared = json.loads(run_program(tmp_path, "replay", "public.orders", "--dry-run", "--json").stdout)["result"]
    assert compared["exact"] and compared["same"] == compared["rows"]["live"] > 0
    replayed = run_program(tmp_path, "replay", "public.orders")
    assert replayed.returncode == 0, replayed.stderr
    again = run_program(tmp_path, "run", "--until-caught-up")
    assert again.returncode == 0, again.stderr
    assert DeltaTable(tmp_path / "lake" / "orders").count() == compared["same"]
