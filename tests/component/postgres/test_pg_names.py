"""Hostile names of tables, columns and schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import ConfigProblem, Fatal

pytestmark = pytest.mark.postgres

HOSTILE = [
    'a"; DROP SCHEMA mirror CASCADE; --',
    "it's",
    "100% of %s %(x)s {0} {x}",
    "with.dot",
    "../../etc/passwd",
    "Ünï☃ 漢字",
    "\u202ertl",
    "$$; SELECT 1; $$",
    "back\\slash",
    "new\nline\ttab",
    "SELECT",
    "user",
    "x" * 63,
    " ",
    "`backtick`:colon",
]


@pytest.fixture(scope="module", params=["scd1", "append"])
def policy_and_dsn(request: pytest.FixtureRequest, postgres_server: Any) -> tuple[str, str]:
    """A database for all lanes of a policy."""
    return request.param, postgres_server.database()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(policy_and_dsn: tuple[str, str], name: str) -> None:
    """The target, the key, a value column and the schema have the name. Rows are written, completed, truncated, read
    and reset, and columns are added."""
    (policy, dsn), key, value = policy_and_dsn, name, (name + "2")[-63:]
    if len(value.encode()) > 63 or key == value:
        value = "value"
    feed = LaneWrites(make_table({key: pa.int64(), value: pa.string()}, [key]), make_pg_lane(name, policy))
    with open_sink(dsn, schema=name) as sink:
        apply_write(sink, feed.write({key: 1, value: "one"}, {key: 2, value: "two"}))
        feed.table = make_table(
            {key: pa.int64(), value: pa.string(), "added": pa.string(), name[:61] + "+": pa.list_(pa.string())}, [key]
        )
        apply_write(sink, feed.write({key: 1, "added": "x", "_unsent": [value]}))
        apply_write(sink, feed.write({key: 2}, op="d"))
        found = sink.features.reader.read(name)
        assert sink.features.reader.tables() == [name]
        if policy == "scd1":
            assert found.select([key, value, "added"]).to_pylist() == [{key: 1, value: "one", "added": "x"}]
            apply_write(sink, feed.write({"_op": "t"}))
            assert sink.features.reader.read(name).num_rows == 0
        sink.reset(feed.lane)
        assert sink.state(feed.lane) is None


def test_names_that_differ_in_case_only_are_different(postgres_dsn: str) -> None:
    table = make_table({"id": pa.int64(), "Id": pa.string(), "ID": pa.string()})
    with open_sink(postgres_dsn) as sink:
        for into in ("items", "Items"):
            apply_write(sink, LaneWrites(table, make_pg_lane(into)).write({"id": 1, "Id": into, "ID": "x"}))
        assert sink.features.reader.tables() == ["Items", "items"]
        assert sink.features.reader.read("Items")["Id"].to_pylist() == ["Items"]


@pytest.mark.parametrize("name", ["x" * 64, "ü" * 32, "", "a\0b", "\ud800"])
def test_invalid_target_name_is_refused(postgres_dsn: str, name: str) -> None:
    with open_sink(postgres_dsn) as sink:
        with pytest.raises(ConfigProblem, match="into"):
            apply_write(sink, LaneWrites(make_table({"id": pa.int64()}), make_pg_lane(name)).write({"id": 1}))
        assert fetch_rows(postgres_dsn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'mirror'") == [(0,)]


@pytest.mark.parametrize("name", ["c" * 64, "ctid", "xmin"])
def test_invalid_column_name_is_refused(postgres_dsn: str, name: str) -> None:
    with open_sink(postgres_dsn) as sink, pytest.raises(Fatal, match="Give it another name in the target"):
        apply_write(sink, LaneWrites(make_table({"id": pa.int64(), name: pa.string()})).write({"id": 1}))


def test_append_tables_with_long_names_of_one_beginning_are_both_created(postgres_dsn: str) -> None:
    """The names of their indexes have more bytes than the server keeps."""
    with open_sink(postgres_dsn) as sink:
        for name in ("ü" * 30 + "a", "ü" * 30 + "b"):
            feed = LaneWrites(make_table({"id": pa.int64()}), make_pg_lane(name, "append"))
            apply_write(sink, feed.write({"id": 1}))
    indexes = "SELECT tablename FROM pg_indexes WHERE schemaname = 'mirror' AND indexdef LIKE '%(_cdc_seq_1, _cdc_seq_2)'"
    assert {name[-1] for (name,) in fetch_rows(postgres_dsn, indexes)} == {"a", "b"}
