"""A Delta target at one commit of its lane, for comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.expr import Expr
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.reads import CHECKSUMS, ComparedColumn, KeyRange, TableSplit

from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.table_reader import to_source_names, translate_missing_files
from ...delta.tables import has_table, read_schema
from ...duckdb.session import open_session
from ...sql.checksums import SummedColumn, can_render_duckdb, render_bucket_condition, render_sums
from ...sql.dialect import DELTA_RS_ALONE, DUCKDB
from ...sql.render import current_rows_condition, render_expression
from .lane import open_lane_log

ROWS, CURRENT, KEYS = "comparison_rows", "comparison_current", "comparison_keys"


@contextmanager
def open_delta_comparison(lake: Lake, path: Folder, lane: Lane) -> Iterator[DeltaTargetSnapshot | None]:
    """See `ports.sink.SinkFeatures.open_comparison`. The state of the lane is part of the table's log, so version and
    position belong together."""
    with translate_errors(lane.into):
        if not has_table(path):
            yield None
            return
        log = open_lane_log(lake, path, lane)
        table = log.open()
        state = log.state(table)
        if state is None:
            yield None
            return
        with open_session() as session:
            yield DeltaTargetSnapshot(lane, table, state.position, session)


class DeltaTargetSnapshot:
    """`ports.reads.TargetSnapshot` of one version of a table."""

    def __init__(self, lane: Lane, table: DeltaTable, position: Position, session: duckdb.DuckDBPyConnection) -> None:
        self.lane, self.table, self.session = lane, table, session
        self.commit, self.position = f"version {table.version()}", position
        self.identity = str(table.metadata().id)
        self.columns = to_source_names(read_schema(table))

    def can_sum(self, columns: Sequence[ComparedColumn]) -> bool:
        types = {field.name: field.type for field in self.columns}
        return all(can_render_duckdb(column.kind, types[column.target]) for column in columns)

    def sum(self, split: TableSplit) -> pa.Table:
        types = {field.name: field.type for field in self.columns}
        columns = [SummedColumn(column.target, column.kind, str(types[column.target])) for column in split.columns]
        excluded = None
        if split.without.num_rows:
            self.session.register(KEYS, split.without)
            excluded = KEYS
        keys = self._list_keys(split)
        query = render_sums(DUCKDB, CURRENT, columns, keys, within=split.within, excluded=excluded)
        needed = {*(column.name for column in columns), *split.keys}
        return self._query(query, needed=needed, within=split.within).select(CHECKSUMS.names).cast(CHECKSUMS)

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> pa.Table:
        wanted = render_bucket_condition(DUCKDB, self._list_keys(split), buckets, split.within)
        where = _render_where(split.where)
        return self._query(f"SELECT t.* FROM {CURRENT} AS t WHERE {wanted} AND {where}", within=split.within)

    def read_keys(self, keys: pa.Table, where: Expr | None) -> pa.Table:
        matches = " AND ".join(f"t.{DUCKDB.quote_name(name)} = k.{DUCKDB.quote_name(name)}" for name in keys.column_names)
        self.session.register(KEYS, keys)
        return self._query(f"SELECT t.* FROM {CURRENT} AS t SEMI JOIN {KEYS} AS k ON {matches} WHERE {_render_where(where)}")

    def read_all(self) -> pa.Table:
        return self._query(f"SELECT t.* FROM {CURRENT} AS t", "true")

    def _list_keys(self, split: TableSplit) -> list[SummedColumn]:
        kinds = {column.target: column.kind for column in split.columns}
        types = {field.name: field.type for field in self.columns}
        return [SummedColumn(name, kinds.get(name, "integer"), str(types[name])) for name in split.keys]

    def convert(self, name: str, values: pa.Array) -> pa.Array:  # noqa: ARG002 - every column keeps its values
        """See `ports.reads.TargetSnapshot.convert`: a lake stores values as they are."""
        return values

    def _query(
        self,
        query: str,
        condition: str | None = None,
        *,
        needed: Collection[str] | None = None,
        within: KeyRange | None = None,
    ) -> pa.Table:
        """The result of a query over `CURRENT`: the current rows, or those that match a condition. With `needed`, they have
        only these columns of the target. `within`: a range outside of which no row matters."""
        schema = self.columns
        stored_names = dict(zip(schema.names, read_schema(self.table).names, strict=True))
        condition = condition or current_rows_condition(DUCKDB, self.lane, schema.names)
        names = [n for n in schema.names if needed is None or n in needed or DUCKDB.quote_name(n) in condition]
        predicate = None if within is None else render_range(stored_names[within.column], within)
        scan = pa.RecordBatchReader.from_stream(self.table.scan([stored_names[name] for name in names], predicate))
        renamed_schema = pa.schema([field.with_name(name) for field, name in zip(scan.schema, names, strict=True)])
        batches = pa.RecordBatchReader.from_batches(renamed_schema, (batch.rename_columns(names) for batch in scan))
        with translate_missing_files(self.lane.into, self.table):
            self.session.register(ROWS, batches)
            rows = self.session.sql(f"WITH {CURRENT} AS (SELECT * FROM {ROWS} WHERE {condition}) {query}").to_arrow_table()
        return rows.cast(schema) if needed is None else rows


def _render_where(where: Expr | None) -> str:
    return "true" if where is None else render_expression(where, DUCKDB, "t")


def render_range(column: str, within: KeyRange) -> str | None:
    """The range as a condition of delta-rs."""
    name = DELTA_RS_ALONE.quote_name(column)
    bounds = [] if within.above is None else [f"{name} > {within.above}"]
    return " AND ".join(bounds if within.upto is None else [*bounds, f"{name} <= {within.upto}"]) or None
