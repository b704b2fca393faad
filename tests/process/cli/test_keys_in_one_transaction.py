"""Rows whose keys change together, in records that do not tell whether the images of deletes are whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from replicator.cli import main

CONFIG = """\
pipeline: shop
sources: {s: {format: debezium_json%s, transport: archive, path: ./in}}
sinks: {lake: {kind: delta, path: ./lake}}
dead_letters: {path: ./dead}
tables:
  - match: public.t
    source: s
    keys: [id]
    schema: {id: int64, c: string}
    to: [{sink: lake}, {sink: lake, into: h, policy: scd2}]
http: {address: "127.0.0.1:0"}
"""
GOLDENGATE = CONFIG.replace("debezium_json%s", "ogg_json")
Row = tuple[int, str]
Record = tuple[str, int, str, int, int, int | None]
"""Operation, key, value, commit, place in the log, and the key that the row had or gets."""
BEFORE = 50
BORN: list[Record] = [("c", 1, "a", BEFORE, 100, None), ("c", 2, "b", BEFORE, 200, None)]
SHIFT: list[Record] = [
    ("d", 1, "a", 1950, 2000, 2), ("c", 2, "a", 1950, 2000, 1), ("d", 2, "b", 1950, 2100, 3), ("c", 3, "b", 1950, 2100, 2),
]  # fmt: skip
SEVERAL_COMMITS: list[Record] = [*SHIFT[:2], ("d", 2, "b", 2050, 2100, 3), ("c", 3, "b", 2050, 2100, 2)]
CHAIN: list[Record] = [
    ("d", 1, "new", 1950, 2000, 9), ("c", 9, "a", 1950, 2000, 1),
    ("d", 9, "new", 1950, 2100, 3), ("c", 3, "a", 1950, 2100, 9),
]  # fmt: skip
"""Under REPLICA IDENTITY DEFAULT the image is the key, and the default of the column."""
SHIFTED: list[Row] = [(2, "a"), (3, "b")]
CHAINED: list[Row] = [(2, "b"), (3, "a")]


def write_config(more: str = "") -> None:
    Path("config").mkdir(exist_ok=True)
    Path("config/replicator.yaml").write_text(CONFIG % more)


def write_records(name: str, first: int, records: Sequence[Record]) -> None:
    Path("in").mkdir(exist_ok=True)
    lines = [json.dumps(make_record(first + i, one)) for i, one in enumerate(records)]
    Path(f"in/{name}.jsonl").write_text("\n".join(lines) + "\n")


def make_record(offset: int, change_of: Record) -> dict[str, Any]:
    op, key, value, commit, lsn, other = change_of
    row = {"id": key, "c": value}
    place = {
        "sequence": json.dumps([str(commit), str(lsn)]),
        "lsn": lsn,
        "txId": 600 if commit == 50 else 700,
        "ts_ms": 1_700_000_000_000 + lsn,
    }
    source = {"connector": "postgresql", "name": "cdc", "db": "d", "schema": "public", "table": "t", **place}
    change = {"before": row if op == "d" else None, "after": None if op == "d" else row, "source": source, "op": op}
    name = "__debezium.newkey" if op == "d" else "__debezium.oldkey"
    headers = [] if other is None else [[name, json.dumps({"id": other})]]
    made = {"key": json.dumps({"id": key}), "value": json.dumps(change), "headers": headers}
    return {"topic": "cdc.public.t", "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000 + offset, **made}


def run_command(*words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json", "-q"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["result"]


def read_current_rows() -> tuple[list[Row], list[Row]]:
    """The current rows of both targets."""
    rows, versions = (DeltaTable(f"lake/{name}").to_pyarrow_table().to_pylist() for name in "th")
    still = [row for row in versions if row["__END_AT"] is None]
    return sorted((r["id"], r["c"]) for r in rows), sorted((r["id"], r["c"]) for r in still)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("is_said", [False, True])
@pytest.mark.parametrize("is_chain", [False, True])
def test_ambiguous_delete_is_rejected_and_applied_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_chain: bool, is_said: bool, cut: bool
) -> None:  # fmt: skip
    records, right, fitting = (CHAIN, CHAINED, "default") if is_chain else (SHIFT, SHIFTED, "full")
    monkeypatch.chdir(tmp_path)
    write_config(f", replica_identity: {fitting}" if is_said else "")
    at = 2 if cut else len(records)
    write_records("0", 0, BORN + records[:at])
    run_command("run", "--until-caught-up")
    if cut:
        write_records("1", 4, records[at:])
        run_command("run", "--until-caught-up")
    letters = sorted(run_command("dlq", "list"), key=lambda letter: letter["lane"], reverse=True)
    assert [(letter["code"], letter["lane"]) for letter in letters] == [
        ("AMBIGUOUS", f"lake.{n}") for n in "th" if not is_said
    ]
    assert all(set(right) <= set(rows) for rows in read_current_rows())
    if not is_said:
        write_config(f", replica_identity: {{'public.*': {fitting}}}")
        run_command("dlq", "replay")
    assert read_current_rows() == (right, right)


def test_transactions_with_different_commits_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config()
    write_records("0", 0, BORN + SEVERAL_COMMITS)
    run_command("run", "--until-caught-up")
    assert read_current_rows() == (SHIFTED, SHIFTED)


@pytest.mark.parametrize("is_chain", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
def test_transaction_named_by_changes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_chain: bool, cut: int
) -> None:  # fmt: skip
    """A row that took the key of another row stays. The delete can be applied when no row has the key."""
    moves = [(1, 9, "a"), (9, 3, "a")] if is_chain else [(1, 2, "a"), (2, 3, "b")]
    messages = [make_operation(n, None, (key, value)) for n, (key, value) in enumerate([(1, "a"), (2, "b")])]
    messages += [make_operation(n, (old, value), (new, value)) for n, (old, new, value) in enumerate(moves, 2)]
    right = CHAINED if is_chain else SHIFTED
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    Path("config/replicator.yaml").write_text(GOLDENGATE)
    lines = [json.dumps(message) for message in messages]
    ends = [4 - cut, 4] if cut else [4]
    for number, end in enumerate(ends):
        Path("in").mkdir(exist_ok=True)
        Path(f"in/{number}.jsonl").write_text("\n".join(lines[ends[number - 1] if number else 0 : end]) + "\n")
        run_command("run", "--until-caught-up")
    doubted = ["AMBIGUOUS"] * 2 if cut and not is_chain else []
    assert [letter["code"] for letter in run_command("dlq", "list")] == doubted
    assert read_current_rows() == (right, right)
    if doubted:
        DeltaTable("lake/t").delete("id = 2")
        run_command("dlq", "replay", "--lane", "lake.t")
        assert [letter["lane"] for letter in run_command("dlq", "list", "--state", "open")] == ["lake.h"]


def make_operation(number: int, before: Row | None, after: Row) -> dict[str, Any]:
    images = {name: row and dict(zip(("id", "c"), row, strict=True)) for name, row in (("before", before), ("after", after))}
    said = {
        "op_type": "U" if before else "I",
        "table": "public.t",
        "pos": f"{number:020}",
        "xid": "7" if before else f"0.{number}",
    }
    made = {"key": None, "value": json.dumps({**said, "op_ts": "2024-02-29 10:00:00.000000", **images}), "headers": []}
    return {"topic": "all", "partition": 0, "offset": number, "timestamp": 1_700_000_000_000 + number, **made}
