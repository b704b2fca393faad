"""The Delta sink: tables on a disk or in an object store, written in process by delta-rs. Its methods serve Spark, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.expr import Expr
from replicator.domain.policy import POLICY_NAMES
from replicator.domain.policy.plan import ApplyPlan, LaneState, end_sequence_columns
from replicator.domain.position import Position
from replicator.domain.read_query import BuildReadQuery
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape, select_new
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import F, FoldedChanges, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.reads import CHECKSUMS, ComparedColumn, KeyRange, TableSplit, TargetVersions
from replicator.ports.sink import (
    BulkLoads,
    CutoverDecision,
    ErasureResult,
    KeyErasure,
    LaneArtifact,
    LaneRemoval,
    SchemaStore,
    SinkFeatures,
    StoredLane,
)

from ...apply.explain import explain
from ...apply.projections import ownership_remark
from ...delta.errors import translate_errors
from ...delta.folders import Folder
from ...delta.lake import Lake
from ...delta.options import LakeOptions, TableOptions, config_location, find_stored_names
from ...delta.partitions import check_partitions, partition_columns, refuse_foreign_paths, refuse_other_partitions
from ...delta.table_reader import (
    count_rows,
    read_columns,
    read_table,
    select_rows,
    table_name,
    to_source_names,
    translate_missing_files,
)
from ...delta.table_writer import TableWriter, end_versions
from ...delta.tables import (
    CHANGE_DATA_FEED,
    DELETION_VECTORS,
    ON,
    RANDOM_FOLDERS,
    create_table,
    find_missing_columns,
    has_table,
    open_table,
    read_schema,
    refuse_unsafe,
    stored_columns,
    to_stored_plan,
)
from ...duckdb.session import open_session
from ...sql.checksums import SummedColumn, can_render_duckdb, render_bucket_condition, render_sums
from ...sql.dialect import DELTA_RS, DELTA_RS_ALONE, DUCKDB
from ...sql.render import current_rows_condition, render_expression
from .lane import BulkLoad, CommitPreparer, DeltaLane, open_lane_log
from .lanes import DeltaLaneRemains, LaneSink, lane_key, refuse_half_dropped, refuse_policy, remove_rows
from .mirror import DeltaMirror
from .options import DeltaSettings
from .schema_evolution import (
    TableLayout,
    check_clusters,
    find_missing_statistics,
    read_versions,
    refuse_partitioned,
    reshape,
    write_version,
)
from .side_tables import SideTables
from .table_swap import DeltaStoredLane, restore_lane, swap_tables
from .transaction_table import TransactionTable

POLICIES = frozenset(POLICY_NAMES)


class MirrorSink(LaneSink[F]):
    """`ports.sink.Sink` over a lake, without the stages of a plan and their
    explanation.

    `tables`, `read` and `select` are safe for use from several threads.
    """

    policies = POLICIES

    def __init__(
        self,
        lake: Lake,
        options: LakeOptions,
        preparer: CommitPreparer,
        side_tables: SideTables,
        writer: TableWriter | None = None,
    ) -> None:
        super().__init__(lake, options, preparer, writer)
        self._side_tables = side_tables
        self._transactions = TransactionTable(lake)

    @property
    def features(self) -> SinkFeatures:
        return replace(
            super().features,
            watermarks=True,
            retention=True,
            schemas=SchemaStore(self.schemas, self.remember),
            publish=self.publish,
            refuse_second_writer=self.refuse_second_writer,
            reader=self,
            select=self.select,
            versions=TargetVersions(self.read_version_positions, self.columns_at),
            open_comparison=self.open_comparison,
            removal=LaneRemoval(self.list_artifacts, self.drop),
            swap=self.swap,
            erasure=KeyErasure(self.erase, self.end_versions),
            restore_state=self.restore_state,
            open_stored_lane=self.open_stored_lane,
            count_rows=self.count_rows,
        )

    def find_table(self, lane: Lane) -> Folder:
        return self._lake.table(lane.into)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        refuse_policy(lane, plan, POLICIES)
        options = TableOptions.from_lane(lane)
        partitions, clusters = self._layout_columns(lane, plan)
        with translate_errors(lane.into):
            self._lake.refuse_collision(lane.into)
            delta_lane = self.acquire_lane(lane)
            path = self.find_table(lane)
            if has_table(path):
                self._lake.refuse_other_writer(lane)
            else:
                columns, settings = stored_columns(plan.target), _table_properties(options)
                remark = ownership_remark(lane)
                create_table(
                    path, lane.into, columns, settings=settings, partition_by=partitions, first=clusters, remark=remark
                )
                delta_lane.drop_snapshot()
            table = delta_lane.newest()
            refuse_unsafe(table, lane.into, plan.target)
            refuse_other_partitions(table, lane, options.partition_by)
            refuse_foreign_paths(table, lane.into)
            new = select_new(plan.versions, self.schemas(lane)) if plan.versions else ()
            for version in new:
                delta_lane.drop_snapshot()  # Before the changes: one of them may fail after another one.
                self._reshape_table(lane, plan, table, version.reshaping)
            missing = find_missing_columns(table, lane.into, plan.target)
            if missing:
                self._writer.add_columns(table, missing)
            if self._switch_on(lane, table, options) or missing:
                delta_lane.drop_snapshot()
            for version in new:
                self.remember(lane, version)

    def _layout_columns(self, lane: Lane, plan: ApplyPlan) -> tuple[list[str], list[str]]:
        """The partition and cluster columns of the lane's options. Raises ConfigProblem for unsuitable columns."""
        options = TableOptions.from_lane(lane)
        return check_partitions(lane, plan, options.partition_by), check_clusters(lane, plan, options.cluster_by)

    def _reshape_table(self, lane: Lane, plan: ApplyPlan, table: DeltaTable, reshaping: TargetReshape) -> None:
        """Reshapes the target and its side table."""
        if not reshaping:
            return
        layout = (
            *partition_columns(table),
            *find_stored_names(TableOptions.from_lane(lane).cluster_by, read_schema(table).names),
        )
        end = end_sequence_columns(1)[0] if plan.history is not None else ""
        side_table = self._lake.tombstones(lane.into)
        rewrite = partial(self.acquire_lane(lane).rewrite, side_table=side_table) if plan.has_column_versions else None
        reshape(table, reshaping, self._writer, TableLayout(lane.into, layout, end), rewrite)
        rest = replace(reshaping, emptied=())  # Stored side rows keep the values of their time.
        if has_table(side_table) and reshape(open_table(side_table), rest, TableWriter(), TableLayout(lane.into)):
            self._side_tables.reopen(lane)

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        with translate_errors(lane.into):
            return read_versions(self._lake.schemas(lane.into))

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        with translate_errors(lane.into):
            write_version(self._lake.schemas(lane.into), version)

    def refuse_second_writer(self, lane: Lane) -> None:
        with translate_errors(lane.into):
            if has_table(self.find_table(lane)):
                self._lake.refuse_other_writer(lane)

    def _switch_on(self, lane: Lane, table: DeltaTable, options: TableOptions) -> bool:
        """Sets missing properties of an existing table; true when the table may have changed."""
        properties = table.metadata().configuration
        clusters = find_stored_names(options.cluster_by, read_schema(table).names)
        wanted = _table_properties(options) | ({RANDOM_FOLDERS: ON} if partition_columns(table) else {})
        if clusters:
            refuse_partitioned(table, lane)
            wanted |= find_missing_statistics(table, clusters)
        missing = {name: value for name, value in wanted.items() if properties.get(name) != value}
        marks = options.deletion_vectors and properties.get(DELETION_VECTORS) != ON
        if missing:
            self._writer.set_properties(table, missing)
        if marks and not self._writer.mark_deletes(table):
            raise _spark_only_error(lane, "deletion_vectors", "writes no deletion vectors")
        if clusters and not self._writer.cluster(table, clusters):
            raise _spark_only_error(lane, "cluster_by", "clusters no tables, and cannot write to those that are")
        return bool(missing or marks or clusters)

    def publish(self, lanes: Sequence[Lane], complete: CompletenessWatermark) -> None:
        versions = {lane.into: self.read_version(lane) for lane in lanes}
        for pipeline in {lane.pipeline for lane in lanes}:
            self._transactions.publish(pipeline, complete, {n: v for n, v in versions.items() if v is not None})

    def read_version(self, lane: Lane) -> int | None:
        """The version of the lane's table; None while there is no table.

        It is cached until this instance writes the table, because no other instance writes the lane.
        """
        path = self.find_table(lane)
        if path in self._snapshots:
            return self._snapshots[path].version()
        if path not in self._versions or lane_key(lane) in self._acquired:
            with translate_errors(lane.into):
                self._versions[path] = open_table(path).version() if has_table(path) else None
        return self._versions[path]

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Raises Fatal when the lane has no table yet."""
        self._transactions.withdraw(lane)
        before = self.state(lane)
        if before is not None and any(state.position.get(p, 0) < end for p, end in before.position.items()):
            with translate_errors(f"{lane.into} (its side table)"):
                self.run_exclusive(lane, lambda _: self._side_tables.keep_applied(lane, before.position))
        super().skip(lane, state)

    def reset(self, lane: Lane) -> None:
        """The table stays, empty, with its history. Tombstones are deleted."""
        self.refuse_second_writer(lane)
        self._transactions.withdraw(lane)
        super().reset(lane)
        self._side_tables.drop(lane)

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        with translate_errors(lane.into):
            return self.read_remains(lane).list_artifacts()

    def read_remains(self, lane: Lane) -> DeltaLaneRemains:
        """The artifacts of the lane."""
        return DeltaLaneRemains(self._lake, lane, open_lane_log(self._lake, self.find_table(lane), lane))

    def drop(self, lane: Lane) -> None:
        """In a local lake the lock file of the lane stays: without it two instances could each lock a file of
        that name."""
        self._transactions.withdraw(lane)
        with translate_errors(lane.into):
            remains = self.read_remains(lane)
            if not remains.list_artifacts():
                return
            remains.refuse_others()
            if remains.find_origin() == "found":
                self.run_exclusive(lane, lambda delta_lane: delta_lane.record_state(None, remove_rows))
                remains.remove_side_files(self._side_tables.drop)
                return
            self._snapshots.pop(self.find_table(lane), None)
            self._versions.pop(self.find_table(lane), None)
            if lane_key(lane) in self._acquired:
                self._acquired.pop(lane_key(lane)).close()
            lock = self._lake.lock(lane)
            try:
                remains.remove(remains.find_origin(), self._side_tables.drop)
            finally:
                lock.release()

    def swap(self, lane: Lane, rebuilt: Lane, decide_cutover: CutoverDecision) -> LaneState:
        """The rows are written again, into new files of the lane's table. Old versions of the table stay, and
        the caller drops `rebuilt`."""
        self._transactions.withdraw(lane)

        def act(target_lane: DeltaLane) -> LaneState:
            lake, writer, reopen = self._lake, self._writer, partial(self._side_tables.reopen, lane)
            return self.run_exclusive(
                rebuilt, lambda rebuilt_lane: swap_tables(lake, (target_lane, rebuilt_lane), decide_cutover, writer, reopen)
            )

        with translate_errors(lane.into):
            if not has_table(self.find_table(lane)):
                raise Fatal(f"lane {lane.id} has no table yet", next_step="Start the program, which makes it.")
            self.read_remains(lane).refuse_others()
            return self.run_exclusive(lane, act)

    def open_stored_lane(self, lane: Lane, plan: ApplyPlan) -> DeltaStoredLane:
        return DeltaStoredLane(self._lake, lane, plan)

    def restore_state(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        self.prepare(lane, plan)
        with translate_errors(lane.into):
            self.read_remains(lane).refuse_others()
        self.run_exclusive(lane, lambda delta_lane: restore_lane(self._lake, delta_lane, stored, self._writer))
        self._side_tables.reopen(lane)

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        """Files with these rows are rewritten. Old versions contain the rows until they end."""
        self._side_tables.reopen(lane)
        with translate_errors(lane.into):
            refuse_half_dropped(self._lake, lane)
            if not has_table(self.find_table(lane)):
                return ErasureResult()
        applied = [version for version in self.schemas(lane) if version.state != "pending"]
        types = {column.name: column.type for version in applied[-1:] for column in version.columns}
        return self.run_exclusive(lane, lambda delta_lane: delta_lane.erase(key, types, self._lake.tombstones(lane.into)))

    def end_versions(self, lane: Lane) -> str:
        self._transactions.withdraw(lane)  # The row names versions.
        path, side_table, remarks = self.find_table(lane), self._lake.tombstones(lane.into), []
        with translate_errors(lane.into):
            if has_table(side_table):
                self._side_tables.reopen(lane)
                remarks.append(self.run_exclusive(lane, lambda delta_lane: delta_lane.end_side_versions(side_table)))
            if has_table(path):
                remarks.append(end_versions(path, open_table(path)))
        return "; ".join(filter(None, remarks))

    def count_rows(self, lane: Lane) -> int:
        with translate_errors(lane.into):
            path = self.find_table(lane)
            return count_rows(open_table(path)) if has_table(path) else 0

    def read_version_positions(self, lane: Lane) -> Iterator[tuple[int, Position]]:
        path = self.find_table(lane)
        with translate_errors(lane.into):
            if has_table(path):
                log = open_lane_log(self._lake, path, lane)
                yield from log.read_version_positions(log.open())

    def open_comparison(self, lane: Lane) -> AbstractContextManager[DeltaTargetSnapshot | None]:
        return open_delta_comparison(self._lake, self.find_table(lane), lane)

    def columns_at(self, name: str, version: int) -> pa.Schema:
        with translate_errors(name):
            return read_columns(self._lake.table(name), name, version)

    def tables(self) -> Sequence[str]:
        with translate_errors("of the lake"):
            return [table_name(folder) for folder in self._lake.folders()]

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        with translate_errors(name):
            return read_table(self._lake.table(name), name, version=version, as_of=as_of, where=where, limit=limit)

    def select(
        self,
        name: str,
        choose: BuildReadQuery,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        seconds: float | None = None,
    ) -> pa.Table:
        with translate_errors(name):
            return select_rows(self._lake.table(name), name, choose, version=version, as_of=as_of, seconds=seconds)


def _spark_only_error(lane: Lane, option: str, limitation: str) -> ConfigProblem:
    return ConfigProblem(
        f"delta-rs {limitation}", next_step=f"Remove `{option}` in {config_location(lane)}, or set `engine: spark`."
    )


def _table_properties(options: TableOptions) -> dict[str, str]:
    """The properties for `options` that every engine supports."""
    settings = {CHANGE_DATA_FEED: ON} if options.change_data_feed else {}
    return settings | ({RANDOM_FOLDERS: ON} if options.partition_by else {})


class DeltaRsSink(MirrorSink[pa.Table]):
    """`ports.sink.Sink` over `pyarrow.Table`; options: see `DeltaSettings`."""

    frame = pa.Table

    def __init__(self, options: DeltaSettings | Mapping[str, Any]) -> None:
        lake_options = LakeOptions.from_settings(DeltaSettings.read(options))
        lake = lake_options.lake
        preparer = DeltaMirror(lake, lake_options.compact_every)
        super().__init__(lake, lake_options, preparer, preparer.side_tables)

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, bulk_load=BulkLoads(self.loads, self.load), explain=self.explain)

    def loads(self, lane: Lane, plan: ApplyPlan) -> bool:
        return self.get_prepared(lane).can_load(plan)

    def load(
        self, write: Write[pa.Table], parts: Iterable[FoldedChanges[pa.Table]], reject: RejectRows[pa.Table], folder: Path
    ) -> LaneOutcome:
        return self.get_prepared(write.lane).load(write, BulkLoad(self._preparer, parts, folder), reject)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        self._layout_columns(lane, plan)
        return explain(to_stored_plan(plan), DELTA_RS, DELTA_RS.quote_name(lane.into), reconcile=DUCKDB)


# Comparisons: the target at one commit of its lane.

ROWS, CURRENT, KEYS = "comparison_rows", "comparison_current", "comparison_keys"


@contextmanager
def open_delta_comparison(lake: Lake, path: Folder, lane: Lane) -> Iterator[DeltaTargetSnapshot | None]:
    """See `ports.sink.SinkFeatures.open_comparison`. The state of the lane is part of the table's log, so version and
    position belong together."""
    with translate_errors(lane.into):
        if not has_table(path):
            yield None
            return
        log = open_lane_log(lake, path, lane)
        table = log.open()
        state = log.state(table)
        if state is None:
            yield None
            return
        with open_session() as session:
            yield DeltaTargetSnapshot(lane, table, state.position, session)


class DeltaTargetSnapshot:
    """`ports.reads.TargetSnapshot` of one version of a table."""

    def __init__(self, lane: Lane, table: DeltaTable, position: Position, session: duckdb.DuckDBPyConnection) -> None:
        self.lane, self.table, self.session = lane, table, session
        self.commit, self.position = f"version {table.version()}", position
        self.identity = str(table.metadata().id)
        self.columns = to_source_names(read_schema(table))

    def can_sum(self, columns: Sequence[ComparedColumn]) -> bool:
        types = {field.name: field.type for field in self.columns}
        return all(can_render_duckdb(column.kind, types[column.target]) for column in columns)

    def sum(self, split: TableSplit) -> pa.Table:
        types = {field.name: field.type for field in self.columns}
        columns = [SummedColumn(column.target, column.kind, str(types[column.target])) for column in split.columns]
        excluded = None
        if split.without.num_rows:
            self.session.register(KEYS, split.without)
            excluded = KEYS
        keys = self._list_keys(split)
        query = render_sums(DUCKDB, CURRENT, columns, keys, within=split.within, excluded=excluded)
        needed = {*(column.name for column in columns), *split.keys}
        return self._query(query, needed=needed, within=split.within).select(CHECKSUMS.names).cast(CHECKSUMS)

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> pa.Table:
        wanted = render_bucket_condition(DUCKDB, self._list_keys(split), buckets, split.within)
        where = _render_where(split.where)
        return self._query(f"SELECT t.* FROM {CURRENT} AS t WHERE {wanted} AND {where}", within=split.within)

    def read_keys(self, keys: pa.Table, where: Expr | None) -> pa.Table:
        matches = " AND ".join(f"t.{DUCKDB.quote_name(name)} = k.{DUCKDB.quote_name(name)}" for name in keys.column_names)
        self.session.register(KEYS, keys)
        return self._query(f"SELECT t.* FROM {CURRENT} AS t SEMI JOIN {KEYS} AS k ON {matches} WHERE {_render_where(where)}")

    def read_all(self) -> pa.Table:
        return self._query(f"SELECT t.* FROM {CURRENT} AS t", "true")

    def _list_keys(self, split: TableSplit) -> list[SummedColumn]:
        kinds = {column.target: column.kind for column in split.columns}
        types = {field.name: field.type for field in self.columns}
        return [SummedColumn(name, kinds.get(name, "integer"), str(types[name])) for name in split.keys]

    def convert(self, name: str, values: pa.Array) -> pa.Array:  # noqa: ARG002 - every column keeps its values
        """See `ports.reads.TargetSnapshot.convert`: a lake stores values as they are."""
        return values

    def _query(
        self,
        query: str,
        condition: str | None = None,
        *,
        needed: Collection[str] | None = None,
        within: KeyRange | None = None,
    ) -> pa.Table:
        """The result of a query over `CURRENT`: the current rows, or those that match a condition. With `needed`, they have
        only these columns of the target. `within`: a range outside of which no row matters."""
        schema = self.columns
        stored_names = dict(zip(schema.names, read_schema(self.table).names, strict=True))
        condition = condition or current_rows_condition(DUCKDB, self.lane, schema.names)
        names = [n for n in schema.names if needed is None or n in needed or DUCKDB.quote_name(n) in condition]
        predicate = None if within is None else render_range(stored_names[within.column], within)
        scan = pa.RecordBatchReader.from_stream(self.table.scan([stored_names[name] for name in names], predicate))
        renamed_schema = pa.schema([field.with_name(name) for field, name in zip(scan.schema, names, strict=True)])
        batches = pa.RecordBatchReader.from_batches(renamed_schema, (batch.rename_columns(names) for batch in scan))
        with translate_missing_files(self.lane.into, self.table):
            self.session.register(ROWS, batches)
            rows = self.session.sql(f"WITH {CURRENT} AS (SELECT * FROM {ROWS} WHERE {condition}) {query}").to_arrow_table()
        return rows.cast(schema) if needed is None else rows


def _render_where(where: Expr | None) -> str:
    return "true" if where is None else render_expression(where, DUCKDB, "t")


def render_range(column: str, within: KeyRange) -> str | None:
    """The range as a condition of delta-rs."""
    name = DELTA_RS_ALONE.quote_name(column)
    bounds = [] if within.above is None else [f"{name} > {within.above}"]
    return " AND ".join(bounds if within.upto is None else [*bounds, f"{name} <= {within.upto}"]) or None
