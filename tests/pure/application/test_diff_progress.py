"""The progress of a comparison, and the ranges that remain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.application.operations.diff import skip_ranges
from replicator.application.operations.diff_runs import LONGEST, DiffProgressFile, UnfinishedDiff
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Lane
from replicator.ports.reads import KeyRange

LANE = Lane("lake.items", "p", "s", "public.items", "lake", "items", "scd1")
KEYS = pa.table({"id": [1, 2]})


def make_progress(age: timedelta = timedelta(0)) -> UnfinishedDiff:
    before = Position({TopicPartition("items", 0): 7})
    return UnfinishedDiff(before, 40, 39, KEYS, "0/7", datetime.now(UTC) - age, "hash")


def test_progress_is_read_by_the_next_comparison(tmp_path: Path) -> None:
    with DiffProgressFile(tmp_path, LANE) as file:
        assert file.read() is None
        file.write(make_progress())
    with DiffProgressFile(tmp_path, LANE) as file:
        found = file.read()
        assert found is not None
        assert (found.before, found.upto, found.compared, found.keys.to_pylist()) == (
            make_progress().before,
            40,
            "hash",
            KEYS.to_pylist(),
        )
        file.write(make_progress(LONGEST))
        assert file.read() is None, "too old"
        file.write(make_progress())
        file.remove()
        assert file.read() is None


def test_second_comparison_at_the_same_time_stores_no_progress(tmp_path: Path) -> None:
    with DiffProgressFile(tmp_path, LANE) as first, DiffProgressFile(tmp_path, LANE) as second:
        first.write(make_progress())
        assert second.read() is None
        second.write(make_progress(LONGEST))
        second.remove()
        assert first.read() is not None


@pytest.mark.parametrize(
    ("ranges", "upto", "left"),
    [
        ([], None, [None]),
        ([], 5, [KeyRange("id", 5, None)]),
        ([KeyRange("id", None, 4), KeyRange("id", 4, None)], None, [KeyRange("id", None, 4), KeyRange("id", 4, None)]),
        ([KeyRange("id", None, 4), KeyRange("id", 4, None)], 4, [KeyRange("id", 4, None)]),
        ([KeyRange("id", None, 4), KeyRange("id", 4, None)], 2, [KeyRange("id", 2, 4), KeyRange("id", 4, None)]),
    ],
)
def test_remaining_ranges(ranges: list[KeyRange], upto: int | None, left: list[KeyRange | None]) -> None:
    """Also for a run with another rate, which has other ranges or none."""
    assert list(skip_ranges(ranges, "id", upto)) == left
