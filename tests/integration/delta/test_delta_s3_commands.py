"""The commands on a lake in an object store: what they do, and that they keep its secrets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from paths import GOLDEN
from servers.object_store import BUCKET, ObjectStore
from support.cli_program import parse_answer, run_program

SAMPLE = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.products.jsonl"
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
sinks:
  lake:
    kind: delta
    path: s3://{bucket}/commands
    storage:
      access_key_id: ${{LAKE_KEY}}
      secret_access_key: ${{LAKE_SECRET}}
      region: eu-west-1
      endpoint: {endpoint}
      allow_http: true
  raw:
    kind: event_log
    path: s3a://{bucket}/commands/cdc_events
    storage:
      access_key_id: ${{LAKE_KEY}}
      secret_access_key: ${{LAKE_SECRET}}
      endpoint: {endpoint}
      allow_http: true
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.*
    source: recorded
    to: [{{sink: raw}}, {{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""
SECRETS = {"LAKE_KEY": "AKIDOFTESTS", "LAKE_SECRET": "not-to-be-seen"}


@pytest.fixture
def project(tmp_path: Path, s3: ObjectStore) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "archive").mkdir()
    shutil.copyfile(SAMPLE, tmp_path / "archive" / SAMPLE.name)
    endpoint = s3.storage["endpoint"]
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.format(bucket=BUCKET, endpoint=endpoint))
    return tmp_path


def run(project: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a command answers; nothing that it prints holds a secret."""
    done = run_program(project, *arguments, "--json", "-v", **SECRETS)
    assert done.returncode == code, done.stdout + done.stderr
    assert not [secret for secret in SECRETS.values() if secret in done.stdout + done.stderr]
    return dict(parse_answer(done))


def test_commands(project: Path, s3: ObjectStore) -> None:
    done = run(project, "run", "--until-caught-up")["result"]
    assert {lane["id"]: lane["counts"]["rejected"] for lane in done["lanes"]} == {"lake.products": 0, "raw.recorded": 0}
    stored = run(project, "status")["result"]["lanes"]
    assert all(lane["position"] and not lane["error"] for lane in stored)
    assert run(project, "query", "products", "--version", "0")["result"] == []
    assert run(project, "query", "products")["result"]
    assert run(project, "plan")["ok"] and run(project, "check")["ok"]
    found = run(project, "doctor")["result"]
    assert {f["severity"] for f in found if f["subject"] in ("sink lake", "sink raw")} == {"ok"}
    run(project, "lanes", "resync", "lake.products", "--yes")
    assert run(project, "query", "products")["result"] == []
    assert "a confirmation needs a terminal" in run(project, "drop", "products", code=2)["error"]["sentence"]
    dropped = run(project, "drop", "products", "--yes")["result"]["belongings"]
    assert {"what": "table", "where": f"s3://{BUCKET}/commands/products", "stays": None} in dropped
    kept = s3.keys(f"s3://{BUCKET}/commands")
    assert not [key for key in kept if "products" in key and not key.startswith("cdc_events/")]
    run(project, "run", "--until-caught-up")
    assert run(project, "query", "products")["result"]


def test_missing_bucket_is_reported(project: Path) -> None:
    elsewhere = ["--set", "sinks.lake.path=s3://no-such-bucket/x"]
    done = run(project, "run", "--until-caught-up", *elsewhere, code=3)
    assert "the bucket of" in json.dumps(done["error"] or done["result"])
    found = run(project, "doctor", *elsewhere, code=3)["result"]
    assert [f["sentence"] for f in found if f["subject"] == "sink lake" and f["severity"] == "error"]


def sort_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Rows but for when they were applied, in an order."""
    return sorted(json.dumps({**row, "_cdc_applied_at": None}) for row in rows)


def test_event_log_in_a_bucket_serves_all_commands(project: Path) -> None:
    """History, state at a time, a second target, a rebuilt target and a layer on it, all from the bucket."""
    run(project, "run", "--until-caught-up")
    rows = run(project, "query", "products")["result"]
    entries = run(project, "history", "public.products", "SKU-1")["result"]
    assert entries[-1]["after"].items() <= next(row for row in rows if row["sku"] == "SKU-1").items()
    audited = run(project, "audit", "public.products")["result"]
    assert {one["operation"] for one in audited} >= {"r", "u"}
    last = run(project, "query", "products", "--from-log", "--as-of", "2027-01-01T00:00:00+0000")
    assert sort_rows(last["result"]) == sort_rows(rows)
    run(project, "replay", "public.products", "--into", "products_again")
    assert sort_rows(run(project, "query", "products_again")["result"]) == sort_rows(rows)
    run(project, "replay", "public.products")
    assert sort_rows(run(project, "query", "products")["result"]) == sort_rows(rows)


def layer(project: Path, folder: str, said: str) -> None:
    """From now on a pipeline that reads a table of the lake, and writes beside it."""
    config = project / "config" / "replicator.yaml"
    before = config.read_text()
    reached = before[before.rindex("    storage:") : before.index("dead_letters")]
    source = f"sources:\n  recorded:\n    {said}\n    transport: delta\n    path: s3://{BUCKET}/commands/{folder}\n{reached}"
    layer = before.replace(before[before.index("sources:") : before.index("sinks:")], source)
    layer = layer.replace("pipeline: shop", "pipeline: layer").replace(
        f"s3://{BUCKET}/commands\n", f"s3://{BUCKET}/on_{folder}\n"
    )
    config.write_text(layer.replace("{sink: raw}, ", ""))


def test_second_lake_from_rows_of_a_target(project: Path) -> None:
    """The target is read as it is, and then as it changes."""
    run(project, "run", "--until-caught-up")
    rows = run(project, "query", "products")["result"]
    layer(project, "products", "format: rows")
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("match: public.*", "match: products\n    keys: [sku]"))
    found = run(project, "doctor")["result"]
    assert [f["severity"] for f in found if f["subject"] == "source recorded"] == ["ok"]
    run(project, "run", "--until-caught-up")
    again = run(project, "query", "products")["result"]
    assert len(again) == len(rows) > 1
    own = [{name: value for name, value in row.items() if name[0] != "_"} for row in (*rows, *again)]
    assert sorted(map(json.dumps, own[: len(rows)])) == sorted(map(json.dumps, own[len(rows) :]))


def test_second_lake_from_the_event_log(project: Path) -> None:
    run(project, "run", "--until-caught-up")
    rows = run(project, "query", "products")["result"]
    layer(project, "cdc_events", "format: debezium_json")
    found = run(project, "doctor")["result"]
    assert [f["severity"] for f in found if f["subject"] == "source recorded"] == ["ok"]
    run(project, "run", "--until-caught-up")
    assert sort_rows(run(project, "query", "products")["result"]) == sort_rows(rows)
    refused = run(project, "run", "--until-caught-up", "--set", "sources.recorded.path=s3://no-such-bucket/x", code=3)
    assert "the bucket of" in json.dumps(refused), refused
