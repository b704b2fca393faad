"""Paths of data files from the URLs in a table's log, relative or absolute."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.delta.folders import LocalFolder
from adapters.delta.stored_folder import StoredFolder
from adapters.object_store.options import Storage


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("topic=a%2523b/p.parquet", "s3://lake/log/topic=a%23b/p.parquet"),
        ("s3://other/x/p%23%3F1.parquet", "s3://other/x/p#?1.parquet"),
    ],
)
def test_url_of_a_data_file_in_an_object_store(url: str, path: str) -> None:
    assert str(StoredFolder.from_path("s3://lake/log", Storage(region="eu-west-1")).locate(url, 3)) == path


@pytest.mark.parametrize(
    ("url", "path"), [("a%20b/p.parquet", "/log/a b/p.parquet"), ("file:///x/p%23.parquet", "/x/p#.parquet")]
)
def test_url_of_a_data_file_on_disk(url: str, path: str) -> None:
    assert LocalFolder("/log").locate(url, 3) == Path(path)
