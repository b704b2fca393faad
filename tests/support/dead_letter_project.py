"""A project whose archive has records that its first config rejects and the fixed config accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.cli_program import parse_answer, run_program

TOPIC = "items"
POISON = "not a number"
CONFIG = """\
pipeline: shop
{more}
sources:
  feed:
    format: rows
    transport: archive
    path: ./archive
    operation_column: op
    sequence_columns: [at]
sinks:
  lake: {{kind: delta, path: ./lake}}
dead_letters: {letters}
tables:
  - match: items
    source: feed
    keys: [id]
    schema: {{id: int64, price: {price}}}
    to: [{{sink: lake}}, {{sink: lake, into: changes, policy: append}}]
http: {{address: "127.0.0.1:0"}}
"""
LAKE = "{path: ./letters}"


def write_config(folder: Path, *, letters: str = LAKE, price: str = "int64", more: str = "") -> None:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "archive").mkdir(exist_ok=True)
    (folder / "config" / "replicator.yaml").write_text(CONFIG.format(letters=letters, price=price, more=more))


def make_row_record(offset: int, key: int, price: Any, op: str = "u", at: int | None = None) -> dict[str, Any]:
    """A record of the archive. The first config rejects a price that is text."""
    value = {"id": key, "price": price, "op": op, "at": offset if at is None else at}
    return {
        "topic": TOPIC, "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000 + offset, "headers": None,
        "key": json.dumps(key), "value": json.dumps(value),
    }  # fmt: skip


def append_records(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / "archive" / f"{TOPIC}.jsonl").open("a") as more:
        more.writelines(json.dumps(each) + "\n" for each in rows)


def run_command(folder: Path, *command: str, code: int = 0, **options: Any) -> dict[str, Any]:
    """Runs a command with `--json` and returns its object."""
    done = run_program(folder, *command, "--json", "-q", **{"seconds": 400, **options})
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return parse_answer(done)


def run_until_caught_up(folder: Path, code: int = 0, *more: str, **options: Any) -> dict[str, Any]:
    return run_command(folder, "run", "--until-caught-up", *more, code=code, **options)


def query_rows(folder: Path, table: str = "items") -> list[tuple[Any, ...]]:
    found = run_command(folder, "query", table)["result"]
    return sorted((each["id"], each["price"], each["_cdc_seq_1"]) for each in found)
