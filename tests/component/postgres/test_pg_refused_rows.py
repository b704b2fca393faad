"""Rows that the database refuses are rejected with a reason, and all others are applied."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.pg_case import TOPIC, CollectedRejects, LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import Reject, RejectCode

pytestmark = pytest.mark.postgres

TABLE = make_table({"id": pa.int64(), "name": pa.string(), "n": pa.int64()})


def create_items(dsn: str, columns: str) -> None:
    fetch_rows(dsn, f"CREATE SCHEMA mirror; CREATE TABLE mirror.items ({columns})")


def read_ids(dsn: str) -> list[int]:
    return [row[0] for row in fetch_rows(dsn, "SELECT id FROM mirror.items ORDER BY id")]


@pytest.mark.parametrize(
    ("columns", "bad", "reason"),
    [
        ("id bigint PRIMARY KEY, name text, n bigint CHECK (n < 10)", {"n": 11}, "items_n_check"),
        ("id bigint PRIMARY KEY, name text NOT NULL, n bigint", {"name": None}, "column 'name'"),
        ("id bigint PRIMARY KEY, name text UNIQUE, n bigint", {"name": "name 0"}, "items_name_key"),
        ("id bigint PRIMARY KEY, name varchar(8), n bigint", {"name": "much too long"}, "column 'name'"),
        ("id bigint PRIMARY KEY, name char(8), n bigint", {"name": "too long "}, "column 'name'"),
        ("id bigint PRIMARY KEY, name uuid, n bigint", {"name": "no uuid", "_others": None}, "column 'name'"),
        ("id bigint PRIMARY KEY, name jsonb, n bigint", {"name": "{no json", "_others": None}, "column 'name'"),
        ("id bigint PRIMARY KEY, name text, n smallint", {"n": 100_000}, "column 'n'"),
        ("id bigint PRIMARY KEY, name text, n numeric(4,1)", {"n": 12_345}, "column 'n'"),
        ("id bigint PRIMARY KEY, name text, n bigint REFERENCES mirror.parents", {"n": 9}, "items_n_fkey"),
        (
            "id bigint PRIMARY KEY, name text, n bigint REFERENCES mirror.parents DEFERRABLE INITIALLY DEFERRED",
            {"n": 9},
            "n_fkey",
        ),
        ("id bigint PRIMARY KEY, name text, n bigint", {"name": "a\0b"}, "column 'name'"),
    ],
)
@pytest.mark.parametrize("size", [1, 40])
def test_refused_row_is_rejected_with_its_column_or_constraint(
    emptied_dsn: str, columns: str, bad: dict, reason: str, size: int
) -> None:
    fetch_rows(
        emptied_dsn,
        "CREATE SCHEMA mirror; CREATE TABLE mirror.parents (id bigint PRIMARY KEY); INSERT INTO mirror.parents VALUES (1)",
    )
    fetch_rows(emptied_dsn, f"CREATE TABLE mirror.items ({columns})")
    others = "_others" in bad
    rows = [{"id": i, "name": None if others else f"name {i}", "n": 1} for i in range(size)]
    row = {"id": 1000, "name": "fine", "n": 1, **{k: v for k, v in bad.items() if k != "_others"}}
    rows.insert(size // 2 + 1, row)
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(emptied_dsn) as sink:
        counts = apply_write(sink, feed.write(*rows), rejects).counts
        assert (counts.applied, counts.rejected) == (size, 1)
        ((lane, key, error),) = rejects
        assert (lane, key) == ("pg.items", 1000)
        assert Reject.parse(error).code == RejectCode.OUT_OF_RANGE
        assert reason in error
        assert not any(str(value) in error for value in bad.values() if isinstance(value, str))
        assert read_ids(emptied_dsn) == list(range(size))
        assert dict(sink.state(feed.lane).position) == {TOPIC: size + 1}


def test_refused_rows_do_not_affect_another_lane(emptied_dsn: str) -> None:
    create_items(emptied_dsn, "id bigint PRIMARY KEY, name text, n bigint CHECK (n % 7 <> 0)")
    rejects = CollectedRejects()
    good, bad = LaneWrites(TABLE, make_pg_lane("good")), LaneWrites(TABLE)
    with open_sink(emptied_dsn) as sink:
        for feed in (good, bad):
            sink.prepare(feed.lane, feed.plan)
        rows = [{"id": i, "name": "x", "n": i} for i in range(100)]
        applied = sink.apply([good.write(*rows), bad.write(*rows)], rejects)
        assert applied["pg.good"].counts.applied == 100
        assert applied["pg.items"].counts.rejected == 15
        assert read_ids(emptied_dsn) == [i for i in range(100) if i % 7]
        assert fetch_rows(emptied_dsn, "SELECT count(*) FROM mirror.good") == [(100,)]


def test_refused_row_does_not_affect_completed_rows(emptied_dsn: str) -> None:
    """Partial updates around a refused row are completed from the target."""
    create_items(emptied_dsn, "id bigint PRIMARY KEY, name text, n bigint CHECK (n < 10)")
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(emptied_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "name": "kept", "n": 1}, {"id": 2, "name": "too", "n": 2}))
        partial = [
            {"id": 1, "n": 3, "_unsent": ["name"]},
            {"id": 2, "n": 30, "_unsent": ["name"]},
            {"id": 3, "name": "new", "n": 1},
        ]
        assert apply_write(sink, feed.write(*partial), rejects).counts.applied == 2
        assert [key for _, key, _ in rejects] == [2]
        assert fetch_rows(emptied_dsn, "SELECT id, name, n FROM mirror.items ORDER BY id") == [
            (1, "kept", 3),
            (2, "too", 2),
            (3, "new", 1),
        ]


def test_refused_delete_leaves_no_tombstone(emptied_dsn: str) -> None:
    """A foreign key forbids the delete, so it is rejected."""
    create_items(emptied_dsn, "id bigint PRIMARY KEY, name text, n bigint")
    fetch_rows(emptied_dsn, "CREATE TABLE mirror.children (item bigint REFERENCES mirror.items)")
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(emptied_dsn) as sink:
        apply_write(sink, feed.write(*({"id": i, "name": "x", "n": 1} for i in range(3))))
        fetch_rows(emptied_dsn, "INSERT INTO mirror.children VALUES (1)")
        counts = apply_write(sink, feed.write({"id": 0}, {"id": 1}, {"id": 2}, op="d"), rejects).counts
        assert (counts.applied, counts.rejected) == (2, 1)
        assert "children_item_fkey" in rejects[0][2]
        assert read_ids(emptied_dsn) == [1]
        (table,) = fetch_rows(emptied_dsn, "SELECT format('_replicator.tombstones_%s', id) FROM _replicator.positions")[0]
        assert fetch_rows(emptied_dsn, f"SELECT id FROM {table} ORDER BY id") == [(0,), (2,)]


def test_refused_row_is_not_logged(emptied_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    create_items(emptied_dsn, "id bigint PRIMARY KEY, name text, n bigint CHECK (n < 10)")
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(emptied_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "name": "x", "n": 11}, {"id": 2, "name": "y", "n": 1}), rejects)
    assert len(rejects) == 1 and not [r for r in caplog.records if r.name == "psycopg"]


def test_json_with_many_levels_is_written_or_rejected(postgres_dsn: str) -> None:
    """The server reads some thousand levels: more than Python."""
    feed = LaneWrites(make_table({"id": pa.int32(), "v": pa.string()}, v="io.debezium.data.Json"))
    deep, too_deep = ("[" * levels + "]" * levels for levels in (2_000, 100_000))
    rejects = CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        assert apply_write(sink, feed.write({"id": 1, "v": deep}, {"id": 2, "v": "1"})).counts.applied == 2
        counts = apply_write(sink, feed.write({"id": 3, "v": too_deep}, {"id": 4, "v": "1"}), rejects).counts
    assert (counts.applied, counts.rejected) == (1, 1)
    assert [key for _, key, _ in rejects] == [3]
    assert fetch_rows(postgres_dsn, "SELECT id, length(v::text) FROM mirror.items ORDER BY 1") == [
        (1, 4_000),
        (2, 1),
        (4, 1),
    ]
