"""The common methods of projectors on any engine: find tables, their versions and records, and prepare the
table of a projection."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from replicator.domain.errors import ConfigProblem, Fatal, Retryable
from replicator.domain.projection import (
    Groups,
    InputVersion,
    InputVersions,
    Projection,
    ProjectionInput,
    RefreshRecord,
    RefreshWork,
)
from replicator.domain.table import Column
from replicator.ports.projector import (
    GoldTable,
    GoldTables,
    InputMissing,
    InputTable,
    InputTables,
    RefreshStart,
    ReplaceResult,
)
from replicator.ports.sink import SinkFeatures

from ..apply.projections import (
    REFRESH_FULL,
    foreign_table_error,
    group_column,
    missing_input_error,
    other_columns_error,
    python_type,
    refuse_group_type,
    table_remark,
)
from ..delta.commits import RECENT, USER_METADATA, LostRace
from ..delta.errors import first_line, translate_errors
from ..delta.folders import Folder, LocalFolder, sync_commit
from ..delta.lake import Lake
from ..delta.options import LakeOptions
from ..delta.table_writer import TableMaintenance, TableWriter, describe_old_versions, end_versions
from ..delta.tables import (
    STATISTICS,
    LatestTable,
    create_table,
    has_table,
    open_table,
    read_schema,
    statistics_columns,
)
from ..sql.dialect import Dialect
from .table_version import SnapshotCache


class BaseProjector(ABC):
    """`ports.projector.Projector` without an engine, which adds the comparison and the computation of rows.

    A lake in `sinks` has `LakeOptions`. Rows from other sinks, and results for them, are held in memory.
    """

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        sinks = options.get("sinks")
        if not isinstance(sinks, Mapping):
            raise ConfigProblem("option sinks is a mapping of sinks by their names")
        self._features = {str(name): features for name, features in sinks.items() if isinstance(features, SinkFeatures)}
        """The sinks that are no lakes."""
        self._lakes = {str(n): LakeOptions.from_options(lake) for n, lake in sinks.items() if n not in self._features}
        self._upkeep = {
            name: TableMaintenance(lake.compact_every, writer, lake.vacuum) for name, lake in self._lakes.items()
        }
        self._targets: dict[str, tuple[DeltaTable, int] | None] = {}
        """By projection its table, and the version that `_read_last` read."""
        self._latest_tables: dict[str, LatestTable] = {}
        self._snapshots: dict[str, SnapshotCache] = {}
        """The cached tables by URI. Input versions are kept for the next refresh, which compares with the last
        one read."""
        self._lookups: dict[str, Future[DeltaTable | None]] = {}
        """By projection its table, read together with the inputs."""
        self._last_commits: dict[str, tuple[tuple[str, object], RefreshRecord]] = {}
        """By projection the last commit of this process, as `LatestTable` stores it, and its record."""
        self._pool = ThreadPoolExecutor(1, "refresh")
        """Runs work in parallel to the caller's thread."""
        self._inputs: dict[str, InputTable] = {}
        """Inputs of the running refresh that are not in lakes, by name."""
        self._opened = ExitStack()
        """Holds these inputs at their versions."""
        self._found: dict[str, GoldTable] = {}
        """By projection its table that is not in a lake, as `_read_last` found it."""

    @contextmanager
    def open_refresh(self, projection: Projection) -> Iterator[RefreshStart]:
        try:
            reads, last = self._read_inputs(projection), self._read_last(projection)
            lakes = [(one.label, one.sink, one.table) for one in projection.inputs if one.sink in self._lakes]
            locations = {label: self._input_folder(sink, table).uri for label, sink, table in lakes}
            locations |= {
                one.label: self._inputs[one.name].place for one in projection.inputs if one.sink not in self._lakes
            }
            target = self._found.get(projection.name)
            yield RefreshStart(
                reads,
                last,
                {**locations, projection.label: self._target_folder(projection).uri if target is None else target.place},
            )
        finally:
            self._release_inputs()

    def _read_inputs(self, projection: Projection) -> InputVersions:
        """Also reads the table meanwhile, for `_read_last`."""
        looking = self._start_lookup(projection)
        try:
            versions = self._read_newest(projection, [one for one in projection.inputs if one.sink in self._lakes])
        finally:
            wait([looking])
        self._lookups[projection.name] = looking
        self._open_inputs(projection)
        versions.update({name: one.version for name, one in self._inputs.items()})
        return {one.name: versions[one.name] for one in projection.inputs}

    def _open_inputs(self, projection: Projection) -> None:
        """Opens the inputs that are not in lakes: those in one database together."""
        self._release_inputs()
        self._inputs.clear()
        together: dict[str, list[tuple[ProjectionInput, InputTables]]] = {}
        for one in projection.inputs:
            if one.sink in self._lakes:
                continue
            tables = self._features[one.sink].projection_inputs
            if tables is None:
                raise Fatal(
                    f"projection {projection.name} reads {one.label}, but projections cannot read that sink",
                    next_step="Read a target of the table in another sink, such as a lake.",
                )
            together.setdefault(tables.database, []).append((one, tables))
        for pairs in together.values():
            locations = [tables.locate(one.table) for one, tables in pairs]
            try:
                input_tables = self._opened.enter_context(pairs[0][1].open(locations))
            except InputMissing as missing:
                raise missing_input_error(projection, pairs[locations.index(missing.place)][0]) from missing
            self._inputs.update({one.name: table for (one, _), table in zip(pairs, input_tables, strict=True)})

    def _read_newest(self, projection: Projection, inputs: Iterable[ProjectionInput]) -> dict[str, InputVersion]:
        versions = {}
        for one in inputs:
            folder = self._input_folder(one.sink, one.table)
            with translate_errors(one.label):
                try:
                    newest = self._snapshots_of(folder).get_newest()
                except TableNotFoundError as error:
                    if has_table(folder):
                        raise
                    raise missing_input_error(projection, one) from error
                versions[one.name] = InputVersion(newest.table_id, newest.number)
        return versions

    def _read_last(self, projection: Projection) -> RefreshRecord | None:
        if projection.sink not in self._lakes:
            self._found[projection.name] = self._gold_tables(projection).find(projection)
            return self._found[projection.name].last
        with translate_errors(projection.label):
            table = (self._lookups.pop(projection.name, None) or self._start_lookup(projection)).result()
            self._targets[projection.name] = None if table is None else (table, table.version())
            if table is None:
                return None
            commit, record = self._last_commits.get(projection.name, (None, None))
            return record if commit == self._latest_target(projection).seen else read_last_record(table)

    @abstractmethod
    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.find_affected_groups`. They are known only of lakes."""

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        if projection.sink not in self._lakes:
            computed = None
            if work.groups != frozenset():
                computed = self._compute_in_memory(projection, work.groups, record)
                refuse_group_type(projection, computed.schema)
            return self._gold_tables(projection).replace(projection, work, record, computed)
        with translate_errors(projection.label):
            try:
                version, rows = self._compute_and_commit(projection, work, record)
                commit = self._latest_target(projection).commit(version)
                if commit[1] is not None:
                    self._last_commits[projection.name] = (commit, record)
                self._start_lookup(projection)
            except pa.ArrowException as error:
                sentence = f"table {projection.label} cannot be rewritten: {first_line(error)}"
                raise Fatal(sentence, next_step=REFRESH_FULL) from error
            except (CommitFailedError, LostRace) as lost:
                raise Retryable(f"another writer changed table {projection.label} first") from lost
            finally:
                self._targets.pop(projection.name, None)
            return ReplaceResult(version, rows)

    def _release_inputs(self) -> None:
        """The newest versions of lakes stay cached."""
        self._opened.close()
        for one in self._snapshots.values():
            one.drop_older()

    def describe_versions(self, projection: Projection, *, end: bool = False) -> str:
        if projection.sink not in self._lakes:
            tables = self._gold_tables(projection)
            return tables.end_versions(projection) if end and tables.end_versions is not None else ""
        folder = self._target_folder(projection)
        with translate_errors(projection.label):
            if not has_table(folder):
                return ""
            return (end_versions if end else describe_old_versions)(folder, open_table(folder))

    def close(self) -> None:
        try:
            self._release_inputs()
        finally:
            self._pool.shutdown(cancel_futures=True)  # Cancels reads that nobody needs.
            for cache in (self._targets, self._latest_tables, self._snapshots, self._lookups, self._last_commits):
                cache.clear()

    @abstractmethod
    def _compute_and_commit(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> tuple[int, int]:
        """Computes and commits in a lake; returns the version, and the number of rows written."""

    @abstractmethod
    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        """The rows of the groups, or all, with the query's column names."""

    def _is_group_type(self, projection: Projection, values: Iterable[object]) -> bool:
        """True when the values have the type of the table's groups. Equal values of two types would not be
        found again."""
        group_type = self._read_group_type(projection)
        kind = None if group_type is None else python_type(group_type)
        return all(type(value) is kind for value in values if value is not None)

    def _read_group_type(self, projection: Projection) -> pa.DataType | None:
        """The type of the table's groups; None when the table does not exist."""
        if projection.name in self._found:
            return self._found[projection.name].group_type
        table = self._get_target(projection)
        return None if table is None else group_column(projection, read_schema(table)).type

    def _gold_tables(self, projection: Projection) -> GoldTables:
        tables = self._features[projection.sink].gold_tables
        if tables is None:
            raise Fatal(
                f"sink {projection.sink!r} of projection {projection.name} cannot hold gold tables",
                next_step=f"Name another sink ({projection.config_line}).",
            )
        return tables

    def _input_folder(self, sink: str, table: str | None) -> Folder:
        lake: Lake = self._lakes[sink].lake
        return lake.root if table is None else lake.table(table)

    def _snapshots_of(self, folder: Folder) -> SnapshotCache:
        """The cached versions of an input."""
        return self._snapshots.setdefault(folder.uri, SnapshotCache(folder))

    def _target_folder(self, projection: Projection) -> Folder:
        return self._input_folder(projection.sink, projection.into)

    def _start_lookup(self, projection: Projection) -> Future[DeltaTable | None]:
        """Reads the table in the other thread.

        After a commit nothing waits for it: it updates the table while nothing is refreshed, and a later read
        finds an error again.
        """
        return self._pool.submit(self._read_newest_target, projection)

    def _read_newest_target(self, projection: Projection) -> DeltaTable | None:
        if projection.sink not in self._lakes:
            return None
        try:
            table = self._latest_target(projection).newest()
        except TableNotFoundError:  # Also raised for folders without access.
            if has_table(self._target_folder(projection)):
                raise
            return None
        if table.metadata().description != table_remark(projection):
            raise foreign_table_error(projection)
        return table

    def _latest_target(self, projection: Projection) -> LatestTable:
        folder = self._target_folder(projection)
        return self._latest_tables.setdefault(folder.uri, LatestTable(folder))

    def _get_target(self, projection: Projection) -> DeltaTable | None:
        """The table that `_read_last` read. Raises Retryable if it has newer commits."""
        if projection.name not in self._targets:
            self._read_last(projection)
        table, version = self._targets[projection.name] or (None, None)
        if table is not None and table.version() != version:
            raise Retryable(f"another writer changed table {projection.label} first")
        return table

    def _get_existing_target(self, projection: Projection) -> DeltaTable:
        """The same table, for a projection with a record."""
        table = self._get_target(projection)
        if table is None:
            raise Fatal(f"table {projection.label} is gone", next_step="Refresh again.")
        return table

    def _prepare_target(self, projection: Projection, schema: pa.Schema, work: RefreshWork) -> DeltaTable:
        """The table for rows of these stored types; created if it does not exist.

        Raises Fatal when only some groups are replaced and the table has other columns.
        """
        refuse_group_type(projection, schema)
        table = self._get_target(projection)
        if table is None:
            folder = self._target_folder(projection)
            self._lakes[projection.sink].lake.refuse_collision(projection.into)
            columns, first = tuple(Column(field.name, field.type) for field in schema), _first_columns(projection)
            remark = table_remark(projection)
            create_table(folder, projection.into, columns, settings={}, partition_by=[], first=first, remark=remark)
            return open_table(folder)
        stored_schema = read_schema(table)
        if [(f.name, f.type) for f in stored_schema] == [(f.name, f.type) for f in schema]:
            return table
        if work.groups is not None:
            raise other_columns_error(projection)
        covered = statistics_columns(schema, [], _first_columns(projection))
        if covered != table.metadata().configuration.get(STATISTICS):
            self._upkeep[projection.sink].writer.set_properties(table, {STATISTICS: covered})
        return table

    def _commit_record(self, projection: Projection, record: RefreshRecord) -> tuple[int, int]:
        """Commits only the record."""
        table = self._get_existing_target(projection)
        properties = commit_properties(table, projection, record)
        write_deltalake(table, read_schema(table).empty_table(), mode="append", commit_properties=properties)
        version = int(table.version())
        self._finish_commit(projection, table, version)
        return version, 0

    def _finish_commit(self, projection: Projection, table: DeltaTable, version: int) -> None:
        """Makes the commit of that version durable, and compacts the table from time to time.

        `table` may still be at the version before; a later read updates it.
        """
        folder = self._target_folder(projection)
        if isinstance(folder, LocalFolder):
            sync_commit(folder, version)
        upkeep = self._upkeep[projection.sink]
        if not self._has_sized_files(projection, table):
            advance_to(table, version)
            upkeep.after_commit(table, next_number(table, projection) - 1)
        elif upkeep.is_due(table):
            advance_to(table, version)
            upkeep.vacuum(table)
        if table.version() >= version:
            self._latest_target(projection).set_current(table)

    def _has_sized_files(self, projection: Projection, table: DeltaTable) -> bool:  # noqa: ARG002
        """True when refreshes control the sizes of files, which compaction would undo."""
        return False


def advance_to(table: DeltaTable, version: int) -> None:
    """Updates the table to an existing version."""
    if table.version() < version:
        table.update_incremental()
    if table.version() != version:  # Somebody else has committed meanwhile.
        table.load_as_version(version)


def _first_columns(projection: Projection) -> list[str]:
    """The columns with the first statistics."""
    return [name for name in (projection.partition_by, *projection.keys) if name]


# The record of a refresh in its commit, and the groups in conditions of SQL.

RECORD = "replicatorRefresh"
"""The key of the record in a commit, or in a writer's commit metadata."""

LEAVE_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMN", "CREATE TABLE"})
"""Operations of others that leave the rows of the last refresh unchanged."""


def app_id(projection: Projection) -> str:
    """The application of a projection's transactions."""
    return f"replicator/projection/{projection.name}"


def read_last_record(table: DeltaTable) -> RefreshRecord | None:
    """The record of the last refresh; None if another program wrote rows since."""
    for entry in _read_commits(table):
        record = entry.get(RECORD)
        if record is None and RECORD in str(entry.get(USER_METADATA)):
            record = json.loads(entry[USER_METADATA])[RECORD]
        if isinstance(record, str):
            record = json.loads(record)
        if record is not None:
            return RefreshRecord.from_json(record)
        if entry.get("operation") not in LEAVE_ROWS:
            return None
    return None


def _read_commits(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Commits, the last one first. Nearly always it is the wanted one, and reading a commit is expensive."""
    yield from table.history(1)
    yield from table.history(RECENT)[1:]


def commit_properties(table: DeltaTable, projection: Projection, record: RefreshRecord) -> CommitProperties:
    """The properties of the commit after this snapshot, for delta-rs, which must not retry by itself."""
    transaction = Transaction(app_id(projection), next_number(table, projection), int(time.time() * 1000))
    metadata = {RECORD: json.dumps(record.to_json())}
    return CommitProperties(custom_metadata=metadata, max_commit_retries=0, app_transactions=[transaction])


def next_number(table: DeltaTable, projection: Projection) -> int:
    """The number of the next refresh after this snapshot."""
    return (table.transaction_version(app_id(projection)) or 0) + 1


def groups_filter(key: str, groups: Groups, dialect: Dialect) -> str:
    """The condition that a row belongs to one of the groups. `key`: the expression of its group."""
    texts = ", ".join(sorted(_group_literal(value, dialect) for value in groups if value is not None))
    parts = [f"{key} IN ({texts})"] if texts else []
    parts += [f"{key} IS NULL"] if None in groups else []
    return " OR ".join(parts) or "false"


def _group_literal(value: Any, dialect: Dialect) -> str:
    """A group's value in a condition."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return dialect.text(value) if isinstance(value, str) else f"CAST('{value.isoformat()}' AS DATE)"
