"""Projections in this process: DuckDB over Arrow's datasets, written by delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.projections import MOST_GROUPS, Groups, Input, Projection, Record, Work

from ..delta.column_names import source_name, stored_name
from ..delta.commits import WRITER
from ..delta.errors import translating
from ..delta.group_ranges import counted_bytes, is_plain, replace, replaceable
from ..delta.projector import refuse_lacking_keys, repeated_keys
from ..delta.refreshes import among, group_column, properties
from ..delta.table_version import TableVersion
from ..delta.tables import FILE_BYTES
from ..delta.types import storable
from ..delta.versions_apart import Apart, apart, columns_of, stream
from ..sql.dialect import DELTA_RS
from ..sql.projecting import ADDED, Side, asking, differing, of_groups, offer, offer_groups, repeated, result, unreadable
from .beside import BesideDatabases


class LocalProjector(BesideDatabases):
    """`ports.projector.Projector` in this process; options as `BesideDatabases`. A result is held in memory."""

    @staticmethod
    def unreadable(query: str) -> str:
        """See `ports.projector.Projector.unreadable`."""
        return unreadable(query)

    def touched(self, projection: Projection, one: Input, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.touched`; what has changed in PostgreSQL is not known."""
        if one.sink in self._places:
            return None
        known = self._versions(self._folder(one.sink, one.table))
        with translating(one.label):
            old = known.earlier(since)
            found = None if old is None else apart(old, known.at(until), one.columns)
        if found is None or found.is_empty:
            return None if found is None else frozenset()
        with asking(projection.name) as connection:
            key, most = (None, 0) if one.key is None else (one.key.text, MOST_GROUPS)
            groups = differing(connection, _sides(found), found.names, key, most)
        if one.key is None:
            return None if groups else frozenset()
        return frozenset(groups) if self._are_groups(projection, groups) else None

    def _replaced(self, projection: Projection, work: Work, record: Record) -> tuple[int, int]:
        if work.groups == frozenset():
            return self._nothing(projection, record)
        rows = _stored(self._computed(projection, work.groups, record))
        table = self._ready(projection, rows.schema, work)
        self.looked_up()
        said = properties(table, projection, record)
        if work.groups is None:
            _write_all(table, rows, projection, said)
        else:
            self._write_groups(table, rows, projection, work.groups, said)
        return self._settled(projection, table), rows.num_rows

    def _write_groups(
        self, table: DeltaTable, rows: pa.Table, projection: Projection, groups: Groups, said: CommitProperties
    ) -> None:
        column = group_column(projection, rows.schema).name
        version = TableVersion(table, self._target_folder(projection))
        found = replaceable(version, column, groups)
        if found is not None:
            replace(version, rows, found, said)
            return
        condition = among(column, groups, DELTA_RS)
        write_deltalake(table, rows, mode="overwrite", predicate=condition, writer_properties=WRITER, commit_properties=said)

    def _keeps_sizes(self, projection: Projection, table: DeltaTable) -> bool:
        return projection.partition_by is not None and is_plain(table)

    def _rows(self, one: Input, version: int, groups: Groups | None) -> ds.Dataset:
        """The rows of a version, without files that have none of the groups, where the key is a column and that can be
        told."""
        found = self._versions(self._folder(one.sink, one.table)).at(version)
        names = {source_name(name).lower(): name for name in found.schema.names}
        column = None if one.key is None else names.get(one.key.column or "")
        if column is None or groups is None:
            return found.rows()
        return found.rows(found.holding(column, groups))

    def _in_memory(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        with translating(projection.label):
            return self._computed(projection, groups, record)

    def _offered(self, one: Input, record: Record, groups: Groups | None) -> tuple[Any, Mapping[str, str]]:
        """The rows of an input, to be read any number of times, and what the query calls their columns."""
        if one.sink in self._places:
            table = self._inputs.rows(one)
            return table, {name: name for name in table.column_names}
        rows = self._rows(one, record.reads[one.name].version, groups)
        names = columns_of(rows.schema, one.columns)
        return stream(rows, names), names

    def _computed(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        """The rows of the groups, or all."""
        with asking(projection.name) as connection:
            if groups is not None:
                offer_groups(connection, groups, self._group_type(projection) or pa.string())
            for one in projection.inputs:
                rows, names = self._offered(one, record, groups)
                within = "TRUE" if groups is None or one.key is None else of_groups(one.key.text, groups)
                offer(connection, one.name, rows, names, within)
            self._inputs.let_go()
            found = result(connection, projection.query, projection.partition_by, groups)
        refuse_lacking_keys(projection, found.column_names)
        if projection.keys and repeated(found, projection.keys):
            raise repeated_keys(projection)
        return found


def _sides(found: Apart) -> tuple[Side, Side]:
    """The rows that are compared: of the change data feed, which has few, or else of whole files."""
    feed = found.feed()
    if feed is None:
        return (stream(found.removed, found.names), "TRUE"), (stream(found.added, found.names), "TRUE")
    rows = stream(ds.dataset(feed), feed.column_names)
    return (rows, f"NOT {ADDED}"), (rows, ADDED)


def _stored(rows: pa.Table) -> pa.Table:
    """The rows as a Delta table keeps them."""
    return storable(rows).rename_columns([stored_name(name) for name in rows.column_names])


def _write_all(table: DeltaTable, rows: pa.Table, projection: Projection, said: CommitProperties) -> None:
    """Replace every row. Where there are groups the rows come in their order, and files hold ranges of them."""
    size = FILE_BYTES if projection.partition_by is None else counted_bytes(rows)
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        target_file_size=size,
        writer_properties=WRITER,
        commit_properties=said,
    )
