"""Column versions in PostgreSQL: refused values, existing tables and key types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, apply_write, fetch_rows, make_table, open_sink

from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres

ROWS = "SELECT id, a, b, _cdc_seq_1, _cdc_unsent FROM mirror.items ORDER BY 1"


def feed(key: pa.DataType | None = None, text: pa.DataType | None = None) -> LaneWrites:
    table = make_table({"id": key or pa.int64(), "a": pa.int64(), "b": text or pa.string()})
    return LaneWrites(table, shape=RowTransforms(has_column_versions=True))


def make_partial_update(sequence: int, column: str, value: Any, key: Any = 1) -> dict[str, Any]:
    (other,) = {"a", "b"} - {column}
    return {"id": key, column: value, "_seq_1": sequence, "_unsent": [other]}


def test_late_partial_updates_are_applied_per_column(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "a": 1, "b": "one", "_seq_1": 1}, make_partial_update(9, "a", 9)))
        counts = apply_write(
            sink,
            stream.write(
                make_partial_update(5, "b", "five"), make_partial_update(7, "a", 7), make_partial_update(3, "b", "three")
            ),
        ).counts
    assert fetch_rows(postgres_dsn, ROWS) == [(1, 9, "five", 9, None)]
    assert (counts.applied, counts.superseded, counts.folded) == (1, 2, 0)


def test_refused_value_does_not_affect_other_changes_of_the_row(postgres_dsn):
    """The change with the value is rejected. Other changes of the row in the batch are written."""
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE DOMAIN mirror.short AS text CHECK (length(VALUE) < 4)")
    fetch_rows(postgres_dsn, "CREATE TABLE mirror.items (id bigint PRIMARY KEY, a bigint, b mirror.short)")
    stream, rejects = feed(), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        write = stream.write(
            {"id": 1, "a": 1, "b": "one"}, make_partial_update(5, "b", "far too long"), make_partial_update(6, "a", 6)
        )
        apply_write(sink, write, rejects)
    assert [key for _, key, _ in rejects] == [1]
    assert fetch_rows(postgres_dsn, ROWS) == [(1, 6, "one", 6, None)]


def test_existing_rows_are_older_than_every_change(postgres_dsn):
    """A partial update leaves the other columns, and a truncate clears them."""
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, a bigint, b text)")
    fetch_rows(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')")
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write(make_partial_update(9, "a", 11), make_partial_update(8, "b", "w", key=2)))
        assert fetch_rows(postgres_dsn, ROWS) == [(1, 11, "x", 9, None), (2, 20, "w", 8, None), (3, 30, "z", None, None)]
        apply_write(sink, stream.write({"_op": "t", "_seq_1": 5}))
        apply_write(sink, stream.write(make_partial_update(6, "a", 6, key=2), make_partial_update(4, "b", "v")))
    assert fetch_rows(postgres_dsn, ROWS) == [(1, 11, None, 9, ["b"]), (2, 6, "w", 8, None)]


KEYS = {
    "bytes": (pa.binary(), b"\x00\\x'"),
    "date": (pa.date32(), date(2024, 2, 29)),
    "instant": (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, 4, UTC)),
    "local time": (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 4)),
    "decimal": (pa.decimal128(20, 4), Decimal("12345.6700")),
    "text": (pa.string(), 'it\'s "%s" é'),
    "boolean": (pa.bool_(), True),
    "time": (pa.time64("us"), datetime(2024, 1, 1, 23, 59, 59, 1).time()),
}


def test_late_truncate_reads_keys_of_every_type(postgres_dsn):
    """The key has a column of each type."""
    key, types = {name: value for name, (_, value) in KEYS.items()}, {name: kind for name, (kind, _) in KEYS.items()}
    table = make_table({**types, "a": pa.int64(), "b": pa.string()}, list(KEYS))
    stream, rows = LaneWrites(table, shape=RowTransforms(has_column_versions=True)), ROWS.replace("id, ", "")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"a": 1, "b": "one", "_seq_1": 1} | key, make_partial_update(9, "a", 9) | key))
        apply_write(sink, stream.write({"_op": "t", "_seq_1": 5}))
        assert fetch_rows(postgres_dsn, rows) == [(9, None, 9, ["b"])]
        apply_write(sink, stream.write(make_partial_update(4, "b", "four") | key))
    assert fetch_rows(postgres_dsn, rows) == [(9, None, 9, ["b"])]


def test_reset_clears_the_column_versions(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "a": 1, "b": "one", "_seq_1": 8}, {"id": 2, "_op": "d", "_seq_1": 9}))
        sink.reset(stream.lane)
        apply_write(sink, stream.write(make_partial_update(2, "a", 2), make_partial_update(3, "b", "three", key=2)))
    assert fetch_rows(postgres_dsn, ROWS) == [(1, 2, None, 2, ["b"]), (2, None, "three", 3, ["a"])]
