"""Outbox events through the program: both engines write the same tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.next_layer import run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts in each."""

CONFIG = """\
pipeline: shop
sources:
  outbox: {format: debezium_outbox, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./lake/_replicator/dead_letters}
tables:
  - match: outbox.event.payment
    source: outbox
    to: [{sink: lake, policy: append}]
  - match: outbox.event.*
    source: outbox
    to: [{sink: lake}]
http: {address: "127.0.0.1:0"}
"""
SOURCE = {
    "connector": "postgresql",
    "name": "cdc",
    "db": "shop",
    "schema": "public",
    "table": "outbox",
    "ts_us": 1,
    "txId": 9,
}
SEEN = ("first_seen", "last_seen", "_cdc_applied_at")
"""When a row was written."""
KINDS = ("order", "payment")


def make_table_event(number: int) -> dict:
    """A row of the outbox table. One in five is a delete, which is no event."""
    kind = KINDS[number % 3 == 0]
    row = {
        "id": f"t{number}",
        "aggregatetype": kind,
        "aggregateid": number % 4,
        "type": "Placed",
        "payload": f'{{"n":{number}}}',
    }
    images = {"before": row, "after": None, "op": "d"} if number % 5 == 4 else {"before": None, "after": row, "op": "c"}
    return {"topic": "cdc.public.outbox", "value": {"schema": {"type": "struct"}, "payload": {**images, "source": SOURCE}}}


def make_routed_event(number: int) -> dict:
    """An event as EventRouter makes it. One in five has no id."""
    headers = {"id": f"r{number}", "eventType": "Paid"} if number % 5 else {}
    kind = KINDS[number % 2]
    return {"topic": f"outbox.event.{kind}", "key": str(number % 4), "value": {"n": number}, "headers": headers}


def write_records(folder: Path, numbers: range) -> None:
    """Writes a file of events in both forms, some of them sent twice."""
    lines = []
    made = [
        one for number in numbers for one in (make_table_event(number), make_routed_event(number), make_routed_event(number))
    ]
    for offset, one in enumerate(made, 100 * numbers.start):
        texts = {of: json.dumps(one[of]) if of in one else None for of in ("key", "value")}
        headers = [[name, text] for name, text in one.get("headers", {}).items()]
        known = {"topic": one["topic"], "partition": 0, "offset": offset, "timestamp": [1, 7000], "headers": headers}
        lines.append(json.dumps({**known, **texts}) + "\n")
    (folder / "archive" / f"{numbers.start:03}.jsonl").write_text("".join(lines))


def make_targets(folder: Path, *engines: str) -> dict[str, list[str]]:
    """The target tables and the dead letters. Each engine processes a part of the records."""
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    (folder / "archive").mkdir()
    for part, engine in enumerate(engines):
        write_records(folder, range(20 * part, 20 * part + 20))
        run_until_caught_up(folder, engine)
    return {name: read_rows(folder, name) for name in (*KINDS, "_replicator/dead_letters")}


def read_rows(folder: Path, name: str) -> list[str]:
    """Rows as text."""
    found = DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()
    return sorted(repr({key: value for key, value in row.items() if key not in SEEN}) for row in found)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_local_and_spark_write_the_same_tables(tmp_path: Path) -> None:
    """Also in turns, and under two policies."""
    local = make_targets(tmp_path / "local", "local", "local")
    assert len(local["order"]) > 20 and len(local["payment"]) > 20 and len(local["_replicator/dead_letters"]) == 16
    assert make_targets(tmp_path / "spark", "spark", "local") == local
