"""Rows of a Delta table that somebody chooses, a page of them at a time."""

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

from replicator.domain.selection import Choose, Condition, Selection, TooLong

from ..sql.dialect import DELTA_RS
from .folders import Folder
from .reading import naming_gone, then, to_source_names
from .tables import schema_of

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
"""Rows beyond those that are wanted, before the ones that come last are left out."""


def select_rows(
    path: Folder, name: str, choose: Choose, *, version: int | None, as_of: datetime | None, seconds: float | None
) -> pa.Table:
    """See `ports.reader.Selects.select`; `path` is the table's folder.

    The rows stream through: memory is bounded by the page, not by the table. Files are left out by ranges of whole numbers.
    """
    table = then(path, name, version=version, as_of=as_of)
    stored = schema_of(table)
    schema = to_source_names(stored)
    wanted = choose(schema)
    if wanted.limit == 0:
        return schema.empty_table()
    # Arrow takes some names for paths of nested columns.
    numbered = pa.schema([field.with_name(f"c{at}") for at, field in enumerate(schema)])
    names = dict(zip(schema.names, numbered.names, strict=True))
    ranges = _ranges(stored, dict(zip(schema.names, stored.names, strict=True)), wanted)
    batches = _scanned(table, numbered, ranges, _deadline(name, seconds))
    wanted = _renamed(wanted, names)
    with naming_gone(name, table):
        found = Scanner.from_batches(batches, schema=numbered, filter=_condition(wanted)).to_reader()
        return _page(found, numbered, wanted).rename_columns(schema.names).cast(schema)


def _renamed(wanted: Selection, names: dict[str, str]) -> Selection:
    conditions = tuple(replace(one, column=names[one.column]) for one in wanted.conditions)
    return replace(wanted, conditions=conditions, order=tuple(names[name] for name in wanted.order))


def _deadline(name: str, seconds: float | None) -> Callable[[], None]:
    end = None if seconds is None else time.monotonic() + seconds

    def check() -> None:
        if end is not None and time.monotonic() > end:
            raise TooLong(
                f"reading table {name} takes longer than {seconds:g} seconds",
                next_step="Ask for fewer rows by the first column of its key, or give it more time (`serve.query_timeout`).",
            )

    return check


def _scanned(table: DeltaTable, schema: pa.Schema, ranges: str, check: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    scan = pa.RecordBatchReader.from_stream(table.scan(predicate=ranges or None))
    for batch in scan:
        check()
        yield from pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema).to_batches()


def _ranges(stored: pa.Schema, names: dict[str, str], wanted: Selection) -> str:
    """The conditions on whole numbers, by which files are left out: their statistics are exact."""
    first = [Condition(wanted.order[0], ">=", wanted.start[0])] if wanted.start else []
    texts = []
    for one in (*wanted.conditions, *first):
        if one.value is None or not one.value.is_valid or not pa.types.is_integer(stored.field(names[one.column]).type):
            continue
        column = DELTA_RS.quoted(names[one.column])
        text = f"{column} {one.operator} {int(one.value.as_py())}"
        texts.append(f"({text} OR {column} IS NULL)" if one in first else text)
    return " AND ".join(texts)


def _condition(wanted: Selection) -> pc.Expression | None:
    terms = [COMPARE[one.operator](pc.field(one.column), one.value) for one in wanted.conditions]
    if wanted.start:
        terms.append(_from(wanted))
    return reduce(and_, terms) if terms else None


def _from(wanted: Selection) -> pc.Expression:
    """Rows that equal the start in all columns of the order, or come behind it in one and equal it in those before."""
    alike = pc.scalar(True)
    behind = []
    for name, value in zip(wanted.order, wanted.start, strict=True):
        column = pc.field(name)
        behind.append(alike & _greater(column, value))
        alike = alike & _same(column, value)
    return reduce(or_, behind, alike)


def _is_nan(value: pa.Scalar) -> bool:
    return pa.types.is_floating(value.type) and value.is_valid and bool(pc.is_nan(value).as_py())


def _greater(column: pc.Expression, value: pa.Scalar) -> pc.Expression:
    """Behind it: NaN is behind all numbers, and NULL behind all."""
    if not value.is_valid:
        return pc.scalar(False)
    if _is_nan(value):
        return column.is_null()
    above = (column > value) | column.is_null()
    return above | column.is_nan() if pa.types.is_floating(value.type) else above


def _same(column: pc.Expression, value: pa.Scalar) -> pc.Expression:
    if not value.is_valid:
        return column.is_null()
    return column.is_valid() & (column.is_nan() if _is_nan(value) else column == value)


def _page(found: pa.RecordBatchReader, schema: pa.Schema, wanted: Selection) -> pa.Table:
    kept = schema.empty_table()
    for batch in found:
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch])])
        if wanted.limit is not None and kept.num_rows > wanted.limit + KEPT:
            kept = _first(kept, wanted)
        if wanted.limit is not None and not wanted.order and kept.num_rows >= wanted.limit:
            break
    return _first(kept, wanted)


def _first(rows: pa.Table, wanted: Selection) -> pa.Table:
    if wanted.order:
        keys = [(name, "ascending") for name in wanted.order]
        rows = rows.take(pc.sort_indices(rows, sort_keys=keys)[: wanted.limit])
    return rows.slice(0, wanted.limit)
