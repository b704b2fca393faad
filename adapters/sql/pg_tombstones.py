"""The tombstone ledger by itself, for callers outside an apply; the same tables that the sink writes in its transaction."""

from __future__ import annotations

import json

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OP, Op, sequence_columns
from replicator.domain.plan import ApplyPlan, cdc_sequence_columns
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Lane

from .pg_ledger import upsert
from .pg_literals import text_column
from .pg_names import quoted
from .pg_sink import PostgresLanes
from .pg_target import Target


class PostgresTombstoneLedger:
    """`ports.sink.TombstoneLedger` beside the targets of `lanes`, whose lane it prepares when need be."""

    def __init__(self, lanes: PostgresLanes) -> None:
        self._lanes = lanes

    def record(self, lane: Lane, plan: ApplyPlan, deletes: pa.Table) -> Sequence | None:
        """See `ports.sink.TombstoneLedger.record`. Rows of other operations are left out. Committed on return."""
        target, ledger = self._ledger(lane, plan)
        entries = deletes.filter(pc.equal(deletes[OP], Op.DELETE.value))
        stored = cdc_sequence_columns(plan.table.sequence)
        names = {**{k: k for k in plan.table.keys}, **dict(zip(stored, sequence_columns(plan.table.sequence), strict=True))}
        statement = upsert(ledger, plan, f"json_populate_recordset(NULL::{ledger}, \0::json)")
        columns = ", ".join(map(quoted, stored))
        last = f"SELECT {columns} FROM {ledger} ORDER BY {', '.join(f'{quoted(n)} DESC' for n in stored)} LIMIT 1"
        with self._lanes.session.using(f"recording deletes of lane {lane.id}") as cursor:
            _run(cursor, statement, _objects(entries, names, target))
            return cursor.execute(last.encode()).fetchone()

    def lookup(self, lane: Lane, plan: ApplyPlan, keys: pa.Table) -> pa.Table:
        """See `ports.sink.TombstoneLedger.lookup`."""
        target, ledger = self._ledger(lane, plan)
        schema = pa.schema([pa.field(n, target.fits[n].arrow) for n in _columns(plan)])
        same = " AND ".join(f"l.{quoted(k)} = k.{quoted(k)}" for k in plan.table.keys)
        columns = ", ".join(f"l.{quoted(n)}::text" for n in schema.names)
        wanted = f"json_populate_recordset(NULL::{ledger}, \0::json)"
        statement = f"SELECT DISTINCT {columns} FROM {ledger} AS l JOIN {wanted} AS k ON {same}"
        with self._lanes.session.using(f"looking up deletes of lane {lane.id}") as cursor:
            _run(cursor, statement, _objects(keys, {k: k for k in plan.table.keys}, target))
            rows = cursor.fetchall()
        texts = zip(*rows, strict=True) if rows else ((),) * len(schema)
        return pa.table([pa.array(v, pa.string()).cast(f.type) for v, f in zip(texts, schema, strict=True)], schema=schema)

    def _ledger(self, lane: Lane, plan: ApplyPlan) -> tuple[Target, str]:
        target = self._lanes.prepared(lane, plan)
        return target, target.ledger or ""


def _columns(plan: ApplyPlan) -> tuple[str, ...]:
    return (*plan.table.keys, *cdc_sequence_columns(plan.table.sequence))


def _run(cursor: psycopg.Cursor, statement: str, objects: str) -> None:
    cursor.execute(statement.replace("%", "%%").replace("\0", "%s").encode(), (objects,))


def _objects(frame: pa.Table, names: dict[str, str], target: Target) -> str:
    """The columns `names` (in the ledger: in the frame) as a JSON array of objects of text."""
    columns = []
    for stored, given in names.items():
        column = frame[given].cast(target.fits[stored].arrow).combine_chunks()
        columns.append(text_column(column).cast(pa.string()).to_pylist())
    return json.dumps([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
