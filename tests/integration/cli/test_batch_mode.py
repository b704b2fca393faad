"""`mode: batch`: what has accumulated in a folder is applied in one commit per table, with the tables of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.cli_program import start_program
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
"""The program starts several times in each."""

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
TABLES = ("order_items", "orders", "trunc_me")
"""Keys that change, unsent values, truncates. Columns of other tables change in between, which is more than one commit."""
TOPICS = [SAMPLES / f"cdc.public.{name}.jsonl" for name in (*TABLES, "audit_log")]
CONFIG = """\
pipeline: {pipeline}
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive{mode}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/events}}
{mirror}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
  - match: public.*
    source: recorded
    to: [{{sink: raw}}, {{sink: lake}}{into}]
  - match: public.audit_log
    source: recorded
    policy: append
    to: [{{sink: raw}}, {{sink: lake}}{into}]
http: {{address: "127.0.0.1:0"}}
"""
WRITES = {"MERGE", "WRITE"}


def project(folder: Path, mode: str, dsn: str = "") -> Path:
    mirror, into = "", ""
    if dsn:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        mirror, into = f'  mirror: {{kind: postgres, dsn: "{url}", schema: {mode}}}', ", {sink: mirror}"
    (folder / "config").mkdir(parents=True)
    (folder / "archive").mkdir()
    said = ", mode: batch" if mode == "batch" else ""
    (folder / "config" / "replicator.yaml").write_text(CONFIG.format(pipeline=mode, mode=said, mirror=mirror, into=into))
    return folder


def accumulate(folder: Path, part: int, parts: int = 2) -> None:
    """One part of what was recorded of every topic."""
    for file in TOPICS:
        lines = file.read_text().splitlines(keepends=True)
        first, end = (whole(lines, len(lines) * n // parts) for n in (part, part + 1))
        (folder / "archive" / f"{file.stem}.{part}.jsonl").write_text("".join(lines[first:end]))


def whole(lines: list[str], cut: int) -> int:
    """`cut`, or the next one that leaves no change of a key in halves: what waits for its other half is committed last."""
    while 0 < cut < len(lines) and ("__debezium.newkey" in lines[cut - 1] or "__debezium.oldkey" in lines[cut]):
        cut += 1
    return cut


def rows(folder: Path) -> dict[str, list[str]]:
    """Of every table of the lake, but when they were written."""
    found = {}
    for name in (*TABLES, "audit_log", "events"):
        table = DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()
        found[name] = texts(table)
    return found


def read_mirror(dsn: str, schema: str) -> dict[str, list[str]]:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        return {n: texts(connection.execute(f"SELECT * FROM {schema}.{n}").fetchall()) for n in (*TABLES, "audit_log")}


def texts(table: Iterable[dict[str, Any]]) -> list[str]:
    own = ("_cdc_applied_at", "ingested_at")
    return sorted(repr({k: row[k] for k in sorted(row) if k not in own}) for row in table)


def commits(folder: Path) -> dict[str, list[str]]:
    """What was committed to every table of the lake, but that it was made."""
    found = {}
    for log in sorted((folder / "lake").glob("*/_delta_log")):
        history = DeltaTable(str(log.parent)).history()
        found[log.parent.name] = [entry["operation"] for entry in history if not entry["operation"].startswith("CREATE")]
    return found


def compute_expected(times: int, first: str = "WRITE") -> dict[str, list[str]]:
    """The newest first. `first`: how rows come into a table that has none."""
    merged = ["MERGE"] * (times - 1) + [first]
    return {**dict.fromkeys(TABLES, merged), "audit_log": ["WRITE"] * times, "events": ["WRITE"] * times}


def test_batch_mode_writes_one_commit_per_table_and_the_same_rows(tmp_path: Path, postgres_dsn: str) -> None:
    """In both sinks, in two batches, with `batch_bytes` too small for the stream."""
    stream = project(tmp_path / "stream", "stream", postgres_dsn)
    accumulate(stream, 0, 1)
    run_until_caught_up(stream, "local", "--set", "limits.batch_bytes=5000")
    made = commits(stream)
    assert len(made["order_items"]) > 2 and len(made["events"]) > 2
    batch = project(tmp_path / "batch", "batch", postgres_dsn)
    for part in (0, 1):
        accumulate(batch, part)
        run_until_caught_up(batch, "local", "--set", "limits.batch_bytes=5000")
        assert commits(batch) == compute_expected(part + 1)
    assert rows(batch) == rows(stream)
    assert read_mirror(postgres_dsn, "batch") == read_mirror(postgres_dsn, "stream")
    run_until_caught_up(batch, "local")
    assert commits(batch) == compute_expected(2)


def test_kill_at_a_commit_doubles_nothing(tmp_path: Path) -> None:
    """The kill comes at the first commit of a table, when the other tables have none yet. Each table gets exactly its
    own commit."""
    stream = project(tmp_path / "stream", "stream")
    accumulate(stream, 0, 1)
    run_until_caught_up(stream, "local")
    batch = project(tmp_path / "batch", "batch")
    for part in (0, 1):
        accumulate(batch, part)
        before = positions(batch)
        killed = start_program(batch, "run", "-q")
        until = time.monotonic() + 100
        while positions(batch) == before:
            assert killed.poll() is None and time.monotonic() < until
            time.sleep(0.001)
        killed.kill()
        killed.wait()
        run_until_caught_up(batch, "local")
        assert commits(batch) == compute_expected(part + 1)
    assert rows(batch) == rows(stream)


def positions(folder: Path) -> int:
    return len(list((folder / "lake").glob("_replicator/positions/batch/*/*.json")))


def test_batch_larger_than_memory_is_refused_before_any_write(tmp_path: Path) -> None:
    accumulate(project(tmp_path, "batch"), 0, 1)
    said = run_until_caught_up(tmp_path, "local", "--set", "limits.memory=50000", code=1)
    assert "have more than the 12,500 bytes of keys and values" in said["summary"]
    assert commits(tmp_path) == {}
    run_until_caught_up(tmp_path, "local")
    assert commits(tmp_path) == compute_expected(1)


@pytest.mark.parametrize("engine", [LONG_ON_SPARK])
def test_batch_mode_on_spark(tmp_path: Path, engine: str) -> None:
    """Local and Spark runs alternate."""
    stream, batch = project(tmp_path / "stream", "stream"), project(tmp_path / "batch", "batch")
    accumulate(stream, 0, 1)
    run_until_caught_up(stream, "local")
    accumulate(batch, 0)
    run_until_caught_up(batch, engine, "--set", "limits.memory=50000")
    assert commits(batch) == compute_expected(1, "MERGE")
    accumulate(batch, 1)
    run_until_caught_up(batch, "local")
    assert commits(batch) == compute_expected(2, "MERGE")
    assert rows(batch) == rows(stream)
