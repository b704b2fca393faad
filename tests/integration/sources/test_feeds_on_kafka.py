"""Feeds of others on a real broker, through the program into a lake: the shipped example of DTS, and rows in JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from servers.kafka import PROJECT, Broker
from support import dts_sales
from support.cli_program import parse_answer, run_program
from support.employees import FEED, NAMES, STAYS, VERSIONS

pytestmark = pytest.mark.stack

EXAMPLES = PROJECT / "config" / "examples"


def run(folder: Path, broker: Broker, *settings: str) -> dict[str, Any]:
    said = ["http.address=127.0.0.1:0", *settings]
    command = ["run", "--until-caught-up", "--json", "-q", *(part for one in said for part in ("--set", one))]
    done = run_program(folder, *command, seconds=200, KAFKA_BOOTSTRAP_SERVERS=broker.address)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(parse_answer(done)["result"])


def project(folder: Path, example: str) -> Path:
    (folder / "config").mkdir()
    shutil.copy(EXAMPLES / example, folder / "config" / "replicator.yaml")
    return folder


def sales(folder: Path) -> list[tuple]:
    table = DeltaTable(str(folder / "deltalake-sales" / "sales")).to_pyarrow_table()
    assert str(table.schema.field("sales").type) == "decimal128(7, 2)"
    assert [name for name in table.column_names if not name.startswith("_")] == ["id", "date", "name", "sales"]
    return sorted((row["id"], row["date"], row["name"], row["sales"]) for row in table.to_pylist())


def test_sales_through_dts(broker: Broker, tmp_path: Path) -> None:
    """The full load, the changes, and both again as after a failover of the DTS store."""
    broker.create("sales_dts")
    project(tmp_path, "dts-sales.yaml")
    broker.produce("sales_dts", dts_sales.make_loaded_messages())
    run(tmp_path, broker)
    assert sales(tmp_path) == [(*row[:3], row[3]) for row in dts_sales.LOADED]
    broker.produce("sales_dts", dts_sales.make_changed_messages())
    run(tmp_path, broker)
    assert sales(tmp_path) == dts_sales.RESULT
    broker.produce("sales_dts", [*dts_sales.make_loaded_messages(), *dts_sales.make_changed_messages()[:2]])
    (lane,) = run(tmp_path, broker)["lanes"]
    assert sales(tmp_path) == dts_sales.RESULT
    assert lane["counts"]["applied"] == lane["counts"]["rejected"] == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_employees_as_json(broker: Broker, tmp_path: Path, ordered: bool) -> None:
    """Records without key or schema; the topic names the table. Rows are ordered by a column, or by the offsets, which
    decide if `sequence_by` values are equal."""
    topic = f"employees_{uuid4().hex[:8]}"
    broker.create(topic)
    broker.produce(topic, [json.dumps(dict(zip(NAMES, row, strict=True))).encode() for row in FEED])
    text = (EXAMPLES / "rows-in-files.yaml").read_text()
    start, end = text.index("    transport: files"), text.index("    operation_column")
    records = f'    transport: kafka\n    bootstrap_servers: ${{KAFKA_BOOTSTRAP_SERVERS}}\n    topics: ["{topic}"]\n'
    text = (text[:start] + records + text[end:]).replace("match: employees", f"match: {topic}\n    into: employees")
    if ordered:
        text = text.replace("operation_column", "sequence_columns: [sequenceNum]\n    operation_column")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(text)
    run(tmp_path, broker)
    current, history = (
        DeltaTable(str(tmp_path / "deltalake-staff" / name)).to_pyarrow_table().to_pylist()
        for name in ("employees", "employees_history")
    )
    assert sorted((r["id"], r["name"], r["role"]) for r in current) == STAYS
    ends = [(r["id"], r["name"], r["role"], r["__START_AT"], r["__END_AT"]) for r in history]
    assert sorted(ends) == VERSIONS
