"""Cached versions of a table equal the table."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from adapters.delta import tables
from adapters.delta.folders import LocalFolder
from adapters.delta.tables import open_table
from adapters.gold.table_version import SnapshotCache, TableVersion, diff_versions

ROWS = pa.table({"id": [1, 2, 3], "city": ["Rome", "Oslo", None]})


def read_version(version: TableVersion) -> Any:
    """All that is asked of a version."""
    rows = sorted(version.rows().to_table().to_pylist(), key=str)
    some = sorted(
        version.rows(version.find_candidate_files("city", frozenset({"Rome", None}))).to_table().to_pylist(), key=str
    )
    files = sorted(version.files("id"), key=lambda file: file.path)
    return version.number, version.table_id, version.schema, version.configuration, version.paths, files, rows, some


def opened_at(path: Path, number: int) -> TableVersion:
    return TableVersion(DeltaTable(path, version=number), LocalFolder(path))


def widen_row(path: Path, number: int) -> None:
    rows = ROWS.append_column(f"n{number}", pa.array([number] * 3))
    write_deltalake(path, rows, mode="append", schema_mode="merge")


STEPS: list[Callable[[Path, int], Any]] = [
    lambda path, number: write_deltalake(path, ROWS.slice(number % 3), mode="append", schema_mode="merge"),
    lambda path, _: write_deltalake(path, ROWS, mode="overwrite", schema_mode="overwrite"),
    lambda path, _: DeltaTable(path).delete("id = 2"),
    lambda path, _: DeltaTable(path).optimize.compact(),
    lambda path, _: DeltaTable(path).create_checkpoint(),
    lambda path, number: DeltaTable(path).alter.set_table_properties(
        {"delta.logRetentionDuration": f"interval {number} days"}
    ),
    widen_row,
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_cached_versions_stay_unchanged(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    write_deltalake(tmp_path, ROWS, partition_by=["city"] if seed % 2 else None)
    kept = SnapshotCache(LocalFolder(tmp_path))
    last = None
    for number in range(1, 12):
        for step in chance.choices(STEPS, k=chance.randint(0, 3)):
            step(tmp_path, number)
        newest = kept.get_newest()
        assert newest is kept.get_newest() and newest.number == DeltaTable(tmp_path).version()
        if chance.random() < 0.7:
            assert read_version(newest) == read_version(opened_at(tmp_path, newest.number))
        if last is not None:
            old = kept.get_earlier(last)
            assert old is not None and read_version(old) == read_version(opened_at(tmp_path, last))
            found = diff_versions(old, kept.get_version(newest.number), None)
            assert found is None or found.is_empty == (old.paths == newest.paths)
        kept.drop_older()
        last = newest.number


def test_table_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = []
    monkeypatch.setattr(tables, "open_table", lambda *at: opens.append(at) or open_table(*at))
    write_deltalake(tmp_path, ROWS)
    kept = SnapshotCache(LocalFolder(tmp_path))
    for _ in range(3):
        read_version(kept.get_newest())
        write_deltalake(tmp_path, ROWS, mode="append")
    assert kept.get_newest().number == 3 and len(opens) == 1


@pytest.mark.parametrize("versions", [0, 1, 2, 5])
def test_replaced_table_is_opened_again(versions: int, tmp_path: Path) -> None:
    """Whether it has as many versions by then, fewer, or more."""
    path = tmp_path / "table"
    write_deltalake(path, ROWS)
    write_deltalake(path, ROWS, mode="append")
    kept = SnapshotCache(LocalFolder(path))
    read_version(kept.get_newest())
    shutil.rmtree(path)
    other = pa.table({"id": [7], "city": ["Bonn"]})
    for _ in range(versions + 1):
        write_deltalake(path, other, mode="append")
    assert read_version(kept.get_newest()) == read_version(opened_at(path, versions))
    assert read_version(kept.get_version(versions)) == read_version(opened_at(path, versions))
    old = kept.get_earlier(0)
    assert old is not None and read_version(old) == read_version(opened_at(path, 0))


def test_read_schema_is_refreshed_if_it_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = DeltaTable.to_pyarrow_dataset
    monkeypatch.setattr(DeltaTable, "to_pyarrow_dataset", lambda table, **how: asked.append(table) or real(table, **how))
    write_deltalake(tmp_path, ROWS)
    kept = SnapshotCache(LocalFolder(tmp_path))
    for _ in range(3):
        assert kept.get_newest().rows().count_rows() == DeltaTable(tmp_path).count()
        write_deltalake(tmp_path, ROWS, mode="append")
    assert len(asked) == 1
    widen_row(tmp_path, 7)
    assert kept.get_newest().rows().schema.names == ["id", "city", "n7"]
    DeltaTable(tmp_path).alter.set_table_properties({"delta.appendOnly": "true"})
    kept.get_newest().rows()
    assert len(asked) == 3


def test_expired_commit_reopens_the_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS)
    kept = SnapshotCache(LocalFolder(tmp_path))
    read_version(kept.get_newest())
    write_deltalake(tmp_path, ROWS, mode="append")
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / tables.commit_file_name(0)).unlink()
    assert kept.get_newest().number == 1
    assert kept.get_newest().rows().count_rows() == 6


def test_files_outside_of_the_table_folder(tmp_path: Path) -> None:
    """As in a shallow clone: only the table knows their paths, so it is opened again."""
    path, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    write_deltalake(path, ROWS)
    write_deltalake(elsewhere, ROWS)
    (there,) = DeltaTable(elsewhere).file_uris()
    size = Path(there).stat().st_size
    added = AddAction(f"file://{there}", size, {}, int(time.time() * 1000), True, '{"numRecords": 3}')
    DeltaTable(path).create_write_transaction(
        [added], "append", DeltaTable(path).schema(), commit_properties=CommitProperties(max_commit_retries=0)
    )
    kept = SnapshotCache(LocalFolder(path))
    first = kept.get_newest()
    assert len(first.files()) == 2
    write_deltalake(path, ROWS, mode="overwrite")
    assert kept.get_newest().number == 2
    assert first.table.version() == 1 and len(first.paths) == 2


def test_table_restored_from_a_copy(tmp_path: Path) -> None:
    """It has the same id, and later other versions with the same numbers."""
    path, copy = tmp_path / "table", tmp_path / "copy"
    write_deltalake(path, ROWS)
    shutil.copytree(path, copy)
    write_deltalake(path, ROWS.slice(1), mode="append")
    kept = SnapshotCache(LocalFolder(path))
    read_version(kept.get_newest())
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    assert kept.get_newest().number == 0
    for rows in (ROWS.slice(2), ROWS):
        write_deltalake(path, rows, mode="append")
    assert kept.get_newest().number == 2
    assert read_version(kept.get_version(1)) == read_version(opened_at(path, 1))
