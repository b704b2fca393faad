"""The side table of a target in Delta, for what its rows do not show: tombstones, absorbed changes or column versions."""

from __future__ import annotations

from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from replicator.domain.change import OP, Op, sequence_columns
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan, cdc_sequence_columns
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from ...apply.column_versions import BESIDE
from ...apply.conform import number_rows
from ...apply.rows_frame import build_event_ids
from ...apply.stages import side_columns
from ...delta.commits import WRITER
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.table_reader import lookup_rows
from ...delta.table_writer import EVERY_COMMITS, TableMaintenance, TableWriter, TargetColumn, vacuum_files
from ...delta.tables import create_table, find_missing_columns, has_table, open_table, read_schema
from ...delta.types import conform_to_table
from ...duckdb.session import open_session
from ...sql.dialect import DELTA_RS, DUCKDB
from ...sql.reconcile import greater_condition, render_constant

# The tombstones of a target, as an append-only side table in Delta.

EVENT = r"(?s)^(?P<place>.*)-(?P<offset>[0-9]+)$"
"""The partition and the offset in an `_event_id`."""


class DeltaTombstones:
    """`testing.sink_contract.TombstoneStore` in a lake. The caller of `record` holds the lane's lock.

    Deletes are stored before the target's commit, so a failed attempt can leave tombstones behind. Earlier
    changes may then be read again without the delete. Therefore tombstones name their record (`_event_id`), and
    do not count before that record is applied.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)
        self._recording = Lock()
        self._open: dict[Folder, DeltaTable] = {}

    def record(self, lane: Lane, plan: ApplyPlan, deletes: pa.Table) -> None:
        """Stores the deletes of a folded frame (`_seq_*`) or a rows frame (`_cdc_seq_*`), and leaves out its other
        rows. Tombstones are visible on return. Safe for use from several threads."""
        path = self._lake.tombstones(lane.into)
        with self._recording, translate_errors(f"{lane.into} (its side table)"):
            table = self._open_table(path, lane, plan)
            schema = read_schema(table)
            deletes = deletes.filter(pc.equal(deletes[OP], Op.DELETE.value))
            names = cdc_sequence_columns(plan.table.sequence)
            sent_names = names if names[0] in deletes.column_names else sequence_columns(plan.table.sequence)
            columns = {key: deletes[key] for key in plan.table.keys}
            columns |= {name: deletes[sent_name] for name, sent_name in zip(names, sent_names, strict=True)}
            columns[EVENT_ID] = _read_event_ids(deletes)
            entries, _ = conform_to_table(number_rows(pa.table(columns)), schema)
            if entries.num_rows:
                write_deltalake(table, entries.select(schema.names).cast(schema), mode="append")
                self._upkeep.after_commit(table, table.version())

    def lookup(self, lane: Lane, plan: ApplyPlan, keys: pa.Table, applied: Position, *, again: bool = False) -> pa.Table:
        """The keys of a folded or a rows frame that have tombstones, each with its highest sequence.

        Tombstones of records at or above `applied` are left out. With `again`, for an out-of-band write, tombstones of
        the records of `keys` are, too.
        """
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            table = self._open_table(path, lane, plan)
            schema = read_schema(table)
            wanted, _ = conform_to_table(number_rows(keys.select(list(plan.table.keys))), schema)
            entries = lookup_rows(table, schema.names, {k: pc.unique(wanted[k]) for k in plan.table.keys})
        entries = select_applied(entries, applied)
        if again:
            entries = exclude_rows(entries, keys)
        entries = entries.drop_columns([EVENT_ID])
        q, sequence = DUCKDB.quote_name, cdc_sequence_columns(plan.table.sequence)
        order = ", ".join(f"{q(name)} DESC" for name in sequence)
        rank = f"row_number() OVER (PARTITION BY {', '.join(q(k) for k in plan.table.keys)} ORDER BY {order})"
        with open_session() as connection:
            connection.register("entries", entries.append_column("_row", pa.array(range(entries.num_rows), pa.int64())))
            best = connection.sql(f"SELECT _row FROM entries QUALIFY {rank} = 1 ORDER BY _row").to_arrow_table()
        return entries.take(best["_row"])

    def forget(self, lane: Lane, plan: ApplyPlan, high: Sequence) -> None:
        """Files without other tombstones are removed once they are a week old."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            delete_entries(self._open_table(path, lane, plan), plan, high)

    def drop(self, lane: Lane) -> None:
        """Deletes all tombstones of this lane's target."""
        path = self._lake.tombstones(lane.into)
        self._open.pop(path, None)
        with translate_errors(f"{lane.into} (its side table)"):
            path.clear()

    def reopen(self, lane: Lane) -> None:
        """Reads the tombstones of this lane's target again at the next use."""
        self._open.pop(self._lake.tombstones(lane.into), None)

    def _open_table(self, path: Folder, lane: Lane, plan: ApplyPlan) -> DeltaTable:
        if path not in self._open:
            if not has_table(path):
                create_table(path, lane.into, tombstone_columns(plan, lane, self._lake), settings={}, partition_by=[])
            self._open[path] = open_table(path)
        return self._open[path]


def select_applied(entries: pa.Table, applied: Position) -> pa.Table:
    """The entries whose record (`_event_id`) is below `applied`, and entries without a record."""
    parts = pc.extract_regex(entries[EVENT_ID], EVENT)
    ends = {f"{p.topic}-{p.partition}": offset for p, offset in applied.items()}
    indexes = pc.index_in(pc.struct_field(parts, "place"), value_set=pa.array(ends, pa.string()))
    end = pc.fill_null(pa.array(ends.values(), pa.int64()).take(indexes.combine_chunks()), 0)
    return entries.filter(pc.fill_null(pc.less(pc.struct_field(parts, "offset").cast(pa.int64()), end), True))


def exclude_rows(entries: pa.Table, rows: pa.Table) -> pa.Table:
    """The entries that are not from the records of `rows`.

    A failed attempt may have left such entries. The position does not show this, because it is above these
    records anyway. Rows without a record exclude nothing.
    """
    own = pc.unique(_read_event_ids(rows)).drop_null().cast(entries.schema.field(EVENT_ID).type)
    return entries.filter(pc.invert(pc.is_in(entries[EVENT_ID], value_set=own)))


def delete_entries(table: DeltaTable, plan: ApplyPlan, high: Sequence) -> None:
    """Removes the tombstones that are not above `high`, and files without other tombstones."""
    table.delete(old_entries_condition(plan, high))
    vacuum_files(table, None)


def old_entries_condition(plan: ApplyPlan, high: Sequence) -> str:
    """The condition for tombstones that are not above `high`."""
    names = [DELTA_RS.quote_name(n) for n in cdc_sequence_columns(plan.table.sequence)]
    return f"NOT {greater_condition(names, [render_constant(v, DELTA_RS) for v in high])}"


def tombstone_columns(plan: ApplyPlan, lane: Lane, lake: Lake) -> tuple[Column, ...]:
    """The columns of a table of tombstones: also the `_event_id` of the delete."""
    path = lake.table(lane.into)
    schema = read_schema(open_table(path)) if has_table(path) else pa.schema([])
    return (*_with_target_types(plan, schema), Column(EVENT_ID, pa.string()))


def _with_target_types(plan: ApplyPlan, target_schema: pa.Schema) -> tuple[Column, ...]:
    """The `side_columns` of a plan. Keys have the types of the target, as far as `target_schema` has them."""
    keys = plan.table.keys
    types = {name: target_schema.field(name).type for name in keys if name in target_schema.names}
    return tuple(Column(c.name, types.get(c.name, c.type)) if c.name in keys else c for c in side_columns(plan))


def _read_event_ids(frame: pa.Table) -> pa.ChunkedArray:
    return frame[EVENT_ID] if EVENT_ID in frame.column_names else build_event_ids(frame)


# Changes that an scd2 target does not show, as an append-only side table in Delta.


class DeltaAbsorbedChanges:
    """The absorbed changes of scd2 targets: upserts within a version, and deletes that ended no version.

    The caller of `record` holds the lane's lock. Rows are written before the target's commit, so a failed
    attempt can leave rows behind. A row counts only once its record is applied.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)
        self._recording = Lock()

    def record(self, lane: Lane, plan: ApplyPlan, changes: pa.Table) -> None:
        """Stores `changes`, with `_op` and the target's columns. They are visible on return.

        Safe for use from several threads.
        """
        path = self._lake.tombstones(lane.into)
        with self._recording, translate_errors(f"{lane.into} (its side table)"):
            table = open_absorbed_changes(path, lane, plan)
            schema = read_schema(table)
            names, count = changes.column_names, changes.num_rows
            columns = [changes[f.name].cast(f.type) if f.name in names else pa.nulls(count, f.type) for f in schema]
            write_deltalake(table, pa.table(columns, schema=schema), mode="append")
            self._upkeep.after_commit(table, table.version())

    def lookup(self, lane: Lane, plan: ApplyPlan, rows: pa.Table, applied: Position, *, again: bool = False) -> pa.Table:
        """The absorbed changes of the keys in `rows`, with `_op` and the target's columns.

        Changes of records at or above `applied` are left out. With `again`, changes of the records of `rows`
        are, too.
        """
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            table = open_absorbed_changes(path, lane, plan)
            changes = lookup_rows(table, read_schema(table).names, {key: pc.unique(rows[key]) for key in plan.table.keys})
        changes = select_applied(changes, applied)
        return exclude_rows(changes, rows) if again else changes


def open_absorbed_changes(path: Folder, lane: Lane, plan: ApplyPlan) -> DeltaTable:
    """The table of absorbed changes at `path`, with every column of the plan's target."""
    columns = side_columns(plan)
    if not has_table(path):
        create_table(path, lane.into, columns, settings={}, partition_by=[])
    table = open_table(path)
    missing = find_missing_columns(table, lane.into, columns)
    if missing:
        TableWriter().add_columns(table, missing)
    return table


# The column versions of a lane with a sequence for each column, as a side table in Delta: one row per key.


class DeltaColumnVersions:
    """The caller of each method holds the lane's lock.

    The table is written before the target's commit, which stores the version that belongs to it
    (`LaneState.side_table_version`). Later versions are from a failed attempt, or from another writer that lost
    the lane. They are undone before anything is read.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)

    def open_table(self, lane: Lane, plan: ApplyPlan, version: int | None, target_schema: pa.Schema) -> DeltaTable:
        """The table at `version`, restored as its newest version; None: empty. `target_schema`: the target's columns."""
        path = self._path(lane)
        with translate_errors(f"{lane.into} (its side table)"):
            if version is None and has_table(path):
                path.clear()
            if not has_table(path):
                create_table(path, lane.into, _with_target_types(plan, target_schema), settings={}, partition_by=[])
            table = open_table(path)
            if version is not None and table.version() != version:
                table.restore(version)
            schema = read_schema(table)
            wanted = [f.with_type(target_schema.field(f.name).type) if f.name in target_schema.names else f for f in schema]
            if wanted != list(schema):
                TableWriter().rewrite(
                    table, [TargetColumn(f.name, f) for f in wanted]
                )  # The target has wider key columns now.
            return table

    def lookup(self, table: DeltaTable, rows: pa.Table | None, lane: Lane) -> pa.Table:
        """The rows of the keys in `rows`, and perhaps others; all rows for None."""
        schema, wanted = read_schema(table), {}
        if rows is not None:
            wanted = {key: pc.unique(rows[key]).drop_null() for key in schema.names if key != BESIDE}
        with translate_errors(f"{lane.into} (its side table)"):
            return lookup_rows(table, schema.names, wanted)

    def write(self, table: DeltaTable, rows: pa.Table, lane: Lane) -> int:
        """Stores `rows` (the key and the text) and returns the new version. A row without a text deletes the
        stored one."""
        if not rows.num_rows:
            return int(table.version())
        q, keys = DELTA_RS.quote_name, [name for name in rows.column_names if name != BESIDE]
        with translate_errors(f"{lane.into} (its side table)"):
            self._upkeep.after_commit(table, table.version())
            merger = table.merge(
                rows.cast(read_schema(table)),
                " AND ".join(f"t.{q(k)} = s.{q(k)}" for k in keys),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                writer_properties=WRITER,
            )
            has_text = f"s.{q(BESIDE)} IS NOT NULL"
            merger = merger.when_matched_delete(f"NOT ({has_text})").when_matched_update({q(BESIDE): f"s.{q(BESIDE)}"})
            merger.when_not_matched_insert({q(n): f"s.{q(n)}" for n in (*keys, BESIDE)}, has_text).execute()
            return int(table.version())

    def _path(self, lane: Lane) -> Folder:
        return self._lake.tombstones(lane.into)
