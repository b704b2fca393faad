"""Retries of rejected records with a config that accepts them: newer rows stay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.dead_letter_project import (
    append_records,
    make_row_record,
    query_rows,
    run_command,
    run_until_caught_up,
    write_config,
)

WIDE = "string"


def retry_dead_letters(folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    return run_command(folder, "dlq", "replay", *options, code=code)["result"]


def list_dead_letters_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_command(folder, "dlq", "list", "--state", "all")["result"]
    return found


def read_states(folder: Path) -> dict[str, str]:
    return {letter["event_id"]: letter["state"] for letter in run_command(folder, "dlq", "list")["result"]}


@pytest.fixture(params=["delta", "postgres"])
def list_dead_letters(request: pytest.FixtureRequest) -> str:
    if request.param == "delta":
        return "{path: ./letters}"
    request.getfixturevalue("postgres_dsn")
    server = request.getfixturevalue("postgres_server")
    server.database(name := f"replayed_{random.randrange(10**9)}")
    return f'{{dsn: "{server.url(name)}"}}'


def test_retry_of_an_old_record_changes_nothing(tmp_path: Path) -> None:
    write_config(tmp_path, price=WIDE)
    wrong = {**make_row_record(1, 1, "b"), "value": "no json"}
    append_records(tmp_path, make_row_record(0, 1, "a"), wrong, make_row_record(2, 1, "c"))
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(1, "c", 2)]
    assert retry_dead_letters(tmp_path, code=1) == {"replayed": 0, "rejected": 1, "left": {}}
    assert query_rows(tmp_path) == [(1, "c", 2)]


NAMED = "operations: {create: [c], update: [u], delete: [d]}"
FIXED = "operations: {create: [c, new], update: [u, up], delete: [d, gone]}"


def configure_operations(folder: Path, operations: str, letters: str = "{path: ./letters}", **more: Any) -> None:
    """A config whose source accepts these operations. Other operations are rejected."""
    write_config(folder, letters=letters, **more)
    path = folder / "config" / "replicator.yaml"
    path.write_text(path.read_text().replace("    operation_column: op\n", f"    operation_column: op\n    {operations}\n"))


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_rejected_records_are_applied_after_a_config_change(tmp_path: Path, list_dead_letters: str, engine: str) -> None:
    """The targets are then as if nothing had been rejected. They stay so after further retries and changes."""
    configure_operations(tmp_path, NAMED, list_dead_letters)
    poison = [
        make_row_record(1, 2, 20, "new"),
        make_row_record(3, 1, 15, "up"),
        make_row_record(5, 3, None, "gone"),
        make_row_record(6, 4, 40, "new"),
    ]
    append_records(
        tmp_path,
        make_row_record(0, 1, 10),
        poison[0],
        make_row_record(2, 3, 30),
        poison[1],
        make_row_record(4, 1, 16),
        *poison[2:],
        make_row_record(7, 5, 50),
    )
    run_until_caught_up(tmp_path, 0, "--engine", engine)
    assert query_rows(tmp_path) == [(1, 16, 4), (3, 30, 2), (5, 50, 7)]
    configure_operations(tmp_path, FIXED, list_dead_letters)
    on = ("--set", f"engine={engine}")
    assert retry_dead_letters(tmp_path, "--event", "items-0-5", *on) == {"replayed": 1, "rejected": 0, "left": {}}
    assert query_rows(tmp_path) == [(1, 16, 4), (5, 50, 7)]
    assert retry_dead_letters(tmp_path, *on) == {"replayed": 3, "rejected": 0, "left": {}}
    assert query_rows(tmp_path) == [(1, 16, 4), (2, 20, 1), (4, 40, 6), (5, 50, 7)]
    assert set(read_states(tmp_path).values()) == {"replayed"}
    assert retry_dead_letters(tmp_path, *on) == {"replayed": 0, "rejected": 0, "left": {}}
    assert retry_dead_letters(tmp_path, "--state", "all", *on) == {"replayed": 4, "rejected": 0, "left": {}}
    append_records(tmp_path, make_row_record(8, 2, 21))
    run_until_caught_up(tmp_path, 0, "--engine", engine)
    assert query_rows(tmp_path) == [(1, 16, 4), (2, 21, 8), (4, 40, 6), (5, 50, 7)]
    log = run_command(tmp_path, "query", "changes")["result"]
    assert sorted(each["_cdc_seq_1"] for each in log) == list(range(9))
    assert {each["_event_id"] for each in log} == {f"items-0-{offset}" for offset in range(9)}


@pytest.mark.parametrize(("narrow", "wide"), [("int32", "int64"), ("float32", "float64")])
def test_record_is_applied_after_its_column_is_widened(
    tmp_path: Path, list_dead_letters: str, narrow: str, wide: str
) -> None:
    """The remedy of `dlq explain`, without a run between the new config and the retry. The targets are widened, and the
    next run finds nothing new."""
    price = 3_000_000_000 if narrow == "int32" else 1e300
    write_config(tmp_path, letters=list_dead_letters, price=narrow)
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, price), make_row_record(2, 3, 30))
    run_until_caught_up(tmp_path)
    (letter,) = run_command(tmp_path, "dlq", "explain", "items-0-1")["result"]
    assert letter["code"] == "OUT_OF_RANGE" and "wider type" in letter["what_to_do"]
    write_config(tmp_path, letters=list_dead_letters, price=wide)
    assert retry_dead_letters(tmp_path) == {"replayed": 1, "rejected": 0, "left": {}}
    assert query_rows(tmp_path) == [(1, 10, 0), (2, price, 1), (3, 30, 2)]
    append_records(tmp_path, make_row_record(3, 1, price))
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(1, price, 3), (2, price, 1), (3, 30, 2)]
    assert len(run_command(tmp_path, "query", "changes")["result"]) == 4
    schemas = run_command(tmp_path, "schema", "history", "items")["result"]
    assert {one["lane"]: len(one["schemas"]) for one in schemas} == {"lake.items": 2, "lake.changes": 2}


def test_lane_without_widening_rejects_the_record_again(tmp_path: Path) -> None:
    write_config(tmp_path, price="int32")
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, 3_000_000_000))
    run_until_caught_up(tmp_path)
    write_config(tmp_path, price="int64", more="defaults: {schema_changes: {widened: fail}}")
    assert [(letter["lane"], letter["state"]) for letter in list_dead_letters_of(tmp_path)] == [("", "open")]
    for _ in range(2):
        assert retry_dead_letters(tmp_path, code=1) == {"replayed": 0, "rejected": 1, "left": {}}
        assert query_rows(tmp_path) == [(1, 10, 0)]
        # Each lane has its own reason now, and each once however often it is tried.
        assert sorted((letter["lane"], letter["state"]) for letter in list_dead_letters_of(tmp_path)) == [
            ("", "replayed"),
            ("lake.changes", "open"),
            ("lake.items", "open"),
        ]


def test_dead_letters_that_cannot_be_retried_have_a_reason(tmp_path: Path) -> None:
    configure_operations(tmp_path, NAMED)
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, 20, "new"))
    run_until_caught_up(tmp_path)
    path = tmp_path / "config" / "replicator.yaml"
    path.write_text(path.read_text().replace("  feed:", "  food:").replace("source: feed", "source: food"))
    unknown = run_command(tmp_path, "dlq", "replay", "--event", "NOSUCH", "--event", "items-0-1", code=2)["error"]
    assert unknown["sentence"] == "there is no dead letter 'NOSUCH'" and "dlq list" in unknown["next_step"]
    said = run_command(tmp_path, "dlq", "replay", code=2)["error"]
    assert said["sentence"] == "the source 'feed' of items-0-1 is not in the configuration"
