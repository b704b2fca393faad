"""Queries are read-only, single statements with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_table, open_sink

from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.errors import ConfigProblem, Fatal

pytestmark = pytest.mark.postgres

COLUMNS = {
    "id": pa.int64(),
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "day": pa.date32(),
    "clock": pa.time64("us"),
    "data": pa.binary(),
    "tags": pa.list_(pa.string()),
    "50%": pa.float64(),
    "ok": pa.bool_(),
}


def test_read_returns_written_values(postgres_dsn: str) -> None:
    row = {
        "id": 1,
        "price": Decimal("1.50"),
        "at": datetime(2024, 1, 1, 12, tzinfo=UTC),
        "local": datetime(1960, 1, 1, 0, 0, 0, 1),
        "day": datetime(2024, 2, 29).date(),
        "clock": datetime(1, 1, 1, 23, 59, 59, 999999).time(),
        "data": b"\x00\xff",
        "tags": ["a", None],
        "50%": 0.1,
        "ok": True,
    }
    feed = LaneWrites(make_table(COLUMNS))
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed.write(row, {"id": 2}, {"id": 3}))
        found = sink.features.reader.read("items", where="\"id\" < 3 AND 'x%s' LIKE 'x%' -- a comment", limit=5)
        assert {f.name: f.type for f in found.schema if f.name in COLUMNS} == COLUMNS
        assert sorted(found.select(list(COLUMNS)).to_pylist(), key=lambda r: r["id"]) == [
            row,
            {**dict.fromkeys(COLUMNS), "id": 2},
        ]
        assert sink.features.reader.read("items", limit=1).num_rows == 1
        assert sink.features.reader.read("items", where="false").num_rows == 0


@pytest.fixture(scope="module")
def sink_with_one_row(postgres_server: Any) -> Iterator[tuple[str, PostgresSink]]:
    """A sink with a table of one row and a sequence. No test writes to it."""
    dsn = postgres_server.database()
    with open_sink(dsn, query_timeout=0.5) as sink:
        apply_write(sink, LaneWrites(make_table(COLUMNS)).write({"id": 1}))
        fetch_rows(dsn, "CREATE SEQUENCE mirror.counter")
        yield dsn, sink


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"version": 1}, "no earlier versions"),
        ({"as_of": datetime(2024, 1, 1, tzinfo=UTC)}, "no earlier versions"),
        ({"where": "true); DELETE FROM mirror.items; --"}, "syntax error|multiple commands"),
        ({"where": "nothing = 1"}, "does not exist"),
        ({"where": "1/0 = 1"}, "division by zero"),
        ({"where": "pg_sleep(30) IS NULL"}, "statement timeout"),
        (
            {"where": "set_config('transaction_read_only', 'off', false) = 'off' AND nextval('mirror.counter') > 0"},
            "read-write mode|read-only",
        ),
    ],
)
def test_invalid_read_is_refused(sink_with_one_row: tuple[str, PostgresSink], call: dict, sentence: str) -> None:
    dsn, sink = sink_with_one_row
    with pytest.raises(Exception, match=sentence) as error:
        sink.features.reader.read("items", **call)
    assert type(error.value).__module__ == "replicator.domain.errors"
    assert fetch_rows(dsn, "SELECT count(*) FROM mirror.items") == [(1,)]
    with pytest.raises(Fatal, match=r"There are: .*items"):
        sink.features.reader.read("nothing")


@pytest.mark.parametrize("where", ["nosuch =", "nosuch = 1", "id", "price LIKE 'a'"])
def test_invalid_condition_is_a_config_problem(sink_with_one_row: tuple[str, PostgresSink], where: str) -> None:
    with pytest.raises(ConfigProblem, match="condition on table 'items' cannot be evaluated") as caught:
        sink_with_one_row[1].features.reader.read("items", where=where)
    assert "The target is not as expected" not in str(caught.value)
