"""Small writes for the tests of the PostgreSQL sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.change import changes_schema
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.ports.frames import Lane, Write

TOPIC = TopicPartition("cdc.public.items", 0)
ENGINE = LocalEngine()


def make_table(columns: Mapping[str, pa.DataType], keys: Sequence[str] = ("id",), **source_types: str) -> TableSpec:
    made = tuple(Column(name, kind, source_type=source_types.get(name, "")) for name, kind in columns.items())
    return TableSpec("public.items", made, tuple(keys), 2)


def make_pg_lane(into: str = "items", policy: str = "scd1") -> Lane:
    return Lane(f"pg.{into}", "tests", "shop", "public.items", "pg", into, policy)


@dataclass
class LaneWrites:
    """Writes of one table into one lane. Offsets and sequences count up."""

    table: TableSpec
    lane: Lane = field(default_factory=make_pg_lane)
    offset: int = 0
    shape: RowTransforms = NO_ROW_TRANSFORMS

    @property
    def plan(self) -> ApplyPlan:
        return plan_for(self.lane.policy, self.table, None, self.shape)

    def write(self, *rows: Mapping[str, Any], op: str = "u") -> Write[pa.Table]:
        """A write of these rows. A row can have its own `_op` and `_unsent`; all other keys are columns."""
        start, self.offset = self.offset, self.offset + len(rows)
        schema = changes_schema(self.table)
        made = []
        for number, row in enumerate(rows, start):
            frame = {"_op": op, "_seq_1": number + 1, "_seq_2": number + 1, "_topic": TOPIC.topic, "_partition": 0}
            made.append({**dict.fromkeys(schema.names), **frame, "_offset": number, "_ts": 1_700_000_000_000_000, **row})
        changes = pa.Table.from_pylist(made, schema)
        changes = ENGINE.transform_rows(changes, self.plan).frame if self.shape else changes
        span = Span(Position({TOPIC: start}), Position({TOPIC: self.offset}))
        return Write(self.lane, self.plan, ENGINE.fold(changes, self.plan), span)


@contextmanager
def open_sink(dsn: str, **options: Any):
    sink = PostgresSink({"dsn": dsn, "schema": "mirror", **options})
    try:
        yield sink
    finally:
        sink.close()


class CollectedRejects(list):
    """A list of rejects: (lane id, key, sentence)."""

    def __call__(self, lane: Lane, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self.append((lane.id, row.get("id"), row["_error"]))


def refuse_any_reject(lane: Lane, rows: pa.Table) -> None:
    raise AssertionError(rows.to_pylist())


def apply_write(sink: PostgresSink, write: Write[pa.Table], reject: Any = refuse_any_reject) -> Any:
    sink.prepare(write.lane, write.plan)
    return sink.apply([write], reject)[write.lane.id]


def fetch_rows(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
