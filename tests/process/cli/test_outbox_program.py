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


def of_table(number: int) -> dict:
    """A row of the outbox, as its table has it; one in five is a delete, which is no event."""
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
    """An event, as EventRouter makes it; one in five without its identity."""
    headers = {"id": f"r{number}", "eventType": "Paid"} if number % 5 else {}
    kind = KINDS[number % 2]
    return {"topic": f"outbox.event.{kind}", "key": str(number % 4), "value": {"n": number}, "headers": headers}


def record(folder: Path, numbers: range) -> None:
    """A file of records, some of which are sent twice, in both forms."""
    lines = []
    made = [one for number in numbers for one in (of_table(number), make_routed_event(number), make_routed_event(number))]
    for offset, one in enumerate(made, 100 * numbers.start):
        texts = {of: json.dumps(one[of]) if of in one else None for of in ("key", "value")}
        headers = [[name, text] for name, text in one.get("headers", {}).items()]
        known = {"topic": one["topic"], "partition": 0, "offset": offset, "timestamp": [1, 7000], "headers": headers}
        lines.append(json.dumps({**known, **texts}) + "\n")
    (folder / "archive" / f"{numbers.start:03}.jsonl").write_text("".join(lines))


def made_by(folder: Path, *engines: str) -> dict[str, list[str]]:
    """The tables that these engines make, each of a part of the records, and the dead letters."""
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    (folder / "archive").mkdir()
    for part, engine in enumerate(engines):
        record(folder, range(20 * part, 20 * part + 20))
        run_until_caught_up(folder, engine)
    return {name: rows(folder, name) for name in (*KINDS, "_replicator/dead_letters")}


def rows(folder: Path, name: str) -> list[str]:
    """Rows as text."""
    found = DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()
    return sorted(repr({key: value for key, value in row.items() if key not in SEEN}) for row in found)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_local_and_spark_write_the_same_tables(tmp_path: Path) -> None:
    """Also in turns, and under two policies."""
    local = made_by(tmp_path / "local", "local", "local")
    assert len(local["order"]) > 20 and len(local["payment"]) > 20 and len(local["_replicator/dead_letters"]) == 16
    assert made_by(tmp_path / "spark", "spark", "local") == local
