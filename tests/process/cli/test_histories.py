"""A history and current rows of one table, from one read of the source."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.next_layer import LONG_ON_SPARK, add_pipeline, run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

GLOB = "  - match: public.*\n    source: recorded\n    to: [{sink: raw}, {sink: lake}]\n"
TABLES = "".join(
    f"""\
  - match: public.{table}
    source: recorded
    to:
      - {{sink: lake}}
      - {{sink: lake, into: {table}_history, policy: scd2}}
      - {{sink: lake, into: {table}_changes, policy: append}}
"""
    for table in ("products", "orders")
)


def read_rows(project: Path, table: str) -> list[dict]:
    return DeltaTable(str(project / "lake" / table)).to_pyarrow_table().to_pylist()


def format_values(row: dict) -> str:
    """The values without `title`, which the source renames: a mirror written by several runs keeps its old column."""
    return repr({name: value for name, value in row.items() if not name.startswith("_") and name != "title"})


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_open_versions_equal_the_current_rows(project: Path, engine: str) -> None:
    """The archive grows. Each time the open versions equal the current rows, and every change is a version, its end, or
    equal to the version before."""
    shutil.rmtree(project / "lake")
    config = (project / "config" / "replicator.yaml").read_text()
    assert GLOB in config
    history = add_pipeline(project, config.replace(GLOB, TABLES), "history")
    archive = project / "archive"
    whole = {file.name: file.read_text().splitlines(keepends=True) for file in archive.iterdir()}
    for count in (3, 8, 100):
        for name, text in whole.items():
            (archive / name).write_text("".join(text[:count]))
        run_until_caught_up(project, engine if count == 8 else "local", *history)
        for table in ("products", "orders"):
            versions = read_rows(project, f"{table}_history")
            current = [row for row in versions if row["_cdc_end_seq_1"] is None]
            assert sorted(map(format_values, current)) == sorted(map(format_values, read_rows(project, table))), (
                count,
                table,
            )
    changes = read_rows(project, "products_changes")
    assert {row["_cdc_op"] for row in changes} >= {"c", "u", "d"}
    versions = read_rows(project, "products_history")
    assert len(versions) > len(read_rows(project, "products"))
    ended = [row for row in versions if row["_cdc_end_seq_1"] is not None]
    assert ended and all(row["__START_AT"] <= row["__END_AT"] for row in ended)


def test_unknown_tracked_column_is_reported_with_its_line(project: Path) -> None:
    shutil.rmtree(project / "lake")
    config = (project / "config" / "replicator.yaml").read_text()
    entry = "{sink: lake, policy: scd2, track_history_column_list: [colour]}"
    said = run_until_caught_up(
        project, "local", *add_pipeline(project, config.replace("{sink: lake}", entry), "history"), code=2
    )
    assert "'track_history_column_list' names 'colour', which is no column of table" in str(said)
    assert "config/history.yaml:" in str(said)
