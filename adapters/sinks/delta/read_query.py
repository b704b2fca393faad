"""Reads selected rows of a Delta table, page by page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Scanner

from replicator.domain.read_query import BuildReadQuery, ReadCondition, ReadQuery, ReadTimeout

from ...delta.folders import Folder
from ...delta.table_reader import open_at, to_source_names, translate_missing_files
from ...delta.tables import read_schema
from ...sql.dialect import DELTA_RS

COMPARE: dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "=": lambda column, value: column == value,
    "<>": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "is null": lambda column, _: column.is_null(),
    "is not null": lambda column, _: column.is_valid(),
}
KEPT = 50_000
"""How many rows above the limit are collected before the last ones are dropped."""


def select_rows(
    path: Folder, name: str, choose: BuildReadQuery, *, version: int | None, as_of: datetime | None, seconds: float | None
) -> pa.Table:
    """See `ports.sink.SinkFeatures.select`; `path` is the table's folder.

    Rows are streamed: memory use depends on the page, not on the table. Ranges of whole numbers skip files.
    """
    table = open_at(path, name, version=version, as_of=as_of)
    stored = read_schema(table)
    schema = to_source_names(stored)
    wanted = choose(schema)
    if wanted.limit == 0:
        return schema.empty_table()
    # Arrow reads some names as paths of nested columns.
    numbered = pa.schema([field.with_name(f"c{at}") for at, field in enumerate(schema)])
    names = dict(zip(schema.names, numbered.names, strict=True))
    ranges = _range_conditions(stored, dict(zip(schema.names, stored.names, strict=True)), wanted)
    batches = _scan_table(table, numbered, ranges, _start_deadline(name, seconds))
    wanted = _rename_selection(wanted, names)
    with translate_missing_files(name, table):
        found = Scanner.from_batches(batches, schema=numbered, filter=_filter_expression(wanted)).to_reader()
        return _take_page(found, numbered, wanted).rename_columns(schema.names).cast(schema)


def _rename_selection(wanted: ReadQuery, names: dict[str, str]) -> ReadQuery:
    conditions = tuple(replace(one, column=names[one.column]) for one in wanted.conditions)
    return replace(wanted, conditions=conditions, order=tuple(names[name] for name in wanted.order))


def _start_deadline(name: str, seconds: float | None) -> Callable[[], None]:
    end = None if seconds is None else time.monotonic() + seconds

    def check() -> None:
        if end is not None and time.monotonic() > end:
            raise ReadTimeout(
                f"reading table {name} takes longer than {seconds:g} s",
                next_step="Filter by the first column of its key, or allow more time (`serve.query_timeout`).",
            )

    return check


def _scan_table(table: DeltaTable, schema: pa.Schema, ranges: str, check: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    scan = pa.RecordBatchReader.from_stream(table.scan(predicate=ranges or None))
    for batch in scan:
        check()
        yield from pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema).to_batches()


def _range_conditions(stored: pa.Schema, names: dict[str, str], wanted: ReadQuery) -> str:
    """The conditions on whole numbers, which skip files because their statistics are exact."""
    first = [ReadCondition(wanted.order[0], ">=", wanted.start[0])] if wanted.start else []
    texts = []
    for one in (*wanted.conditions, *first):
        if one.value is None or not one.value.is_valid or not pa.types.is_integer(stored.field(names[one.column]).type):
            continue
        column = DELTA_RS.quote_name(names[one.column])
        text = f"{column} {one.operator} {int(one.value.as_py())}"
        texts.append(f"({text} OR {column} IS NULL)" if one in first else text)
    return " AND ".join(texts)


def _filter_expression(wanted: ReadQuery) -> pc.Expression | None:
    terms = [COMPARE[one.operator](pc.field(one.column), one.value) for one in wanted.conditions]
    if wanted.start:
        terms.append(_start_expression(wanted))
    return reduce(and_, terms) if terms else None


def _start_expression(wanted: ReadQuery) -> pc.Expression:
    """Rows at or after the start, compared column by column in the order."""
    alike = pc.scalar(True)
    behind = []
    for name, value in zip(wanted.order, wanted.start, strict=True):
        column = pc.field(name)
        behind.append(alike & _greater_expression(column, value))
        alike = alike & _equal_expression(column, value)
    return reduce(or_, behind, alike)


def _is_nan(value: pa.Scalar) -> bool:
    return pa.types.is_floating(value.type) and value.is_valid and bool(pc.is_nan(value).as_py())


def _greater_expression(column: pc.Expression, value: pa.Scalar) -> pc.Expression:
    """True after the value. NaN sorts after all numbers, and NULL last."""
    if not value.is_valid:
        return pc.scalar(False)
    if _is_nan(value):
        return column.is_null()
    above = (column > value) | column.is_null()
    return above | column.is_nan() if pa.types.is_floating(value.type) else above


def _equal_expression(column: pc.Expression, value: pa.Scalar) -> pc.Expression:
    if not value.is_valid:
        return column.is_null()
    return column.is_valid() & (column.is_nan() if _is_nan(value) else column == value)


def _take_page(found: pa.RecordBatchReader, schema: pa.Schema, wanted: ReadQuery) -> pa.Table:
    kept = schema.empty_table()
    for batch in found:
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch])])
        if wanted.limit is not None and kept.num_rows > wanted.limit + KEPT:
            kept = _take_first(kept, wanted)
        if wanted.limit is not None and not wanted.order and kept.num_rows >= wanted.limit:
            break
    return _take_first(kept, wanted)


def _take_first(rows: pa.Table, wanted: ReadQuery) -> pa.Table:
    if wanted.order:
        keys = [(name, "ascending") for name in wanted.order]
        rows = rows.take(pc.sort_indices(rows, sort_keys=keys)[: wanted.limit])
    return rows.slice(0, wanted.limit)


def count_rows(table: DeltaTable) -> int:
    """The number of rows by the statistics of the files in the log. If a file has none, the table is scanned."""
    actions = pa.table(table.get_add_actions(flatten=True))
    counts = actions["num_records"] if "num_records" in actions.column_names else None
    if counts is None or counts.null_count:
        return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.scan(columns=[])))
    return int(pc.sum(counts).as_py() or 0)
