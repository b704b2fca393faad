"""DTS records from their bytes to the rows of a target."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.dts_records import (
    BIGINT,
    DATE,
    DOUBLE,
    SAMPLES,
    VARCHAR,
    make_datetime,
    make_dts_frame,
    make_float,
    make_integer,
    make_record,
    make_text,
)

from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.policy.plan import Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.fakes import FakeTarget

SALES = {"id": BIGINT, "date": DATE, "name": VARCHAR, "sales": DOUBLE}
TYPES = {"id": "int64", "date": "date32", "name": "string", "sales": "decimal(7,2)"}
OPTIONS = {"schema": {"delta_cdc.sales": TYPES}, "keys": {"delta_cdc.sales": ["id"]}}
LANE = make_lane("scd1", "sales")
LEFT = {
    (2, date(2019, 11, 11), "Lee", Decimal("175.00")),
    (3, date(2019, 11, 12), "Robert", Decimal("136.00")),
    (4, date(2019, 11, 13), "Lee", Decimal("211.00")),
    (5, date(2019, 11, 14), "Robert", Decimal("233.00")),
}


class Lake:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def open(self) -> DeltaRsSink:
        return DeltaRsSink({"path": self.folder})

    def rows(self, lane: Any) -> list[dict[str, Any]]:
        return self.open().read(lane.into).to_pylist()


@pytest.fixture(params=["memory", "delta-rs"])
def target(request, tmp_path):
    return FakeTarget() if request.param == "memory" else Lake(tmp_path / "lake")


def refuse(lane: Any, rows: Any) -> None:
    raise AssertionError(f"rejected: {rows}")


def mirror(target: Any, raw: pa.Table, size: int, options: dict[str, Any]) -> Counts:
    """Every batch of `size` records, through routing, decoding and the fold into the target."""
    engine, decoder, sink, counts = LocalEngine(), DtsAvroDecoder(options), target.open(), Counts()
    partition = TopicPartition("dts", 0)
    for start in range(0, raw.num_rows, size):
        piece = raw.slice(start, size)
        first = piece["offset"][0].as_py()
        routed = engine.route(piece, decoder)
        assert routed.reject_count == 0, routed.rejects["_error"].to_pylist()
        span = Span(Position({partition: first}), Position({partition: first + piece.num_rows}))
        for run in routed.slices:
            table = decoder.learn(run.frame, run.table, run.fingerprint)
            good, bad = engine.decode(run, decoder, table)
            assert bad.num_rows == 0, bad["_error"].to_pylist()
            plan = plan_for("scd1", table)
            sink.prepare(LANE, plan)
            folded = engine.fold(good, plan)
            counts += folded.counts
            counts += sink.apply([Write(LANE, plan, folded, span, {"dts": "a"})], refuse)[LANE.id].counts
    sink.close()
    return counts


def sale(number: int, day: int, name: str, sales: float) -> list[Any]:
    return [make_integer(number), make_datetime(2019, 11, day), make_text(name), make_float(sales)]


def sales() -> list[dict[str, Any]]:
    rows = {1: (11, "Robert", 323.0), 2: (11, "Lee", 500.0), 3: (12, "Robert", 136.0), 4: (13, "Lee", 211.0)}
    two, later = sale(2, *rows[2]), sale(2, 11, "Lee", 150.0)
    changes: list[tuple[str, Any, Any]] = [("INIT", None, sale(n, *row)) for n, row in rows.items()]
    changes += [
        ("DELETE", sale(1, *rows[1]), None),
        ("UPDATE", two, later),
        ("UPDATE", later, sale(2, 11, "Lee", 175.0)),
        ("INSERT", None, sale(5, 14, "Robert", 233.0)),
    ]
    more = {"objectName": "delta_cdc.sales", "sourceTimestamp": 0, "tags": {}}
    return [make_record(kind, SALES, old, new, id=n, **more) for n, (kind, old, new) in enumerate(changes, 1)]


def read_rows(target: Any) -> set[tuple[Any, ...]]:
    rows = [tuple(row[name] for name in TYPES) for row in target.rows(LANE)]
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_sales(target, size):
    mirror(target, make_dts_frame(*sales()), size, OPTIONS)
    assert read_rows(target) == LEFT


def test_repeated_records_are_applied_once(target):
    """After a failover, under other offsets; the full load runs again beside the stream."""
    said = sales()
    mirror(target, make_dts_frame(*said, *said[3:], *said[:4], said[4], said[5]), 3, OPTIONS)
    assert read_rows(target) == LEFT


@pytest.mark.parametrize("seed", range(5))
def test_records_in_any_order(tmp_path, seed):
    """Also a full load after the changes of its rows, although its ids are greater."""
    said = sales()
    for late in said[:4]:
        late["id"] += 1000
    Random(seed).shuffle(said)
    target = FakeTarget()
    mirror(target, make_dts_frame(*said), 1 + seed, OPTIONS)
    assert read_rows(target) == LEFT


@pytest.mark.parametrize("suffix", [".noborn.bin", ".bin"])
def test_recorded_records(target, suffix):
    """A statement, an insert, an update, a delete: no row remains."""
    values = [(SAMPLES / f"{name}{suffix}").read_bytes() for name in ("01_ddl", "02_insert", "03_update", "04_delete")]
    mirror(target, make_dts_frame(*values[:3]), 2, {})
    assert [(row["a"], row["b"]) for row in target.rows(LANE)] == [(123456789, "test update statement.")]
    mirror(target, make_dts_frame(values[3], first=103), 2, {})
    assert target.rows(LANE) == []


def test_table_without_key_uses_its_hidden_column(target):
    hidden = "__#alibaba_rds_row_id#__"
    kinds, tags = {"name": VARCHAR, hidden: BIGINT}, {"pk_uk_info": "{}"}
    one, two = ([make_text("same"), make_integer(n)] for n in (1, 2))
    said = [
        make_record("INIT", kinds, None, one, id=1, tags=tags),
        make_record("INSERT", kinds, None, two, id=2, tags=tags),
        make_record("DELETE", kinds, one, None, id=3, tags=tags),
    ]
    mirror(target, make_dts_frame(*said), 2, {})
    assert [row[hidden] for row in target.rows(LANE)] == [2]


def test_rows_that_exchange_their_keys(target):
    """Matched by the before image."""
    kinds = {"id": BIGINT, "name": VARCHAR}
    a, b = ([make_integer(n), make_text(name)] for n, name in ((1, "a"), (2, "b")))
    said = [
        make_record("INSERT", kinds, None, a, id=1),
        make_record("INSERT", kinds, None, b, id=2),
        make_record("UPDATE", kinds, a, [make_integer(3), make_text("a")], id=3),
        make_record("UPDATE", kinds, b, [make_integer(1), make_text("b")], id=4),
        make_record("UPDATE", kinds, [make_integer(3), make_text("a")], [make_integer(2), make_text("a")], id=5),
    ]
    for size in (1, 5):
        mirror(target, make_dts_frame(*said), size, {})
        assert sorted((row["id"], row["name"]) for row in target.rows(LANE)) == [(1, "b"), (2, "a")]
