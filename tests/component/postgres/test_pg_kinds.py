"""Targets that are not ordinary tables."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from adapters.postgres.ddl import _describe_fault
from replicator.domain.errors import ConfigProblem

pytestmark = pytest.mark.postgres

BASE = "CREATE SCHEMA mirror; CREATE TABLE mirror.base (id bigint PRIMARY KEY, v text)"
MERGED = [
    ("CREATE MATERIALIZED VIEW mirror.items AS SELECT * FROM mirror.base", "is a materialized view"),
    ("CREATE SEQUENCE mirror.items", "is a sequence"),
    (
        "CREATE TABLE mirror.items (id bigint PRIMARY KEY, v text); "
        "CREATE RULE r AS ON DELETE TO mirror.items DO INSTEAD NOTHING",
        "has a rewrite rule",
    ),
]


@pytest.mark.parametrize(("statement", "words"), MERGED, ids=[words for _, words in MERGED])
def test_target_that_cannot_be_merged_into_is_refused(postgres_dsn: str, statement: str, words: str) -> None:
    feed = LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}))
    fetch_rows(postgres_dsn, f"{BASE}; {statement}")
    with open_sink(postgres_dsn) as sink, pytest.raises(ConfigProblem, match=rf"mirror\.items {words}.*`into`"):
        apply_write(sink, feed.write({"id": 1, "v": "x"}))


def test_append_lane_writes_into_a_view(postgres_dsn: str) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()})
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, LaneWrites(table, make_pg_lane("items", "append")).write({"id": 1, "v": "x"}))
        fetch_rows(postgres_dsn, "CREATE VIEW mirror.seen AS SELECT * FROM mirror.items")
        feed = LaneWrites(table, make_pg_lane("seen", "append"))
        feed.write({"id": 1, "v": "x"})  # The table has this record already.
        apply_write(sink, feed.write({"id": 2, "v": "y"}))
    assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("kind", "version", "rules", "merges", "words"),
    [
        ("v", 160_000, False, True, "is a view"),
        ("v", 170_000, False, True, ""),
        ("v", 160_000, False, False, ""),
        ("f", 180_000, False, True, "is a foreign table"),
        ("f", 150_000, False, False, ""),
        ("m", 180_000, False, False, "is a materialized view"),
        ("r", 180_000, True, True, "rule"),
        ("r", 150_000, True, False, ""),
        ("p", 150_000, False, True, ""),
    ],
)
def test_faults_depend_on_kind_server_version_and_rules(
    kind: str, version: int, rules: bool, merges: bool, words: str
) -> None:
    fault = _describe_fault(kind, version, rules, merges=merges)
    assert words in fault and bool(words) == bool(fault)
