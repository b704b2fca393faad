"""The PostgreSQL sink: tables in a schema of a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import ApplyOutcome, Lane, RejectRows, Write
from replicator.ports.options import to_timedelta
from replicator.ports.sink import (
    KeyErasure,
    LaneRemoval,
    SinkFeatures,
)

from ...apply.explain import explain
from ...postgres.ddl import render_view
from ...postgres.names import quote_name
from ...postgres.options import read_dsn
from ...postgres.table_reader import TableReader
from ...sql.dialect import DUCKDB, POSTGRES, Dialect
from .comparison import PostgresTargetSnapshot, open_postgres_comparison
from .options import PostgresSettings
from .table_swap import RestorableLanes


class PostgresSink:
    """`ports.sink.Sink` over `pyarrow.Table`.

    Options: `dsn`, `schema` (default `public`), `query_timeout` (seconds, default 60) and `answer_timeout`
    (seconds, default 300).

    `lanes` does the work. `RestorableLanes` extends `SwappableLanes` and `DroppableLanes` (all in `table_swap`). These
    extend `PostgresLanes` (`lanes`), which has `apply`.

    All writes of one `apply` commit together, with the positions of their lanes. A lane's table is named
    `into`, with any characters, in at most 63 bytes. Needs PostgreSQL 15.
    """

    frame = pa.Table

    def __init__(self, options: PostgresSettings | Mapping[str, Any]) -> None:
        given = PostgresSettings.read(options)
        dsn, timeout = read_dsn(given.dsn), to_timedelta(given.answer_timeout).total_seconds()
        self._schema, self._dsn = given.schema_name, dsn
        self.lanes = RestorableLanes(dsn, lambda lane: (given.schema_name, lane.into), "sink", timeout)
        self._reader = TableReader(dsn, given.schema_name, given.query_timeout)

    @property
    def features(self) -> SinkFeatures:
        return replace(
            self.lanes.features,
            watermarks=True,
            retention=True,
            refuse_second_writer=self.lanes.refuse_second_writer,
            explain=self.explain,
            reader=self._reader,
            select=self._reader.select,
            open_comparison=self.open_comparison,
            removal=LaneRemoval(self.lanes.list_artifacts, self.lanes.drop),
            swap=self.lanes.swap,
            erasure=KeyErasure(self.lanes.erase, self.lanes.end_versions),
            restore_state=self.lanes.restore,
        )

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        self.lanes.prepare(lane, plan)

    def state(self, lane: Lane) -> LaneState | None:
        return self.lanes.state(lane)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        return self.lanes.apply(writes, reject)

    def skip(self, lane: Lane, state: LaneState) -> None:
        self.lanes.skip(lane, state)

    def reset(self, lane: Lane) -> None:
        self.lanes.reset(lane)

    def open_comparison(self, lane: Lane) -> AbstractContextManager[PostgresTargetSnapshot | None]:
        return open_postgres_comparison(self._dsn, self._schema, lane)

    def explain(self, lane: Lane, plan: ApplyPlan, fold: Dialect = DUCKDB) -> Mapping[str, str]:
        """See `ports.sink.SinkFeatures.explain`. `fold`: the dialect of the engine."""
        view = render_view(plan, self._schema, lane.into)
        stages = explain(plan, POSTGRES, quote_name(self._schema, lane.into), fold=fold)
        return stages if view is None else {**stages, "view": view}

    def close(self) -> None:
        self._reader.close()
        self.lanes.close()
