"""Private columns of an outbox's events, and fields of their payloads, through the program: no target, event log, dead
letter or store of events holds their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.cli_program import run_program
from support.next_layer import run_until_caught_up

from adapters.arrow.masks import make_text_mask
from replicator.domain.transform.columns import Mask

pytestmark = pytest.mark.slow

KEY = "only-for-these-tests-0123456789"
CONFIG = """\
pipeline: shop
sources:
  outbox: {format: debezium_outbox, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./lake/letters}
event_store: {path: ./lake/events}
tables:
  - match: outbox.event.*
    source: outbox
    columns:
      aggregateid: {mask: hmac, key: "${MASK_KEY}"}
      payload.email: {mask: truncate, key: "${MASK_KEY}", length: 2}
      payload.phone: drop
    to: [{sink: raw}, {sink: lake}, {sink: event_store}]
http: {address: "127.0.0.1:0"}
"""
CLEAR = ("47110815", "alice@", "bob@", "0176-55", KEY)
SOURCE = {"connector": "postgresql", "name": "cdc", "db": "shop", "schema": "public", "table": "outbox", "txId": 9}


def mask_value(value: object, length: int | None = None) -> str:
    return make_text_mask(Mask("hmac" if length is None else "truncate", KEY.encode(), length or 0))(str(value))


def make_table_event(number: int, payload: object, op: str = "c") -> dict[str, Any]:
    row = {"id": f"t{number}", "aggregatetype": "order", "aggregateid": 47110815, "type": "Placed", "payload": payload}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    value = {**images, "op": op, "source": {**SOURCE, "ts_us": 1_700_000_000_000_000 + number}}
    return {"topic": "cdc.public.outbox", "value": json.dumps(value), "key": '{"id": "alice@example.com"}', "headers": []}


def make_routed_event(number: int, payload: object) -> dict[str, Any]:
    headers = [["id", f"r{number}"], ["eventType", "Paid"], ["owner", "alice@example.com"]]
    return {"topic": "outbox.event.order", "key": "47110815", "value": json.dumps(payload), "headers": headers}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASK_KEY", KEY)
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    said = {"phone": "0176-55", "total": 7}
    records = [
        make_table_event(1, json.dumps({"email": "alice@example.com", **said})),
        make_table_event(2, json.dumps(["alice@example.com"])),
        make_table_event(1, json.dumps({"email": "alice@example.com", **said}), op="d"),
        make_routed_event(1, {"email": "bob@example.com", **said}),
        make_routed_event(2, "alice@example.com"),
        {**make_routed_event(3, 0), "value": '{"email": "alice@example.com"'},
    ]
    offsets: dict[str, int] = {}
    lines = []
    for record in records:
        offset = offsets[record["topic"]] = offsets.get(record["topic"], -1) + 1
        lines.append({"partition": 0, "offset": offset, "timestamp": 1_700_000_000_000, **record})
    (tmp_path / "archive" / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(folder)).to_pyarrow_table().to_pylist()


def read_stored_text(shop: Path) -> str:
    files = [file for folder in ("lake", "state") for file in (shop / folder).rglob("*") if file.is_file()]
    of_rows = [file for file in files if file.suffix == ".parquet"]
    texts = [file.read_bytes().decode(errors="replace") for file in files if file not in of_rows]
    return "\n".join([*texts, *(repr(pq.read_table(file, partitioning=None).to_pylist()) for file in of_rows)])


def read_events(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {row["id"]: (row["aggregateid"], row["type"], json.loads(row["payload"])) for row in read_rows(folder)}


def test_no_stored_event_holds_private_values(shop: Path) -> None:
    run_until_caught_up(shop, "local")
    alice, bob = (mask_value(mail, 2) for mail in ("alice@example.com", "bob@example.com"))
    expected = {
        name: (mask_value(47110815), kind, {"email": mail, "phone": None, "total": 7})
        for name, kind, mail in (("t1", "Placed", alice), ("r1", "Paid", bob))
    }
    assert read_events(shop / "lake" / "order") == expected
    stored = {row["event_id"]: row for row in read_rows(shop / "lake" / "events")}
    assert {name: (row["aggregate_id"], dict(row["event_data"])["email"]) for name, row in stored.items()} == {
        "t1": (mask_value(47110815), alice),
        "r1": (mask_value(47110815), bob),
    }
    assert [value for value in CLEAR if value in read_stored_text(shop)] == []
    done = run_program(shop, "replay", "outbox.event.order", "--into", "again", "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_events(shop / "lake" / "again") == expected
    assert [value for value in CLEAR if value in read_stored_text(shop)] == []
