"""Journals of snapshots, queries and backfills: the same records on Spark as in process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recorded_journals import OPEN, RECORDS, copy_journal, read_records
from support.spark_case import OPTIONS, get_spark_engine

from adapters.spark.frames import to_arrow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", OPEN)
def test_records_equal_the_local_ones(tmp_path: Path, name: str) -> None:
    get_spark_engine()
    copy_journal(name, tmp_path)
    assert read_records(OPEN[name](tmp_path, **OPTIONS), to_arrow) == RECORDS[name]
