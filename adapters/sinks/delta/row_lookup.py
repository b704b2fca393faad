"""Reads the rows of a table that have some of the wanted values, without the files that cannot have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Scanner

from ...delta.partitions import Partitions
from ...delta.tables import read_schema
from ...sql.dialect import DELTA_RS
from ...sql.render import render_literal

EVERY_PARTITION: Partitions = {}


def lookup_rows(
    snapshot: DeltaTable,
    columns: Sequence[str],
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
    reader = pa.RecordBatchReader.from_stream(snapshot.scan(columns=list(columns), predicate=predicate or None))
    # Arrow cannot filter string views. One expression hashes the values once, not once for every batch.
    batches = (piece for batch in reader for piece in pa.Table.from_batches([batch]).cast(schema).to_batches())
    among_them = [pc.field(name).isin(values) for name, values in wanted.items()]
    return Scanner.from_batches(batches, schema=schema, filter=reduce(and_, among_them) if among_them else None).to_table()


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
