"""A target that its owner alters while the lane rests is read anew when the lane is prepared again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pg_case import Feed, fetch, opened, put, table_of

from replicator.domain.errors import DataLoss

pytestmark = pytest.mark.postgres


def test_a_column_that_was_widened_takes_the_wider_values(postgres_dsn: str) -> None:
    feed = Feed(table_of({"id": pa.int32(), "v": pa.int64()}))
    fetch(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id integer PRIMARY KEY, v integer)")
    with opened(postgres_dsn) as sink:
        assert put(sink, feed.write({"id": 1, "v": 7})).counts.applied == 1
        fetch(postgres_dsn, "ALTER TABLE mirror.items ALTER COLUMN v TYPE bigint")
        assert put(sink, feed.write({"id": 1, "v": 2**40})).counts.applied == 1
    assert fetch(postgres_dsn, "SELECT v FROM mirror.items") == [(2**40,)]


def test_a_table_that_was_dropped_is_not_made_again_empty(postgres_dsn: str) -> None:
    feed = Feed(table_of({"id": pa.int32(), "v": pa.int64()}))
    with opened(postgres_dsn) as sink:
        put(sink, feed.write({"id": 1, "v": 7}))
    fetch(postgres_dsn, "DROP TABLE mirror.items")
    with opened(postgres_dsn) as sink:
        with pytest.raises(DataLoss, match=r"table mirror\.items is gone") as gone:
            put(sink, feed.write({"id": 2, "v": 7}))
        assert "replicator lanes resync pg.items" in str(gone.value.next_step)
        assert fetch(postgres_dsn, "SELECT to_regclass('mirror.items')") == [(None,)]
        sink.reset(feed.lane)
        feed.offset = 0
        put(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
    assert fetch(postgres_dsn, "SELECT id, v FROM mirror.items ORDER BY id") == [(1, 7), (2, 8)]
