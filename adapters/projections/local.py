"""Projections in this process: DuckDB over Arrow's datasets, written by delta-rs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.errors import Fatal
from replicator.domain.projections import MOST_GROUPS, Groups, Input, Projection, Record, Work

from ..delta.column_names import source_name, stored_name
from ..delta.commits import WRITER
from ..delta.projector import DeltaProjector
from ..delta.refreshes import among, group_column, kind_of, properties
from ..delta.tables import schema_of
from ..delta.types import storage_type, to_storage
from ..delta.versions_apart import apart, columns_of, stream, version_of
from ..sql.dialect import DELTA_RS
from ..sql.projecting import asking, differing, offer, offer_groups, repeated, result, unreadable

FEW = 1000
"""Groups that are looked for in the statistics of files, to leave files out."""


class LocalProjector(DeltaProjector):
    """`ports.projector.Projector` in this process; options as `DeltaProjector`. A result is held in memory."""

    @staticmethod
    def unreadable(query: str) -> str:
        """See `ports.projector.Projector.unreadable`."""
        return unreadable(query)

    def touched(self, projection: Projection, one: Input, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.touched`."""
        try:
            found = apart(self._folder(one.sink, one.table), since, until, one.columns)
            if found is None or found.is_empty:
                return None if found is None else frozenset()
            sides = {"_removed": stream(found.removed, found.names), "_added": stream(found.added, found.names)}
            with asking(projection.name) as connection:
                groups = differing(connection, sides, found.names, one.key and one.key.text, MOST_GROUPS if one.key else 0)
        except FileNotFoundError:
            return None  # Files of the old version were cleaned away.
        if one.key is None:
            return None if groups else frozenset()
        return frozenset(groups) if self._are_groups(projection, groups) else None

    def _are_groups(self, projection: Projection, values: list[object]) -> bool:
        """Whether values are of the type that the table's groups have; equal ones of two types are not found again."""
        table = self._target(projection)
        kind = None if table is None else kind_of(group_column(projection, schema_of(table)).type)
        return all(type(value) is kind for value in values if value is not None)

    def _replaced(self, projection: Projection, work: Work, record: Record) -> tuple[int, int]:
        rows = None if work.groups == frozenset() else self._computed(projection, work.groups, record)
        table = self._target(projection) if rows is None else self._ready(projection, rows.schema, work)
        if table is None:
            raise Fatal(f"table {projection.label} is gone", next_step="Refresh again.")
        self.looked_up()
        said = properties(table, projection, record)
        if rows is None:
            write_deltalake(table, schema_of(table).empty_table(), mode="append", commit_properties=said)
        else:
            _write(table, rows, projection, work, said)
        return self._settled(projection, table), 0 if rows is None else rows.num_rows

    def _rows(self, one: Input, version: int, groups: Groups | None) -> ds.Dataset:
        """The rows of a version, without files that have none of the groups, where the key is a column and that can be
        told."""
        folder = self._folder(one.sink, one.table)
        rows = version_of(folder, version)
        names = {source_name(name).lower(): name for name in rows.schema.names}
        column = None if one.key is None else names.get(one.key.column or "")
        if column is None or groups is None or len(groups) > FEW:
            return rows
        return version_of(folder, version, among(column, groups, DELTA_RS))

    def _computed(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        """The rows of the groups, or all, in the types of the table."""
        with asking(projection.name) as connection:
            if groups is not None:
                table = self._target(projection)
                kind = pa.string() if table is None else group_column(projection, schema_of(table)).type
                offer_groups(connection, groups, kind)
            for one in projection.inputs:
                rows = self._rows(one, record.reads[one.name].version, groups)
                names = columns_of(rows, one.columns)
                key = None if groups is None or one.key is None else one.key.text
                offer(connection, one.name, stream(rows, names), names, key)
            found = result(connection, projection.query, None if groups is None else projection.partition_by)
        _refuse_repeated(found, projection)
        return _stored(found)


def _refuse_repeated(rows: pa.Table, projection: Projection) -> None:
    lacking = [name for name in projection.keys if name.lower() not in [n.lower() for n in rows.column_names]]
    if lacking:
        raise Fatal(
            f"the query of projection {projection.name} gives no column {lacking[0]!r}, which is among its keys",
            next_step=f"Correct `keys` ({projection.config_line}), or the query.",
        )
    if projection.keys and repeated(rows, projection.keys):
        raise Fatal(
            f"the query of projection {projection.name} gives several rows with the same {', '.join(projection.keys)}",
            next_step=f"Correct the query, or `keys` ({projection.config_line}).",
        )


def _stored(rows: pa.Table) -> pa.Table:
    """The rows as a Delta table keeps them."""
    kept = [pa.field(stored_name(f.name), storage_type(f.type)) for f in rows.schema]
    columns = [to_storage(column, f.type).cast(f.type) for column, f in zip(rows.columns, kept, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(kept))


def _write(table: DeltaTable, rows: pa.Table, projection: Projection, work: Work, said: CommitProperties) -> None:
    if work.groups is None:
        write_deltalake(
            table, rows, mode="overwrite", schema_mode="overwrite", writer_properties=WRITER, commit_properties=said
        )
        return
    column = group_column(projection, rows.schema).name
    replaced = among(column, work.groups, DELTA_RS)
    write_deltalake(table, rows, mode="overwrite", predicate=replaced, writer_properties=WRITER, commit_properties=said)
