"""The stored state of a lane of a lake in the types of its records, for targets outside a lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.policy.plan import EVENT_ID, ApplyPlan
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import Column
from replicator.ports.frames import Lane
from replicator.ports.sink import CheckpointUnsupported

from ...apply.stages import side_columns
from ...arrow.conform import cast_column
from ...delta.lake import Lake
from ...delta.tables import has_table, open_table, read_schema, stored_columns
from ...delta.types import restore_type
from .schema_evolution import read_versions
from .table_swap import open_source_lane
from .tombstones import select_applied


class DeltaStoredLane:
    """`ports.sink.StoredLane` of a lake."""

    def __init__(self, lake: Lake, lane: Lane, plan: ApplyPlan) -> None:
        self.lane, self.path = lane, lake.root.uri
        self._table, self.state = open_source_lane(lake, lane)
        self._plan, self._side_table = plan, lake.tombstones(lane.into)
        self.versions: Sequence[SchemaVersion] = read_versions(lake.schemas(lane.into))

    def rows(self) -> Iterator[pa.Table]:
        """The rows of its table, with the columns of the plan's target.

        Raises CheckpointUnsupported when the table has other columns.
        """
        yield from _read_pieces(self._table, self._plan.target)

    def side_rows(self) -> Iterator[pa.Table]:
        """The rows of the side table, with the columns of `side_columns`, without rows of a failed attempt.

        A key (or for scd2 a change) may have several rows.
        """
        if has_table(self._side_table):
            table = open_table(self._side_table, self.state.side_table_version)
            yield from _read_pieces(table, side_columns(self._plan), self.state.position)


def _read_pieces(table: DeltaTable, columns: Sequence[Column], applied: Position | None = None) -> Iterator[pa.Table]:
    """The rows of a table with these columns. With `applied`, only rows of applied records, if the rows name
    their records."""
    kept = read_schema(table)
    names = [column.name for column in stored_columns(tuple(columns), kept.names)]
    if set(kept.names) - {EVENT_ID} != set(names) - {EVENT_ID}:
        wrong = sorted({*kept.names} ^ {*names})
        raise CheckpointUnsupported(f"has other columns than its schema: {', '.join(wrong)}")
    for batch in pa.RecordBatchReader.from_stream(table.scan()):
        rows = pa.table(batch).cast(pa.schema([kept.field(name) for name in batch.schema.names]))
        if applied is not None and EVENT_ID in kept.names:
            rows = select_applied(rows, applied)
        found = zip(names, columns, strict=True)
        yield pa.table({column.name: _to_sent_type(rows[name], column) for name, column in found})


def _to_sent_type(column: pa.ChunkedArray, to: Column) -> pa.ChunkedArray:
    try:
        found, failing = cast_column(restore_type(column, to.type), to.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CheckpointUnsupported(
            f"keeps column {to.name!r} in a type that cannot be converted back to {to.type}"
        ) from error
    if failing:
        raise CheckpointUnsupported(f"has a value in column {to.name!r} that is no {to.type}")
    return found
