"""The side table of a target in Delta, for what its rows do not show: tombstones, absorbed changes or column versions."""

from __future__ import annotations

from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.change import OP, Op, sequence_columns
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan, cdc_sequence_columns
from replicator.domain.position import Position
from replicator.domain.sequence import Sequence
from replicator.domain.table import Column
from replicator.ports.frames import Lane

from ...apply.column_versions import COLUMN_VERSIONS
from ...apply.conform import number_rows
from ...apply.rows_frame import build_event_ids
from ...apply.stages import side_columns
from ...delta.commits import WRITER
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.table_reader import lookup_rows
from ...delta.table_writer import EVERY_COMMITS, TableMaintenance, TableWriter, TargetColumn, VacuumSchedule, vacuum_files
from ...delta.tables import create_table, find_missing_columns, has_table, open_table, read_schema
from ...delta.types import conform_to_table
from ...duckdb.session import open_session
from ...sql.dialect import DELTA_RS, DUCKDB
from ...sql.reconcile import greater_condition, render_constant

# The tombstones of a target, or for scd2 the changes that it does not show, as an append-only side table in Delta.

EVENT = r"(?s)^(?P<place>.*)-(?P<offset>[0-9]+)$"
"""The partition and the offset in an `_event_id`."""


class SideTables:
    """The append-only side tables of targets: tombstones, or absorbed changes. Absorbed are upserts within a version, and
    deletes that ended no version. The caller of `record` holds the lane's lock.

    Rows are stored before the target's commit, so a failed attempt can leave rows behind. Earlier changes may then be
    read again without them. Therefore rows name their record (`_event_id`), and do not count before that record is
    applied.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        self._upkeep = TableMaintenance(compact_every)
        self._open: dict[Folder, DeltaTable] = {}

    def open_table(self, lane: Lane, plan: ApplyPlan) -> DeltaTable:
        """The table, with all columns of the plan's side table and `_event_id`. Keys have the types of the target."""
        path = self._lake.tombstones(lane.into)
        columns = side_columns(plan) if plan.history else (*side_columns(plan), Column(EVENT_ID, pa.string()))
        if path not in self._open:
            if not has_table(path):
                target = self._lake.table(lane.into)
                schema = read_schema(open_table(target)) if has_table(target) else pa.schema([])
                of_target = _with_target_types(columns, plan, schema)
                create_table(path, lane.into, of_target, settings={}, partition_by=[])
            self._open[path] = open_table(path)
        table = self._open[path]
        missing = find_missing_columns(table, lane.into, columns) if plan.history else None
        if missing:
            TableWriter().add_columns(table, missing)
        return table

    def forget(self, lane: Lane, plan: ApplyPlan, max_sequence: Sequence) -> None:
        """Deletes tombstones. Files without other tombstones are removed once they are a week old."""
        with translate_errors(f"{lane.into} (its side table)"):
            delete_entries(self.open_table(lane, plan), plan, max_sequence)

    def keep_applied(self, lane: Lane, applied: Position) -> None:
        """Lets the entries of records below `applied` count at any position. The caller is about to lower it because the
        offsets belong to another log now."""
        path = self._lake.tombstones(lane.into)
        self.reopen(lane)
        if not has_table(path) or EVENT_ID not in (schema := read_schema(table := open_table(path))).names:
            return
        entries = lookup_rows(table, schema.names, {})
        ids, own = entries[EVENT_ID], pc.unique(select_applied(entries, applied)[EVENT_ID]).drop_null()
        rest = pc.if_else(pc.is_in(ids, value_set=own), None, ids)
        entries = entries.set_column(schema.get_field_index(EVENT_ID), schema.field(EVENT_ID), rest)
        write_deltalake(table, entries, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))

    def drop(self, lane: Lane) -> None:
        """Deletes the side table of this lane's target, of any kind."""
        self.reopen(lane)
        with translate_errors(f"{lane.into} (its side table)"):
            self._lake.tombstones(lane.into).clear()

    def reopen(self, lane: Lane) -> None:
        """Reads the side table of this lane's target again at the next use."""
        self._open.pop(self._lake.tombstones(lane.into), None)


class DeltaSideTables(SideTables):
    """`testing.sink_contract.TombstoneStore` in a lake, also for absorbed changes."""

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        super().__init__(lake, compact_every)
        self._recording = Lock()

    def record(self, lane: Lane, plan: ApplyPlan, rows: pa.Table) -> None:
        """Stores absorbed changes, with `_op` and the target's columns. For tombstones, stores the deletes of a folded frame
        (`_seq_*`) or a rows frame (`_cdc_seq_*`), and leaves out its other rows.

        They are visible on return. Safe for use from several threads.
        """
        with self._recording, translate_errors(f"{lane.into} (its side table)"):
            table = self.open_table(lane, plan)
            if plan.history is None:
                rows = to_tombstones(rows, plan, read_schema(table))
            if rows.num_rows:
                append_rows(table, rows)
                self._upkeep.after_commit(table, table.version())

    def lookup(self, lane: Lane, plan: ApplyPlan, rows: pa.Table, applied: Position, *, again: bool = False) -> pa.Table:
        """The stored rows of the keys in `rows`, a folded or a rows frame. Each key has only its highest tombstone.

        Rows of records at or above `applied` are left out. With `again`, for an out-of-band write, rows of the
        records of `rows` are, too.
        """
        with translate_errors(f"{lane.into} (its side table)"):
            table = self.open_table(lane, plan)
            schema = read_schema(table)
            wanted, _ = conform_to_table(number_rows(rows.select(list(plan.table.keys))), schema)
            entries = lookup_rows(table, schema.names, {k: pc.unique(wanted[k]) for k in plan.table.keys})
        entries = select_applied(entries, applied)
        entries = exclude_rows(entries, rows) if again else entries
        return select_highest(entries, plan) if plan.history is None else entries


def append_rows(table: DeltaTable, rows: pa.Table) -> None:
    """Appends rows to a side table. Columns that they do not have are null."""
    names, schema = rows.column_names, read_schema(table)
    columns = [rows[f.name].cast(f.type) if f.name in names else pa.nulls(rows.num_rows, f.type) for f in schema]
    write_deltalake(table, pa.table(columns, schema=schema), mode="append")


def to_tombstones(rows: pa.Table, plan: ApplyPlan, schema: pa.Schema) -> pa.Table:
    """The deletes of a folded frame or a rows frame, as rows of a side table with this schema."""
    deletes = rows.filter(pc.equal(rows[OP], Op.DELETE.value))
    names = cdc_sequence_columns(plan.table.sequence)
    sent_names = names if names[0] in deletes.column_names else sequence_columns(plan.table.sequence)
    columns = {key: deletes[key] for key in plan.table.keys}
    columns |= {name: deletes[sent_name] for name, sent_name in zip(names, sent_names, strict=True)}
    columns[EVENT_ID] = _read_event_ids(deletes)
    return conform_to_table(number_rows(pa.table(columns)), schema)[0]


def select_highest(entries: pa.Table, plan: ApplyPlan) -> pa.Table:
    """The tombstone with the highest sequence of each key, without its record."""
    entries = entries.drop_columns([EVENT_ID])
    q, sequence = DUCKDB.quote_name, cdc_sequence_columns(plan.table.sequence)
    order = ", ".join(f"{q(name)} DESC" for name in sequence)
    rank = f"row_number() OVER (PARTITION BY {', '.join(q(k) for k in plan.table.keys)} ORDER BY {order})"
    with open_session() as connection:
        connection.register("entries", entries.append_column("_row", pa.array(range(entries.num_rows), pa.int64())))
        best = connection.sql(f"SELECT _row FROM entries QUALIFY {rank} = 1 ORDER BY _row").to_arrow_table()
    return entries.take(best["_row"])


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


def delete_entries(table: DeltaTable, plan: ApplyPlan, max_sequence: Sequence) -> None:
    """Removes the tombstones that are not above `max_sequence`, and files without other tombstones."""
    table.delete(old_entries_condition(plan, max_sequence))
    vacuum_files(table, None)


def old_entries_condition(plan: ApplyPlan, max_sequence: Sequence) -> str:
    """The condition for tombstones that are not above `max_sequence`."""
    names = [DELTA_RS.quote_name(n) for n in cdc_sequence_columns(plan.table.sequence)]
    return f"NOT {greater_condition(names, [render_constant(v, DELTA_RS) for v in max_sequence])}"


def _with_target_types(columns: tuple[Column, ...], plan: ApplyPlan, target_schema: pa.Schema) -> tuple[Column, ...]:
    """Columns of a side table. Keys have the types of the target, as far as `target_schema` has them."""
    types = {name: target_schema.field(name).type for name in plan.table.keys if name in target_schema.names}
    return tuple(Column(c.name, types.get(c.name, c.type)) for c in columns)


def _read_event_ids(frame: pa.Table) -> pa.ChunkedArray:
    return frame[EVENT_ID] if EVENT_ID in frame.column_names else build_event_ids(frame)


# The column versions of a lane with a sequence for each column, as a side table in Delta: one row per key.

DAY = 86_400.0


class DeltaColumnVersions:
    """The caller of each method holds the lane's lock.

    The table is written before the target's commit, which stores the version that belongs to it
    (`LaneState.side_table_version`). Later versions are from a failed attempt, or from another writer that lost
    the lane. They are undone before anything is read.
    """

    def __init__(self, lake: Lake, compact_every: int = EVERY_COMMITS) -> None:
        self._lake = lake
        # Each write replaces files, and nothing reads the replaced ones once the target's commit names the new version.
        self._upkeep = TableMaintenance(compact_every, vacuum=VacuumSchedule(DAY))

    def open_table(self, lane: Lane, plan: ApplyPlan, version: int | None, target_schema: pa.Schema) -> DeltaTable:
        """The table at `version`, restored as its newest version; None: empty. `target_schema`: the target's columns."""
        path = self._lake.tombstones(lane.into)
        with translate_errors(f"{lane.into} (its side table)"):
            if version is None and has_table(path):
                path.clear()
            if not has_table(path):
                columns = _with_target_types(side_columns(plan), plan, target_schema)
                create_table(path, lane.into, columns, settings={}, partition_by=[])
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
            wanted = {key: pc.unique(rows[key]).drop_null() for key in schema.names if key != COLUMN_VERSIONS}
        with translate_errors(f"{lane.into} (its side table)"):
            return lookup_rows(table, schema.names, wanted)

    def write(self, table: DeltaTable, rows: pa.Table, lane: Lane) -> int:
        """Stores `rows` (the key and the text) and returns the new version. A row without a text deletes the
        stored one."""
        if not rows.num_rows:
            return int(table.version())
        q, keys = DELTA_RS.quote_name, [name for name in rows.column_names if name != COLUMN_VERSIONS]
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
            text, has_text = f"s.{q(COLUMN_VERSIONS)}", f"s.{q(COLUMN_VERSIONS)} IS NOT NULL"
            merger = merger.when_matched_delete(f"NOT ({has_text})").when_matched_update({q(COLUMN_VERSIONS): text})
            merger.when_not_matched_insert({q(n): f"s.{q(n)}" for n in (*keys, COLUMN_VERSIONS)}, has_text).execute()
            return int(table.version())
