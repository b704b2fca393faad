"""What soft deletes are in PostgreSQL alone: a view of the living rows, tables that were there before."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pg_case import Feed, Rejects, fetch, opened, put, table_of

from replicator.domain.shape import Shape

pytestmark = pytest.mark.postgres

ROWS = "SELECT id, v, _cdc_op, _cdc_deleted, _cdc_deleted_at IS NOT NULL FROM mirror.items ORDER BY 1"
LIVING = "SELECT id, v FROM mirror.items_living ORDER BY 1"
WHEN = datetime.fromtimestamp(1_700_000_000, UTC)


def feed() -> Feed:
    return Feed(table_of({"id": pa.int64(), "v": pa.string()}), shape=Shape(soft_deletes=True))


def test_the_view_holds_the_living_rows_and_follows_the_columns(postgres_dsn):
    stream = feed()
    with opened(postgres_dsn) as sink:
        put(sink, stream.write({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
        put(sink, stream.write({"id": 1, "_op": "d", "v": "not this"}, {"id": 9, "_op": "d"}))
        assert fetch(postgres_dsn, LIVING) == [(2, "b")]
        assert fetch(postgres_dsn, ROWS) == [(1, "a", "d", True, True), (2, "b", "u", False, False)]
        assert fetch(postgres_dsn, "SELECT _cdc_deleted_at FROM mirror.items WHERE id = 1") == [(WHEN,)]
        stream.table = table_of({"id": pa.int64(), "v": pa.string(), "w": pa.int32()})
        put(sink, stream.write({"id": 1, "v": "c", "w": 5}))
        put(sink, stream.write({"_op": "t"}))
        put(sink, stream.write({"id": 3, "v": "d", "w": 6}))
    assert fetch(postgres_dsn, "SELECT id, v, w FROM mirror.items_living") == [(3, "d", 6)]
    assert [row[:4] for row in fetch(postgres_dsn, ROWS)] == [(1, "c", "u", True), (2, "b", "u", True), (3, "d", "u", False)]


def test_a_marked_row_gives_no_values(postgres_dsn):
    """In its own batch the delete leaves what the table holds; later it is no row to complete another change from."""
    stream, rejects = feed(), Rejects()
    with opened(postgres_dsn) as sink:
        put(sink, stream.write({"id": 1, "v": "a"}))
        put(sink, stream.write({"id": 1, "_unsent": ["v"]}, {"id": 1, "_op": "d"}))
        put(sink, stream.write({"id": 1, "_unsent": ["v"]}), rejects)
    assert fetch(postgres_dsn, ROWS) == [(1, "a", "d", True, True)]
    assert [key for _, key, _ in rejects] == [1]


def test_a_table_that_was_there_before(postgres_dsn):
    """Its rows live, until a truncate; a delete marks them too."""
    fetch(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, v text)")
    fetch(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 'a'), (2, 'b')")
    stream = feed()
    with opened(postgres_dsn) as sink:
        put(sink, stream.write({"id": 1, "_op": "d"}))
        assert fetch(postgres_dsn, LIVING) == [(2, "b")]
        put(sink, stream.write({"_op": "t"}))
    assert fetch(postgres_dsn, LIVING) == []
    assert [row[:2] for row in fetch(postgres_dsn, ROWS)] == [(1, "a"), (2, "b")]


def test_the_view_goes_with_its_table(postgres_dsn):
    stream = feed()
    with opened(postgres_dsn) as sink:
        put(sink, stream.write({"id": 1, "v": "a"}))
        assert ("view", "mirror.items_living") in [(b.what, b.where) for b in sink.belongings(stream.lane)]
        sink.drop(stream.lane)
    assert fetch(postgres_dsn, "SELECT to_regclass('mirror.items'), to_regclass('mirror.items_living')") == [(None, None)]


def test_a_lane_of_the_one_kind_is_not_the_other():
    hard = Feed(feed().table)
    assert hard.plan.rule == "scd1 by id"
    assert feed().plan.rule == "scd1 with soft deletes by id"
