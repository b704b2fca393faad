"""Private columns that are dates, times, decimals and other types, through the whole program."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program
from support.debezium_events import encode_with_schema, make_column, make_envelope_schema, make_payload
from support.next_layer import LONG_ON_SPARK, add_pipeline, run_until_caught_up

pytestmark = pytest.mark.slow

KEY = "only-for-these-tests-0123456789"
DECIMAL = {"scale": "2", "connect.decimal.precision": "12"}
COLUMNS = (
    make_column("born", "int32", "io.debezium.time.Date", optional=False),
    make_column("seen", "string", "io.debezium.time.ZonedTimestamp"),
    make_column("balance", "bytes", "org.apache.kafka.connect.data.Decimal", parameters=DECIMAL),
    make_column("photo", "bytes"),
    make_column("country", "string"),
)
HIDDEN = """\
    columns:
      born: {mask: hmac, key: "${MASK_KEY}"}
      seen: {mask: truncate, key: "${MASK_KEY}", length: 4}
      balance: {mask: hmac, key: "${MASK_KEY}"}
      photo: {mask: hmac, key: "${MASK_KEY}"}
"""
CONFIG = f"""\
pipeline: shop
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
  - match: public.people
    source: recorded
{HIDDEN}    to: [{{sink: raw}}, {{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""
NEXT = f"""\
pipeline: next
sources:
  recorded: {{format: debezium_json, transport: delta, path: ./lake/cdc_events, topics: ["cdc.public.*"]}}
sinks:
  lake: {{kind: delta, path: ./next}}
dead_letters: {{path: ./next/_replicator/dead_letters}}
tables:
  - match: public.people
    source: recorded
{HIDDEN}    to: [{{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""
ADA, GRACE = -56270, -23033  # 1815-12-10, 1906-12-09
PHOTO, OTHER = b"a planted photo of Ada", b"a planted photo of Grace"
PRIVATE = (
    *(str(ADA), str(GRACE), "1815-12-10", "1906-12-09", "12-24T10:11", "12-24 10:11", "76543.21", "7654321"),
    *(form for photo in (PHOTO, OTHER) for form in (photo.decode(), photo.hex(), b64encode(photo).decode())),
)
UNSENT = b64encode(b"__debezium_unavailable_value").decode()


def encode_money(number: int) -> str:
    return b64encode(number.to_bytes(8, "big", signed=True)).decode()


def make_person(born: Any, photo: str, **more: Any) -> dict[str, Any]:
    seen = "2024-12-24T10:11:12.5Z"
    return {"born": born, "seen": seen, "balance": encode_money(7654321), "photo": photo, "country": "UK"} | more


def make_key(born: int) -> str:
    schema = {"type": "struct", "fields": [COLUMNS[0]], "optional": False, "name": "cdc.public.people.Key"}
    return json.dumps({"schema": schema, "payload": {"born": born}})


def make_event(at: int, op: str, after: Any, before: Any = None) -> str:
    source = {"table": "people"}
    return encode_with_schema(
        make_envelope_schema(COLUMNS, "people"), make_payload(op, after, before, at, source=source)
    ).decode()


RECORDS = (
    (make_key(ADA), make_event(1000, "c", make_person(ADA, b64encode(PHOTO).decode()))),
    (make_key(GRACE), make_event(1010, "c", make_person(GRACE, b64encode(OTHER).decode()))),
    (
        make_key(ADA),
        make_event(1020, "u", make_person(ADA, UNSENT, country="FR"), make_person(ADA, b64encode(PHOTO).decode())),
    ),
    (make_key(GRACE), make_event(1030, "d", None, make_person(GRACE, b64encode(OTHER).decode(), seen="infinity"))),
    (make_key(GRACE), None),
    (make_key(GRACE), make_event(1040, "c", make_person(GRACE, b64encode(OTHER).decode(), seen="infinity"))),
)


def compute_hmac(value: str) -> str:
    return hmac.new(KEY.encode(), value.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASK_KEY", KEY)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "archive").mkdir()
    place = {"topic": "cdc.public.people", "partition": 0, "timestamp": None, "headers": None}
    lines = [place | {"offset": at, "key": k, "value": value} for at, (k, value) in enumerate(RECORDS)]
    (tmp_path / "archive" / "people.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def read_rows(folder: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return [{name: value for name, value in row.items() if name != "_cdc_applied_at"} for row in found]


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_masked_values_are_equal_after_a_second_read(shop: Path, engine: str) -> None:
    told = json.dumps(run_until_caught_up(shop, engine))
    stores = [repr(read_rows(shop / "lake" / name)) for name in ("people", "cdc_events", "_replicator/dead_letters")]
    logs = [file.read_text() for file in (shop / "lake").rglob("*.json")]
    for text in (told, *stores, *logs):
        assert not [value for value in PRIVATE if value in text]
    (ada,) = read_rows(shop / "lake" / "people")
    assert {n: ada[n] for n in ("born", "seen", "balance", "photo", "country")} == {
        "born": compute_hmac("1815-12-10"),
        "seen": f"2024-{compute_hmac('2024-12-24 10:11:12.500000')[:16]}",
        "balance": compute_hmac("76543.21"),
        "photo": compute_hmac(PHOTO.hex()),
        "country": "FR",
    }
    letters = read_rows(shop / "lake" / "_replicator" / "dead_letters")
    assert [letter["event_id"] for letter in letters] == ["cdc.public.people-0-5"]
    run_until_caught_up(shop, engine, *add_pipeline(shop, NEXT))
    assert read_rows(shop / "next" / "people") == [ada]
    again = read_rows(shop / "next" / "_replicator" / "dead_letters")
    assert [letter["event_id"] for letter in again] == ["cdc.public.people-0-5"]


def test_row_is_erased_by_the_clear_value_of_its_key(shop: Path) -> None:
    run_until_caught_up(shop, "local")
    done = run_program(shop, "forget", "public.people", "1815-12-10", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_rows(shop / "lake" / "people") == []
