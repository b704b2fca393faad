"""Tables that their owner altered are read again when the lane is prepared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest
from support.pg_case import (
    LaneWrites,
    apply_write,
    fetch_rows,
    make_pg_lane,
    make_table,
    open_sink,
    refuse_any_reject,
)

from replicator.domain.errors import DataLoss, Fatal

pytestmark = pytest.mark.postgres


def test_widened_column_accepts_wider_values(postgres_dsn: str) -> None:
    feed = LaneWrites(make_table({"id": pa.int32(), "v": pa.int64()}))
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id integer PRIMARY KEY, v integer)")
    with open_sink(postgres_dsn) as sink:
        assert apply_write(sink, feed.write({"id": 1, "v": 7})).counts.applied == 1
        fetch_rows(postgres_dsn, "ALTER TABLE mirror.items ALTER COLUMN v TYPE bigint")
        assert apply_write(sink, feed.write({"id": 1, "v": 2**40})).counts.applied == 1
    assert fetch_rows(postgres_dsn, "SELECT v FROM mirror.items") == [(2**40,)]


def test_dropped_table_is_data_loss_until_the_lane_is_reset(postgres_dsn: str) -> None:
    feed = LaneWrites(make_table({"id": pa.int32(), "v": pa.int64()}))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "v": 7}))
    fetch_rows(postgres_dsn, "DROP TABLE mirror.items")
    with open_sink(postgres_dsn) as sink:
        with pytest.raises(DataLoss, match=r"table mirror\.items does not exist any more") as gone:
            apply_write(sink, feed.write({"id": 2, "v": 7}))
        assert "replicator lanes resync pg.items" in str(gone.value.next_step)
        assert fetch_rows(postgres_dsn, "SELECT to_regclass('mirror.items')") == [(None,)]
        sink.reset(feed.lane)
        feed.offset = 0
        apply_write(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
    assert fetch_rows(postgres_dsn, "SELECT id, v FROM mirror.items ORDER BY id") == [(1, 7), (2, 8)]


BY_HAND = ("TRUNCATE mirror.items", "DROP TABLE mirror.items CASCADE; ALTER TABLE kept.items SET SCHEMA mirror")


@pytest.mark.parametrize("by_hand", BY_HAND, ids=["truncated", "created again"])
def test_emptied_table_is_data_loss_until_the_lane_is_reset(postgres_dsn: str, by_hand: str) -> None:
    """The lane stops while it runs and at its next start. It continues if the table was rewritten or restored with its
    rows."""
    feed = LaneWrites(make_table({"id": pa.int64(), "name": pa.string()}))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "name": "a"}))
        fetch_rows(postgres_dsn, "CREATE SCHEMA kept")
        for rewritten in (
            "VACUUM FULL mirror.items",
            "TRUNCATE mirror.items; INSERT INTO mirror.items SELECT * FROM kept.items",
        ):
            fetch_rows(postgres_dsn, "CREATE TABLE kept.items AS TABLE mirror.items")
            fetch_rows(postgres_dsn, rewritten)
            apply_write(sink, feed.write({"id": 2, "name": "b"}))
            fetch_rows(postgres_dsn, "DROP TABLE kept.items")
        fetch_rows(postgres_dsn, "CREATE TABLE kept.items (LIKE mirror.items INCLUDING ALL)")
        fetch_rows(postgres_dsn, by_hand)
        write = feed.write({"id": 3, "name": "c"})
        with pytest.raises(DataLoss, match=r"mirror\.items was truncated, or dropped and created again.*lanes resync"):
            apply_write(sink, write)
    with open_sink(postgres_dsn) as sink:
        with pytest.raises(DataLoss, match="was truncated"):
            apply_write(sink, write)
        sink.reset(feed.lane)
        feed.offset = 0
        apply_write(sink, feed.write({"id": 1, "name": "a"}))
        assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items") == [(1,)]


@pytest.mark.parametrize("by_hand", BY_HAND, ids=["truncated", "created again"])
@pytest.mark.parametrize("policy", ["scd1", "scd2", "append"])
def test_table_that_is_emptied_within_a_write_is_data_loss(postgres_dsn: str, policy: str, by_hand: str) -> None:
    """The change is open when the write begins, and is committed when the write waits for it."""
    feed = LaneWrites(make_table({"id": pa.int64(), "name": pa.string()}), make_pg_lane(policy=policy))
    waiting = (
        "SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE datname = current_database() AND locktype = 'relation' AND NOT granted"
    )
    with open_sink(postgres_dsn) as sink, ThreadPoolExecutor() as pool:
        apply_write(sink, feed.write({"id": 1, "name": "a"}))
        fetch_rows(postgres_dsn, "CREATE SCHEMA kept; CREATE TABLE kept.items (LIKE mirror.items INCLUDING ALL)")
        with psycopg.connect(postgres_dsn) as connection:
            connection.execute(by_hand.encode())
            writing = pool.submit(sink.apply, [feed.write({"id": 2, "name": "b"})], refuse_any_reject)
            while not fetch_rows(postgres_dsn, waiting) and not writing.done():
                pass
            connection.commit()
        with pytest.raises(DataLoss, match=r"mirror\.items was truncated, or dropped and created again"):
            writing.result()
    assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items") == []


@pytest.mark.parametrize("policy", ["scd1", "append"])
def test_table_that_is_dropped_between_two_writes_is_named_with_the_next_step(postgres_dsn: str, policy: str) -> None:
    feed = LaneWrites(make_table({"id": pa.int64(), "name": pa.string()}), make_pg_lane(policy=policy))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "name": "a"}))
        fetch_rows(postgres_dsn, "DROP TABLE mirror.items")
        with pytest.raises(Fatal, match=r'relation "mirror\.items" does not exist \(SQLSTATE 42P01\).*lanes resync'):
            sink.apply([feed.write({"id": 2, "name": "b"})], refuse_any_reject)
