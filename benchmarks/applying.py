"""The tables and changes of `policies`, by number alone: the same for every target and process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import changes_schema
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec

AT = TopicPartition("cdc.public.items", 0)
PIECE = 500_000
KINDS = (pa.int64(), pa.string(), pa.float64(), pa.bool_())
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """One table of `rows` rows and `columns` columns under `policy`, and `changes` changes of it: 80 of a hundred update, 10
    insert, 10 delete, by keys that are `uniform` or `zipf`."""

    policy: str
    rows: int
    changes: int
    columns: int
    keys: str

    @property
    def table(self) -> TableSpec:
        """The source table."""
        values = (Column(f"v{i}", KINDS[i % len(KINDS)]) for i in range(self.columns - 1))
        return TableSpec("public.items", (Column("id", pa.int64()), *values), ("id",), 1)

    @property
    def plan(self) -> ApplyPlan:
        """The lane's plan."""
        return plan_for(self.policy, self.table)

    def values(self, ids: Any, salt: Any) -> dict[str, pa.Array]:
        """The columns of these rows; `salt`: a number, or one for each row. Rows of a key with other salts differ."""
        out = {"id": pa.array(ids, pa.int64())}
        for i, column in enumerate(self.table.values):
            numbers = (ids * 31 + salt * 7 + i) % 100_003
            plain = pa.array(numbers, pa.int64())
            odd = pc.equal(pc.bit_wise_and(plain, 1), 1)
            out[column.name] = odd if column.type == pa.bool_() else plain.cast(column.type)
        return out

    def base(self) -> Iterator[pa.Table]:
        """The rows that the target has, with its columns, in pieces."""
        for start in range(0, self.rows, PIECE):
            ids = np.arange(start, min(start + PIECE, self.rows), dtype=np.int64)
            known = self.values(ids, 0) | {
                "_cdc_op": pa.repeat(pa.scalar("r"), len(ids)),
                "_event_id": pa.repeat(pa.scalar("snapshot"), len(ids)),
                **{n: pa.repeat(pa.scalar(1, pa.int64()), len(ids)) for n in ("_cdc_seq_1", "_cdc_last_seq_1")},
                **{n: pa.repeat(pa.scalar(WHEN, pa.timestamp("us", "UTC")), len(ids)) for n in ("_cdc_ts", "__START_AT")},
            }
            schema = pa.schema([(c.name, c.type) for c in self.plan.target])
            yield pa.table([known.get(f.name, pa.nulls(len(ids), f.type)) for f in schema], schema=schema)

    def frame(self) -> pa.Table:
        """The changes frame."""
        random = np.random.default_rng(1)
        if self.keys == "zipf":
            ids = (random.zipf(1.3, self.changes) * 7919) % self.rows
        else:
            ids = random.integers(0, self.rows, self.changes)
        lot = random.random(self.changes)
        ids = np.where(lot < 0.1, self.rows + np.arange(self.changes), ids).astype(np.int64)
        ops = np.where(lot < 0.1, "c", np.where(lot < 0.2, "d", "u"))
        made = self.values(ids, np.arange(1, self.changes + 1)) | {
            "_op": pa.array(ops, pa.string()),
            "_seq_1": pa.array(np.arange(2, self.changes + 2)),
            "_ts": pa.repeat(pa.scalar(WHEN, pa.timestamp("us", "UTC")), self.changes),
            "_topic": pa.repeat(pa.scalar(AT.topic), self.changes),
            "_partition": pa.repeat(pa.scalar(0, pa.int32()), self.changes),
            "_offset": pa.array(np.arange(self.changes)),
        }
        schema = changes_schema(self.table)
        return pa.table([made.get(f.name, pa.nulls(self.changes, f.type)) for f in schema], schema=schema)

    @property
    def span(self) -> Span:
        """Of the changes."""
        return Span(Position({AT: 0}), Position({AT: self.changes}))

    def last(self, changes: pa.Table) -> pa.Table:
        """The last change of each key, with `_op`: what a MERGE written by hand needs."""
        frame = changes.select(["_op", "_offset", *self.table.column_names])
        last = frame.group_by("id").aggregate([("_offset", "max")])["_offset_max"]
        return frame.take(last).drop_columns(["_offset"])
