"""Private columns of other formats than Debezium's, through the program: nothing that is stored holds their values, what is
replayed is what was live, and a key that is masked can be forgotten."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.cli_program import parse_answer, run_program
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

pytestmark = pytest.mark.slow

KEY = "only-for-these-tests-0123456789"
PRIVATE = ("47110815", "47120816", "47130817", "alice@example", "bob@example", "carol@example", "0176-55")
"""What no store may hold, in any form."""
CONFIG = """\
pipeline: shop
sources:
  binlog: {format: maxwell_json, transport: archive, path: ./binlog}
  rows: {format: rows, operation_column: op, transport: archive, path: ./rows}
  dms: {format: dms_csv, transport: files, path: ./dms}
  flat: {format: debezium_json, flattened: true, transport: archive, path: ./flat}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./lake/_replicator/dead_letters}
defaults:
  keys: [id]
tables:
"""
TABLE = """\
  - match: {match}
    source: {source}
    tombstones: ignore
    schema: {{id: int64, email: string, phone: string, country: string}}
    columns:
      id: {{mask: hmac, key: "${{MASK_KEY}}"}}
      email: {{mask: truncate, key: "${{MASK_KEY}}", length: 2}}
      phone: drop
    to: [{{sink: raw}}, {{sink: lake, into: {source}}}]
"""
TABLES = {"binlog": "shop.customers", "rows": "customers", "dms": "app.customers", "flat": "flat.customers"}
ALICE, BOB, CAROL = 47110815, 47120816, 47130817


def compute_hmac(value: object) -> str:
    return hmac.new(KEY.encode(), str(value).encode(), hashlib.sha256).hexdigest()


def make_customer(number: object, email: str, country: str = "DE") -> dict[str, Any]:
    return {"id": number, "email": email, "phone": "0176-55", "country": country}


def write_archive(folder: Path, topic: str, values: list[Any], keys: list[str | None]) -> None:
    folder.mkdir()
    place = {"topic": topic, "partition": 0, "timestamp": 1_700_000_000_000, "headers": [["email", "alice@example.com"]]}
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    lines = [{**place, "offset": n, "key": keys[n], "value": text} for n, text in enumerate(texts)]
    (folder / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_binlog_message(kind: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    said = {"database": "shop", "table": "customers", "type": kind, "ts": 1_700_000_000, "data": row}
    return {**said, "primary_key": [row["id"]], "query": "... 'alice@example.org'", **more}


def make_flattened_rows() -> list[Any]:
    rows = [
        make_customer(ALICE, "alice@example.com"),
        make_customer(CAROL, "carol@example.com"),
        make_customer(ALICE, "alice@example.org", "FR"),
        make_customer(f"{ALICE}x", "alice@example.org"),
    ]
    added = {"__op": "u", "__deleted": "false", "__query": "... 'alice@example.org'"}
    return [
        *({**row, **added, "__lsn": n} for n, row in enumerate(rows, 1)),
        '{"id": 47110815, "email": "alice@example.com"',
    ]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASK_KEY", KEY)
    (tmp_path / "config").mkdir()
    tables = "".join(TABLE.format(match=match, source=source) for source, match in TABLES.items())
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG + tables + 'http: {address: "127.0.0.1:0"}\n')
    messages = [
        make_binlog_message("insert", make_customer(ALICE, "alice@example.com")),
        make_binlog_message("insert", make_customer(str(BOB), "bob@example.com")),
        make_binlog_message(
            "update", make_customer(CAROL, "carol@example.com"), old={"id": BOB, "email": "bob@example.com"}
        ),
        make_binlog_message("update", make_customer(ALICE, "alice@example.org", "FR"), old={"email": "alice@example.com"}),
        make_binlog_message("update", make_customer(f"{ALICE}x", "alice@example.org")),
        '{"database": "shop", "table": "customers", "type": "insert", "data": {"email": "alice@example.com"',
    ]
    write_archive(tmp_path / "binlog", "binlog", messages, [json.dumps({"pk.id": ALICE})] * len(messages))
    rows = [
        {"op": "c", **make_customer(ALICE, "alice@example.com")},
        {"op": "c", **make_customer(CAROL, "carol@example.com")},
        {"op": "u", **make_customer(ALICE, "alice@example.org", "FR")},
        {"op": "?", **make_customer(ALICE, "alice@example.org")},
    ]
    write_archive(tmp_path / "rows", "customers", rows, [str(ALICE), None, "alice@example.com", None])
    write_archive(
        tmp_path / "flat",
        "cdc.flat.customers",
        make_flattened_rows(),
        [json.dumps({"id": ALICE}), *(["alice@example.com"] * 4)],
    )
    folder = tmp_path / "dms" / "app" / "customers"
    folder.mkdir(parents=True)
    lines = [f"{ALICE},alice@example.com,0176-55,DE", f"{CAROL},carol@example.com,0176-55,DE"]
    (folder / "LOAD00000001.csv").write_text("".join(f"I,{line}\n" for line in lines))
    changes = [f"U,{ALICE},alice@example.org,0176-55,FR", f"U,{ALICE}x,alice@example.org,0176-55,FR"]
    (folder / "20240105-101530123.csv").write_text("".join(f"{line}\n" for line in changes))
    return tmp_path


def read_rows(folder: Path) -> list[dict[str, Any]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(({n: v for n, v in row.items() if n != "_cdc_applied_at"} for row in found), key=repr)


def assert_private(shop: Path) -> None:
    held = {str(file): file.read_text() for file in (shop / "lake").rglob("*.json")}
    logs = {str(log.parent): repr(read_rows(log.parent)) for log in (shop / "lake").rglob("_delta_log")}
    wrong = [(where, value) for where, text in {**held, **logs}.items() for value in (*PRIVATE, KEY) if value in text]
    assert not wrong, wrong


def run_command(shop: Path, *words: str) -> dict[str, Any]:
    done = run_program(shop, *words, "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = parse_answer(done)
    return found


def index_rows(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {row["id"]: (row["email"], row["country"]) for row in rows}


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_no_stored_file_holds_private_values(shop: Path, engine: str) -> None:
    run_until_caught_up(shop, engine)
    alice, carol = (f"{mail[:2]}-{compute_hmac(mail)[:16]}" for mail in ("alice@example.org", "carol@example.com"))
    expected = {compute_hmac(ALICE): (alice, "FR"), compute_hmac(CAROL): (carol, "DE")}
    assert {name: index_rows(read_rows(shop / "lake" / name)) for name in TABLES} == dict.fromkeys(TABLES, expected)
    assert "phone" not in read_rows(shop / "lake" / "rows")[0]
    letters = read_rows(shop / "lake" / "_replicator" / "dead_letters")
    assert sorted((letter["source"], letter["code"]) for letter in letters) == [
        *(("binlog", code) for code in ("MALFORMED", "OUT_OF_RANGE")),
        ("dms", "OUT_OF_RANGE"),
        *(("flat", code) for code in ("MALFORMED", "OUT_OF_RANGE")),
        ("rows", "UNKNOWN_OPERATION"),
    ]
    assert_private(shop)


OTHERS = ("binlog", *(pytest.param(name, marks=pytest.mark.long) for name in ("rows", "dms", "flat")))


@pytest.mark.parametrize("source", OTHERS)
def test_masked_key_is_replayed_and_erased(shop: Path, source: str) -> None:
    """The key is given in clear. The replayed rows equal the live rows, before and after the erasure."""
    run_until_caught_up(shop, "local")
    run_command(shop, "replay", TABLES[source], "--into", "again")
    assert read_rows(shop / "lake" / "again") == read_rows(shop / "lake" / source)
    assert_private(shop)
    removed = run_command(shop, "forget", TABLES[source], str(ALICE), "--yes")["result"]["removed"]
    assert (removed[f"lake.{source}"] > 0, removed["lake.again"] > 0, removed["raw"] > 0) == (True, True, True)
    log = read_rows(shop / "lake" / "cdc_events")
    left = [row["value"] for row in log if row["topic"] in (TABLES[source], source)]
    assert compute_hmac(ALICE).encode() not in b"".join(filter(None, left))
    run_command(shop, "replay", TABLES[source], "--into", "once_more")
    for name in (source, "again", "once_more"):
        assert list(index_rows(read_rows(shop / "lake" / name))) == [compute_hmac(CAROL)]
