"""Commands over a source with transactions, whose records are in an archive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.cli_program import parse_answer, run_program

RECORDED = GOLDEN / "debezium_losses" / "open_transaction" / "archive.jsonl"
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


END_OF_THE_LAST = "cdc.transaction"
LANES = ("lake.orders", "lake.order_items", "raw.shop")
LAST_CHANGE = "cdc.public.order_items"


def make_project(folder: Path, without_the_last_of: str | None = None) -> None:
    """A pipeline over the recorded archive, optionally without the last record of a topic."""
    for name in ("archive", "config"):
        (folder / name).mkdir()
    lines = RECORDED.read_text().splitlines(keepends=True)
    if without_the_last_of is not None:
        del lines[max(n for n, line in enumerate(lines) if json.loads(line)["topic"] == without_the_last_of)]
    (folder / "archive" / "all.jsonl").write_text("".join(lines))
    (folder / "config" / "replicator.yaml").write_text(CONFIG)


@pytest.mark.parametrize(
    ("lost", "code", "sentence"),
    [
        (LAST_CHANGE, 4, "lacks changes: 1 of 2 of public.order_items (cdc.public.order_items) have arrived"),
        (END_OF_THE_LAST, 1, "has not ended in cdc.transaction"),
    ],
)
def test_run_with_incomplete_transactions_is_reported(tmp_path: Path, lost: str, code: int, sentence: str) -> None:
    make_project(tmp_path, without_the_last_of=lost)
    done = run_program(tmp_path, "run", "--until-caught-up", "--json")
    told = parse_answer(done)
    assert (done.returncode, told["ok"]) == (code, False)
    assert sentence in told["summary"]
    assert told["result"]["sources"][0]["transactions"]["waits_for"] == told["summary"]


def append_items_transaction(folder: Path) -> None:
    """Appends a transaction that changes only items."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    newest = {line["topic"]: line for line in lines}
    marks, items = newest["cdc.transaction"], newest["cdc.public.order_items"]
    row, end = json.loads(items["value"]), json.loads(marks["value"])
    lsn = row["source"]["lsn"] + 1000
    row["after"] |= {"id": 9000}
    row["source"] |= {"txId": 9000, "lsn": lsn, "sequence": json.dumps([str(lsn - 100), str(lsn)])}
    row["transaction"] |= {"id": f"9000:{lsn}"}
    told = [{"data_collection": "public.order_items", "event_count": 1}]
    end |= {"id": f"9000:{lsn + 8}", "event_count": 1, "data_collections": told}
    begin = end | {"status": "BEGIN", "event_count": None, "data_collections": None}
    more = [
        marks | {"offset": marks["offset"] + 1, "value": json.dumps(begin)},
        items | {"offset": items["offset"] + 1, "key": json.dumps({"id": 9000}), "value": json.dumps(row)},
        marks | {"offset": marks["offset"] + 2, "value": json.dumps(end)},
    ]
    (folder / "archive" / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in more))


def test_lane_without_changes_has_no_lag(tmp_path: Path) -> None:
    """After a start it writes nothing, so its position in the transaction topic does not move."""
    make_project(tmp_path)
    for _ in range(2):
        done = run_program(tmp_path, "run", "--until-caught-up", "--json")
        assert done.returncode == 0, done.stdout
        lanes = parse_answer(done)["result"]["lanes"]
        assert {lane["id"]: lane["lag_records"] for lane in lanes} == dict.fromkeys(LANES, 0)
        append_items_transaction(tmp_path)


def test_replay_skips_the_transaction_topic(tmp_path: Path) -> None:
    make_project(tmp_path)
    done = run_program(tmp_path, "run", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    compared = json.loads(run_program(tmp_path, "replay", "public.orders", "--dry-run", "--json").stdout)["result"]
    assert compared["exact"] and compared["same"] == compared["rows"]["live"] > 0
    replayed = run_program(tmp_path, "replay", "public.orders")
    assert replayed.returncode == 0, replayed.stderr
    again = run_program(tmp_path, "run", "--until-caught-up")
    assert again.returncode == 0, again.stderr
    assert DeltaTable(tmp_path / "lake" / "orders").count() == compared["same"]
