"""Files of a sink of Kafka Connect through the program: events with and without schema, run by run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.debezium_events import ID, encode_with_schema, make_column, make_envelope_schema, make_payload
from support.next_layer import LONG_ON_SPARK, run_until_caught_up
from support.rows_folder import write_closed_file

CONFIG = """\
pipeline: shop
sources:
  sink: {format: debezium_json, transport: archive, path: ./topics, files: connect, decimals: base64, settle: 0 seconds}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead_letters}
tables:
  - {match: public.t, source: sink, to: [{sink: lake}]}
  - {match: public.u, source: sink, keys: [id], schema: {id: int64, price: "decimal(10,2)"}, to: [{sink: lake}]}
http: {address: "127.0.0.1:0"}
"""
T, U = "cdc.public.t", "cdc.public.u"
COLUMNS = [ID, make_column("name", "string")]
KEY = {"type": "struct", "fields": [ID], "optional": False, "name": "cdc.public.t.Key"}


def to_connect_json(at: int, op: str, **images: Any) -> str:
    """The connector's form of text: the message with its schema is a JSON string."""
    return json.dumps(encode_with_schema(make_envelope_schema(COLUMNS), make_payload(op, at=at, **images)).decode())


def make_bare_message(at: int, op: str, **images: Any) -> str:
    """The connector's form of a struct, without its schema."""
    return json.dumps(make_payload(op, at=at, source={"table": "u"}, **images))


def write_sink_files(folder: Path, name: str, lines: list[str], keys: list[dict[str, Any]]) -> None:
    """Writes the file of that name with the values, and the file with the keys."""
    topic, (stem, dot, ending) = name.partition("+")[0], name.rpartition(".json")
    whole = [json.dumps(encode_with_schema(KEY, key).decode() if topic == T else key) for key in keys]
    for file, texts in ((f"{stem}.keys{dot}{ending}", whole), (name, lines)):
        write_closed_file(folder / "topics" / topic / "partition=0" / file, "".join(f"{text}\n" for text in texts).encode())


def read_rows(folder: Path, table: str, name: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(folder / "lake" / table)).to_pyarrow_table().to_pylist()
    return sorted((row["id"], str(row[name])) for row in found)


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_events_of_a_sink_become_rows(tmp_path: Path, engine: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    ids = [{"id": 1}, {"id": 2}]
    write_sink_files(
        tmp_path, f"{T}+0+0000000000.json", [to_connect_json(n, "c", after={"id": n, "name": f"n{n}"}) for n in (1, 2)], ids
    )
    write_sink_files(
        tmp_path,
        f"{U}+0+0000000007.json.gz",
        [make_bare_message(n, "c", after={"id": n, "price": "AQA="}) for n in (1, 2)],
        ids,
    )
    assert run_until_caught_up(tmp_path, engine)["result"]["lanes"]
    assert (read_rows(tmp_path, "t", "name"), read_rows(tmp_path, "u", "price")) == (
        [(1, "n1"), (2, "n2")],
        [(1, "2.56"), (2, "2.56")],
    )
    changes = [to_connect_json(9, "u", after={"id": 2, "name": "new"}), to_connect_json(10, "d", before=ids[0])]
    write_sink_files(tmp_path, f"{T}+0+0000000002.json", changes, ids[::-1])
    write_sink_files(
        tmp_path, f"{U}+0+0000000009.json.gz", [make_bare_message(9, "d", before={"id": 2, "price": "AQA="})], ids[1:]
    )
    lanes = run_until_caught_up(tmp_path, engine)["result"]["lanes"]
    assert sorted(sum(lane["counts"].values()) for lane in lanes) == [1, 2]
    assert (read_rows(tmp_path, "t", "name"), read_rows(tmp_path, "u", "price")) == ([(2, "new")], [(1, "2.56")])
    assert not any(sum(lane["counts"].values()) for lane in run_until_caught_up(tmp_path, engine)["result"]["lanes"])


LINES = """\
pipeline: shop
sources:
  sink: {format: debezium_json, transport: archive, path: ./events.txt, files: lines, topic: everything}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead_letters}
tables:
  - {match: public.*, source: sink, keys: [id], schema: {id: int64, name: string}, to: [{sink: lake}]}
http: {address: "127.0.0.1:0"}
"""
GOLDEN = GOLDEN / "connect_file" / "events.txt"


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_lines_of_the_file_sink_become_rows(tmp_path: Path, engine: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(LINES)
    file, whole = tmp_path / "events.txt", GOLDEN.read_bytes()
    first = b"".join(whole.splitlines(keepends=True)[:2])
    file.write_bytes(first + b'{"before"')
    assert run_until_caught_up(tmp_path, engine)["result"]["lanes"]
    assert (read_rows(tmp_path, "t", "name"), read_rows(tmp_path, "u", "name")) == ([(1, "é☃")], [(7, "u")])
    file.write_bytes(whole)
    run_until_caught_up(tmp_path, engine)
    assert (read_rows(tmp_path, "t", "name"), read_rows(tmp_path, "u", "name")) == ([(2, "two")], [(7, "u")])
    file.write_bytes(b"\n".join(reversed(whole.splitlines())) + b"\n" + whole)
    assert "begins with another line" in json.dumps(run_until_caught_up(tmp_path, engine, code=4))


@pytest.mark.parametrize(("ahead", "settle", "code"), [(86_400, "1 second", 0), (0, "1 hour", 3)])
def test_file_that_still_changes_is_not_read(tmp_path: Path, ahead: int, settle: str, code: int) -> None:
    """A modification time in the future comes from another clock: such a file is complete when it has not changed for
    `settle`."""
    (tmp_path / "config").mkdir()
    said = CONFIG.replace("settle: 0 seconds", f"settle: {settle}")
    (tmp_path / "config" / "replicator.yaml").write_text(said)
    write_sink_files(
        tmp_path, f"{T}+0+0000000000.json", [to_connect_json(1, "c", after={"id": 1, "name": "n1"})], [{"id": 1}]
    )
    for file in (tmp_path / "topics").rglob("*.json"):
        os.utime(file, (time.time() + ahead,) * 2)
    answer = run_until_caught_up(tmp_path, "local", "--timeout", "2", code=code)
    assert answer["ok"] is (code == 0) and (code == 0 or "2 s" in answer["error"]["sentence"]), answer
