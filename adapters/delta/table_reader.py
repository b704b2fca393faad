"""Reads of Delta tables: current and old versions, pages of selected rows, and the rows that have some wanted values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from operator import and_, or_

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.dataset import Scanner

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.read_query import BuildReadQuery, ReadCondition, ReadQuery, ReadTimeout

from ..sql.dialect import DELTA_RS
from ..sql.render import render_literal
from .errors import first_line
from .folders import Folder
from .lake import decode_name, is_hashed
from .partitions import Partitions
from .tables import has_table, open_table, read_schema, source_name

# Current and old versions of tables. Conditions can read only the table.


def read_table(
    path: Folder, name: str, *, version: int | None, as_of: datetime | None, where: str | None, limit: int | None
) -> pa.Table:
    """See `ports.reads.Reader.read`; `path` is the table's folder. Columns have their source names."""
    table = open_at(path, name, version=version, as_of=as_of)
    schema = to_source_names(read_schema(table))
    scan = pa.RecordBatchReader.from_stream(table.scan())
    reader = pa.RecordBatchReader.from_batches(to_source_names(scan.schema), (b.rename_columns(schema.names) for b in scan))
    with translate_missing_files(name, table):
        if where is not None:
            return _read_matching(reader, name, where, limit).cast(schema)
        batches, rows = [], 0
        for batch in reader:
            if limit is not None and rows >= limit:
                break
            batches.append(batch)
            rows += batch.num_rows
        first = pa.Table.from_batches(batches, reader.schema).cast(schema)
        return first if limit is None else first.slice(0, limit)


def read_columns(path: Folder, name: str, version: int) -> pa.Schema:
    """The columns of `read_table` at a version."""
    return to_source_names(read_schema(open_at(path, name, version=version, as_of=None)))


@contextmanager
def translate_missing_files(name: str, table: DeltaTable) -> Iterator[None]:
    """Raises Fatal when data files of that version of a table are deleted."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if not _is_gone(error):
            raise
        raise Fatal(
            f"table {name!r} cannot be read at version {table.version()}: its files were cleaned away",
            next_step="Query a later version.",
        ) from error


def _is_gone(error: Exception) -> bool:
    """True when delta-rs reports that a file is missing, through any reader."""
    return "Object Store error" in str(error) and "not found" in str(error)


def to_source_names(schema: pa.Schema) -> pa.Schema:
    """The columns under their source names."""
    return pa.schema([field.with_name(source_name(field.name)) for field in schema])


def table_name(folder: Folder) -> str:
    """The original name of the table in `folder`."""
    if is_hashed(folder.name):
        return open_table(folder).metadata().name or folder.name
    return decode_name(folder.name)


def open_at(path: Folder, name: str, *, version: int | None, as_of: datetime | None) -> DeltaTable:
    """The table at its newest version, at `version`, or at the version of a time. Raises Fatal when there is
    none."""
    if not has_table(path):
        raise Fatal(f"there is no table {name!r} in the lake", next_step="`replicator status` lists the targets.")
    if version is not None and as_of is not None:
        raise ConfigProblem("a query has both a version and a time", next_step="Use only one of them.")
    try:
        table = open_table(path)
        if version is not None:
            # delta-rs would search a future version one by one.
            if not 0 <= version <= table.version():
                raise ValueError("the table has no such version")
            table = open_table(path, version)
        if as_of is not None:
            moment = as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC)
            # delta-rs would load the first version for every time before it.
            if moment.timestamp() * 1000 < min(entry["timestamp"] for entry in table.history()):
                raise ValueError("the table is younger")
            table.load_as_version(moment)
    except (DeltaError, OSError, ValueError) as error:
        version_text = f"version {version}" if as_of is None else f"the time {as_of.isoformat()}"
        entries = open_table(path).history()
        versions = [entry["version"] for entry in entries]
        first = datetime.fromtimestamp(min(entry["timestamp"] for entry in entries) / 1000, UTC)
        raise Fatal(
            f"table {name!r} cannot be read at {version_text}: it has versions {min(versions)} to {max(versions)}, "
            f"from {first.isoformat(timespec='seconds')} on"
        ) from error
    return table


def _read_matching(reader: pa.RecordBatchReader, name: str, where: str, limit: int | None) -> pa.Table:
    with duckdb.connect() as connection:
        for setting in ("enable_external_access = false", "python_enable_replacements = false", "TimeZone = 'UTC'"):
            connection.execute(f"SET {setting}")
        connection.execute("SET lock_configuration = true")
        try:
            matching = connection.from_arrow(reader).filter(where)
            return (matching if limit is None else matching.limit(limit)).to_arrow_table()
        except duckdb.Error as error:
            if _is_gone(error):
                raise pa.ArrowInvalid(str(error)) from error
            raise ConfigProblem(
                f"the condition on table {name!r} cannot be evaluated: {first_line(error)}",
                next_step="Write a SQL condition on the table's columns.",
            ) from error


# Selected rows of a table, page by page.

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
ROWS_ABOVE_LIMIT = 50_000
"""How many rows above the limit are collected before the last ones are dropped."""


def select_rows(
    path: Folder, name: str, choose: BuildReadQuery, *, version: int | None, as_of: datetime | None, seconds: float | None
) -> pa.Table:
    """See `ports.sink.SinkFeatures.select`; `path` is the table's folder.

    Rows are streamed: memory use depends on the page, not on the table. Ranges of whole numbers skip files.
    """
    table = open_at(path, name, version=version, as_of=as_of)
    stored_schema = read_schema(table)
    schema = to_source_names(stored_schema)
    wanted = choose(schema)
    if wanted.limit == 0:
        return schema.empty_table()
    # Arrow reads some names as paths of nested columns.
    numbered_schema = pa.schema([field.with_name(f"c{at}") for at, field in enumerate(schema)])
    names = dict(zip(schema.names, numbered_schema.names, strict=True))
    ranges = _range_conditions(stored_schema, dict(zip(schema.names, stored_schema.names, strict=True)), wanted)
    conditions = tuple(replace(one, column=names[one.column]) for one in wanted.conditions)
    wanted = replace(wanted, conditions=conditions, order=tuple(names[name] for name in wanted.order))
    terms = [COMPARE[one.operator](pc.field(one.column), one.value) for one in wanted.conditions]
    if wanted.start:
        terms.append(_start_expression(wanted))
    end = None if seconds is None else time.monotonic() + seconds

    def read_batches() -> Iterator[pa.RecordBatch]:
        for batch in pa.RecordBatchReader.from_stream(table.scan(predicate=ranges or None)):
            if end is not None and time.monotonic() > end:
                raise ReadTimeout(
                    f"reading table {name} takes longer than {seconds:g} s",
                    next_step="Filter by the first column of its key, or allow more time (`serve.query_timeout`).",
                )
            rows = pa.Table.from_batches([batch]).rename_columns(numbered_schema.names)
            yield from rows.cast(numbered_schema).to_batches()

    with translate_missing_files(name, table):
        scanner = Scanner.from_batches(read_batches(), schema=numbered_schema, filter=reduce(and_, terms) if terms else None)
        return _take_page(scanner.to_reader(), numbered_schema, wanted).rename_columns(schema.names).cast(schema)


def _range_conditions(schema: pa.Schema, names: dict[str, str], wanted: ReadQuery) -> str:
    """The conditions on whole numbers, which skip files because their statistics are exact."""
    first = [ReadCondition(wanted.order[0], ">=", wanted.start[0])] if wanted.start else []
    texts = []
    for one in (*wanted.conditions, *first):
        if one.value is None or not one.value.is_valid or not pa.types.is_integer(schema.field(names[one.column]).type):
            continue
        column = DELTA_RS.quote_name(names[one.column])
        text = f"{column} {one.operator} {int(one.value.as_py())}"
        texts.append(f"({text} OR {column} IS NULL)" if one in first else text)
    return " AND ".join(texts)


def _start_expression(wanted: ReadQuery) -> pc.Expression:
    """Rows at or after the start, compared column by column in the order.

    NaN sorts after all numbers, and NULL last.
    """
    alike = pc.scalar(True)
    behind = []
    for name, value in zip(wanted.order, wanted.start, strict=True):
        column, is_float = pc.field(name), pa.types.is_floating(value.type)
        if not value.is_valid:
            greater, equal = pc.scalar(False), column.is_null()
        elif is_float and pc.is_nan(value).as_py():
            greater, equal = column.is_null(), column.is_valid() & column.is_nan()
        else:
            greater, equal = (column > value) | column.is_null(), column.is_valid() & (column == value)
            if is_float:
                greater = greater | column.is_nan()
        behind.append(alike & greater)
        alike = alike & equal
    return reduce(or_, behind, alike)


def _take_page(reader: pa.RecordBatchReader, schema: pa.Schema, wanted: ReadQuery) -> pa.Table:
    page = schema.empty_table()
    for batch in reader:
        page = pa.concat_tables([page, pa.Table.from_batches([batch])])
        if wanted.limit is not None and page.num_rows > wanted.limit + ROWS_ABOVE_LIMIT:
            page = _take_first(page, wanted)
        if wanted.limit is not None and not wanted.order and page.num_rows >= wanted.limit:
            break
    return _take_first(page, wanted)


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


# The rows of a table that have some of the wanted values, without the files that cannot have any.

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
    conditions = [condition] if condition else []
    for name, values in wanted.items():
        # The range of whole numbers skips files. Rows without a value are in no range.
        if name not in partitions and pa.types.is_integer(values.type) and len(values) and not values.null_count:
            column, ends = DELTA_RS.quote_name(name), pc.min_max(values).as_py()
            conditions.append(f"{column} >= {ends['min']} AND {column} <= {ends['max']}")
    for name, among in partitions.items():
        literals = [f"DATE '{v.isoformat()}'" if isinstance(v, date) else render_literal(v) for v in among]  # type: ignore[arg-type]
        conditions.append(f"{DELTA_RS.quote_name(name)} IN ({', '.join(literals)})")
    predicate = " AND ".join(conditions)
    reader = pa.RecordBatchReader.from_stream(snapshot.scan(columns=list(columns), predicate=predicate or None))
    # Arrow cannot filter string views. One expression hashes the values once, not once for every batch.
    batches = (piece for batch in reader for piece in pa.Table.from_batches([batch]).cast(schema).to_batches())
    among_them = [pc.field(name).isin(values) for name, values in wanted.items()]
    return Scanner.from_batches(batches, schema=schema, filter=reduce(and_, among_them) if among_them else None).to_table()
