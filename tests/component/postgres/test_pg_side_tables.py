"""Tombstone tables follow the key of the target and the policy of its lane."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres


WIDE = {"id": pa.int64(), "at": pa.int64(), "v": pa.string()}


def test_tombstones_follow_a_widened_key(postgres_dsn):
    stream = LaneWrites(make_table({"id": pa.int32(), "v": pa.string()}))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}, {"id": 2, "_op": "d"}))
    fetch_rows(postgres_dsn, "ALTER TABLE mirror.items ALTER COLUMN id TYPE bigint")
    stream.table = make_table({"id": pa.int64(), "v": pa.string()})
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 2**40, "v": "b"}))
        apply_write(sink, stream.write({"id": 2**40, "_op": "d"}))
        apply_write(sink, stream.write({"id": 2**40, "v": "late", "_seq_1": 3, "_seq_2": 0}))
    assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items") == [(1,)]
    assert fetch_rows(postgres_dsn, "SELECT count(*) FROM _replicator.tombstones_1") == [(2,)]


@pytest.mark.parametrize(
    ("policy", "keys", "shape"),
    [
        ("scd1", ("id",), RowTransforms(sequence_by=("at",))),
        ("scd1", ("id",), RowTransforms(has_column_versions=True)),
        ("scd1", ("id", "at"), RowTransforms()),
        ("scd2", ("id",), RowTransforms()),
    ],
    ids=["sequence", "columns", "key", "history"],
)
def test_lane_may_have_another_rule_after_a_reset(postgres_dsn, policy, keys, shape):
    """Tombstone tables are created again with the columns of the new rule."""
    stream = LaneWrites(make_table(WIDE))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "at": 1, "v": "a"}, {"id": 2, "at": 1, "_op": "d"}))
        sink.reset(stream.lane)
    if policy == "scd2":
        fetch_rows(postgres_dsn, "DROP TABLE mirror.items")
    other = LaneWrites(make_table(WIDE, keys), make_pg_lane(policy=policy), shape=shape)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, other.write({"id": 1, "at": 1, "v": "a"}, {"id": 2, "at": 2, "v": "b"}))
        apply_write(sink, other.write({"id": 1, "at": 3 if "at" not in keys else 1, "_op": "d"}))
        apply_write(sink, other.write({"id": 2, "at": 4 if "at" not in keys else 2, "v": "c"}))
    visible = "SELECT id, v FROM mirror.items" + (" WHERE _cdc_end_seq_1 IS NULL" if policy == "scd2" else "")
    assert fetch_rows(postgres_dsn, visible) == [(2, "c")]
