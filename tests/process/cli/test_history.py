"""`replicator history`: the changes of a row, from the event log of a pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from paths import GOLDEN
from support.cli_program import parse_answer, run_program
from support.debezium_events import make_change_event, make_column

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
dead_letters: {path: ./dead_letters}
tables:
  - {match: public.audit_log, source: recorded, to: [{sink: raw}]}
  - {match: public.products, source: recorded, to: [{sink: lake}]}
  - {match: public.*, source: recorded, to: [{sink: raw}, {sink: lake}]}
http: {address: "127.0.0.1:0"}
"""
Ask = Callable[..., Any]
WHO = ["SKU-1", "SKU-2", "SKU-1", None, "SKU-2", None, "SKU-1", "SKU-3", "SKU-2", None]
"""Of a deleted row the records tell the key alone."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    shutil.copytree(SAMPLES, folder / "archive")
    done = run_program(folder, "run", "--until-caught-up", "-q")
    assert done.returncode == 0, done.stderr
    return folder


def run_command(shop: Path, *words: str) -> list[dict[str, Any]]:
    done = run_program(shop, *words, "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    return parse_answer(done)["result"]


def get_error(shop: Path, *words: str) -> dict[str, Any]:
    done = run_program(shop, *words, "--json", "-q")
    return parse_answer(done)["error"]


def test_history_of_a_row_ends_with_the_target_row(shop: Path) -> None:
    entries = run_command(shop, "history", "public.customers", "1")
    assert [entry["operation"] for entry in entries] == ["r", "u", "u", "u", "u"]
    assert [entry["changed"] for entry in entries[1:]] == [["email", "profile"], ["loyalty"], ["loyalty"], ["name"]]
    assert all(one["after"] == following["before"] for one, following in pairwise(entries))
    [row] = run_command(shop, "query", "public.customers", "--where", "id = 1")
    assert {name: row[name] for name in entries[-1]["after"]} == entries[-1]["after"]
    assert [entry["transaction"] for entry in entries] == ["755", "761", "778", "780", "782"]


def test_history_of_a_row_includes_its_old_key(shop: Path) -> None:
    """Values that the key change did not send are those of the old key."""
    [_, away] = run_command(shop, "history", "public.order_items", "2", "1")
    assert away["moved_away"] and away["after"] is None
    moved = run_command(shop, "history", "public.order_items", "2", "9")[0]
    assert moved["moved_from"] == {"order_id": 2, "line_no": 1}
    assert (moved["before"]["sku"], moved["after"]["sku"]) == ("SKU-2", "SKU-2") and "line_no" in moved["changed"]


def test_text_output_shows_changed_values(shop: Path) -> None:
    said = run_program(shop, "history", "public.customers", "1").stdout.splitlines()
    assert said[0] == "public.customers 1: 5 changes"
    assert said[-2].endswith("updated  transaction 782  cdc.public.customers:0:16") and said[-1] == "    name: Ada → Ada L."


def test_audit_lists_the_changes_of_a_period(shop: Path) -> None:
    """With the changed columns, if records have the before image."""
    every = run_command(shop, "audit", "public.order_items")
    assert [one["operation"] for one in every] == ["r", "r", "u", "m", "c", "d", "c", "c", "c", "d"]
    assert every[3]["key"] == '{"order_id": 2, "line_no": 1}' and {one["changed"] for one in every} == {None}
    since = run_command(shop, "audit", "public.order_items", "--since", "2026-11-20T17:47:26.855+0000")
    assert since == every[6:]
    assert {one["who"] for one in every} == {None}
    by = run_command(shop, "audit", "public.order_items", "--by", "sku")
    assert [one["who"] for one in by] == WHO
    refused = get_error(shop, "audit", "public.order_items", "--by", "updated_by")
    assert "has no column 'updated_by'" in refused["sentence"] and "sku" in refused["next_step"]
    told = run_command(shop, "audit", "public.audit_log", "--until", "2026-11-20T17:47:26.855+0000")
    assert [(one["operation"], one["key"], one["changed"]) for one in told] == [
        *[("r", None, None)] * 2,
        *[("u", None, ["n"])] * 2,
    ]
    done = run_program(shop, "audit", "public.order_items")
    assert "`changed` is empty in 1 update: the record does not contain the row before" in done.stderr, done.stderr
    assert "`replicator history TABLE KEY` compares" in done.stderr
    assert "is empty" not in run_program(shop, "audit", "public.audit_log").stderr
    text = run_program(shop, "audit", "public.customers", "--csv", "--limit", "2").stdout.splitlines()
    assert len(text) == 3 and text[2].startswith('"at"') is False and '"{""id"": 1}"' in text[2]
    assert "has no event log" in get_error(shop, "audit", "public.products")["sentence"]


REFUSED = {
    "a key of another type": (("public.customers", "x"), "'x' does not fit type int64"),
    "half a key": (("public.order_items", "1"), "has 2 columns (order_id, line_no), not 1"),
    "no key": (("public.audit_log", "1"), "has no key"),
    "no event log": (("public.products", "1"), "has no event log"),
    "no entry": (("sales.orders", "1"), "no entry of `tables` matches"),
    "no record": (("public.nothing", "1"), "has no changes of table public.nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_query_is_refused(shop: Path, case: str) -> None:
    words, sentence = REFUSED[case]
    found = get_error(shop, "history", *words)
    assert sentence in found["sentence"] and found["next_step"]


def test_key_whose_type_changed_is_found_under_both_types(tmp_path: Path) -> None:
    """Records before and after the type change belong to one row."""
    (tmp_path / "config").mkdir()
    to_log = "  - {match: public.t, source: recorded, to: [{sink: raw}]}\n"
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.partition("  - {match")[0] + to_log)
    lines = []
    for at, (kind, value) in enumerate([("int32", 1), ("string", "1"), ("string", "2")]):
        key = make_column("id", kind, optional=False)
        schema = {"type": "struct", "fields": [key], "optional": False, "name": "cdc.public.t.Key"}
        change = make_change_event([key, make_column("n", "int32")], op="u", after={"id": value, "n": at}, lsn=at + 1)
        place = {"topic": "cdc.public.t", "partition": 0, "offset": at, "timestamp": None, "headers": None}
        texts = {"key": json.dumps({"schema": schema, "payload": {"id": value}}), "value": change.decode()}
        lines.append(json.dumps(place | texts))
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "t.jsonl").write_text("\n".join(lines) + "\n")
    done = run_program(tmp_path, "run", "--until-caught-up", "-q")
    assert done.returncode == 0, done.stderr
    assert [entry["after"] for entry in run_command(tmp_path, "history", "public.t", "1")] == [
        {"id": 1, "n": 0},
        {"id": "1", "n": 1},
    ]
