"""Projections in this process: DuckDB over Arrow datasets, written by delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.projection import MAX_GROUPS, Groups, Projection, ProjectionInput, RefreshRecord, RefreshWork

from ..delta.commits import WRITER
from ..delta.errors import translate_errors
from ..delta.tables import FILE_BYTES, read_schema, source_name, stored_name
from ..delta.types import to_storable
from ..sql.dialect import DELTA_RS
from .data_files import has_few_rows, has_only_groups
from .delta_projector import refuse_missing_keys, repeated_keys_error
from .duckdb_queries import (
    Rows,
    describe_query_error,
    filter_groups,
    find_changed_groups,
    find_differing_groups,
    groups_condition,
    has_repeated_keys,
    open_query_session,
    register_groups,
    register_rows,
    run_query,
)
from .group_ranges import GroupRewrite, has_plain_features, plan_rewrite, replace_groups, scale_bytes
from .hybrid_projector import HybridProjector
from .read_ahead import ReadAhead, read_columns
from .refresh_records import commit_properties, group_column, groups_filter
from .table_version import TableVersion
from .version_diff import VersionDiff, diff_versions, map_columns, scan_columns


class LocalProjector(HybridProjector):
    """`ports.projector.Projector` in this process; options of `HybridProjector`. A result is held in memory."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self._ahead = ReadAhead(self._beside)
        self._rewritten: dict[str, TableVersion] = {}
        """By projection the newest version of its table at the last replacement of groups."""

    @staticmethod
    def unreadable(query: str) -> str:
        return describe_query_error(query)

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.find_affected_groups`. Changes in PostgreSQL are not known."""
        if one.sink in self._places:
            return None
        known = self._snapshots_of(self._input_folder(one.sink, one.table))
        with translate_errors(one.label):
            old = known.get_earlier(since)
            found = None if old is None else diff_versions(old, known.get_version(until), one.columns)
        if found is None or found.is_empty:
            return None if found is None else frozenset()
        with translate_errors(one.label), open_query_session(projection.name) as connection:
            key, most = (None, 0) if one.key is None else (one.key.text, MAX_GROUPS)
            groups = self._find_differing_groups(connection, found, key, most)
        if one.key is None or groups is None:
            return frozenset() if groups == [] else None
        return frozenset(groups) if self._is_group_type(projection, groups) else None

    def _compute_and_commit(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> tuple[int, int]:
        if work.groups is None:
            rows = _to_storable(self._compute(projection, None, record))
            table = self._prepare_target(projection, rows.schema, work)
            self.looked_up()
            _replace_all(table, rows, projection, commit_properties(table, projection, record))
            version = int(table.version())
        elif work.groups:
            table = self._get_existing_target(projection)
            with self._run_in_background(partial(self._plan_replacement, table, projection, work.groups, record)) as coming:
                rows = _to_storable(self._compute(projection, work.groups, record))
            self._prepare_target(projection, rows.schema, work)
            self.looked_up()
            version = _replace_groups(table, rows, coming.result())
        else:
            return self._commit_record(projection, record)
        self._finish_commit(projection, table, version)
        return version, rows.num_rows

    def _plan_replacement(
        self, table: DeltaTable, projection: Projection, groups: Groups, record: RefreshRecord
    ) -> ReplacementPlan:
        column = group_column(projection, read_schema(table)).name
        version = TableVersion(table, self._target_folder(projection), self._rewritten.get(projection.name))
        self._rewritten[projection.name] = version
        said = commit_properties(table, projection, record)
        return ReplacementPlan(version, groups_filter(column, groups, DELTA_RS), plan_rewrite(version, column, groups), said)

    def _has_sized_files(self, projection: Projection, table: DeltaTable) -> bool:
        return projection.partition_by is not None and has_plain_features(table)

    def let_go(self) -> None:
        self._ahead.release()
        super().let_go()

    def close(self) -> None:
        super().close()
        self._rewritten.clear()

    def _find_differing_groups(
        self, connection: duckdb.DuckDBPyConnection, found: VersionDiff, key: str | None, most: int
    ) -> list[Any] | None:
        """See `find_differing_groups`; None when a removed file does not exist any more.

        If the files are small, the added ones are read in parallel, because they contain the rows to compute.
        """
        names = found.names
        coming = self._ahead.start(found.new, found.added, names) if found.has_few_rows else None
        feed = found.read_feed()
        if feed is not None:
            return find_changed_groups(connection, feed, names, key, most)
        if coming is not None:
            try:
                removed = read_columns(found.removed, names)
            except FileNotFoundError:
                return None
            return find_differing_groups(connection, (removed, coming.result()), names, key, most)
        return find_differing_groups(
            connection, (scan_columns(found.removed, names), scan_columns(found.added, names)), names, key, most
        )

    def _read_rows(
        self, version: TableVersion, one: ProjectionInput, groups: Groups, names: Mapping[str, str]
    ) -> tuple[Rows, bool]:
        """The rows of a version for the groups, and True if they may include rows of other groups.

        Files without rows of the groups are skipped, if the key is a column and statistics show it.
        """
        stored = {source_name(name).lower(): name for name in version.schema.names}
        column = None if one.key is None else stored.get(one.key.column or "")
        files = version.files() if column is None else version.find_candidate_files(column, groups)
        others = column is None or not has_only_groups(files, groups)
        ahead = self._ahead.take_rows(version, files, names)
        if ahead is not None:
            return ahead[0], others or ahead[1]
        return (read_columns if has_few_rows(files) else scan_columns)(version.rows(files), names), others

    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        with translate_errors(projection.label):
            return self._compute(projection, groups, record)

    def _register_input(
        self, one: ProjectionInput, record: RefreshRecord, groups: Groups | None
    ) -> tuple[Any, Mapping[str, str], bool]:
        """The rows of an input, which can be read repeatedly, and the query's names of their columns.

        The last value is True if rows of other groups may be among them.
        """
        if one.sink in self._places:
            table = self._inputs.read_rows(one)
            return table, {name: name for name in table.column_names}, True
        version = self._snapshots_of(self._input_folder(one.sink, one.table)).get_version(record.reads[one.name].version)
        names = map_columns(version.schema, one.columns)
        if groups is None:
            return scan_columns(version.rows(), names), names, False
        with translate_errors(one.label):
            rows, others = self._read_rows(version, one, groups, names)
        return rows, names, others

    def _compute(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        """The rows of the groups, or all."""
        with open_query_session(projection.name) as connection:
            offered = [(one, *self._register_input(one, record, groups)) for one in projection.inputs]
            # Without rows of other groups only the result is filtered, because a condition takes DuckDB a millisecond.
            within = groups if any(others for *_, others in offered) else None
            if within is not None:
                register_groups(connection, within, self._read_group_type(projection) or pa.string())
            for one, rows, names, others in offered:
                register_rows(connection, one.name, rows, names, _groups_condition(one, within if others else None))
            self._inputs.release()
            order = projection.partition_by if groups == within else None
            found = run_query(connection, projection.query, order, within)
        self._ahead.release()
        refuse_missing_keys(projection, found.column_names)
        if groups is not None and within is None:
            found = filter_groups(found, projection.partition_by or "", groups)
        if projection.keys and has_repeated_keys(found, projection.keys):
            raise repeated_keys_error(projection)
        return found


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """How to replace the rows of some groups, for any new rows.

    - `condition`: selects the rows.
    - `rewriting`: the file rewrite, if it is possible.
    - `said`: the properties of the commit.
    """

    version: TableVersion
    condition: str
    rewriting: GroupRewrite | None
    said: CommitProperties


def _replace_groups(table: DeltaTable, rows: pa.Table, how: ReplacementPlan) -> int:
    """Replaces the rows; returns the version of the commit."""
    if how.rewriting is not None:
        return replace_groups(how.version, rows, how.rewriting, how.said)
    write_deltalake(
        table, rows, mode="overwrite", predicate=how.condition, writer_properties=WRITER, commit_properties=how.said
    )
    return int(table.version())


def _groups_condition(one: ProjectionInput, groups: Groups | None) -> str | None:
    return None if groups is None or one.key is None else groups_condition(one.key.text, groups)


def _to_storable(rows: pa.Table) -> pa.Table:
    """The rows in the types and with the names of a Delta table."""
    return to_storable(rows).rename_columns([stored_name(name) for name in rows.column_names])


def _replace_all(table: DeltaTable, rows: pa.Table, projection: Projection, said: CommitProperties) -> None:
    """Replaces every row. With groups, rows are in their order, and files contain ranges of groups."""
    size = FILE_BYTES if projection.partition_by is None else scale_bytes(rows)
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        target_file_size=size,
        writer_properties=WRITER,
        commit_properties=said,
    )
