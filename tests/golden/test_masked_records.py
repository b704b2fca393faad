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


def make_decoder(said: dict[str, Any]) -> Any:
    (entry,) = entry_points(group="replicator.decoders", name=said["format"])
    private = {
        table: {name: Mask(**{"key": KEY, **mask}) for name, mask in masks.items()}
        for table, masks in said["options"]["private"].items()
    }
    return entry.load()({**said["options"], "private": private})


def to_bytes(said: Any) -> bytes | None:
    if said is None or isinstance(said, str):
        return said and said.encode()
    return b64decode(said["base64"]) if said.keys() == {"base64"} else json.dumps(said).encode()


def to_text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def read_live(said: dict[str, Any]) -> pa.Table:
    rows = []
    for offset, record in enumerate(said["live"]):
        headers = [{"name": name, "value": to_bytes(value)} for name, value in record.get("headers", [])]
        place = {"topic": record["topic"], "partition": 0, "offset": record.get("offset", offset), "timestamp": AT}
        rows.append(
            {**place, "headers": headers, "key": to_bytes(record.get("key")), "value": to_bytes(record.get("value"))}
        )
    return pa.Table.from_pylist(rows, RAW)


def read_stored(said: dict[str, Any]) -> pa.Table:
    """The records as a source reads them from the event log."""
    rows = [{**row, "timestamp": AT, "key": to_bytes(row["key"]), "value": to_bytes(row["value"])} for row in said["stored"]]
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
    said: dict[str, Any] = json.loads(path.read_text())
    if "stored" not in said and os.environ.get("REPLICATOR_ACCEPT"):
        live, decoder = read_live(said), make_decoder(said)
        rows = build_rows(live, decoder, AT).select(STORED).drop_columns("timestamp").to_pylist()
        said["stored"] = [{**row, "key": to_text(row["key"]), "value": to_text(row["value"])} for row in rows]
        said["changes"] = show_changes(read_stored(said), decoder)
        path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    return said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_records_have_the_recorded_changes(path: Path) -> None:
    said = read_file(path)
    assert show_changes(read_stored(said), make_decoder(said)) == said["changes"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_records_are_not_masked_again(path: Path) -> None:
    said = read_file(path)
    stored = read_stored(said)
    assert make_decoder(said).mask_records(stored).equals(stored)


@pytest.mark.parametrize("path", [path for path in FILES if "live" in read_file(path)], ids=lambda path: path.stem)
def test_masked_today_records_have_the_recorded_changes(path: Path) -> None:
    said = read_file(path)
    live, decoder = read_live(said), make_decoder(said)
    assert show_changes(decoder.mask_records(live), decoder) == said["changes"]
    assert list(map(hide_sentence, show_changes(live, decoder))) == list(map(hide_sentence, said["changes"]))
