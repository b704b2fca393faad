"""Projections in this process: DuckDB over Arrow's datasets, written by delta-rs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.projections import MOST_GROUPS, Groups, Input, Projection, Record, Work

from ..delta.column_names import source_name, stored_name
from ..delta.commits import WRITER
from ..delta.projector import DeltaProjector, refuse_lacking_keys, repeated_keys
from ..delta.refreshes import among, group_column, properties
from ..delta.tables import schema_of
from ..delta.types import storage_type, to_storage
from ..delta.versions_apart import Apart, apart, columns_of, fed, stream, version_of
from ..sql.dialect import DELTA_RS
from ..sql.projecting import ADDED, Part, asking, differing, offer, offer_groups, repeated, result, unreadable

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
        found = apart(self._folder(one.sink, one.table), since, until, one.columns)
        if found is None or found.is_empty:
            return None if found is None else frozenset()
        with asking(projection.name) as connection:
            key, most = (None, 0) if one.key is None else (one.key.text, MOST_GROUPS)
            groups = differing(connection, self._parts(one, since, until, found), found.names, key, most)
        if one.key is None:
            return None if groups else frozenset()
        return frozenset(groups) if self._are_groups(projection, groups) else None

    def _parts(self, one: Input, since: int, until: int, found: Apart) -> list[Part]:
        """The rows that are compared: of the change data feed, which has few, or else of whole files."""
        feed = fed(self._folder(one.sink, one.table), since, until, found.names)
        if feed is not None:
            return [(feed, f"CASE WHEN {ADDED} THEN 1 ELSE -1 END")]
        return [(stream(found.removed, found.names), "-1"), (stream(found.added, found.names), "1")]

    def _replaced(self, projection: Projection, work: Work, record: Record) -> tuple[int, int]:
        if work.groups == frozenset():
            return self._nothing(projection, record)
        rows = self._computed(projection, work.groups, record)
        table = self._ready(projection, rows.schema, work)
        self.looked_up()
        _write(table, rows, projection, work, properties(table, projection, record))
        return self._settled(projection, table), rows.num_rows

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
        refuse_lacking_keys(projection, found.column_names)
        if projection.keys and repeated(found, projection.keys):
            raise repeated_keys(projection)
        return _stored(found)


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
