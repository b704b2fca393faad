"""`on_reject`: after a reject, the table continues, blocks the key, or stops."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.dead_letter_project import (
    POISON,
    append_records,
    make_row_record,
    query_rows,
    run_command,
    run_until_caught_up,
    write_config,
)
from test_retry_dead_letters import FIXED, NAMED, configure_operations, read_states, retry_dead_letters

WAITS = "an earlier record of its key is not replayed yet"
ENGINES = ["local", pytest.param("spark", marks=pytest.mark.long)]


@pytest.mark.parametrize("engine", ENGINES)
def test_blocked_key_is_released_by_a_retry(tmp_path: Path, engine: str) -> None:
    """In the same batch, in later ones and after a restart. Other keys continue. Partial changes then find their
    missing values."""
    on = ("--engine", engine)
    configure_operations(tmp_path, NAMED, more="on_reject: hold_key")
    partial = make_row_record(4, 2, 0)
    partial["value"] = '{"id": 2, "op": "u", "at": 4}'
    append_records(
        tmp_path,
        make_row_record(0, 1, 10),
        make_row_record(1, 2, 20, "new"),
        make_row_record(2, 2, 21),
        make_row_record(3, 1, 11),
    )
    run_until_caught_up(tmp_path, 0, *on)
    append_records(tmp_path, partial, make_row_record(5, 3, 30))
    run_until_caught_up(tmp_path, 0, *on)
    assert query_rows(tmp_path) == [(1, 11, 3), (3, 30, 5)]
    found = {letter["event_id"]: letter for letter in run_command(tmp_path, "dlq", "list")["result"]}
    assert {event: letter["code"] for event, letter in found.items()} == {
        "items-0-1": "UNKNOWN_OPERATION", "items-0-2": "HELD", "items-0-4": "HELD",
    }  # fmt: skip
    assert "an earlier record of its key was rejected" in found["items-0-4"]["sentence"]
    configure_operations(tmp_path, FIXED, more="on_reject: hold_key")
    append_records(tmp_path, make_row_record(6, 2, 26))
    run_until_caught_up(tmp_path, 6, *on)
    assert query_rows(tmp_path) == [(1, 11, 3), (3, 30, 5)], "a fixed config alone lets nothing pass what is before it"
    alone = retry_dead_letters(tmp_path, "--event", "items-0-4", code=1)
    assert alone == {
        "replayed": 0,
        "rejected": 0,
        "left": {"items-0-4": "an earlier record of its key is not replayed yet"},
    }
    assert retry_dead_letters(tmp_path, "--set", f"engine={engine}") == {"replayed": 4, "rejected": 0, "left": {}}
    assert query_rows(tmp_path) == [(1, 11, 3), (2, 26, 6), (3, 30, 5)]
    append_records(tmp_path, make_row_record(7, 2, 27))
    run_until_caught_up(tmp_path, 0, *on)
    assert query_rows(tmp_path) == [(1, 11, 3), (2, 27, 7), (3, 30, 5)]
    assert set(read_states(tmp_path).values()) == {"replayed"}
    assert found["items-0-1"]["key_hash"] == hashlib.sha256(b"2").hexdigest(), "nothing is private here"
    assert not [*tmp_path.rglob("keys.secret")]


def test_blocked_record_is_counted_once(tmp_path: Path) -> None:
    """The second record of the key is unreadable too: it was rejected for that before it was blocked."""
    write_config(tmp_path, more="on_reject: hold_key\nmax_rejects: 2")
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, POISON), make_row_record(2, 2, POISON))
    counted = run_until_caught_up(tmp_path)["result"]["rejects"]
    assert sorted((one["code"], one["records"]) for one in counted) == [("HELD", 1), ("MALFORMED", 1)]
    assert len(run_command(tmp_path, "dlq", "list")["result"]) == 2


SECRETIVE = "bob@example.org"


def configure_masked_key(folder: Path, operations: str) -> None:
    """A config whose key column is masked."""
    more = "int64}\n    columns: {id: {mask: hmac, key: only-for-these-tests-0123456789}"
    configure_operations(folder, operations, more="on_reject: hold_key", price=more)
    path = folder / "config" / "replicator.yaml"
    path.write_text(path.read_text().replace("{id: int64,", "{id: string,"))


def feed_changes(folder: Path, *told: tuple[int, str, int, str]) -> None:
    append_records(
        folder,
        *({**make_row_record(at, 0, price, op), **make_keyed_record(at, key, price, op)} for at, key, price, op in told),
    )


def make_keyed_record(at: int, key: str, price: int, op: str) -> dict[str, str]:
    return {"key": json.dumps(key), "value": json.dumps({"id": key, "price": price, "op": op, "at": at})}


@pytest.mark.parametrize("engine", ENGINES)
def test_private_key_is_blocked_and_not_shown(tmp_path: Path, engine: str) -> None:
    """After a restart too, when only the dead letters identify it."""
    on = ("--engine", engine)
    configure_masked_key(tmp_path, NAMED)
    feed_changes(tmp_path, (0, "a", 10, "u"), (1, SECRETIVE, 20, "new"), (2, SECRETIVE, 21, "u"), (3, "a", 11, "u"))
    run_until_caught_up(tmp_path, 0, *on)
    feed_changes(tmp_path, (4, SECRETIVE, 22, "u"), (5, "c", 30, "u"))
    run_until_caught_up(tmp_path, 0, *on)
    assert sorted(price for _, price, _ in query_rows(tmp_path)) == [11, 30]
    letters = run_command(tmp_path, "dlq", "list")["result"]
    codes = {letter["event_id"]: letter["code"] for letter in letters}
    assert codes == {"items-0-1": "UNKNOWN_OPERATION", "items-0-2": "HELD", "items-0-4": "HELD"}
    (told,) = {letter["key_hash"] for letter in letters}
    assert len(told) > 64 and hashlib.sha256(json.dumps(SECRETIVE).encode()).hexdigest() not in told
    assert SECRETIVE not in json.dumps(letters)
    configure_masked_key(tmp_path, FIXED)
    assert retry_dead_letters(tmp_path, "--event", "items-0-4", code=1)["left"] == {"items-0-4": WAITS}
    # Of a record that could not be read nothing is kept: what comes after it goes on without it.
    run_command(tmp_path, "dlq", "purge", "--event", "items-0-1", "--yes")
    assert retry_dead_letters(tmp_path, "--set", f"engine={engine}") == {"replayed": 2, "rejected": 0, "left": {}}
    assert sorted(price for _, price, _ in query_rows(tmp_path)) == [11, 22, 30]
    feed_changes(tmp_path, (6, SECRETIVE, 26, "u"))
    run_until_caught_up(tmp_path, 0, *on)
    assert sorted(price for _, price, _ in query_rows(tmp_path)) == [11, 26, 30]


def test_missing_secret_stops_lanes_with_blocked_keys(tmp_path: Path) -> None:
    """Without it, later records cannot be compared with the blocked keys."""
    configure_masked_key(tmp_path, NAMED)
    feed_changes(tmp_path, (0, SECRETIVE, 20, "new"), (1, "a", 10, "u"))
    run_until_caught_up(tmp_path)
    secret = tmp_path / "state" / "shop" / "keys.secret"
    kept = secret.read_bytes()
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.unlink()
    feed_changes(tmp_path, (2, SECRETIVE, 21, "u"))
    said = run_until_caught_up(tmp_path, 4)
    assert "hashed with another secret" in json.dumps(said) and "keys.secret" in json.dumps(said)
    assert [price for _, price, _ in query_rows(tmp_path)] == [10]
    secret.write_bytes(kept)
    run_until_caught_up(tmp_path, 6)
    assert sorted(letter["code"] for letter in run_command(tmp_path, "dlq", "list")["result"]) == [
        "HELD",
        "UNKNOWN_OPERATION",
    ]
    secret.write_text("not a secret")
    feed_changes(tmp_path, (3, "a", 1, "u"))
    said = json.dumps(run_until_caught_up(tmp_path, 3))
    assert "cannot be read" in said and "Or remove it, and replay or purge the held records" in said
    secret.unlink()
    configure_masked_key(tmp_path, FIXED)
    assert retry_dead_letters(tmp_path) == {"replayed": 2, "rejected": 0, "left": {}}
    run_until_caught_up(tmp_path)
    assert sorted(price for _, price, _ in query_rows(tmp_path)) == [1, 21]


def test_blocked_records_stay_while_the_record_before_them_is_rejected(tmp_path: Path) -> None:
    configure_operations(tmp_path, NAMED, more="on_reject: hold_key")
    append_records(tmp_path, make_row_record(0, 1, 10, "new"), make_row_record(1, 1, 11), make_row_record(2, 2, 20))
    run_until_caught_up(tmp_path)
    assert retry_dead_letters(tmp_path, code=1) == {"replayed": 0, "rejected": 1, "left": {"items-0-1": WAITS}}
    assert query_rows(tmp_path) == [(2, 20, 2)]
    run_command(tmp_path, "dlq", "purge", "--event", "items-0-0", "--yes")
    assert retry_dead_letters(tmp_path) == {"replayed": 1, "rejected": 0, "left": {}}
    assert query_rows(tmp_path) == [(1, 11, 1), (2, 20, 2)]


def test_lane_stops_before_the_record(tmp_path: Path) -> None:
    """With code 4, in every target. Nothing after the record is applied until the config allows it. Tables with another
    setting continue."""
    write_config(tmp_path, more="on_reject: stop_lane")
    path = tmp_path / "config" / "replicator.yaml"
    more = "keys: [id], schema: {id: int64, price: int64}, to: [{sink: lake}], on_reject: continue"
    other = f"\n  - {{match: others, source: feed, {more}}}"
    path.write_text(path.read_text().replace("\nhttp:", f"{other}\nhttp:"))
    append_records(tmp_path, make_row_record(0, 1, 10))
    run_until_caught_up(tmp_path)
    others = [{**make_row_record(n, n, price), "topic": "others"} for n, price in ((0, 70), (1, POISON), (2, 72))]
    append_records(tmp_path, make_row_record(1, 2, POISON), make_row_record(2, 1, 12), *others)
    said = run_until_caught_up(tmp_path, 4)
    assert said["summary"] == "Record items-0-1 was rejected as MALFORMED, and on_reject is stop_lane."
    status = {lane["id"]: lane["status"] for lane in said["result"]["lanes"]}
    assert status == {"lake.items": "suspended", "lake.changes": "suspended", "lake.others": "running"}
    assert query_rows(tmp_path) == [(1, 10, 0)]
    assert query_rows(tmp_path, "others") == [(0, 70, 0), (2, 72, 2)]
    assert read_states(tmp_path) == {"items-0-1": "open", "others-0-1": "open"}
    run_until_caught_up(tmp_path, 0, "--set", "on_reject=continue")
    assert query_rows(tmp_path) == [(1, 12, 2)]


def test_record_of_unknown_table_stops_all_lanes(tmp_path: Path) -> None:
    """It may belong to any table, so no lane passes it."""
    configure_operations(tmp_path, NAMED, more="on_reject: stop_lane")
    append_records(tmp_path, make_row_record(0, 1, 10))
    run_until_caught_up(tmp_path)
    append_records(tmp_path, make_row_record(1, 2, 20, "new"), make_row_record(2, 1, 12))
    said = run_until_caught_up(tmp_path, 4)
    assert said["summary"] == "Record items-0-1 was rejected as UNKNOWN_OPERATION, and on_reject is stop_lane."
    assert query_rows(tmp_path) == [(1, 10, 0)]
    configure_operations(tmp_path, FIXED, more="on_reject: stop_lane")
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(1, 12, 2), (2, 20, 1)]
