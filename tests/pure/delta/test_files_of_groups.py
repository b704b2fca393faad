"""Files that may have rows of some groups, according to the log."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from adapters.delta.folders import LocalFolder
from adapters.gold.table_version import TableVersion, mask_candidates

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int64(), [1, 2, 3]),
    "short": (pa.int32(), [1, 2, 3]),
    "text": (pa.string(), ["", "Oslo", "Rome" * 20]),
    "is_so": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(2024, 1, day) for day in (1, 2, 3)]),
    "moment": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in (1, 2)]),
    "a.point": (pa.int64(), [1, 2]),
}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> TableVersion:
    """Files of one value and of several, with NULL and without, and some without statistics."""
    path = tmp_path_factory.mktemp("table")
    chance = random.Random(5)
    for number in range(28):
        columns = {}
        for name, (kind, values) in VALUES.items():
            some = chance.sample([*values, None], k=chance.choice([1, 1, 2]))
            columns[name] = pa.array(chance.choices(some, k=3), kind)
        rows = pa.table(columns)
        write_deltalake(path, rows, mode="append")
        if number % 7 == 6:
            _without_statistics(path, rows)
    return TableVersion(DeltaTable(path), LocalFolder(path))


def _without_statistics(path: Path, rows: pa.Table) -> None:
    name = f"{uuid4()}.parquet"
    pq.write_table(rows, path / name)
    table = DeltaTable(path)
    action = AddAction(name, (path / name).stat().st_size, {}, 0, data_change=True, stats="{}")
    table.create_write_transaction([action], "append", table.schema())


@pytest.mark.slow
@pytest.mark.parametrize("column", VALUES)
def test_all_files_with_rows_of_the_groups_are_found(version: TableVersion, column: str) -> None:
    """And none that a check file by file excludes."""
    chance, values = random.Random(column), VALUES[column][1]
    left_out = 0
    for _ in range(20):
        groups = frozenset(chance.sample([*values, None], k=chance.randint(1, len(values))))
        held = version.find_candidate_files(column, groups)
        assert held == [file for file in version.files(column) if mask_candidates([file.bounds], groups)[0]]
        for file in set(version.paths) - {file.path for file in held}:
            found = version.rows(version.files_at([file])).to_table()[column].to_pylist()
            assert groups.isdisjoint(found)
            left_out += 1
    assert left_out or column in ("moment", "a.point")


@pytest.mark.parametrize(
    "groups", [frozenset({"1"}), frozenset({None}), frozenset(), frozenset({True}), frozenset({2**63, 1})]
)
def test_groups_of_another_type_are_searched_file_by_file(version: TableVersion, groups: frozenset[Any]) -> None:
    expected = [file for file in version.files("whole") if mask_candidates([file.bounds], groups)[0]]
    assert version.find_candidate_files("whole", groups) == expected
