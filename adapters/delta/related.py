"""Stage 2: the rows of a snapshot that a batch may meet, only the columns and as few rows as stage 3 needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Scanner

from replicator.domain.plan import CDC_DELETED, ApplyPlan, cdc_sequence_columns
from replicator.domain.sequence import Sequence

from ..sql.departures import asks
from ..sql.dialect import DELTA_RS, DELTA_RS_ALONE
from ..sql.history_events import cut_in_two, reaches
from ..sql.local_repair import unsent_names
from ..sql.render import literal
from ..sql.repair import from_columns
from .partitions import Partitions, few, prunable
from .tables import schema_of

EVERY_PARTITION: Partitions = {}


def related_rows(snapshot: DeltaTable, plan: ApplyPlan, rows: pa.Table) -> pa.Table:
    """Rows of `snapshot` for every identity and old key in `rows` (a few more may come), as `local_repair` wants them.

    Streams through the table: memory is bounded by the batch, not by the table.
    """
    sequence = cdc_sequence_columns(plan.table.sequence)
    unsent = unsent_names(rows) if plan.repair.complete else []
    unsent += plan.shown if pc.any(asks(plan, rows)).as_py() else ()
    marks = [CDC_DELETED] if plan.soft_deletes else []
    columns = list(dict.fromkeys([*plan.repair.identity, *sequence, *unsent, *marks]))
    wanted = _wanted(plan, rows)
    return lookup(snapshot, columns, wanted, few({n: wanted[n].to_pylist() for n in prunable(snapshot, plan)}))


def related_versions(
    snapshot: DeltaTable, plan: ApplyPlan, rows: pa.Table, lowest: Sequence, cuts: list[Sequence]
) -> pa.Table:
    """The versions of `snapshot` that `local_history` wants: those of the keys and old keys in `rows` (a few more may come)
    that are open or end at or above `lowest`, and as many of the keys of which `cuts` cut a version in two."""
    wanted = {key: _values(rows[key], rows[old]) for key, old in zip(plan.table.keys, from_columns(plan), strict=True)}
    if cuts:
        cut = lookup(snapshot, list(plan.table.keys), {}, condition=cut_in_two(plan, DELTA_RS_ALONE, cuts))
        wanted = {key: pc.unique(pa.chunked_array([values, *cut[key].chunks])) for key, values in wanted.items()}
    near = few({n: wanted[n].to_pylist() for n in prunable(snapshot, plan) if n in wanted})
    return lookup(snapshot, schema_of(snapshot).names, wanted, near, reaches(plan, DELTA_RS_ALONE, lowest))


def lookup(
    snapshot: DeltaTable,
    columns: list[str],
    wanted: Mapping[str, pa.Array],
    partitions: Partitions = EVERY_PARTITION,
    condition: str = "",
) -> pa.Table:
    """`columns` of the rows whose value in each column of `wanted` is among the values given for it, and for which
    `condition` holds. `partitions`: columns by which the table is partitioned and the values to look at; other partitions
    are not read."""
    schema = pa.schema([schema_of(snapshot).field(c) for c in columns])
    bounds = [_bounds(name, values) for name, values in wanted.items() if name not in partitions]
    among = [f"{DELTA_RS.quoted(name)} IN ({', '.join(map(_literal, values))})" for name, values in partitions.items()]
    predicate = " AND ".join(filter(None, (condition, *bounds, *among)))
    reader = pa.RecordBatchReader.from_stream(snapshot.scan(columns=columns, predicate=predicate or None))
    # A filter on views is not there; and one expression hashes the values once, not once for every batch.
    batches = (piece for batch in reader for piece in pa.Table.from_batches([batch]).cast(schema).to_batches())
    among_them = [pc.field(name).isin(values) for name, values in wanted.items()]
    return Scanner.from_batches(batches, schema=schema, filter=reduce(and_, among_them) if among_them else None).to_table()


def _wanted(plan: ApplyPlan, rows: pa.Table) -> dict[str, pa.Array]:
    """Values to look for: those of the keys and old keys, or, for rows that must be absent, of their own sequence."""
    if plan.repair.guard == "absent":
        names = [n for n in cdc_sequence_columns(plan.table.sequence) if n in plan.repair.identity]
        names = names[:-1] if plan.repair.counted else names
        return {n: pc.unique(rows[n]) for n in (*names, *plan.table.keys)}
    pairs = zip(plan.table.keys, from_columns(plan), strict=True)
    return {key: _values(rows[key], rows[old]) for key, old in pairs}


def _values(key: pa.ChunkedArray, old: pa.ChunkedArray) -> pa.Array:
    both = pa.chunked_array([*key.chunks, *old.drop_null().chunks], key.type)
    return pc.unique(both)


def _bounds(name: str, values: pa.Array) -> str | None:
    """The range of whole numbers as a condition, by which files are skipped. Rows without a value pass no range, so none
    is given when they are looked for too."""
    if not pa.types.is_integer(values.type) or not len(values) or values.null_count:
        return None
    ends = pc.min_max(values).as_py()
    column = DELTA_RS.quoted(name)
    return f"{column} >= {ends['min']} AND {column} <= {ends['max']}"


def _literal(value: object) -> str:
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else literal(value)  # type: ignore[arg-type]
