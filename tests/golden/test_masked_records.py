"""Masked records of event logs and dead letters stay readable in every later version.

Each file `masked_records/NAME.json` has records of a source (`live`), the records that a version stored (`stored`), and
their decoded changes. Never record a file again: it represents existing logs. To add a file, write its `format`, `options`
and `live`, then:

    REPLICATOR_ACCEPT=1 python -m pytest tests/golden/test_masked_records.py
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paths import GOLDEN
from support.masked_records import KEY, decode_changes

from adapters.event_log import build_rows, to_raw
from replicator.domain.change import RAW
from replicator.domain.transform.columns import Mask

RECORDED = GOLDEN / "masked_records"
FILES = sorted(RECORDED.glob("*.json"))
STORED = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")
AT = datetime(2024, 2, 29, tzinfo=UTC)


def make_decoder(recorded: dict[str, Any]) -> Any:
    (entry,) = entry_points(group="replicator.decoders", name=recorded["format"])
    private = {
        table: {name: Mask(**{"key": KEY, **mask}) for name, mask in masks.items()}
        for table, masks in recorded["options"]["private"].items()
    }
    return entry.load()({**recorded["options"], "private": private})


def to_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return value and value.encode()
    return b64decode(value["base64"]) if value.keys() == {"base64"} else json.dumps(value).encode()


def to_text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def read_live(recorded: dict[str, Any]) -> pa.Table:
    rows = []
    for offset, record in enumerate(recorded["live"]):
        headers = [{"name": name, "value": to_bytes(value)} for name, value in record.get("headers", [])]
        position = {"topic": record["topic"], "partition": 0, "offset": record.get("offset", offset), "timestamp": AT}
        rows.append(
            {**position, "headers": headers, "key": to_bytes(record.get("key")), "value": to_bytes(record.get("value"))}
        )
    return pa.Table.from_pylist(rows, RAW)


def read_stored(recorded: dict[str, Any]) -> pa.Table:
    """The records as a source reads them from the event log."""
    rows = [
        {**row, "timestamp": AT, "key": to_bytes(row["key"]), "value": to_bytes(row["value"])} for row in recorded["stored"]
    ]
    kinds = {name: pa.string() if name == "headers" else RAW.field(name).type for name in STORED}
    return to_raw(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))))


def show_changes(records: pa.Table, decoder: Any) -> list[Any]:
    found: list[Any] = json.loads(json.dumps(decode_changes(records, decoder), default=str))
    return found


def hide_sentence(change: dict[str, Any]) -> dict[str, Any]:
    """A masked record may be rejected for another reason than the original."""
    return {**change, "_error": change["_error"] and "rejected"}


@cache
def read_file(path: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(path.read_text())
    if "stored" not in recorded and os.environ.get("REPLICATOR_ACCEPT"):
        live, decoder = read_live(recorded), make_decoder(recorded)
        rows = build_rows(live, decoder, AT).select(STORED).drop_columns("timestamp").to_pylist()
        recorded["stored"] = [{**row, "key": to_text(row["key"]), "value": to_text(row["value"])} for row in rows]
        recorded["changes"] = show_changes(read_stored(recorded), decoder)
        path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    return recorded


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_records_have_the_recorded_changes(path: Path) -> None:
    recorded = read_file(path)
    assert show_changes(read_stored(recorded), make_decoder(recorded)) == recorded["changes"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_records_are_not_masked_again(path: Path) -> None:
    recorded = read_file(path)
    stored = read_stored(recorded)
    assert make_decoder(recorded).mask_records(stored).equals(stored)


@pytest.mark.parametrize("path", [path for path in FILES if "live" in read_file(path)], ids=lambda path: path.stem)
def test_records_masked_now_have_the_recorded_changes(path: Path) -> None:
    recorded = read_file(path)
    live, decoder = read_live(recorded), make_decoder(recorded)
    assert show_changes(decoder.mask_records(live), decoder) == recorded["changes"]
    assert list(map(hide_sentence, show_changes(live, decoder))) == list(map(hide_sentence, recorded["changes"]))
