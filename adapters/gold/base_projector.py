"""The common methods of projectors on any engine: find tables, their versions and records, and prepare the
table of a projection. Inputs and tables are in lakes and in PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
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
from replicator.ports.projector import RefreshStart, ReplaceResult

from ..delta.commits import LostRace
from ..delta.errors import first_line, translate_errors
from ..delta.folders import Folder, LocalFolder, sync_commit
from ..delta.lake import Lake
from ..delta.maintenance import TableMaintenance
from ..delta.options import LakeOptions
from ..delta.table_writer import TableWriter, describe_old_versions, end_versions
from ..delta.tables import STATISTICS, LatestTable, has_table, open_table, read_schema, statistics_columns
from ..postgres.options import TableLocations
from .postgres_inputs import PostgresInputs
from .postgres_tables import PostgresTables
from .refresh_records import (
    REFRESH_FULL,
    commit_properties,
    create_target,
    group_column,
    missing_input_error,
    next_number,
    other_columns_error,
    python_type,
    read_last_record,
    refuse_group_type,
    refuse_others,
)
from .table_version import SnapshotCache

T = TypeVar("T")


class BaseProjector(ABC):
    """`ports.projector.Projector` without an engine, which adds the comparison and the computation of rows.

    Options: `sinks`, by name the lakes of projections and of their inputs (`LakeOptions`), and the PostgreSQL sinks
    (`TableLocations`). Rows from PostgreSQL, and results for it, are held in memory.
    """

    def __init__(self, options: Mapping[str, object], writer: TableWriter | None = None) -> None:
        given = options.get("sinks")
        if not isinstance(given, Mapping):
            raise ConfigProblem("option sinks is a mapping of sinks by their names")
        lakes = {str(name): said for name, said in given.items() if "dsn" not in said}
        self._lakes = {name: LakeOptions.from_options(said) for name, said in lakes.items()}
        self._upkeep = {
            name: TableMaintenance(said.compact_every, writer, said.vacuum) for name, said in self._lakes.items()
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
        self._places = TableLocations({name: said for name, said in given.items() if name not in lakes})
        self._inputs = PostgresInputs(self._places)
        self._tables = PostgresTables(self._places)

    @contextmanager
    def open_refresh(self, projection: Projection) -> Iterator[RefreshStart]:
        tables = {one.label: (one.sink, one.table) for one in projection.inputs}
        tables[projection.label] = (projection.sink, projection.into)
        try:
            reads, last = self._read_inputs(projection), self._read_last(projection)
            yield RefreshStart(reads, last, {label: self._locate_table(*table) for label, table in tables.items()})
        finally:
            self._release_inputs()

    def _locate_table(self, sink: str, table: str | None) -> str:
        return self._places.locate(sink, table).url if sink in self._places else self._input_folder(sink, table).uri

    def _read_inputs(self, projection: Projection) -> InputVersions:
        """Also reads the table meanwhile, for `_read_last`."""
        stored = [one for one in projection.inputs if one.sink not in self._places]
        elsewhere = [one for one in projection.inputs if one.sink in self._places]
        looking = self._start_lookup(projection)
        try:
            found = self._read_newest(projection, stored)
        finally:
            wait([looking])
        self._lookups[projection.name] = looking
        found.update(self._inputs.read_versions(projection, elsewhere))
        return {one.name: found[one.name] for one in projection.inputs}

    def _read_newest(self, projection: Projection, inputs: Iterable[ProjectionInput]) -> dict[str, InputVersion]:
        found = {}
        for one in inputs:
            folder = self._input_folder(one.sink, one.table)
            with translate_errors(one.label):
                try:
                    newest = self._snapshots_of(folder).get_newest()
                except TableNotFoundError as gone:
                    if has_table(folder):
                        raise
                    raise missing_input_error(projection, one) from gone
                found[one.name] = InputVersion(newest.table_id, newest.number)
        return found

    def _read_last(self, projection: Projection) -> RefreshRecord | None:
        if projection.sink in self._places:
            return self._tables.read_last(projection)
        with translate_errors(projection.label):
            table = (self._lookups.pop(projection.name, None) or self._start_lookup(projection)).result()
            self._targets[projection.name] = None if table is None else (table, table.version())
            if table is None:
                return None
            commit, record = self._last_commits.get(projection.name, (None, None))
            return record if commit == self._latest_target(projection).seen else read_last_record(table)

    @abstractmethod
    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.find_affected_groups`. Changes in PostgreSQL are not known."""

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        if projection.sink in self._places:
            computed = None if work.groups == frozenset() else self._compute_in_memory(projection, work.groups, record)
            return self._tables.replace(projection, work, record, computed)
        with translate_errors(projection.label):
            try:
                version, rows = self._compute_and_commit(projection, work, record)
                self._note_refresh(projection, version, record)
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
        """The newest versions stay cached."""
        self._inputs.release()
        for one in self._snapshots.values():
            one.drop_older()

    def describe_versions(self, projection: Projection, *, end: bool = False) -> str:
        """See `ports.projector.Projector.describe_versions`. PostgreSQL has no old versions."""
        if projection.sink in self._places:
            return self._tables.end_versions(projection) if end else ""
        folder = self._target_folder(projection)
        with translate_errors(projection.label):
            if not has_table(folder):
                return ""
            return (end_versions if end else describe_old_versions)(folder, open_table(folder))

    def close(self) -> None:
        try:
            self._release_inputs()
            self._tables.close()
        finally:
            self._pool.shutdown(cancel_futures=True)  # Cancels reads that nobody needs.
            for known in (self._targets, self._latest_tables, self._snapshots, self._lookups, self._last_commits):
                known.clear()

    @abstractmethod
    def _compute_and_commit(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> tuple[int, int]:
        """Computes and commits in a lake; returns the version, and the number of rows written."""

    @abstractmethod
    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        """The rows of the groups, or all, with the query's column names."""

    def _is_group_type(self, projection: Projection, values: Iterable[object]) -> bool:
        """True when the values have the type of the table's groups. Equal values of two types would not be
        found again."""
        found = self._read_group_type(projection)
        kind = None if found is None else python_type(found)
        return all(type(value) is kind for value in values if value is not None)

    def _read_group_type(self, projection: Projection) -> pa.DataType | None:
        """The type of the table's groups; None when the table does not exist."""
        if projection.sink in self._places:
            return self._tables.read_group_type(projection)
        table = self._get_target(projection)
        return None if table is None else group_column(projection, read_schema(table)).type

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
        if projection.sink in self._places:
            return None
        try:
            table = self._latest_target(projection).newest()
        except TableNotFoundError:  # Also raised for folders without access.
            if has_table(self._target_folder(projection)):
                raise
            return None
        refuse_others(table, projection)
        return table

    def _latest_target(self, projection: Projection) -> LatestTable:
        folder = self._target_folder(projection)
        return self._latest_tables.setdefault(folder.uri, LatestTable(folder))

    def _note_refresh(self, projection: Projection, version: int, record: RefreshRecord) -> None:
        commit = self._latest_target(projection).commit(version)
        if commit[1] is not None:
            self._last_commits[projection.name] = (commit, record)

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

    @contextmanager
    def _run_in_background(self, does: Callable[[], T]) -> Iterator[Future[T]]:
        """Runs `does` in another thread, which has ended at the end of the block. Its errors are raised by the
        result."""
        coming = self._pool.submit(does)
        try:
            yield coming
        finally:
            wait([coming])

    def _prepare_target(self, projection: Projection, schema: pa.Schema, work: RefreshWork) -> DeltaTable:
        """The table for rows of these stored types; created if it does not exist.

        Raises Fatal when only some groups are replaced and the table has other columns.
        """
        refuse_group_type(projection, schema)
        table = self._get_target(projection)
        if table is None:
            folder = self._target_folder(projection)
            self._lakes[projection.sink].lake.refuse_collision(projection.into)
            return create_target(folder, projection, schema, _first_columns(projection))
        there = read_schema(table)
        if [(f.name, f.type) for f in there] == [(f.name, f.type) for f in schema]:
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
        said = commit_properties(table, projection, record)
        write_deltalake(table, read_schema(table).empty_table(), mode="append", commit_properties=said)
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
