"""Commands for rejected records: list, explain, export and purge."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.cli_program import run_program
from support.dead_letter_project import (
    POISON,
    append_records,
    make_row_record,
    query_rows,
    run_command,
    run_until_caught_up,
    write_config,
)

from replicator.cli import main
from replicator.domain.errors import ExitCode

BOTH = ("--event", "items-0-1", "--event", "items-0-2")


STORES = [
    "delta",
    pytest.param("postgres", marks=pytest.mark.long),
    pytest.param("kafka", marks=[pytest.mark.stack, pytest.mark.long]),
]
"""What each store answers to a filter, and keeps of a letter, its contract says: `integration/contract`."""
on_every_store = pytest.mark.parametrize(
    "shop", ["delta", "postgres", pytest.param("kafka", marks=pytest.mark.stack)], indirect=True, scope="module"
)


@pytest.fixture(scope="module", params=STORES)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two rejected records, one of them not UTF-8, and one invalid line."""
    folder = tmp_path_factory.mktemp("shop")
    letters = "{path: ./letters}"
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        server.database(f"letters_{folder.name}".replace("-", "_"))
        letters = f'{{dsn: "{server.url(f"letters_{folder.name}".replace("-", "_"))}"}}'
    if request.param == "kafka":
        broker = request.getfixturevalue("broker")
        letters = f"{{topic: {folder.name}, bootstrap_servers: '{broker.address}'}}"
    write_config(folder, letters=letters)
    bad = {
        **make_row_record(2, 3, 0),
        "value": {"base64": "//8="},
        "headers": [["trace", "a"], ["bytes", {"base64": "/w=="}]],
    }
    append_records(folder, make_row_record(0, 1, 10), make_row_record(1, 2, POISON), bad, make_row_record(3, 4, 40))
    with (folder / "archive" / "items.jsonl").open("a") as more:
        more.write("no record at all\n")
    run_until_caught_up(folder)
    return folder


@on_every_store
def test_list_has_all_fields(shop: Path) -> None:
    found = {each["event_id"]: each for each in run_command(shop, "dlq", "list")["result"]}
    assert set(found) == {"items-0-1", "items-0-2", "archive:items.jsonl-0-5"}
    poison = found["items-0-1"]
    assert poison["first_seen"] == poison["last_seen"] and len(poison["key_hash"]) == 64
    assert {name: poison[name] for name in ("lane", "stage", "table", "source", "topic", "partition", "offset", "key")} == {
        "lane": "", "stage": "decode", "table": "items", "source": "feed", "topic": "items", "partition": 0, "offset": 1,
        "key": "2",
    }  # fmt: skip
    assert (poison["attempts"], poison["state"], json.loads(poison["record"])["price"]) == (1, "open", POISON)
    assert poison["retry"] == "replicator dlq replay --event 'items-0-1'"
    assert found["items-0-2"]["headers"] == [["trace", "a"], ["bytes", {"base64": "/w=="}]]
    plain = run_program(shop, "dlq", "list", "-q").stdout
    assert (
        plain.startswith("record  table  ")
        and "items-0-1  items  decode  " in plain
        and plain.endswith("3 rejected records\n")
    )


def test_list_reports_the_total_beyond_its_limit(shop: Path) -> None:
    assert run_command(shop, "dlq", "list", "--limit", "2")["summary"] == "2 of 3 rejected records (`--limit`)"
    assert run_command(shop, "dlq", "list", "--limit", "3")["summary"] == "3 rejected records"
    unknown = run_program(shop, "dlq", "list", "--table", "public.nosuch")
    assert "No entry of `tables` matches public.nosuch" in unknown.stderr and unknown.stdout == "0 rejected records\n"


@pytest.mark.parametrize(
    ("options", "events"),
    [
        (["--event", "items-0-1", "--event", "items-0-2"], {"items-0-1", "items-0-2"}),
        (["--table", "it*"], {"items-0-1", "items-0-2"}),
        (["--stage", "route"], {"archive:items.jsonl-0-5", "items-0-2"}),
        (["--code", "NULL_KEY"], set()),
        (["--lane", ""], {"items-0-1", "items-0-2", "archive:items.jsonl-0-5"}),
        (["--lane", "lake.items"], set()),
        (["--state", "replayed"], set()),
        (["--older-than", "1 days"], set()),
        (["--limit", "1", "--table", "items", "--older-than", "0 seconds", "--event", "items-0-1"], {"items-0-1"}),
    ],
)
def test_dead_letters_are_filtered(
    shop: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], events: set[str]
) -> None:
    monkeypatch.chdir(shop)
    said = CliRunner().invoke(main, ["dlq", "list", "--json", *options])
    assert {each["event_id"] for each in json.loads(said.stdout)["result"]} == events


@pytest.mark.parametrize("command", ["list", "replay", "export", "purge"])
def test_unknown_code_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(shop)
    refused = CliRunner().invoke(main, ["dlq", command, "--code", "NUL_KEY"])
    assert refused.exit_code == ExitCode.CONFIG and "MALFORMED, NO_EVENT" in refused.output


def test_explain_prints_reason_and_remedy(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    said = CliRunner().invoke(main, ["dlq", "explain", "items-0-2"]).stdout
    assert "reason:      MALFORMED: " in said and "what to do:  Compare the source's `format`" in said
    assert "record:      items-0-2 (items partition 0 offset 2)" in said
    assert "retry:       replicator dlq replay --event 'items-0-2'" in said
    assert "value:       \\xff\\xff" in said
    line = CliRunner().invoke(main, ["dlq", "explain", "archive:items.jsonl-0-5"]).stdout
    assert "(items.jsonl line 5)" in line and "value:       no record at all" in line
    (told,) = json.loads(CliRunner().invoke(main, ["dlq", "explain", "items-0-1", "--json"]).stdout)["result"]
    assert told["what_to_do"]
    unknown = CliRunner().invoke(main, ["dlq", "explain", "items-0-9"])
    assert (unknown.exit_code, "there is no dead letter 'items-0-9'" in unknown.stderr) == (2, True)


def test_export_is_an_archive(shop: Path, tmp_path: Path) -> None:
    """It is complete: with a config that accepts the records, they arrive as the source sent them."""
    write_config(tmp_path, price="string")
    path = tmp_path / "archive" / "rejected.jsonl"
    said = run_command(shop, "dlq", "export", str(path), *BOTH)["result"]
    assert said == {"path": str(path), "records": 2, "left_out": 0}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {**make_row_record(1, 2, POISON)}
    assert (lines[1]["headers"], lines[1]["value"]) == ([["trace", "a"], ["bytes", {"base64": "/w=="}]], {"base64": "//8="})
    for to in ((), ("-",)):
        assert run_program(shop, "dlq", "export", *to, *BOTH, "-q").stdout == path.read_text()
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(2, POISON, 1)]


def test_file_extension_decides_the_format_of_an_export(shop: Path, tmp_path: Path) -> None:
    packed = [tmp_path / f"x{ending}" for ending in (".jsonl", ".jsonl.gz", ".parquet")]
    for path in packed:
        run_command(shop, "dlq", "export", str(path), *BOTH)
    table = pq.read_table(packed[2]).to_pylist()
    lines = [json.loads(line) for line in gzip.decompress(packed[1].read_bytes()).splitlines()]
    assert packed[0].read_bytes() == gzip.decompress(packed[1].read_bytes())
    assert [line["offset"] for line in lines] == [row["offset"] for row in table] == [1, 2]
    wrong = run_command(shop, "dlq", "export", str(tmp_path / "x.txt"), *BOTH, code=2)
    assert "Use one of these suffixes: .jsonl, .jsonl.gz, .parquet" in wrong["error"]["next_step"]
    assert not (tmp_path / "x.txt").exists()
    again = run_command(shop, "dlq", "export", str(packed[0]), *BOTH, code=2)
    assert "already exists" in again["error"]["sentence"]
    lost = run_command(shop, "dlq", "export", str(tmp_path / "missing" / "x.jsonl"), *BOTH, code=3)
    assert "cannot be written" in lost["error"]["sentence"] and "writable folder" in lost["error"]["next_step"]


@on_every_store
def test_purge_confirms_and_deletes(shop: Path) -> None:
    refused = run_command(shop, "dlq", "purge", "--event", "items-0-2", code=2)
    assert refused["error"]["sentence"] == "1 rejected record was not deleted: a confirmation needs a terminal"
    assert run_command(shop, "dlq", "purge", "--event", "items-0-2", "--yes")["result"] == {"purged": 1}
    assert run_command(shop, "dlq", "purge", "--older-than", "1 hour", "--yes")["result"] == {"purged": 0}
    wrong = run_command(shop, "dlq", "purge", "--older-than", "a while", code=2)
    assert "is not a duration" in wrong["error"]["sentence"]
    assert len(run_command(shop, "dlq", "list")["result"]) == 2
