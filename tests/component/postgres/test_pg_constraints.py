"""Constraints between rows: the target equals the source for any cut of batches and any order of lanes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import RowsWait

pytestmark = pytest.mark.postgres

TABLE = make_table({"id": pa.int64(), "c": pa.string(), "p": pa.int64()})
UNIQUE = {
    "unique": "c text UNIQUE",
    "not null": "c text NOT NULL UNIQUE",
    "deferrable": "c text UNIQUE DEFERRABLE",
    "index on an expression": "c text, EXCLUDE USING btree (lower(c) WITH =)",
}


def row(number: int, c: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "c": c, "p": None, **more}


@pytest.mark.parametrize("constraint", UNIQUE.values(), ids=UNIQUE)
def test_rows_can_swap_unique_values(postgres_dsn: str, constraint: str) -> None:
    """Two rows swap values, three rows rotate them, and a new row takes the value of a deleted one. A row that violates
    the constraint is rejected alone. Columns of others keep their values, and children keep their parents."""
    fetch_rows(
        postgres_dsn,
        f"CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, {constraint}, p bigint, own text); "
        "CREATE TABLE mirror.children (item bigint REFERENCES mirror.items); ",
    )
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(*(row(n, f"v{n}") for n in range(1, 9))))
        fetch_rows(postgres_dsn, "UPDATE mirror.items SET own = 'mine' || id; INSERT INTO mirror.children VALUES (1), (3)")
        changes = [row(1, "v2"), row(2, "v1"), row(3, "v4"), row(4, "v5"), row(5, "v3"), row(9, "v6"), row(6, "", _op="d")]
        apply_write(sink, feed.write(*changes))
        expected = [(1, "v2"), (2, "v1"), (3, "v4"), (4, "v5"), (5, "v3"), (7, "v7"), (8, "v8"), (9, "v6")]
        assert fetch_rows(postgres_dsn, "SELECT id, c FROM mirror.items ORDER BY id") == expected
        apply_write(sink, feed.write(row(1, "v1"), row(2, "v2"), row(7, "v8")), rejects)
        assert fetch_rows(postgres_dsn, "SELECT id, c FROM mirror.items WHERE id IN (1, 2, 7) ORDER BY id") == [
            (1, "v1"),
            (2, "v2"),
            (7, "v7"),
        ]
        assert [key for _, key, _ in rejects] == [7] and "waits until another row" in rejects[0][2]
        assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items WHERE own = 'mine' || id") == [(7,)]
        assert fetch_rows(postgres_dsn, "SELECT item FROM mirror.children ORDER BY 1") == [(1,), (3,)]


def test_swap_that_would_cascade_deletes_is_rejected(postgres_dsn: str) -> None:
    fetch_rows(
        postgres_dsn,
        "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, c text UNIQUE, p bigint); "
        "CREATE TABLE mirror.children (item bigint REFERENCES mirror.items ON DELETE CASCADE)",
    )
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(row(1, "a"), row(2, "b")))
        fetch_rows(postgres_dsn, "INSERT INTO mirror.children VALUES (1)")
        apply_write(sink, feed.write(row(1, "b"), row(2, "a")), rejects)
        assert len(rejects) == 2 and fetch_rows(postgres_dsn, "SELECT item FROM mirror.children") == [(1,)]


@pytest.mark.parametrize("deferrable", ["", "DEFERRABLE"])
def test_foreign_keys_work_in_any_order_of_lanes(postgres_dsn: str, deferrable: str) -> None:
    """Children come before their parents, and parents are deleted before their children. Rows refer to later rows of
    their table. A truncate empties both tables. Each call applies all its rows."""
    parents, children = (LaneWrites(TABLE, make_pg_lane(name)) for name in ("parents", "items"))
    for number, order in enumerate(itertools.product((False, True), repeat=3)):
        fetch_rows(
            postgres_dsn,
            "DROP SCHEMA IF EXISTS mirror CASCADE; DROP SCHEMA IF EXISTS _replicator CASCADE; CREATE SCHEMA mirror; "
            "CREATE TABLE mirror.parents (id bigint PRIMARY KEY, c text, p bigint); "
            f"CREATE TABLE mirror.items (id bigint PRIMARY KEY, c text REFERENCES mirror.parents (c) {deferrable}, "
            f"p bigint REFERENCES mirror.items {deferrable})".replace("p bigint);", "p bigint, UNIQUE (c));"),
        )
        parents, children = (LaneWrites(TABLE, make_pg_lane(name)) for name in ("parents", "items"))
        with open_sink(postgres_dsn) as sink:
            for feed in (parents, children):
                sink.prepare(feed.lane, feed.plan)

            def both(*writes: Any, swapped: bool, sink: Any = sink) -> None:
                sink.apply(writes[::-1] if swapped else writes, CollectedRejects())

            first = [row(n, f"v{n % 2}", p=n + 1 if n < 8 else None) for n in range(1, 9)]
            first.append(row(9, "v1", p=999))  # The database always refuses it, so the other rows are tried in parts.
            both(children.write(*first), parents.write(row(1, "v1"), row(2, "v0")), swapped=order[0])
            assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items") == [(8,)], number
            gone = [row(n, "", _op="d") for n in range(1, 9)]
            both(parents.write(row(1, "", _op="d")), children.write(*gone[:7]), swapped=order[1])
            assert fetch_rows(postgres_dsn, "SELECT count(*) FROM mirror.items") == [(1,)], number
            cut = {"_op": "t"}
            both(parents.write(cut), children.write(cut), swapped=order[2])
            assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.parents UNION ALL SELECT id FROM mirror.items") == [], (
                number
            )


def test_rows_wait_for_referenced_rows_of_another_call(postgres_dsn: str) -> None:
    """While the write may wait, nothing of it is committed. After that its rows are rejected, and the error names the
    missing row's table."""
    fetch_rows(
        postgres_dsn,
        "CREATE SCHEMA mirror; CREATE TABLE mirror.parents (id bigint PRIMARY KEY); "
        "CREATE TABLE mirror.items (id bigint PRIMARY KEY, c text, p bigint REFERENCES mirror.parents)",
    )
    feed, rejects = LaneWrites(TABLE), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        write = feed.write(row(1, "a", p=1), row(2, "b"))
        sink.prepare(feed.lane, feed.plan)
        with pytest.raises(RowsWait, match=r"items_p_fkey.*waits for its row of table mirror.parents") as waits:
            sink.apply([replace(write, may_wait=True)], rejects)
        assert waits.value.lanes == (feed.lane.id,)
        assert not rejects and sink.state(feed.lane) is None
        apply_write(sink, write, rejects)
        assert [key for _, key, _ in rejects] == [1] and "waits for its row of table mirror.parents" in rejects[0][2]
        assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items") == [(2,)]
