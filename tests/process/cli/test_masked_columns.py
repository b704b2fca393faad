"""Private columns of a table through the whole program: no stored file holds their values."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program
from support.debezium_events import encode_with_schema, make_column, make_envelope_schema, make_payload
from support.next_layer import ON_SPARK, add_pipeline, run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

UNSENT = "__debezium_unavailable_value"
KEY = "only-for-these-tests-0123456789"
COLUMNS = (
    make_column("id", "int32", optional=False),
    *(make_column(name, "string") for name in ("email", "phone", "name", "country")),
)
PRIVATE = ("47110815", "47120816", "alice@example", "bob@example", "0176-55", "0177-66", "Alice", "Bobby")
"""What no store may hold, in any form."""
HIDDEN = """\
    columns:
      id: {mask: hmac, key: "${MASK_KEY}"}
      email: {mask: hmac, key: "${MASK_KEY}", rename: email_hash}
      phone: drop
      name: {mask: truncate, key: "${MASK_KEY}", length: 2}
      offset: {metadata: offset}
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
  - match: public.customers
    source: recorded
{HIDDEN}    to:
      - {{sink: raw}}
      - {{sink: lake}}
      - {{sink: lake, into: germans, where: country = 'DE'}}
      - {{sink: lake, into: changes, policy: append}}
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
  - match: public.customers
    source: recorded
{HIDDEN}    to: [{{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""


def make_customer(number: Any, email: str, country: str = "DE", **more: Any) -> dict[str, Any]:
    return {"id": number, "email": email, "phone": "0176-55", "name": "Alice", "country": country} | more


def make_key(number: Any) -> str:
    schema = {"type": "struct", "fields": [COLUMNS[0]], "optional": False, "name": "cdc.public.customers.Key"}
    return json.dumps({"schema": schema, "payload": {"id": number}})


def make_event(at: int, op: str, after: Any, before: Any = None) -> str:
    source = {"table": "customers", "query": "UPDATE customers SET email = 'alice@example.org'"}
    return encode_with_schema(
        make_envelope_schema(COLUMNS, "customers"), make_payload(op, after, before, at, source=source)
    ).decode()


RECORDS: list[tuple[str | None, str | None]] = [
    (make_key(47110815), make_event(1000, "c", make_customer(47110815, "alice@example.com"))),
    (make_key(47120816), make_event(1010, "c", make_customer(47120816, "bob@example.com", name="Bobby", phone="0177-66"))),
    (
        make_key(47110815),
        make_event(
            1020,
            "u",
            make_customer(47110815, "alice@example.org", "FR", name=UNSENT),
            make_customer(47110815, "alice@example.com"),
        ),
    ),
    (make_key(47110815), '{"schema": null, "payload": {"after": {"email": "alice@example.com"'),
    (make_key(47120816), make_event(1030, "u", make_customer("47120816 as text", "bob@example.com"))),
    (None, '{"email": "bob@example.com"}'),
    (make_key(47120816), make_event(1040, "d", None, make_customer(47120816, "bob@example.com", name="Bobby"))),
    (make_key(47120816), None),
]


def compute_hmac(value: str) -> str:
    return hmac.new(KEY.encode(), value.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASK_KEY", KEY)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "archive").mkdir()
    place = {"topic": "cdc.public.customers", "partition": 0, "timestamp": None, "headers": [["email", "alice@example.com"]]}
    lines = [place | {"offset": at, "key": k, "value": value} for at, (k, value) in enumerate(RECORDS)]
    (tmp_path / "archive" / "customers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(folder)).to_pyarrow_table().to_pylist()


def assert_private(text: str, where: str) -> None:
    held = [value for value in (*PRIVATE, KEY) if value in text]
    assert not held, f"{where} holds {held}"


@pytest.mark.parametrize("engine", ["local", ON_SPARK])
def test_no_stored_file_holds_private_values(shop: Path, engine: str) -> None:
    """On Spark, where each target takes seconds, only the event log and one target."""
    names = ["customers", "germans", "changes", "cdc_events", "_replicator/dead_letters"]
    if engine == "spark":
        config = shop / "config" / "replicator.yaml"
        config.write_text(re.sub(r"^ +- .*into: (germans|changes).*\n", "", config.read_text(), flags=re.MULTILINE))
        names = [name for name in names if name not in ("germans", "changes")]
    assert_private(json.dumps(run_until_caught_up(shop, engine)), "what the program says")
    for name in names:
        found = read_rows(shop / "lake" / name)
        assert found or name == "germans", name
        assert_private(repr(found), name)
    for file in (shop / "lake").rglob("*.json"):
        assert_private(file.read_text(), str(file))
    (alice,) = read_rows(shop / "lake" / "customers")
    assert {n: alice[n] for n in ("id", "email_hash", "name", "country", "offset")} == {
        "id": compute_hmac("47110815"),
        "email_hash": compute_hmac("alice@example.org"),
        "name": f"Al-{compute_hmac('Alice')[:16]}",
        "country": "FR",
        "offset": 2,
    }
    assert "phone" not in alice
    withheld = [row["offset"] for row in read_rows(shop / "lake" / "cdc_events") if b"withheld" in (row["value"] or b"")]
    assert sorted(withheld) == [3, 5]
    letters = read_rows(shop / "lake" / "_replicator" / "dead_letters")
    assert sorted(letter["event_id"][-1] for letter in letters) == ["3", "4", "5"]
    readable = next(letter for letter in letters if letter["event_id"].endswith("4"))
    assert json.loads(readable["record"])["payload"]["after"]["email"] == compute_hmac("bob@example.com")


def test_commands_do_not_show_the_key(shop: Path) -> None:
    run_until_caught_up(shop, "local")
    for command in (("plan", "--json"), ("status", "--json"), ("check", "--json"), ("dlq", "list", "--json"), ("plan",)):
        done = run_program(shop, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_private(done.stdout + done.stderr, command[0])


def test_no_command_and_no_log_line_shows_values(shop: Path) -> None:
    """Nor any file beside the targets."""
    done = run_program(shop, "run", "--until-caught-up", "-v")
    assert_private(done.stdout + done.stderr, "run -v")
    listed = run_program(shop, "dlq", "list", "--json").stdout
    explained = [("dlq", "explain", letter["event_id"]) for letter in json.loads(listed)["result"]]
    for command in (
        *explained,
        ("dlq", "export", "--json"),
        ("dlq", "replay"),
        ("query", "customers", "--json"),
        ("audit", "public.customers", "--json"),
        ("replay", "public.customers", "--dry-run", "--json"),
        ("schema", "history", "customers"),
        ("support-bundle", "bundle"),
    ):
        done = run_program(shop, *command)
        assert done.stdout + done.stderr
        assert_private(done.stdout + done.stderr, " ".join(command))
    mine = [
        path for path in shop.rglob("*") if path.is_file() and path.relative_to(shop).parts[0] not in ("archive", "config")
    ]
    for path in mine:
        assert_private(path.read_bytes().decode(errors="replace"), str(path))


def test_event_log_is_read_again_under_the_same_masks(shop: Path) -> None:
    """Masked values are not masked twice, so a key stays the same."""
    run_until_caught_up(shop, "local")
    run_until_caught_up(shop, "local", *add_pipeline(shop, NEXT))
    first, second = ([drop_time(row) for row in read_rows(shop / lake / "customers")] for lake in ("lake", "next"))
    assert second == first


def drop_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_cdc_applied_at"}


def test_key_of_a_mask_from_a_file(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASK_KEY")
    (shop / "secret").write_text(KEY + "\n")
    monkeypatch.setenv("MASK_KEY_FILE", str(shop / "secret"))
    run_until_caught_up(shop, "local")
    assert [row["id"] for row in read_rows(shop / "lake" / "customers")] == [compute_hmac("47110815")]
