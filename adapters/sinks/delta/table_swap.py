"""Replaces a lane's table by its rebuild: one commit of the lane has its rows, its columns and its state.

The commit overwrites the table. A renamed folder would take two steps, lose the history, break readers at work, and
does not exist in object stores.

Tombstones and schemas are in other files. So the state of that commit names the table to copy them from, and
the next holder of the lane copies them before anything else. A mark next to the positions shows that there may
be such a state. It is written first and removed last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.policy.plan import CDC_UNSENT, EVENT_ID, ApplyPlan, LaneState
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import Column
from replicator.ports.frames import Lane
from replicator.ports.sink import CheckpointUnsupported, CutoverDecision, StoredLane

from ...apply.column_versions import COLUMN_VERSIONS, rename_columns
from ...apply.conform import cast_column
from ...apply.projections import is_owned
from ...apply.stages import side_columns
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.partitions import partition_columns, refuse_unnameable
from ...delta.table_writer import TableWriter, TargetColumn, overwrite_table
from ...delta.tables import has_table, open_table, read_schema, stored_columns, stored_names
from ...delta.types import restore_type
from .lane import DeltaLane, open_lane_log
from .schema_evolution import read_versions
from .side_tables import select_applied

SWAP_MARK = "swapping.json"


def swap_tables(
    lake: Lake,
    lanes: tuple[DeltaLane, DeltaLane],
    decide_cutover: CutoverDecision,
    writer: TableWriter,
    reopen: Callable[[], None],
) -> LaneState:
    """See `ports.sink.SinkFeatures.swap`, for two held lanes. The second one has the new rows. `reopen`: drops this
    process's cached data about side tables."""
    target_lane, rebuilt_lane = lanes
    lane = target_lane.lane
    source, rebuilt_state = rebuilt_lane.newest(), rebuilt_lane.state()
    if rebuilt_state is None:
        raise Fatal(f"{rebuilt_lane.lane.id} is empty, so it cannot replace {lane.id}")
    table = target_lane.newest()
    if not is_owned(table.metadata().description):
        raise Fatal(
            f"table {lane.into} existed before lane {lane.id}, and keeps its own rows",
            next_step="Name another table with `--into`.",
        )
    if partition_columns(table) and not partition_columns(source):
        raise Fatal(
            f"table {lane.into} is partitioned, but its rebuild is not, and no commit can change that",
            next_step=f"Name another table with `--into`, or `replicator drop {lane.id}` and load it.",
        )
    state = decide_cutover(target_lane.state(), rebuilt_state)
    lake.positions(lane.pipeline, lane.id).put(SWAP_MARK, {"format": 1})
    target_lane.set_properties(source.metadata().configuration)
    columns = [TargetColumn(field.name, field) for field in read_schema(source)]
    target_lane.record_state(replace(state, copied_from=rebuilt_lane.lane.into), writer.replace_with(source, columns))
    reopen()
    return finish_swap(lake, target_lane) or state


def finish_swap(lake: Lake, target_lane: DeltaLane) -> LaneState | None:
    """Finishes a swap that was killed at any point; returns the lane's state after it, None when there is
    nothing to finish."""
    lane = target_lane.lane
    positions = lake.positions(lane.pipeline, lane.id)
    if not positions.has_file(SWAP_MARK):
        return None
    state = target_lane.state()
    if state is not None and state.copied_from:
        if not has_table(lake.table(state.copied_from)):
            raise DataLoss(
                f"the rows of lane {lane.id} came from table {state.copied_from}, which does not exist any "
                "more, so its tombstones are lost",
                next_step=f"Load the lane again with `replicator lanes resync {lane.id}`.",
            )
        side_table, own_side_table = lake.tombstones(state.copied_from), lake.tombstones(lane.into)
        version = copy_table(side_table, own_side_table, state.side_table_version, lane.into)
        schemas, own = lake.schemas(state.copied_from), lake.schemas(lane.into)
        for name in own.files():
            own.drop(name)
        for name in schemas.files():
            own.put(name, json.loads(schemas.load(name)))
        state = replace(state, copied_from="", side_table_version=None if state.side_table_version is None else version)
        target_lane.record_state(state)
    positions.drop(SWAP_MARK)
    return state


def copy_table(source: Folder, target: Folder, version: int | None, name: str) -> int | None:
    """Replaces `target` by `source` (at `version`); returns the new version of `target`, None when `source`
    does not exist."""
    target.clear()
    if not has_table(source):
        return None
    snapshot = open_table(source, version)
    settings = {key: value for key, value in snapshot.metadata().configuration.items() if value is not None}
    table_copy = DeltaTable.create(
        target.uri, read_schema(snapshot), name=name, configuration=settings, storage_options=target.options
    )
    overwrite_table(table_copy, snapshot, [TargetColumn(field.name, field) for field in read_schema(snapshot)])
    return int(table_copy.version())


# A lane starts from the stored state of a lane of another lake: rows, side table and position.


def restore_lane(lake: Lake, target_lane: DeltaLane, stored: StoredLane, writer: TableWriter) -> None:
    """See `ports.sink.SinkFeatures.restore_state`, for a lane that is held and whose table was created. The side
    tables come first: without a state nothing reads them."""
    source, origin, lane = Lake.from_path(stored.path), stored.lane, target_lane.lane
    table, state = open_source_lane(source, origin)
    partitions = partition_columns(target_lane.newest())
    refuse_unnameable(table, partitions)
    version = copy_table(source.tombstones(origin.into), lake.tombstones(lane.into), state.side_table_version, lane.into)
    schemas, own = source.schemas(origin.into), lake.schemas(lane.into)
    for name in schemas.files():
        own.put(name, json.loads(schemas.load(name)))
    rows = writer.replace_with(table, [TargetColumn(field.name, field) for field in read_schema(table)], partitions)
    target_lane.record_state(
        replace(state, copied_from="", side_table_version=None if state.side_table_version is None else version), rows
    )


def open_source_lane(source: Lake, origin: Lane) -> tuple[DeltaTable, LaneState]:
    """The table of a lane of a checkpoint, and its state. Raises Fatal when it has none."""
    table = open_table(source.table(origin.into))
    state = open_lane_log(source, source.table(origin.into), origin).state(table)
    if state is None:
        raise Fatal(f"the snapshot in {source.root} has no state of lane {origin.id}", next_step="Take another one.")
    return table, state


# The stored state of a lane of a lake in the types of its records, for targets outside a lake.


class DeltaStoredLane:
    """`ports.sink.StoredLane` of a lake."""

    def __init__(self, lake: Lake, lane: Lane, plan: ApplyPlan) -> None:
        self.lane, self.path = lane, lake.root.uri
        self._table, self.state = open_source_lane(lake, lane)
        self._plan, self._side_table = plan, lake.tombstones(lane.into)
        names = stored_names(plan.table.column_names, read_schema(self._table).names)
        self._names = {stored: name for name, stored in names.items()}
        self.versions: Sequence[SchemaVersion] = read_versions(lake.schemas(lane.into))

    def rows(self) -> Iterator[pa.Table]:
        """The rows of its table, with the columns of the plan's target.

        Raises CheckpointUnsupported when the table has other columns.
        """
        for rows in _read_pieces(self._table, self._plan.target):
            yield self._restore_names(rows)

    def side_rows(self) -> Iterator[pa.Table]:
        """The rows of the side table, with the columns of `side_columns`, without rows of a failed attempt.

        A key (or for scd2 a change) may have several rows.
        """
        if has_table(self._side_table):
            table = open_table(self._side_table, self.state.side_table_version)
            for rows in _read_pieces(table, side_columns(self._plan), self.state.position):
                yield self._restore_names(rows)

    def _restore_names(self, rows: pa.Table) -> pa.Table:
        """The rows, whose values name columns as their source does."""
        for name in {CDC_UNSENT, COLUMN_VERSIONS}.intersection(rows.column_names) if self._names else ():
            values = rename_columns(rows[name].combine_chunks(), self._names)
            rows = rows.set_column(rows.column_names.index(name), name, values)
        return rows


def _read_pieces(table: DeltaTable, columns: Sequence[Column], applied: Position | None = None) -> Iterator[pa.Table]:
    """The rows of a table with these columns. With `applied`, only rows of applied records, if the rows name
    their records."""
    schema = read_schema(table)
    names = [column.name for column in stored_columns(tuple(columns), schema.names)]
    if set(schema.names) - {EVENT_ID} != set(names) - {EVENT_ID}:
        wrong = sorted({*schema.names} ^ {*names})
        raise CheckpointUnsupported(f"has other columns than its schema: {', '.join(wrong)}")
    for batch in pa.RecordBatchReader.from_stream(table.scan()):
        rows = pa.table(batch).cast(pa.schema([schema.field(name) for name in batch.schema.names]))
        if applied is not None and EVENT_ID in schema.names:
            rows = select_applied(rows, applied)
        yield pa.table({column.name: _to_sent_type(rows[name], column) for name, column in zip(names, columns, strict=True)})


def _to_sent_type(column: pa.ChunkedArray, to: Column) -> pa.ChunkedArray:
    try:
        values, failing = cast_column(restore_type(column, to.type), to.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CheckpointUnsupported(
            f"keeps column {to.name!r} in a type that cannot be converted back to {to.type}"
        ) from error
    if failing:
        raise CheckpointUnsupported(f"has a value in column {to.name!r} that is no {to.type}")
    return values
