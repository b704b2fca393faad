"""Stage 2: the rows of a snapshot that a batch may match, with only the columns and rows that stage 3 needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Scanner

from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, cdc_sequence_columns
from replicator.domain.sequence import Sequence

from ...apply.reconcile_in_process import list_missing_names
from ...delta.partitions import Partitions, list_prunable_columns, select_few_values
from ...delta.tables import read_schema
from ...sql.dialect import DELTA_RS, DELTA_RS_ALONE
from ...sql.key_change_deletes import mask_lookups
from ...sql.reconcile import old_key_columns
from ...sql.render import render_literal
from ...sql.scd2_events import overlap_condition, split_condition

EVERY_PARTITION: Partitions = {}


def read_candidate_rows(snapshot: DeltaTable, plan: ApplyPlan, rows: pa.Table) -> pa.Table:
    """The rows of `snapshot` for every identity and old key in `rows` (and perhaps more), for
    `reconcile_in_process`.

    Rows are streamed: memory use depends on the batch, not on the table.
    """
    sequence = cdc_sequence_columns(plan.table.sequence)
    unsent = list_missing_names(rows) if plan.reconcile.complete else []
    unsent += plan.shown_columns if pc.any(mask_lookups(plan, rows)).as_py() else ()
    marks = [CDC_DELETED] if plan.soft_deletes else []
    columns = list(dict.fromkeys([*plan.reconcile.identity, *sequence, *unsent, *marks]))
    wanted = _lookup_values(plan, rows)
    return lookup_rows(
        snapshot,
        columns,
        wanted,
        select_few_values({n: wanted[n].to_pylist() for n in list_prunable_columns(snapshot, plan)}),
    )


def read_candidate_versions(
    snapshot: DeltaTable, plan: ApplyPlan, rows: pa.Table, lowest: Sequence, truncates: list[Sequence]
) -> pa.Table:
    """The versions of `snapshot` for `scd2_in_process`: of the keys and old keys in `rows` (and perhaps more).

    They are open, or end at or above `lowest`. Also the versions of keys with a version that one of `truncates`
    splits.
    """
    wanted = {
        key: _merge_values(rows[key], rows[old]) for key, old in zip(plan.table.keys, old_key_columns(plan), strict=True)
    }
    if truncates:
        split = lookup_rows(snapshot, list(plan.table.keys), {}, condition=split_condition(plan, DELTA_RS_ALONE, truncates))
        wanted = {key: pc.unique(pa.chunked_array([values, *split[key].chunks])) for key, values in wanted.items()}
    near = select_few_values({n: wanted[n].to_pylist() for n in list_prunable_columns(snapshot, plan) if n in wanted})
    return lookup_rows(snapshot, read_schema(snapshot).names, wanted, near, overlap_condition(plan, DELTA_RS_ALONE, lowest))


def lookup_rows(
    snapshot: DeltaTable,
    columns: list[str],
    wanted: Mapping[str, pa.Array],
    partitions: Partitions = EVERY_PARTITION,
    condition: str = "",
) -> pa.Table:
    """`columns` of the rows that have one of the `wanted` values in each column of `wanted`, and for which
    `condition` holds.

    `partitions`: partition columns and their values to read; other partitions are skipped.
    """
    schema = pa.schema([read_schema(snapshot).field(c) for c in columns])
    bounds = [_range_condition(name, values) for name, values in wanted.items() if name not in partitions]
    among = [
        f"{DELTA_RS.quote_name(name)} IN ({', '.join(map(_render_literal, values))})" for name, values in partitions.items()
    ]
    predicate = " AND ".join(filter(None, (condition, *bounds, *among)))
    reader = pa.RecordBatchReader.from_stream(snapshot.scan(columns=columns, predicate=predicate or None))
    # Arrow cannot filter string views. One expression hashes the values once, not once for every batch.
    batches = (piece for batch in reader for piece in pa.Table.from_batches([batch]).cast(schema).to_batches())
    among_them = [pc.field(name).isin(values) for name, values in wanted.items()]
    return Scanner.from_batches(batches, schema=schema, filter=reduce(and_, among_them) if among_them else None).to_table()


def _lookup_values(plan: ApplyPlan, rows: pa.Table) -> dict[str, pa.Array]:
    """The values to search: keys and old keys, or the sequences of rows that must be absent."""
    if plan.reconcile.guard == "absent":
        names = [n for n in cdc_sequence_columns(plan.table.sequence) if n in plan.reconcile.identity]
        names = names[:-1] if plan.reconcile.counted else names
        return {n: pc.unique(rows[n]) for n in (*names, *plan.table.keys)}
    pairs = zip(plan.table.keys, old_key_columns(plan), strict=True)
    return {key: _merge_values(rows[key], rows[old]) for key, old in pairs}


def _merge_values(key: pa.ChunkedArray, old: pa.ChunkedArray) -> pa.Array:
    both = pa.chunked_array([*key.chunks, *old.drop_null().chunks], key.type)
    return pc.unique(both)


def _range_condition(name: str, values: pa.Array) -> str | None:
    """The range of whole numbers as a condition, which skips files.

    None if a NULL is also searched, because rows without a value are in no range.
    """
    if not pa.types.is_integer(values.type) or not len(values) or values.null_count:
        return None
    ends = pc.min_max(values).as_py()
    column = DELTA_RS.quote_name(name)
    return f"{column} >= {ends['min']} AND {column} <= {ends['max']}"


def _render_literal(value: object) -> str:
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else render_literal(value)  # type: ignore[arg-type]
