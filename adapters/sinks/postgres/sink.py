"""The PostgreSQL sink: tables in a schema of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import pyarrow as pa

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.policy.policy_names import POLICY_NAMES
from replicator.domain.read_query import BuildReadQuery
from replicator.domain.schema_versions import SchemaVersion
from replicator.ports.checkpoints import StoredLane
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.sink import CutoverDecision, ErasureResult, LaneArtifact, SinkCapabilities, VacuumResult

from ...apply.explain import explain
from ...postgres.names import quote_name
from ...postgres.options import PostgresOptions
from ...postgres.table_reader import TableReader
from ...postgres.views import render_view
from ...sql.dialect import DUCKDB, POSTGRES, Dialect
from .comparison import PostgresTargetSnapshot, open_postgres_comparison
from .restore import RestorableLanes


class PostgresSink:
    """`ports.sink.Sink` and `ports.reader.SelectsRows` over `pyarrow.Table`.

    Options: `dsn`, `schema` (default `public`), `query_timeout` (seconds, default 60) and `answer_timeout`
    (seconds, default 300).

    `lanes` does the work. `RestorableLanes` (`restore`) extends `SwappableLanes` (`table_swap`), `DroppableLanes`
    (`lane_removal`) and `PostgresLanes` (`lanes`); `apply` is in the last one.

    All writes of one `apply` commit together, with the positions of their lanes. A lane's table is named
    `into`, with any characters, in at most 63 bytes. Needs PostgreSQL 15.
    """

    capabilities = SinkCapabilities(
        atomic_across_lanes=True, policies=frozenset(POLICY_NAMES), watermarks=True, retention=True
    )
    frame = pa.Table

    def __init__(self, options: Mapping[str, object]) -> None:
        given = PostgresOptions.from_options(options)
        dsn = given.dsn.get_secret_value()
        self._schema, self._dsn = given.schema_name, dsn
        self.lanes = RestorableLanes(dsn, lambda lane: (given.schema_name, lane.into), "sink", given.answer_timeout)
        self._reader = TableReader(dsn, given.schema_name, given.query_timeout)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        self.lanes.prepare(lane, plan)

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        return self.lanes.schemas(lane)

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        self.lanes.remember(lane, version)

    def state(self, lane: Lane) -> LaneState | None:
        return self.lanes.state(lane)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        return self.lanes.apply(writes, reject)

    def skip(self, lane: Lane, state: LaneState) -> None:
        self.lanes.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        self.lanes.reset(lane)

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        return self.lanes.list_artifacts(lane)

    def drop(self, lane: Lane) -> None:
        self.lanes.drop(lane)

    def refuse_second_writer(self, lane: Lane) -> None:
        self.lanes.refuse_second_writer(lane)

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision) -> LaneState:
        return self.lanes.swap(lane, rebuilt, judge)

    def restore_state(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        self.lanes.restore(lane, plan, stored)

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        return self.lanes.erase(lane, key)

    def end_versions(self, lane: Lane) -> str:
        return self.lanes.end_versions(lane)

    def vacuum(self, lane: Lane, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        return self.lanes.vacuum(lane, retain, dry_run=dry_run)

    def open_comparison(self, lane: Lane) -> AbstractContextManager[PostgresTargetSnapshot | None]:
        """See `ports.comparison.Compares`."""
        return open_postgres_comparison(self._dsn, self._schema, lane)

    def tables(self) -> Sequence[str]:
        return self._reader.tables()

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """See `ports.reader.Reader.read`. PostgreSQL has no old versions."""
        return self._reader.read(name, version=version, as_of=as_of, where=where, limit=limit)

    def select(
        self,
        name: str,
        choose: BuildReadQuery,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        seconds: float | None = None,
    ) -> pa.Table:
        """See `ports.reader.SelectsRows.select`. PostgreSQL has no old versions."""
        return self._reader.select(name, choose, version=version, as_of=as_of, seconds=seconds)

    def explain(self, lane: Lane, plan: ApplyPlan, fold: Dialect = DUCKDB) -> Mapping[str, str]:
        """See `ports.sink.Explains`. `fold`: the dialect of the engine."""
        view = render_view(plan, self._schema, lane.into)
        stages = explain(plan, POSTGRES, quote_name(self._schema, lane.into), fold=fold)
        return stages if view is None else {**stages, "view": view}

    def hurry(self) -> None:
        self.lanes.hurry()

    def close(self) -> None:
        self._reader.close()
        self.lanes.close()
