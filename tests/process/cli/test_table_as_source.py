"""A pipeline whose source is a Delta table of another pipeline or program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.next_layer import LONG_ON_SPARK, add_pipeline, run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

TABLES = ("products", "orders")
NEXT = """\
pipeline: next
sources:
  products: {format: rows, transport: delta, path: ./lake/products, changes: feed}
  orders: {format: rows, transport: delta, path: ./lake/orders, changes: feed}
sinks:
  lake: {kind: delta, path: ./next}
  raw: {kind: event_log, path: ./next/cdc_events}
dead_letters: {path: ./next/_replicator/dead_letters}
tables:
  - {match: products, source: products, keys: [sku], to: [{sink: lake}, {sink: raw}]}
  - {match: orders, source: orders, keys: [id], to: [{sink: lake}]}
http: {address: "127.0.0.1:0"}
"""


def read_rows(table: Path) -> list[dict]:
    found = DeltaTable(str(table)).to_pyarrow_table()
    own = [name for name in found.column_names if not name.startswith(("_cdc_", "_event_id"))]
    return sorted(found.select(own).to_pylist(), key=repr)


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_target_is_the_source_of_the_next_layer(project: Path, engine: str) -> None:
    """The archive grows. Each time the first target follows it, and the next target follows the change data feed of the
    first."""
    shutil.rmtree(project / "lake")
    config = (project / "config" / "replicator.yaml").read_text()
    first = add_pipeline(project, config.replace("{sink: lake}", "{sink: lake, change_data_feed: true}"), "first")
    archive = project / "archive"
    whole = {file.name: file.read_text().splitlines(keepends=True) for file in archive.iterdir()}
    second = add_pipeline(project, NEXT)
    for lines in (3, 8, 100):
        for name, text in whole.items():
            (archive / name).write_text("".join(text[:lines]))
        run_until_caught_up(project, "local", *first)
        said = run_until_caught_up(project, engine if lines == 100 else "local", *second)
        assert {lane["status"] for lane in said["result"]["lanes"]} == {"running"}
        for table in TABLES:
            assert read_rows(project / "next" / table) == read_rows(project / "lake" / table), (lines, table)
    log = DeltaTable(str(project / "next" / "cdc_events")).to_pyarrow_table().to_pylist()
    assert {row["op"] for row in log} == {"r", "c", "u", "d"} and {row["table"] for row in log} == {"products"}
    again = run_until_caught_up(project, "local", *second)
    assert all(lane["counts"]["applied"] == 0 for lane in again["result"]["lanes"])


def test_table_that_cannot_be_read_further_stops_its_lane_with_code_4(project: Path) -> None:
    """Rows were changed although only appended rows are read, or another table has the same name."""
    orders, config = project / "plain" / "orders", NEXT.replace("./lake/orders, changes: feed", "./plain/orders")
    values = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})
    write_deltalake(str(orders), values)
    lines = [line for line in config.splitlines(keepends=True) if "products" not in line]
    second = add_pipeline(project, "".join(lines).replace("  raw: {kind: event_log, path: ./next/cdc_events}\n", ""))
    run_until_caught_up(project, "local", *second)
    assert [row["v"] for row in read_rows(project / "next" / "orders")] == ["a", "b"]
    DeltaTable(str(orders)).update(predicate="id = 1", updates={"v": "'x'"})
    said = json.dumps(run_until_caught_up(project, "local", *second, code=4))
    assert "Version 1 of the table orders changes or deletes rows (UPDATE)" in said and "changes: feed" in said
    shutil.rmtree(orders)
    write_deltalake(str(orders), values)
    said = json.dumps(run_until_caught_up(project, "local", *second, code=4))
    assert "was created again" in said and "replicator lanes resync lake.orders" in said


def test_added_lane_does_not_change_others(project: Path) -> None:
    """It reads the whole table, which lanes that follow the changes do not get."""
    orders = project / "plain" / "orders"
    write_deltalake(str(orders), pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]}))
    one = "{sink: lake, into: copied, policy: append}"
    config = NEXT.replace("./lake/orders, changes: feed", "./plain/orders")
    lines = [line for line in config.splitlines() if "products" not in line]
    config = "\n".join(line for line in lines if "raw:" not in line).replace("{sink: lake}", one)
    run_until_caught_up(project, "local", *add_pipeline(project, config))
    write_deltalake(str(orders), pa.table({"id": pa.array([4], pa.int64()), "v": ["d"]}), mode="append")
    run_until_caught_up(project, "local", *add_pipeline(project, config.replace(one, f"{one}, {{sink: lake}}")))
    assert [row["id"] for row in read_rows(project / "next" / "copied")] == [1, 2, 3, 4]
    assert [row["id"] for row in read_rows(project / "next" / "orders")] == [1, 2, 3, 4]
