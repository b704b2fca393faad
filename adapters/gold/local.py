"""Projections in this process: DuckDB over Arrow datasets, written by delta-rs."""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import compress, pairwise
from typing import Any, TypeAlias
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from replicator.domain.errors import Fatal
from replicator.domain.projection import MAX_GROUPS, Groups, Projection, ProjectionInput, RefreshRecord, RefreshWork

from ..apply.projections import group_column, refuse_missing_keys, repeated_keys_error
from ..delta.commits import WRITER
from ..delta.errors import translate_errors
from ..delta.tables import (
    CHANGE_DATA_FEED,
    FILE_BYTES,
    ON,
    columns_with_statistics,
    read_schema,
    source_name,
    stored_name,
)
from ..delta.types import to_storable
from ..duckdb.session import open_session
from ..sql.dialect import DELTA_RS, DUCKDB
from .base_projector import BaseProjector, commit_properties, groups_filter
from .table_version import (
    DataFile,
    TableVersion,
    VersionDiff,
    diff_versions,
    has_few_rows,
    has_only_groups,
    map_columns,
    mask_candidates,
    read_columns,
    scan_columns,
)


class LocalProjector(BaseProjector):
    """`ports.projector.Projector` in this process; options of `BaseProjector`. A result is held in memory."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self._rewritten: dict[str, TableVersion] = {}
        """By projection the newest version of its table at the last replacement of groups."""

    @staticmethod
    def unreadable(query: str) -> str:
        try:
            duckdb.extract_statements(query)
        except duckdb.Error as error:
            return _error_text(error)
        return ""

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        if one.sink not in self._lakes:
            return None
        snapshots = self._snapshots_of(self._input_folder(one.sink, one.table))
        with translate_errors(one.label):
            old = snapshots.get_earlier(since)
            diff = None if old is None else diff_versions(old, snapshots.get_version(until), one.columns)
        if diff is None or diff.is_empty:
            return None if diff is None else frozenset()
        with translate_errors(one.label), open_query_session(projection.name) as connection:
            key, most = (None, 0) if one.key is None else (one.key.text, MAX_GROUPS)
            groups = self._find_differing_groups(connection, diff, key, most)
        if one.key is None or groups is None:
            return frozenset() if groups == [] else None
        return frozenset(groups) if self._is_group_type(projection, groups) else None

    def _compute_and_commit(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> tuple[int, int]:
        if work.groups is None:
            rows = _to_storable(self._compute(projection, None, record))
            table = self._prepare_target(projection, rows.schema, work)
            # With groups, rows are in their order, and files contain ranges of groups.
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=FILE_BYTES if projection.partition_by is None else scale_bytes(rows),
                writer_properties=WRITER,
                commit_properties=commit_properties(table, projection, record),
            )
            version = int(table.version())
        elif work.groups:
            table = self._get_existing_target(projection)
            coming = self._pool.submit(self._plan_replacement, table, projection, work.groups, record)
            try:
                rows = _to_storable(self._compute(projection, work.groups, record))
            finally:
                wait([coming])
            self._prepare_target(projection, rows.schema, work)
            version = coming.result()(rows)
        else:
            return self._commit_record(projection, record)
        self._finish_commit(projection, table, version)
        return version, rows.num_rows

    def _plan_replacement(
        self, table: DeltaTable, projection: Projection, groups: Groups, record: RefreshRecord
    ) -> Callable[[pa.Table], int]:
        """Returns what replaces the rows of the groups by any new ones, and returns the version of the commit."""
        column = group_column(projection, read_schema(table)).name
        version = TableVersion(table, self._target_folder(projection), self._rewritten.get(projection.name))
        self._rewritten[projection.name] = version
        properties = commit_properties(table, projection, record)
        rewriting = plan_rewrite(version, column, groups)
        if rewriting is not None:
            return lambda rows: replace_groups(version, rows, rewriting, properties)
        condition = groups_filter(DELTA_RS.quote_name(column), groups, DELTA_RS)

        def overwrite(rows: pa.Table) -> int:
            write_deltalake(
                table, rows, mode="overwrite", predicate=condition, writer_properties=WRITER, commit_properties=properties
            )
            return int(table.version())

        return overwrite

    def _has_sized_files(self, projection: Projection, table: DeltaTable) -> bool:
        return projection.partition_by is not None and has_plain_features(table)

    def close(self) -> None:
        super().close()
        self._rewritten.clear()

    def _find_differing_groups(
        self, connection: duckdb.DuckDBPyConnection, diff: VersionDiff, key: str | None, most: int
    ) -> list[Any] | None:
        """See `find_differing_groups`; None when a removed file does not exist any more."""
        names = diff.names
        feed = diff.read_feed()
        if feed is not None:
            return find_changed_groups(connection, feed, names, key, most)
        if diff.has_few_rows:
            try:
                old_rows = read_columns(diff.removed, names)
            except FileNotFoundError:
                return None
            return find_differing_groups(connection, (old_rows, read_columns(diff.added, names)), names, key, most)
        return find_differing_groups(
            connection, (scan_columns(diff.removed, names), scan_columns(diff.added, names)), names, key, most
        )

    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        with translate_errors(projection.label):
            return self._compute(projection, groups, record)

    def _register_input(
        self, one: ProjectionInput, record: RefreshRecord, groups: Groups | None
    ) -> tuple[Any, Mapping[str, str], bool]:
        """The rows of an input, which can be read repeatedly, and the query's names of their columns.

        The last value is True if rows of other groups may be among them.
        """
        if one.name in self._inputs:
            table = self._inputs[one.name].read(one.columns)
            return table, {name: name for name in table.column_names}, True
        version = self._snapshots_of(self._input_folder(one.sink, one.table)).get_version(record.reads[one.name].version)
        names = map_columns(version.schema, one.columns)
        if groups is None:
            return scan_columns(version.rows(), names), names, False
        with translate_errors(one.label):
            # Files without rows of the groups are skipped, if the key is a column and statistics show it.
            stored_names = {source_name(name).lower(): name for name in version.schema.names}
            column = None if one.key is None else stored_names.get(one.key.column or "")
            files = version.files() if column is None else version.find_candidate_files(column, groups)
            others = column is None or not has_only_groups(files, groups)
            rows = (read_columns if has_few_rows(files) else scan_columns)(version.rows(files), names)
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
                condition = None
                if others and within is not None and one.key is not None:
                    condition = groups_condition(one.key.text, within)
                register_rows(connection, one.name, rows, names, condition)
            self._opened.close()
            order = projection.partition_by if groups == within else None
            computed = run_query(connection, projection.query, order, within)
        refuse_missing_keys(projection, computed.column_names)
        if groups is not None and within is None:
            computed = filter_groups(computed, projection.partition_by or "", groups)
        if projection.keys and has_repeated_keys(computed, projection.keys):
            raise repeated_keys_error(projection)
        return computed


def _to_storable(rows: pa.Table) -> pa.Table:
    """The rows in the types and with the names of a Delta table."""
    return to_storable(rows).rename_columns([stored_name(name) for name in rows.column_names])


# Queries of projections in DuckDB over versions of tables, for all rows or by groups.

GROUPS = "_groups"
Rows: TypeAlias = ds.Scanner | pa.Table
"""Rows that can be read repeatedly."""

q = DUCKDB.quote_name


def _error_text(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


@contextmanager
def open_query_session(name: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection. Its errors are raised as Fatal for the projection `name`."""
    with open_session() as connection:
        try:
            yield connection
        except (duckdb.Error, pa.ArrowException) as error:
            raise Fatal(
                f"projection {name} cannot be computed: {_error_text(error)}",
                next_step="Correct its query, or what it reads.",
            ) from error


ADDED = "_change_type IN ('insert', 'update_postimage')"
"""Rows of a change data feed that exist after the change. The others existed before."""


def find_differing_groups(
    connection: duckdb.DuckDBPyConnection, sides: tuple[Rows, Rows], names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """The groups with different rows on two sides, at most `most` + 1. Without a key, one element if any row
    differs.

    `names`: the compared columns, and their names in the query.
    """
    sums = []
    for sign, rows in zip("-+", sides, strict=True):
        connection.register(f"_rows_{sign}", rows)
        of_side = f"SELECT {_column_list(names)} FROM {q(f'_rows_{sign}')}"
        listed = _comparable_columns(names, rows.schema if isinstance(rows, pa.Table) else rows.projected_schema)
        each = f"SELECT {key or 'TRUE'} AS _group, {', '.join(_row_hashes(listed))} FROM ({of_side})"
        # Each side is summed on its own: a sign per row takes twice the time.
        of_group = f"{sign}count(*) AS _number, {sign}sum(_one) AS _ones, {sign}sum(_other) AS _others"
        sums.append(f"SELECT _group, {of_group} FROM ({each}) GROUP BY _group")
    # Equal rows on both sides have equal sums. Different rows have equal sums once in 2^64.
    unlike = "sum(_number) <> 0 OR sum(_ones) <> 0 OR sum(_others) <> 0"
    text = f"SELECT _group FROM ({' UNION ALL '.join(sums)}) GROUP BY _group HAVING {unlike} LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def find_changed_groups(
    connection: duckdb.DuckDBPyConnection, feed: pa.Table, names: Mapping[str, str], key: str | None, most: int
) -> list[Any]:
    """See `find_differing_groups`, for the rows of a change data feed. A row that is as frequent after the
    changes as before is unchanged."""
    connection.register("_feed", feed)
    columns = f"SELECT {_column_list(names)}, _change_type FROM _feed"
    often = f"sum(CASE WHEN {ADDED} THEN 1 ELSE -1 END) <> 0"
    unlike = (
        f"SELECT {key or 'TRUE'} AS _group FROM ({columns}) GROUP BY 1, "
        f"{_comparable_columns(names, feed.schema)} HAVING {often}"
    )
    text = f"SELECT DISTINCT _group FROM ({unlike}) LIMIT {most + 1}"
    return [one for (one,) in connection.execute(text).fetchall()]


def _row_hashes(listed: str) -> tuple[str, str]:
    """Two hashes for each row.

    They start with different numbers and are hashed twice. DuckDB's hashes of small numbers (above all 0) and
    of several columns have equal sums more often than by chance.
    """
    return f"hash(hash(1, {listed})) AS _one", f"hash(hash(2, {listed})) AS _other"


def _comparable_columns(names: Mapping[str, str], schema: pa.Schema) -> str:
    """The columns in a form in which DuckDB hashes only equal values alike.

    Nested columns are text, because DuckDB's hashes of NULL, an empty list and a list of NULL are equal.
    """
    nested = {name for column, name in names.items() if pa.types.is_nested(schema.field(column).type)}
    return ", ".join(f"CAST({q(name)} AS VARCHAR)" if name in nested else q(name) for name in names.values())


def _column_list(names: Mapping[str, str]) -> str:
    return ", ".join(f"{q(column)} AS {q(name)}" for column, name in names.items())


def register_rows(
    connection: duckdb.DuckDBPyConnection, name: str, rows: Any, names: Mapping[str, str], within: str | None
) -> None:
    """Registers `rows` as the table `name`, or those that meet the condition `within`. Their columns are those
    of `names`."""
    if within is None and all(column == alias for column, alias in names.items()):
        connection.register(name, rows)
        return
    connection.register(f"_all_{name}", rows)
    text = f"SELECT * FROM (SELECT {_column_list(names)} FROM {q(f'_all_{name}')}) WHERE {within or 'TRUE'}"
    connection.execute(f"CREATE TEMP VIEW {q(name)} AS {text}")


def register_groups(connection: duckdb.DuckDBPyConnection, groups: Groups, kind: pa.DataType) -> None:
    """Registers the groups for `groups_condition`."""
    values = pa.array([group for group in groups if group is not None], kind)
    connection.register(GROUPS, pa.table({"value": values}))


def groups_condition(key: str, groups: Groups) -> str:
    """The condition that a row belongs to a registered group.

    NULL has its own condition, so that other groups are looked up instead of compared one by one.
    """
    condition = f"({key}) IN (FROM {GROUPS})"
    return f"({condition} OR ({key}) IS NULL)" if None in groups else condition


def run_query(connection: duckdb.DuckDBPyConnection, query: str, column: str | None, groups: Groups | None) -> pa.Table:
    """The rows of a query: of registered groups, or all, ordered by `column` if it is given."""
    if groups is None:
        which = "" if column is None else f" ORDER BY {q(column)} NULLS FIRST"
    else:
        which = "" if column is None else f" WHERE {groups_condition(q(column), groups)}"
    relation = connection.sql(f"SELECT * FROM ({query}) AS _result{which}")
    kinds = [*map(str, relation.types)]
    if "UHUGEINT" in kinds:
        columns = (
            q(n) if k != "UHUGEINT" else f"CAST({q(n)} AS BIGINT) AS {q(n)}"
            for n, k in zip(relation.columns, kinds, strict=True)
        )
        relation = relation.project(", ".join(columns))
    rows = relation.to_arrow_table()
    # Cast in Arrow, because DuckDB would plan the query again.
    for at, kind in enumerate(kinds):
        if kind == "HUGEINT":
            # DuckDB sums integers in 128 bits, other engines in 64.
            name = rows.field(at).name
            try:
                rows = rows.set_column(at, name, rows.column(at).cast(pa.int64()))
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"a value of column {name} has more than 64 bits") from error
    return rows


def filter_groups(rows: pa.Table, column: str, groups: Groups) -> pa.Table:
    """The rows with one of the groups in `column`, for rows where nearly all have one and DuckDB did not
    filter.

    Raises Fatal when they lack the column.
    """
    column_name = next((name for name in rows.column_names if name.lower() == column.lower()), None)
    if column_name is None:
        raise Fatal(f"the query gives no column {column!r}", next_step="Correct `partition_by`, or the query.")
    values = rows[column_name]
    if groups.issuperset(values.unique().to_pylist()):
        return rows
    return rows.filter(pa.array([value in groups for value in values.to_pylist()], pa.bool_()))


def has_repeated_keys(rows: pa.Table, keys: Sequence[str]) -> bool:
    """True when two rows have the same values of `keys`."""
    listed = ", ".join(q(name) for name in keys)
    with open_session() as connection:
        connection.register("_rows", rows)
        repeated = connection.execute(f"SELECT 1 FROM _rows GROUP BY {listed} HAVING count(*) > 1 LIMIT 1")
        return bool(repeated.fetchall())


# Tables whose files contain ranges of a column's values, so that few files are rewritten to replace some
# values.
#
# delta-rs can replace rows by a condition, but writes the remaining rows of several files into one. That file
# must then be rewritten for any value. Here, neighbouring files are rewritten together, in order, and cut at the
# same values.
#
# Nothing depends on the order in a table of another writer. There, more files may contain a value, and all of them
# are rewritten.

# A folder per group would bound files too. But 100,000 groups need as many folders, and the key of a
# projection would decide the layout of its table.
MOST_FILES = 1000
"""The approximate number of files of a table, until its files have the usual size."""
SMALLEST = 512 * 1024
"""Bytes. Smaller files cost more to write and to keep than they save."""
AT_ONCE = 2 * FILE_BYTES
"""Bytes of files above which no further file is added to a rewrite, because its rows are held in memory."""
LARGEST_FILE = 256 * 1024 * 1024
"""Bytes. The rows of a larger file should not be held in memory, so it is not rewritten here."""
FILES_TOO_MANY = 2
"""All files are rewritten if there are this many times more than there should be."""
SAMPLE, SAMPLE_BYTES = 20_000, 16 * 1024 * 1024
"""Rows of a sample that represents a table, and its maximum of bytes in memory."""
MOST_COMPRESSED = 8
"""The maximum ratio of uncompressed to compressed bytes in a file of delta-rs."""
LIKE_OTHERS: Mapping[str, Any] = {"compression": "snappy", "store_schema": False}
"""Options for files, as delta-rs writes them."""
LONGEST_BOUND = 64
"""The maximum length of a text in statistics."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Neighbouring files, and their values from `low` on. None: all values below those of the next range."""

    low: Any
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class GroupRewrite:
    """How to replace the rows of some values of a column."""

    column: str
    groups: Groups
    file_ranges: Sequence[FileRange]
    rows: int
    """Approximate rows per file."""

    staying_rows: Iterable[pa.Table]
    """For each file range, the rows outside the groups. Read once."""


def file_bytes(table_bytes: int) -> int:
    """The size of files in a table of that size."""
    return max(SMALLEST, min(FILE_BYTES, table_bytes // MOST_FILES))


def scale_bytes(rows: pa.Table) -> int:
    """The target file size for delta-rs so that files with these rows have the right size.

    delta-rs counts bytes before compression.
    """
    if not rows.num_rows:
        return FILE_BYTES
    number = max(1, min(SAMPLE, SAMPLE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    sample = rows.slice(max(0, rows.num_rows - number) // 2, number)
    sink = pa.BufferOutputStream()
    pq.write_table(sample, sink, **LIKE_OTHERS)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    plain = sum(group.total_byte_size for group in groups)
    packed_size = sum(group.column(number).total_compressed_size for group in groups for number in range(footer.num_columns))
    size = file_bytes(packed_size * rows.num_rows // sample.num_rows)
    return max(1, min(size * int(plain) // int(packed_size), size * MOST_COMPRESSED))


def sort_by_group(rows: pa.Table, column: str) -> pa.Table:
    """The rows in the order of files, NULL first."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending", "at_start")]))


def find_file_ranges(files: Sequence[DataFile], groups: Groups) -> list[FileRange]:
    """The file ranges to rewrite to replace the rows of these groups, and to add rows of new groups."""
    order = sorted((f for f in files if f.bounds.low is not None), key=lambda f: f.bounds.low)
    # Files without bounds are always rewritten. Files with only NULL may stay, and are sorted before them.
    order = sorted((f for f in files if f.bounds.low is None), key=lambda f: not f.bounds.is_exact) + order
    lows = [f.bounds.low for f in order if f.bounds.low is not None]
    unknown = len(order) - len(lows)
    homes = {max(0, unknown + bisect_right(lows, group) - 1) for group in groups if group is not None}
    touched = {file.path for file in compress(files, mask_candidates((f.bounds for f in files), groups))}
    touched |= {order[home].path for home in homes if order}
    size = sum(file.size for file in files)
    wanted_files = size // file_bytes(size) + 8  # With a margin.
    if len(files) > FILES_TOO_MANY * wanted_files:
        touched = {file.path for file in files}
    # Neighbours are rewritten together.
    ranges: list[list[DataFile]] = []
    last, joined_size = -2, 0
    for number, file in enumerate(order):
        if file.path not in touched:
            continue
        if number != last + 1 or (joined_size > AT_ONCE and file.bounds.low is not None):
            ranges.append([])
            joined_size = 0
        ranges[-1].append(file)
        last, joined_size = number, joined_size + file.size
    return [FileRange(one[0].bounds.low if at else None, tuple(one)) for at, one in enumerate(ranges)]


KNOWN_FEATURES = {"timestampNtz", "appendOnly", "invariants"}


def has_plain_features(table: DeltaTable) -> bool:
    """True when files can be added and removed without special rules."""
    settings, protocol = table.metadata(), table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    more = any(name.startswith(("delta.constraints.", "delta.columnMapping.")) for name in settings.configuration)
    fed = settings.configuration.get(CHANGE_DATA_FEED) == ON
    return not settings.partition_columns and features <= KNOWN_FEATURES and not more and not fed


def plan_rewrite(version: TableVersion, column: str, groups: Groups) -> GroupRewrite | None:
    """The rewrite that replaces the rows of these groups; None when `replace_groups` cannot do it in its memory
    limit."""
    if not has_plain_features(version.table):
        return None
    files = version.files(column)
    kinds = {type(value) for file in files for value in (file.bounds.low, file.bounds.high) if value is not None}
    kinds |= {type(group) for group in groups if group is not None}
    if len(kinds) > 1:
        return None
    ranges = find_file_ranges(files, groups) or [FileRange(None, ())]
    touched = [file for one in ranges for file in one.files]
    if any(file.size > LARGEST_FILE for file in touched):
        return None
    size, rows = sum(file.size for file in files), sum(file.bounds.rows or 0 for file in files)
    rows_per_file = max(1, rows * file_bytes(size) // size) if rows else 100_000
    stay = _read_staying_rows(version, ranges, column, groups)
    return GroupRewrite(column, groups, ranges, rows_per_file, [*stay] if has_few_rows(touched) else stay)


def _read_staying_rows(
    version: TableVersion, ranges: Sequence[FileRange], column: str, groups: Groups
) -> Iterator[pa.Table]:
    for one in ranges:
        rows = version.rows(one.files).to_table()
        in_groups = pc.is_in(rows[column], value_set=pa.array([*groups], rows[column].type))
        yield rows.filter(pc.invert(in_groups))


def replace_groups(version: TableVersion, rows: pa.Table, rewrite: GroupRewrite, properties: CommitProperties) -> int:
    """Replaces the rows of the groups by `rows`, in one commit on exactly this version.

    Returns the version of the commit, which `version.table` does not have yet. Raises CommitFailedError when
    another writer committed first.
    """
    actions: list[AddAction | RemoveAction] = []
    writer = _FileWriter(version, rewrite)
    # Each file range gets its part of the rows, which are in order.
    rows, ranges = sort_by_group(rows.cast(version.schema), rewrite.column), rewrite.file_ranges
    values, nulls = rows[rewrite.column].combine_chunks(), rows[rewrite.column].null_count
    positions = range(nulls, len(values))
    later = [nulls + bisect_left(positions, one.low, key=lambda at: values[at].as_py()) for one in ranges[1:]]
    for one, (begin, end), staying in zip(ranges, pairwise([0, *later, len(values)]), rewrite.staying_rows, strict=True):
        new = rows.slice(begin, end - begin)
        now = int(time.time() * 1000)
        actions += [RemoveAction(file.path, True, now, file.size, {}) for file in one.files]
        actions += writer.write(sort_by_group(pa.concat_tables([staying, new]), rewrite.column))
    table = version.table
    table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
    return version.number + 1


class _FileWriter:
    """Writes data files of a table. They belong to the table once the returned actions are committed."""

    def __init__(self, version: TableVersion, rewrite: GroupRewrite) -> None:
        self._filesystem: fs.FileSystem = version.without_files.filesystem
        self._rows = rewrite.rows
        covered = {*columns_with_statistics(version.table), rewrite.column}
        self._covered_names = [f.name for f in version.schema if f.name in covered and _has_bounds(f.type)]

    def write(self, rows: pa.Table) -> Iterator[AddAction]:
        """Writes these rows into files of about equal length."""
        number = max(1, round(rows.num_rows / self._rows))
        cuts = [rows.num_rows * at // number for at in range(number + 1)]
        for begin, end in pairwise(cuts):
            if end == begin:
                continue
            part, path = rows.slice(begin, end - begin), f"part-{uuid4()}.snappy.parquet"
            with self._filesystem.open_output_stream(path) as sink:
                pq.write_table(part, sink, **LIKE_OTHERS)
                size = int(sink.tell())
            stats = json.dumps(_file_statistics(part.select(self._covered_names), part.num_rows))
            yield AddAction(path, size, {}, int(time.time() * 1000), data_change=True, stats=stats)


def _has_bounds(kind: pa.DataType) -> bool:
    """True when the JSON bounds of such a column are the same for every reader."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _file_statistics(rows: pa.Table, number: int) -> dict[str, Any]:
    stats: dict[str, Any] = {"numRecords": number, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in rows.column_names:
        stats["nullCount"][name] = rows[name].null_count
        ends = pc.min_max(rows[name]).as_py()
        if any(isinstance(end, str) and len(end) > LONGEST_BOUND for end in ends.values()):
            continue
        if ends["min"] is not None:
            low, high = (end.isoformat() if isinstance(end, date) else end for end in (ends["min"], ends["max"]))
            stats["minValues"][name], stats["maxValues"][name] = low, high
    return stats
