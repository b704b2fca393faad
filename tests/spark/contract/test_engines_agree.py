"""The recorded archives through the program twice, in process and on Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.cli_program import run_in_process
from support.recorded_topics import DECLARED
from support.spark_case import LONG, list_spark_arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ARCHIVES = GOLDEN / "decoders" / "debezium"
FEW = {
    **{("postgres", f"public.{table}"): ("scd1", "append") for table in ("customers", "orders", "audit_log", "trunc_me")},
    **{("postgres-schemaless", f"public.{table}"): ("scd1",) for table in ("toasty", "toasty_full")},
    **{("mariadb", f"shop.{table}"): ("append", "log") for table in ("customers", "nopk")},
}
"""Some tables of each archive, and how they are stored. Formats are decoded by what both engines share, which `tests/golden`
tries: so tables of one archive are stored in each way, a truncated one and one without a key among them. Those of the others
are stored in the way of what they add: values that were not sent, and tables of a log."""
ALL = {
    ("postgres", "public.*"): ("scd1", "append"),
    **{("postgres-schemaless", table): ("scd1", "append") for table in DECLARED},
    ("mariadb", "shop.*"): ("scd1", "append", "log"),
}
ARCHIVED = ALL if LONG else FEW
OF_THE_RUN = {"_cdc_applied_at", "ingested_at", "first_seen", "last_seen"}
"""When a row was written."""


def config(folder: Path) -> Path:
    """Each archive under its policies into a lake of its own."""
    sinks: dict[str, Any] = {"log": {"kind": "event_log", "path": "./log"}}
    sources, tables = {}, []
    for (archive, table), ways in ARCHIVED.items():
        source = archive.replace("-", "_")
        sources[source] = {"format": "debezium_json", "transport": "archive", "path": str(ARCHIVES / archive)}
        to = [{"sink": "log"} if way == "log" else {"sink": f"{source}_{way}", "policy": way} for way in ways]
        sinks |= {one["sink"]: {"kind": "delta", "path": f"./lakes/{one['sink']}"} for one in to if "policy" in one}
        declared = {"schema": DECLARED[table]} if archive == "postgres-schemaless" else {}
        tables.append({"match": table, "source": source, **declared, "to": to})
    document = {
        "pipeline": "agree",
        "sources": sources,
        "sinks": sinks,
        "dead_letters": {"path": "./dead_letters"},
        "tables": tables,
        "http": {"address": "127.0.0.1:0"},
    }
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "replicator.yaml").write_text(json.dumps(document))
    return folder


def run(folder: Path, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """The report of the lanes."""
    done = run_in_process(config(folder), "run", "--until-caught-up", "--json", "-q", *settings)
    lanes = json.loads(done.stdout)["result"]["lanes"]
    errors = [lane["error"] for lane in lanes if lane["status"] == "suspended"]
    assert done.exit_code == 2 and errors and all("has no key, which policy scd1 needs" in error for error in errors), errors
    told = ("status", "position", "counts", "error")
    return {lane["id"]: {name: lane[name] for name in told} for lane in lanes}


def tables(folder: Path) -> dict[str, DeltaTable]:
    return {
        str(log.parent.relative_to(folder)): DeltaTable(str(log.parent))
        for log in sorted(folder.rglob("_delta_log"))
        if "_replicator" not in log.parts
    }


def rows(table: DeltaTable) -> Counter[str]:
    read = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    kept = read.drop_columns([name for name in read.column_names if name in OF_THE_RUN])
    return Counter(map(repr, kept.to_pylist()))


def test_local_and_spark_write_the_same_tables(tmp_path: Path) -> None:
    assert run(tmp_path / "local") == run(tmp_path / "spark", list_spark_arguments())
    local, spark = (tables(tmp_path / engine) for engine in ("local", "spark"))
    assert list(local) == list(spark) and len(local) > (20 if LONG else 12)
    for name, table in local.items():
        assert table.schema().to_arrow() == spark[name].schema().to_arrow(), name
        found = rows(table)
        assert found == rows(spark[name]), name
    assert sum(sum(rows(table).values()) for table in local.values()) > (150 if LONG else 70)
