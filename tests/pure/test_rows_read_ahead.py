"""Rows that are read before it is known whether they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from adapters.delta.folders import LocalFolder
from adapters.gold.local import ReadAhead
from adapters.gold.table_version import TableVersion

ROWS = pa.table({"id": [1, 2], "city": ["Rome", "Oslo"], "n": [5, 6]})


@pytest.fixture
def ahead() -> Iterator[ReadAhead]:
    with ThreadPoolExecutor(1) as beside:
        yield ReadAhead(beside)


@pytest.fixture
def version(tmp_path: Path) -> TableVersion:
    for _ in range(3):
        write_deltalake(tmp_path, ROWS, mode="append")
    return TableVersion(DeltaTable(tmp_path), LocalFolder(tmp_path))


def test_rows_of_some_of_the_files(ahead: ReadAhead, version: TableVersion) -> None:
    """Those of all that were read, in these columns."""
    first, second, third = version.files()
    ahead.start(version, version.rows([first, second]), ["n", "id"])
    for files in ([first], [second, first], []):
        read = (pa.concat_tables([ROWS, ROWS]).select(["n", "id"]), len(files) < 2)
        assert ahead.take_rows(version, files, ["n", "id"]) == read
    assert ahead.take_rows(version, [first, third], ["n", "id"]) is None


def test_other_rows_than_those_that_are_wanted(ahead: ReadAhead, version: TableVersion, tmp_path: Path) -> None:
    """Of another version, of other columns, or of a refresh that is over."""
    ahead.start(version, version.rows(), ["n", "id"])
    assert ahead.take_rows(version, version.files(), ["id", "city"]) is None
    same = TableVersion(DeltaTable(tmp_path), LocalFolder(tmp_path))
    assert ahead.take_rows(same, same.files(), ["n", "id"]) is None
    ahead.release()
    assert ahead.take_rows(version, version.files(), ["n", "id"]) is None


def test_files_that_are_gone(ahead: ReadAhead, version: TableVersion, tmp_path: Path) -> None:
    """That is said to who wants their rows, and to nobody else."""
    (tmp_path / version.files()[0].relative_path).unlink()
    coming = ahead.start(version, version.rows(), ["id"])
    with pytest.raises(FileNotFoundError):
        coming.result()
    with pytest.raises(FileNotFoundError):
        ahead.take_rows(version, version.files(), ["id"])
    ahead.release()
