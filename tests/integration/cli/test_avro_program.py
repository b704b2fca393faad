"""The program over Avro: a registry that goes away and comes back, one that refuses, and what is never shown."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from servers.schema_registry import API, ConnectionProxy, open_proxy, serve_answer
from support.avro_of_connect import Avro
from support.cli_program import PROGRAM, parse_answer, run_program
from support.debezium_events import ID, make_change_event, make_event_key, make_raw_records
from support.next_layer import LONG_ON_SPARK
from support.small_spark import SMALL

pytestmark = pytest.mark.slow
"""The program starts in each."""

SECRET = "hunter2-secret"
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: debezium_avro, transport: archive, path: ./archive, registry: {registry}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
  - match: public.*
    source: recorded
    to: [{{sink: raw}}, {{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""
NAME = {"type": "string", "optional": True, "field": "name"}
MORE = {"type": "int32", "optional": True, "field": "more"}


def project(path: Path, registry: str) -> Path:
    (path / "config").mkdir()
    (path / "config" / "replicator.yaml").write_text(CONFIG.format(registry=registry))
    (path / "archive").mkdir()
    return path


def record(folder: Path, name: str, frame: pa.Table, first: int) -> None:
    """A file of recorded records, from that offset on; it appears whole."""
    lines = []
    for offset, row in enumerate(frame.to_pylist(), first):
        coded = {of: row[of] and {"base64": base64.b64encode(row[of]).decode()} for of in ("key", "value")}
        known = {"topic": "cdc.public.t", "partition": 0, "offset": offset, "timestamp": [1, 7000], "headers": []}
        lines.append(json.dumps({**known, **coded}) + "\n")
    hidden = folder / f"{name}.part"
    hidden.write_text("".join(lines))
    hidden.rename(folder / "archive" / f"{name}.jsonl")


def rows(folder: Path, name: str = "t") -> list[dict]:
    return DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()


def events(avro: Avro, columns: list, first: int, count: int, at: int = 100) -> pa.Table:
    places = range(first, first + count)
    values = [make_change_event(columns, at=at + i, after={"id": i, "name": f"n{i}", "more": i}) for i in places]
    return avro.frame(make_raw_records(values, [make_event_key(id=i) for i in places]))


class Running:
    """`replicator run`, as a process whose log is a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as out:
            command = [PROGRAM, "run", *arguments]
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def until(self, found: Callable[[], bool], what: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not found():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, f"{what}: {self.text}"
            time.sleep(0.2)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_run_waits_for_an_unreachable_registry_and_loses_nothing(tmp_path: Path, registry: str, engine: str) -> None:
    avro = Avro(f"{registry}{API}")
    with open_proxy(registry) as before:
        folder = project(tmp_path, f"{{url: '{before.url}'}}")
        before.refuse_connections()
        record(folder, "a", events(avro, [ID, NAME], 1, 5), 0)
        running = Running(folder, "--set", f"engine={engine}", "--set", f"spark={json.dumps(SMALL)}")
        try:
            away_and_back(running, before, folder, lambda: {r["id"] for r in _rows_if_any(folder)} == set(range(1, 6)))
            before.refuse_connections()
            record(folder, "b", events(avro, [ID, NAME, MORE], 4, 6, at=200), 5)  # A schema that nobody knows yet.
            away_and_back(running, before, folder, lambda: len(_rows_if_any(folder)) == 9)
        finally:
            running.process.terminate()
            assert running.process.wait(100) == 0, running.text
    found = {row["id"]: (row["name"], row["more"]) for row in rows(folder)}
    assert found == {i: (f"n{i}", i if i > 3 else None) for i in range(1, 10)}
    assert [row["offset"] for row in sorted(rows(folder, "cdc_events"), key=lambda row: row["offset"])] == list(range(11))
    assert not (folder / "lake" / "_replicator" / "dead_letters" / "_delta_log").is_dir()


def away_and_back(running: Running, before: ConnectionProxy, folder: Path, done: Callable[[], bool]) -> None:
    said = running.text.count("does not answer")
    running.until(lambda: running.text.count("does not answer") > said, "it says that the registry is away")
    assert not done()
    before.open()
    running.until(done, "it goes on")


def _rows_if_any(folder: Path) -> list[dict]:
    return rows(folder) if (folder / "lake" / "t" / "_delta_log").is_dir() else []


def test_registry_that_refuses_credentials_stops_the_run_without_secrets(tmp_path: Path, registry: str) -> None:
    with serve_answer(401) as (url, asked):
        folder = project(tmp_path, f"{{url: '{url}', user: reader, password: '${{PASSWORD}}'}}")
        record(folder, "a", events(Avro(f"{registry}{API}"), [ID, NAME], 1, 1), 0)
        done = run_program(folder, "run", "--until-caught-up", "-v", PASSWORD=SECRET)
        assert done.returncode == 3 and "refuses these credentials" in done.stdout + done.stderr
        plan, doctor = (run_program(folder, command, PASSWORD=SECRET) for command in ("plan", "doctor"))
        assert all("refuses these credentials" in one.stdout + one.stderr for one in (plan, doctor))
        assert asked
    assert not any(SECRET in text for one in (done, plan, doctor) for text in (one.stdout, one.stderr))


def test_records_with_unknown_schema_ids_are_dead_letters(tmp_path: Path, registry: str) -> None:
    folder = project(tmp_path, f"{{url: '{registry}{API}'}}")
    frame = events(Avro(f"{registry}{API}"), [ID, NAME], 1, 3)
    values = frame["value"].to_pylist()
    values[1] = b"\0" + (777_777).to_bytes(4, "big") + values[1][5:]
    record(
        folder, "a", frame.set_column(frame.column_names.index("value"), frame.schema.field("value"), pa.array(values)), 0
    )
    done = run_program(folder, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(row["id"] for row in rows(folder)) == [1, 3]
    (letter,) = rows(folder, "_replicator/dead_letters")
    assert letter["code"] == "UNKNOWN_SCHEMA" and "777777" in letter["sentence"]


def test_retry_after_the_remedy_applies_records_of_another_registry(tmp_path: Path, registry: str) -> None:
    with serve_answer(404, b'{"error_code": 40403, "message": "Schema not found"}') as (url, _):
        folder = project(tmp_path, f"{{url: '{url}'}}")
        record(folder, "a", events(Avro(f"{registry}{API}"), [ID, NAME], 1, 2), 0)
        assert run_program(folder, "run", "--until-caught-up").returncode == 0, "the event log has all"
    letters = parse_answer(run_program(folder, "dlq", "list", "--json"))["result"]
    assert [letter["code"] for letter in letters] == ["UNKNOWN_SCHEMA"] * 2
    [told, *_] = parse_answer(run_program(folder, "dlq", "explain", letters[0]["event_id"], "--json"))["result"]
    assert told["what_to_do"].startswith(
        "If the connector registers its schemas elsewhere, correct `url` of the source's `registry`"
    )
    config = folder / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace(url, f"{registry}{API}"))
    replayed = run_program(folder, "dlq", "replay", "--json")
    assert parse_answer(replayed)["result"]["replayed"] == 2, replayed.stdout
    assert sorted(row["id"] for row in rows(folder)) == [1, 2]
