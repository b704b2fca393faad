"""Files of which the log says so much that it is known what reading them takes."""

from __future__ import annotations

import pytest

from adapters.delta.data_files import FEW_BYTES, FEW_ROWS, Bounds, DataFile, are_few


def file(size: int, rows: int | None) -> DataFile:
    return DataFile(f"{size}.parquet", size, {}, Bounds(rows))


@pytest.mark.parametrize(
    ("files", "few"),
    [
        ([], True),
        ([file(FEW_BYTES, FEW_ROWS)], True),
        ([file(FEW_BYTES, 1), file(1, 1)], False),
        ([file(1, FEW_ROWS), file(1, 1)], False),
        ([file(1, 1), file(1, None)], False),
    ],
)
def test_few_rows_in_few_bytes(files: list[DataFile], few: bool) -> None:
    """Both are counted of all together; rows that nobody has counted may be many."""
    assert are_few(files) == few
