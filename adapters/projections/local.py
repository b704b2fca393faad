"""Projections in this process: DuckDB over Arrow's datasets, written by delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.projections import MOST_GROUPS, Groups, Input, Projection, Record, Work

from ..delta.column_names import source_name, stored_name
from ..delta.commits import WRITER
from ..delta.data_files import are_few, hold_only
from ..delta.errors import translating
from ..delta.group_ranges import Rewriting, counted_bytes, is_plain, replace, replaceable
from ..delta.projector import refuse_lacking_keys, repeated_keys
from ..delta.refreshes import among, group_column, properties
from ..delta.table_version import TableVersion
from ..delta.tables import FILE_BYTES, schema_of
from ..delta.types import storable
from ..delta.versions_apart import Apart, apart, columns_of, stream
from ..sql.dialect import DELTA_RS
from ..sql.projecting import (
    Rows,
    asking,
    changed,
    differing,
    of_groups,
    of_these,
    offer,
    offer_groups,
    repeated,
    result,
    unreadable,
)
from .beside import BesideDatabases
from .read_ahead import ReadAhead, in_memory


class LocalProjector(BesideDatabases):
    """`ports.projector.Projector` in this process; options as `BesideDatabases`. A result is held in memory."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self._ahead = ReadAhead(self._beside)
        self._rewritten: dict[str, TableVersion] = {}
        """By projection the version of its table that was the newest when its groups were last replaced."""

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
        with translating(one.label), asking(projection.name) as connection:
            key, most = (None, 0) if one.key is None else (one.key.text, MOST_GROUPS)
            groups = self._differing(connection, found, key, most)
        if one.key is None or groups is None:
            return frozenset() if groups == [] else None
        return frozenset(groups) if self._are_groups(projection, groups) else None

    def _replaced(self, projection: Projection, work: Work, record: Record) -> tuple[int, int]:
        if work.groups is None:
            rows = _stored(self._computed(projection, None, record))
            table = self._ready(projection, rows.schema, work)
            self.looked_up()
            _write_all(table, rows, projection, properties(table, projection, record))
            version = int(table.version())
        elif work.groups:
            table = self._there(projection)
            with self._meanwhile(partial(self._foreseen, table, projection, work.groups, record)) as coming:
                rows = _stored(self._computed(projection, work.groups, record))
            self._ready(projection, rows.schema, work)
            self.looked_up()
            version = _write_groups(table, rows, coming.result())
        else:
            return self._nothing(projection, record)
        self._settle(projection, table, version)
        return version, rows.num_rows

    def _foreseen(self, table: DeltaTable, projection: Projection, groups: Groups, record: Record) -> Foreseen:
        column = group_column(projection, schema_of(table)).name
        version = TableVersion(table, self._target_folder(projection), self._rewritten.get(projection.name))
        self._rewritten[projection.name] = version
        said = properties(table, projection, record)
        return Foreseen(version, among(column, groups, DELTA_RS), replaceable(version, column, groups), said)

    def _keeps_sizes(self, projection: Projection, table: DeltaTable) -> bool:
        return projection.partition_by is not None and is_plain(table)

    def let_go(self) -> None:
        """See `ports.projector.Projector.let_go`."""
        self._ahead.let_go()
        super().let_go()

    def close(self) -> None:
        """See `ports.projector.Projector.close`."""
        super().close()
        self._rewritten.clear()

    def _differing(
        self, connection: duckdb.DuckDBPyConnection, found: Apart, key: str | None, most: int
    ) -> list[Any] | None:
        """See `differing`; None where a file that went is gone by now. Where files are few those that have come are read
        meanwhile: what is computed anew is in them."""
        names = found.names
        coming = self._ahead.begin(found.new, found.added, names) if found.are_few else None
        feed = found.feed()
        if feed is not None:
            return changed(connection, feed, names, key, most)
        if coming is not None:
            try:
                removed = in_memory(found.removed, names)
            except FileNotFoundError:
                return None
            return differing(connection, (removed, coming.result()), names, key, most)
        return differing(connection, (stream(found.removed, names), stream(found.added, names)), names, key, most)

    def _rows(self, version: TableVersion, one: Input, groups: Groups, names: Mapping[str, str]) -> tuple[Rows, bool]:
        """The rows of a version, without files that have none of the groups, where the key is a column and that can be
        told; and whether rows of other groups may be among them."""
        stored = {source_name(name).lower(): name for name in version.schema.names}
        column = None if one.key is None else stored.get(one.key.column or "")
        files = version.files() if column is None else version.holding(column, groups)
        others = column is None or not hold_only(files, groups)
        ahead = self._ahead.rows(version, files, names)
        if ahead is not None:
            return ahead[0], others or ahead[1]
        return (in_memory if are_few(files) else stream)(version.rows(files), names), others

    def _in_memory(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        with translating(projection.label):
            return self._computed(projection, groups, record)

    def _offered(self, one: Input, record: Record, groups: Groups | None) -> tuple[Any, Mapping[str, str], bool]:
        """The rows of an input, to be read any number of times, what the query calls their columns, and whether rows of
        other groups may be among them."""
        if one.sink in self._places:
            table = self._inputs.rows(one)
            return table, {name: name for name in table.column_names}, True
        version = self._versions(self._folder(one.sink, one.table)).at(record.reads[one.name].version)
        names = columns_of(version.schema, one.columns)
        if groups is None:
            return stream(version.rows(), names), names, False
        with translating(one.label):
            rows, others = self._rows(version, one, groups, names)
        return rows, names, others

    def _computed(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        """The rows of the groups, or all."""
        with asking(projection.name) as connection:
            offered = [(one, *self._offered(one, record, groups)) for one in projection.inputs]
            # Where no others are read, what comes of the rows is looked at: a condition takes DuckDB a millisecond.
            within = groups if any(others for *_, others in offered) else None
            if within is not None:
                offer_groups(connection, within, self._group_type(projection) or pa.string())
            for one, rows, names, others in offered:
                offer(connection, one.name, rows, names, _condition(one, within if others else None))
            self._inputs.let_go()
            order = projection.partition_by if groups == within else None
            found = result(connection, projection.query, order, within)
        self._ahead.let_go()
        refuse_lacking_keys(projection, found.column_names)
        if groups is not None and within is None:
            found = of_these(found, projection.partition_by or "", groups)
        if projection.keys and repeated(found, projection.keys):
            raise repeated_keys(projection)
        return found


@dataclass(frozen=True, slots=True)
class Foreseen:
    """How the rows of some groups will be replaced, whatever they are: the condition that they are under, and how files are
    rewritten where that can be done here; and what the commit says of itself."""

    version: TableVersion
    condition: str
    rewriting: Rewriting | None
    said: CommitProperties


def _write_groups(table: DeltaTable, rows: pa.Table, how: Foreseen) -> int:
    """The version that the commit made."""
    if how.rewriting is not None:
        return replace(how.version, rows, how.rewriting, how.said)
    write_deltalake(
        table, rows, mode="overwrite", predicate=how.condition, writer_properties=WRITER, commit_properties=how.said
    )
    return int(table.version())


def _condition(one: Input, groups: Groups | None) -> str | None:
    return None if groups is None or one.key is None else of_groups(one.key.text, groups)


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
