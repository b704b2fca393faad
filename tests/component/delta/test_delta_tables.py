"""Existing tables, added columns, and queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from support.delta_writes import ITEMS, make_item_changes, make_write

from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.erasures import to_key_texts
from replicator.domain.errors import ConfigProblem, Fatal, Reject, RejectCode
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Lane
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaRsSink]:
    opened = DeltaRsSink({"path": str(tmp_path)})
    yield opened
    opened.close()


def create_table(tmp_path: Path, schema: pa.Schema, **settings: Any) -> None:
    DeltaTable.create(str(tmp_path / "items"), schema, configuration=settings or None)


def prepare(sink: DeltaRsSink, table: TableSpec = ITEMS) -> None:
    sink.prepare(LANE, plan_for("scd1", table))


def test_existing_table_keeps_its_types_and_columns(sink: DeltaRsSink, tmp_path: Path) -> None:
    create_table(tmp_path, pa.schema([("id", pa.int32()), ("theirs", pa.string()), ("v", pa.string())]))
    old = pa.table({"id": pa.array([1, 2], pa.int32()), "theirs": ["a", "b"], "v": ["x", "y"]})
    write_deltalake(str(tmp_path / "items"), old, mode="append")
    prepare(sink)
    rejected: list[tuple[Lane, pa.Table]] = []
    write = make_write([*make_item_changes(1, op="u", v="new"), *make_item_changes(3, 2**40)])
    counts = sink.apply([write], lambda lane, rows: rejected.append((lane, rows)))[LANE.id].counts
    assert (counts.applied, counts.rejected, counts.total) == (2, 1, 3)
    rows = {r["id"]: (r["theirs"], r["v"]) for r in sink.read("items").to_pylist()}
    assert rows == {1: ("a", "new"), 2: ("b", "y"), 3: (None, "v3")}
    ((lane, refused),) = rejected
    assert lane == LANE
    assert refused["_offset"].to_pylist() == [2]
    assert sorted(refused.column_names) == sorted(write.folded.frame.column_names)
    assert Reject.parse(refused["_error"][0].as_py()).code == RejectCode.OUT_OF_RANGE
    assert sink.read("items").schema.field("id").type == pa.int32()


def test_null_in_a_required_column_is_rejected(sink: DeltaRsSink, tmp_path: Path) -> None:
    create_table(tmp_path, pa.schema([("id", pa.int64()), pa.field("v", pa.string(), nullable=False)]))
    prepare(sink)
    rejected: list[pa.Table] = []
    rows = [*make_item_changes(1, 2), ("c", {"id": 3, "v": None}), ("d", {"id": 2, "v": None})]
    counts = sink.apply([make_write(rows)], lambda _, bad: rejected.append(bad))[LANE.id].counts
    assert (counts.applied, counts.rejected) == (2, 1)
    assert rejected[0]["_offset"].to_pylist() == [2]
    assert sink.read("items")["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("schema", "settings", "words"),
    [
        (pa.schema([("id", pa.int64()), ("v", pa.float64())]), {}, "'v' .* double.*string"),
        (pa.schema([("id", pa.int64()), pa.field("must", pa.string(), nullable=False)]), {}, "'must'"),
        (pa.schema([("id", pa.int64()), ("V", pa.string())]), {}, "'V' and 'v'"),
        (pa.schema([("id", pa.int64()), ("d", pa.decimal128(18, 2))]), {}, "'d' .* more than 15 digits"),
        (pa.schema([("id", pa.int64())]), {"delta.setTransactionRetentionDuration": "interval 1 days"}, "lose the position"),
    ],
)
def test_unusable_table_is_refused(
    sink: DeltaRsSink, tmp_path: Path, schema: pa.Schema, settings: dict[str, str], words: str
) -> None:
    create_table(tmp_path, schema, **settings)
    with pytest.raises(Fatal, match=words) as refused:
        prepare(sink)
    assert refused.value.next_step
    assert DeltaTable(str(tmp_path / "items")).version() == 0


def test_names_that_differ_only_in_case_are_refused(sink: DeltaRsSink) -> None:
    twins = TableSpec("t", (Column("id", pa.int64()), Column("a", pa.string()), Column("A", pa.string())), ("id",), 1)
    with pytest.raises(Fatal, match="differ in case only"):
        prepare(sink, twins)


def test_column_names_invalid_in_delta_are_escaped(sink: DeltaRsSink, tmp_path: Path) -> None:
    """Rows are also completed from the target, moved to another key, and completed by an append."""
    columns = (Column("the id", pa.int64()), Column("a, b", pa.string()), Column("c=d", pa.string()))
    table = TableSpec("t", columns, ("the id",), 1)
    prepare(sink, table)
    rows = [("c", {"the id": 1, "a, b": "x", "c=d": "y"}), ("c", {"the id": 2, "a, b": "p", "c=d": "q"})]
    sink.apply([make_write(rows, table=table)], refuse_rejects)
    partial = [("u", {"the id": 1, "a, b": None, "c=d": "new", "_unsent": ["a, b"]})]
    sink.apply([make_write(partial, 2, table=table)], refuse_rejects)
    moved = {"the id": 3, "a, b": None, "c=d": "q", "_unsent": ["a, b"], "_moved_from": {"the id": 2}}
    sink.apply([make_write([("d", {"the id": 2, "_moved_to": True}), ("c", moved)], 3, table=table)], refuse_rejects)
    found = sink.read("items", where='"the id" > 0').sort_by("the id").select([c.name for c in columns]).to_pylist()
    assert [list(row.values()) for row in found] == [[1, "x", "new"], [3, "p", "q"]]
    assert [f.name for f in DeltaTable(str(tmp_path / "items")).schema().fields][:3] == [
        "the_x0020_id",
        "a_x002C__x0020_b",
        "c_x003D_d",
    ]


def test_added_column_is_null_in_earlier_rows(sink: DeltaRsSink) -> None:
    prepare(sink)
    sink.apply([make_write(make_item_changes(1))], refuse_rejects)
    stamp = Column("at", pa.timestamp("us"))
    wider = TableSpec(ITEMS.name, (*ITEMS.columns, stamp), ITEMS.keys, 1)
    prepare(sink, wider)
    at = datetime(2024, 2, 29, 12, 0, 0, 123456)
    sink.apply([make_write([("c", {"id": 2, "v": "b", "at": at})], 1, table=wider)], refuse_rejects)
    prepare(sink)
    sink.apply([make_write(make_item_changes(3), 2)], refuse_rejects)
    assert {r["id"]: r["at"] for r in sink.read("items").to_pylist()} == {1: None, 2: at, 3: None}


def test_rows_below_the_position_are_skipped(sink: DeltaRsSink) -> None:
    """Rows that the table never had are skipped too: the operator has skipped them."""
    prepare(sink)
    sink.apply([make_write(make_item_changes(1))], refuse_rejects)
    state = sink.state(LANE)
    assert state is not None
    sink.skip(LANE, replace(state, position=make_write(make_item_changes(1, 2, 3)).span.end))
    counts = sink.apply([make_write(make_item_changes(1, 2, 3, 4))], refuse_rejects)[LANE.id].counts
    assert (counts.applied, counts.duplicate) == (1, 3)
    assert sorted(sink.read("items")["id"].to_pylist()) == [1, 4]


def test_repeated_truncate_is_one_row_under_append(sink: DeltaRsSink) -> None:
    """A truncate has no key to find it by."""
    lane = make_lane("append", "log")
    again = [("t", {"_seq_1": 1}), *make_item_changes(2)]
    for write in (make_write([*make_item_changes(1), ("t", {})], lane=lane), make_write(again, 2, lane=lane)):
        sink.prepare(lane, write.plan)
        counts = sink.apply([write], refuse_rejects)[lane.id].counts
    assert (counts.applied, counts.duplicate) == (1, 1)
    assert sink.read("log").sort_by("_cdc_seq_1")["_cdc_op"].to_pylist() == ["c", "t", "c"]


def test_unknown_settings_are_refused(sink: DeltaRsSink, tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="z_order"):
        sink.prepare(replace(LANE, options={"z_order": ["a"]}), plan_for("scd1", ITEMS))
    with pytest.raises(ConfigProblem, match="compression"):
        DeltaRsSink({"path": str(tmp_path), "compression": "none"})


MOMENTS = [datetime(y, 12, 31, 23, 59, 59, us) for y, us in ((9999, 999999), (1899, 1), (1969, 999_001))]
EDGES = {
    "short": (pa.decimal128(15, 2), [Decimal("9999999999999.99"), Decimal("-9999999999999.99"), Decimal("0.01")]),
    "long": (pa.decimal128(18, 2), [Decimal("1234567890123456.78"), Decimal("9999999999999999.99"), Decimal("-0.01")]),
    "widest": (pa.decimal128(38, 0), [Decimal(10) ** 37, Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    "whole": (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1]),
    "day": (pa.date32(), [date(9999, 12, 31), date(1, 1, 1), date(1969, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "local": (pa.timestamp("us"), MOMENTS),
    "text": (pa.string(), ["z" * 300, "é漢🎉" * 40, "\U0010ffff" * 20]),
}


@pytest.mark.parametrize("name", EDGES)
def test_readers_find_edge_values(name: str, sink: DeltaRsSink, tmp_path: Path) -> None:
    """Statistics must not make a reader skip the file with the matching row."""
    kind, values = EDGES[name]
    table = TableSpec("t", (Column("id", pa.int64()), Column("v", kind)), ("id",), 1)
    prepare(sink, table)
    for i, value in enumerate(values):
        sink.apply([make_write([("c", {"id": i, "v": value})], i, table=table)], refuse_rejects)
    delta = DeltaTable(str(tmp_path / "items"))
    for i, value in enumerate(values):
        wanted = pa.scalar(value, kind)
        arrow = delta.to_pyarrow_dataset().to_table(filter=pc.field("v") == wanted)
        assert arrow["id"].to_pylist() == [i]
        literal = to_literal(value, kind)
        for found in (
            pa.table(delta.scan(columns=["id"], predicate=f"v = {literal}")),
            pa.table(QueryBuilder().register("t", delta).execute(f"SELECT id FROM t WHERE v = {literal}")),
            sink.read("items", where=f"v = {literal.replace('arrow_cast', 'CAST').replace(CAST[kind], DUCK[kind])}"),
            read_through_duckdb(delta, value),
        ):
            assert found["id"].to_pylist() == [i]


CAST = {
    kind: f", '{text}')"
    for kind, text in [
        (pa.decimal128(15, 2), "Decimal128(15, 2)"),
        (pa.decimal128(18, 2), "Decimal128(18, 2)"),
        (pa.decimal128(38, 0), "Decimal128(38, 0)"),
        (pa.int64(), "Int64"),
        (pa.date32(), "Date32"),
        (pa.timestamp("us", "UTC"), 'Timestamp(Microsecond, Some("UTC"))'),
        (pa.timestamp("us"), "Timestamp(Microsecond, None)"),
        (pa.string(), "Utf8"),
    ]
}
DUCK = {
    pa.decimal128(15, 2): " AS DECIMAL(15, 2))",
    pa.decimal128(18, 2): " AS DECIMAL(18, 2))",
    pa.decimal128(38, 0): " AS DECIMAL(38, 0))",
    pa.int64(): " AS BIGINT)",
    pa.date32(): " AS DATE)",
    pa.timestamp("us", "UTC"): " AS TIMESTAMPTZ)",
    pa.timestamp("us"): " AS TIMESTAMP)",
    pa.string(): " AS VARCHAR)",
}


def to_literal(value: Any, kind: pa.DataType) -> str:
    text = value.isoformat() if isinstance(value, date) else f"{value:f}" if isinstance(value, Decimal) else str(value)
    return f"arrow_cast('{text}'{CAST[kind]}"


def read_through_duckdb(delta: DeltaTable, value: Any) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", delta.to_pyarrow_dataset())
        return connection.sql("SELECT id FROM t WHERE v = ?", params=[value]).to_arrow_table()


def test_queries_of_current_and_earlier_versions(sink: DeltaRsSink) -> None:
    prepare(sink)
    sink.apply([make_write(make_item_changes(1, 2))], refuse_rejects)
    between = datetime.now(UTC)
    sink.apply([make_write([*make_item_changes(3), *make_item_changes(1, op="d")], 2)], refuse_rejects)
    assert sink.tables() == ["items"]
    assert sorted(sink.read("items")["id"].to_pylist()) == [2, 3]
    assert sorted(sink.read("items", version=1)["id"].to_pylist()) == [1, 2]
    assert sorted(sink.read("items", as_of=between)["id"].to_pylist()) == [1, 2]
    assert sink.read("items", where="v = 'v3' AND id < 10", limit=5)["id"].to_pylist() == [3]
    assert sink.read("items", limit=1).num_rows == 1
    assert sink.read("items", where="id > 100").num_rows == 0
    assert sink.read("items", where="id = 2").schema == sink.read("items").schema


def test_unanswerable_queries_are_refused(sink: DeltaRsSink) -> None:
    prepare(sink)
    sink.apply([make_write(make_item_changes(1))], refuse_rejects)
    with pytest.raises(Fatal, match="versions 0 to 1"):
        sink.read("items", version=9)
    with pytest.raises(Fatal, match="versions 0 to 1"):
        sink.read("items", as_of=datetime.now(UTC) - timedelta(days=9))
    with pytest.raises(Fatal, match="no table 'nothing'"):
        sink.read("nothing")


@pytest.mark.parametrize(
    "where",
    [
        "id IN (SELECT 1 FROM read_csv('/etc/passwd'))",
        "id IN (SELECT 1 FROM read_text('/etc/passwd'))",
        "id = 1); COPY (SELECT 1) TO '/tmp/out.csv'; --",
        "id = (SELECT 1 FROM items)",
        "nonsense(",
    ],
)
def test_condition_cannot_read_beyond_its_table(sink: DeltaRsSink, where: str) -> None:
    prepare(sink)
    sink.apply([make_write(make_item_changes(1))], refuse_rejects)
    with pytest.raises(ConfigProblem, match="condition"):
        sink.read("items", where=where)
    assert not Path("/tmp/out.csv").exists()


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.time64("us"), 34_200_000_000, 34_200_000_001),
        (pa.time64("us"), 86_400_000_000, 34_200_000_001),
        (pa.time32("ms"), 34_200_000, 34_200_001),
        (pa.time64("ns"), 34_200_000_000_000, 34_200_000_001_000),
        (pa.timestamp("ns"), 1_704_101_400_123_456_700, 1_704_101_400_123_457_000),
        (pa.timestamp("ns", "UTC"), 1_704_101_400_000_000_000, 1_704_101_400_000_001_000),
        (pa.decimal256(40, 2), Decimal("1.50"), Decimal("1.51")),
        (pa.string(), "1.50", "1.5"),
    ],
    ids=str,
)
def test_key_is_erased_although_its_values_are_stored_as_other_text(
    sink: DeltaRsSink, kind: pa.DataType, value: Any, other: Any
) -> None:
    """Also from the tombstones, in a key of several columns, of which one is renamed."""
    source, table = (
        TableSpec("public.items", (Column("a", pa.int64()), Column(name, kind), Column("v", pa.string())), ("a", name), 1)
        for name in ("at", "moment")
    )
    lane = replace(
        LANE, row_transforms=RowTransforms(column_transforms=ColumnTransforms((("at", ColumnRule(rename="moment")),)))
    )
    version = SchemaVersion(1, source, source.columns, Position(), datetime.now(UTC))
    sink.prepare(lane, replace(plan_for("scd1", table), versions=(version,)))
    rows = [("c", {"a": 1, "moment": at, "v": "x"}) for at in (value, other)]
    sink.apply([make_write([*rows, ("d", {"a": 2, "moment": value})], table=table, lane=lane)], refuse_rejects)
    texts = to_key_texts(pa.chunked_array([pa.array([value, other], kind)])).to_pylist()
    keys = [("1", texts[0]), ("2", texts[0]), ("1", texts[0]), ("3", texts[0]), ("1", texts[1])]
    found = [sink.erase(lane, {"a": a, "at": text}) for a, text in keys]
    assert [(one.rows, one.side_rows) for one in found] == [(1, 0), (0, 1), (0, 0), (0, 0), (1, 0)]
