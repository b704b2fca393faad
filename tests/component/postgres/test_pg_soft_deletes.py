"""Soft deletes in PostgreSQL: the view of living rows, and existing tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, apply_write, fetch_rows, make_table, open_sink

from replicator.domain.errors import ReplicatorError
from replicator.domain.policy.late_changes import HORIZON_COUNT
from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres

ROWS = "SELECT id, v, _cdc_op, _cdc_deleted, _cdc_deleted_at IS NOT NULL FROM mirror.items ORDER BY 1"
LIVING = "SELECT id, v FROM mirror.items_living ORDER BY 1"
WHEN = datetime.fromtimestamp(1_700_000_000, UTC)


def feed() -> LaneWrites:
    return LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}), shape=RowTransforms(soft_deletes=True))


def test_view_of_living_rows_follows_column_changes(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
        apply_write(sink, stream.write({"id": 1, "_op": "d", "v": "not this"}, {"id": 9, "_op": "d"}))
        assert fetch_rows(postgres_dsn, LIVING) == [(2, "b")]
        assert fetch_rows(postgres_dsn, ROWS) == [(1, "a", "d", True, True), (2, "b", "u", False, False)]
        assert fetch_rows(postgres_dsn, "SELECT _cdc_deleted_at FROM mirror.items WHERE id = 1") == [(WHEN,)]
        stream.table = make_table({"id": pa.int64(), "v": pa.string(), "w": pa.int32()})
        apply_write(sink, stream.write({"id": 1, "v": "c", "w": 5}))
        apply_write(sink, stream.write({"_op": "t"}))
        apply_write(sink, stream.write({"id": 3, "v": "d", "w": 6}))
    assert fetch_rows(postgres_dsn, "SELECT id, v, w FROM mirror.items_living") == [(3, "d", 6)]
    assert [row[:4] for row in fetch_rows(postgres_dsn, ROWS)] == [
        (1, "c", "u", True),
        (2, "b", "u", True),
        (3, "d", "u", False),
    ]


def test_deleted_row_does_not_complete_later_partial_updates(postgres_dsn):
    """A delete keeps the stored values, also after a partial update in its batch. A later partial update is rejected."""
    stream, rejects = feed(), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        apply_write(sink, stream.write({"id": 1, "_unsent": ["v"]}, {"id": 1, "_op": "d"}))
        apply_write(sink, stream.write({"id": 1, "_unsent": ["v"]}), rejects)
    assert fetch_rows(postgres_dsn, ROWS) == [(1, "a", "d", True, True)]
    assert [key for _, key, _ in rejects] == [1]


def test_existing_rows_live_until_a_delete_or_truncate(postgres_dsn):
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, v text)")
    fetch_rows(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 'a'), (2, 'b')")
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "_op": "d"}))
        assert fetch_rows(postgres_dsn, LIVING) == [(2, "b")]
        apply_write(sink, stream.write({"_op": "t"}))
    assert fetch_rows(postgres_dsn, LIVING) == []
    assert [row[:2] for row in fetch_rows(postgres_dsn, ROWS)] == [(1, "a"), (2, "b")]


def test_drop_deletes_the_view_of_living_rows(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        assert ("view", "mirror.items_living") in [(b.what, b.where) for b in sink.list_artifacts(stream.lane)]
        sink.drop(stream.lane)
    assert fetch_rows(postgres_dsn, "SELECT to_regclass('mirror.items'), to_regclass('mirror.items_living')") == [
        (None, None)
    ]


def test_rule_of_the_plan_names_soft_deletes():
    hard = LaneWrites(feed().table)
    assert hard.plan.rule == "scd1 by id"
    assert feed().plan.rule == "scd1 with soft deletes by id"


HOUR = timedelta(hours=1)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class RetainedFeed(LaneWrites):
    """A feed whose deletes are remembered for 16 hours."""

    hour = 0.0

    @property
    def plan(self):
        return replace(super().plan, retention=HORIZON_COUNT * HOUR)

    def write(self, *rows, op="u"):
        return replace(super().write(*rows, op=op), at=BEGINNING + self.hour * HOUR)


def make_retained_feed() -> RetainedFeed:
    return RetainedFeed(make_table({"id": pa.int64(), "v": pa.string()}), shape=RowTransforms(soft_deletes=True))


def test_existing_rows_expire_after_a_delete_or_truncate(postgres_dsn):
    """They never had a sequence."""
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, v text)")
    fetch_rows(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 'a'), (2, 'b')")
    stream = make_retained_feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "_op": "d"}))
        stream.hour = 5
        apply_write(sink, stream.write({"_op": "t"}))
        for hour, there in ((16, [1, 2]), (18, [2]), (21, [2]), (22, [])):
            stream.hour = hour + 0.5
            apply_write(sink, stream.write({"id": 3, "v": "c"}))
            assert [row[0] for row in fetch_rows(postgres_dsn, ROWS)] == [*there, 3]


def test_referenced_row_that_expires_stops_the_lane(postgres_dsn):
    """Nothing is lost: the lane continues after the reference was dropped."""
    stream = make_retained_feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        apply_write(sink, stream.write({"id": 1, "_op": "d"}))
        fetch_rows(postgres_dsn, "CREATE TABLE mirror.notes (item bigint REFERENCES mirror.items)")
        fetch_rows(postgres_dsn, "INSERT INTO mirror.notes VALUES (1)")
        stream.hour = 20
        write = stream.write({"id": 2, "v": "b"})
        with pytest.raises(ReplicatorError, match="notes"):
            apply_write(sink, write)
        assert [row[0] for row in fetch_rows(postgres_dsn, ROWS)] == [1]
        fetch_rows(postgres_dsn, "DROP TABLE mirror.notes")
        apply_write(sink, write)
        assert [row[0] for row in fetch_rows(postgres_dsn, ROWS)] == [2]
