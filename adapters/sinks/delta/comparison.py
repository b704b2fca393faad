"""A Delta target at one commit of its lane, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.ports.comparison import Chunk
from replicator.ports.frames import Lane

from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.table_reader import to_source_names, translate_missing_files
from ...delta.tables import has_table, read_schema
from ...duckdb.session import open_session
from ...sql.comparison import current_rows_condition
from ...sql.dialect import DUCKDB
from .lane import open_lane_log


@contextmanager
def open_delta_comparison(lake: Lake, path: Folder, lane: Lane) -> Iterator[DeltaTargetSnapshot]:
    """See `ports.comparison.Compares.open_comparison`. The state of the lane is part of the table's log, so version and
    position belong together."""
    with translate_errors(lane.into):
        if not has_table(path):
            raise Fatal(f"lane {lane.id} has no target yet", next_step="Start the daemon, and repeat the command.")
        log = open_lane_log(lake, path, lane)
        table = log.open()
        state = log.state(table)
        if state is None:
            raise Fatal(f"lane {lane.id} has no position yet", next_step="Start the daemon, and repeat the command.")
        with open_session() as session:
            yield DeltaTargetSnapshot(lane, table, state.position, session)


@dataclass(frozen=True)
class DeltaTargetSnapshot:
    """`ports.comparison.TargetSnapshot` of one version of a table."""

    lane: Lane
    table: DeltaTable
    position: Position
    session: duckdb.DuckDBPyConnection

    @property
    def commit(self) -> str:
        return f"version {self.table.version()}"

    @property
    def columns(self) -> pa.Schema:
        return to_source_names(read_schema(self.table))

    def sum(self, chunk: Chunk) -> pa.Table | None:
        """None: see `ports.comparison.TargetSnapshot.sum`."""

    def read(self, chunk: Chunk | None, buckets: Sequence[int] | None) -> pa.Table:
        return self._query("SELECT t.* FROM {rows} AS t")

    def read_keys(self, keys: pa.Table) -> pa.Table:
        matches = " AND ".join(f"t.{DUCKDB.quote_name(name)} = k.{DUCKDB.quote_name(name)}" for name in keys.column_names)
        self.session.register("comparison_keys", keys)
        return self._query(f"SELECT t.* FROM {{rows}} AS t SEMI JOIN comparison_keys AS k ON {matches}")

    def read_all(self) -> pa.Table:
        return self._query("SELECT t.* FROM {rows} AS t", "true")

    def convert(self, name: str, values: pa.Array) -> pa.Array:
        """See `ports.comparison.TargetSnapshot.convert`: a lake stores values as they are."""
        return values

    def _query(self, query: str, condition: str | None = None) -> pa.Table:
        """The result of a query over the current rows, or over those that match a condition."""
        schema = self.columns
        scan = pa.RecordBatchReader.from_stream(self.table.scan())
        named = to_source_names(scan.schema)
        batches = pa.RecordBatchReader.from_batches(named, (batch.rename_columns(schema.names) for batch in scan))
        condition = condition or current_rows_condition(DUCKDB, self.lane, schema.names)
        with translate_missing_files(self.lane.into, self.table):
            self.session.register("comparison_rows", batches)
            found = self.session.sql(query.format(rows=f"(SELECT * FROM comparison_rows WHERE {condition})"))
            return found.to_arrow_table().cast(schema)
