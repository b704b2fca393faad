"""Full exports of a table, read by both engines in turns."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.exported_records import Row, compute_versions, make_random_snapshots, write_parquet_snapshot
from support.next_layer import run_until_caught_up

CONFIG = """\
pipeline: exports
sources:
  export: {format: rows, transport: snapshots, path: ./items, allow_empty: true}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead_letters}
tables:
  - match: items
    source: export
    keys: [id, Part]
    to: [{sink: lake}, {sink: lake, into: items_history, policy: scd2}]
http: {address: "127.0.0.1:0"}
"""


def read_rows(folder: Path, table: str, *more: str) -> list[tuple]:
    found = DeltaTable(str(folder / "lake" / table)).to_pyarrow_table().to_pylist()
    return sorted((tuple(row[name] for name in ("id", "Part", "name", "price", *more)) for row in found), key=repr)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_local_and_spark_runs_alternate(tmp_path):
    """Each engine resumes with the journal of the other: new, changed and deleted rows are read once."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    there: list[tuple[int, list[Row]]] = []
    for version, state in enumerate(make_random_snapshots(random.Random(5), 4)):
        write_parquet_snapshot(tmp_path, version, state)
        there.append((version, state))
        if version != 1:
            run_until_caught_up(tmp_path, "local" if version == 0 else "spark" if version == 2 else "local")
            assert read_rows(tmp_path, "items") == sorted(state, key=repr)
            found = read_rows(tmp_path, "items_history", "_cdc_seq_1", "_cdc_end_seq_1")
            assert found == sorted(compute_versions(there), key=repr)
