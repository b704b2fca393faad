"""The status report of a running pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic

from replicator.application.lane_runs import Clock, LaneRun, LaneStatus, monotonic
from replicator.application.quarantine.rejects import count_for_lane
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.pipeline import SourcePipeline
from replicator.application.stream.source_progress import SourceProgress
from replicator.application.transactions.barrier import TransactionProgress
from replicator.domain.policy import CURRENT_ROW_POLICIES
from replicator.domain.policy.late_changes import to_purge_summary
from replicator.domain.policy.plan import DeleteHorizon
from replicator.domain.position import Position
from replicator.domain.schema_evolution import to_summary
from replicator.domain.transactions import RowLoss
from replicator.ports.frames import F, Lane
from replicator.ports.source import Pace
from replicator.ports.stores import DeadLetterGroup

LONG_CALL = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane.

    - `position`, `handed`: as `Position.to_json`. Its sink was given everything below `handed`.
    - `counts`: of changes, by their outcome. None for a lane that does not run.
    - `lag_records`: up to the last known end of its source. None while the source is away, and if offsets do not
      count records.
    - `lag_seconds`: age of the newest applied change; 0 when nothing is left, None when unknown.
    - `dead_letters`: open dead letters with changes that it lacks (`count_for_lane`). None when unknown.
    - `tombstones`: see `describe_tombstones`.
    - `schemas`: by number, those it has read and the one it waits for (`schema_evolution.to_summary`).
    - `call`: the call to its sink that takes longer than `LONG_CALL`: `doing`, and its start `since`.
    """

    id: str
    table: str
    sink: str
    policy: str
    status: str
    position: dict[str, dict[str, int]]
    lag_records: int | None = None
    lag_seconds: float | None = None
    counts: dict[str, int] | None = None
    error: str | None = None
    next_step: str | None = None
    exit_code: int | None = None
    applied_at: str | None = None
    tombstones: dict[str, Any] | None = None
    handed: dict[str, dict[str, int]] = field(default_factory=dict)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: int | None = None
    call: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source.

    - `records`: read since the start. `records_per_second`: on average.
    - `lag_records`: from its lowest lane to its end. `unread`: of these, not read yet. Both are None if offsets do
      not count records.
    - `ignored`: by kind, records without a change of a table with a lane. `Report.rejects` has the records rejected
      in the stages `route` and `decode`. Lanes got all others.
    - `away_since` (a time) and `error`: while the source or one of its partitions fails. Its end is the last known
      one then.
    - `pace`: if an engine runs the stream itself. `transactions`: if lanes wait for each other at transactions.
    - `row_loss`: if the sender of the records may lose some before sending.
    - `call`: the call to the source that takes longer than `LONG_CALL`: `doing`, and its start `since`.
    """

    name: str
    records: int
    records_per_second: float
    position: dict[str, dict[str, int]]
    lag_records: int | None
    away_since: str | None
    error: str | None
    pace: Pace | None
    transactions: TransactionProgress | None = None
    row_loss: RowLoss | None = None
    ignored: dict[str, int] = field(default_factory=dict)
    unread: int | None = None
    call: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RejectCount:
    """The records rejected since the start, by stage and reason. `table` is empty if unknown. A record that several
    lanes reject counts once per lane."""

    source: str
    table: str
    stage: str
    code: str
    records: int


@dataclass(frozen=True, slots=True)
class Report:
    """The status of everything at one time.

    - `engine_page`: the web page of the engine, if it has one.
    - `dead_letters`: see `list_open_dead_letters`. None when unknown.
    - `dead_letter_call`: the call to the dead-letter store that takes longer than `LONG_CALL`: `doing`, its start
      `since`, and `error`, the last one.
    """

    at: str
    engine_page: str | None
    sources: tuple[SourceReport, ...]
    lanes: tuple[LaneReport, ...]
    rejects: tuple[RejectCount, ...] = ()
    dead_letters: tuple[dict[str, Any], ...] | None = None
    dead_letter_call: dict[str, str | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class StatusReporter(Generic[F]):
    """Makes reports, from any thread; reads memory only."""

    def __init__(
        self,
        pipelines: Collection[SourcePipeline[F]],
        runtime: RuntimeContext[F],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Clock = monotonic,
    ) -> None:
        self.pipelines = pipelines
        self._lanes = runtime.lanes
        self._rejects = runtime.rejects
        self._engine = runtime.engine
        self._now = now
        self._clock = clock

    def report(self) -> Report:
        """The state now."""
        now = self._now()
        flows = {pipeline.context.name: pipeline.progress for pipeline in self.pipelines}
        letters = self._rejects.open.counts
        with self._lanes.get_lock():
            runs = self._lanes.list_runs()
            lanes = []
            for run in runs:
                doing, since = self._lanes.get_sink_call(run.lane.sink) or ("", now)
                sink_call = {"doing": doing, "since": since.isoformat()} if now - since > LONG_CALL else None
                lane = _make_lane_report(run, flows.get(run.lane.source, SourceProgress()), now, letters)
                lanes.append(replace(lane, call=sink_call))
            lags = {name: flow.find_lowest_lag(r for r in runs if r.lane.source == name) for name, flow in flows.items()}
        sources = [
            self._make_source_report(pipeline, flow, lags[name], now)
            for pipeline, (name, flow) in zip(self.pipelines, flows.items(), strict=True)
        ]
        kinds = sorted(self._rejects.kinds.items())
        rejects = tuple(RejectCount(kind.source, kind.table, kind.stage, kind.code, records) for kind, records in kinds)
        call, store_call = self._rejects.call, None
        if call is not None and now - call.since > LONG_CALL:
            store_call = {**asdict(call), "since": call.since.isoformat()}
        open_letters, page = list_open_dead_letters(letters), self._engine.features.page
        return Report(now.isoformat(), page, tuple(sources), tuple(lanes), rejects, open_letters, store_call)

    def _make_source_report(
        self, pipeline: SourcePipeline[F], flow: SourceProgress, lag: int | None, now: datetime
    ) -> SourceReport:
        clock, away = self._clock(), flow.outage
        waited_for = pipeline.context.source.features.waited_for
        waited = None if waited_for is None else waited_for()
        doing, seconds = waited or ((flow.call.doing, clock - flow.call.since) if flow.call else ("", 0.0))
        since = now - timedelta(seconds=seconds)
        return SourceReport(
            name=pipeline.context.name,
            records=flow.records,
            records_per_second=round(flow.records / max(clock - flow.began, 1e-9), 1),
            position=flow.position.to_json(),
            lag_records=lag,
            away_since=(now - timedelta(seconds=clock - away.since)).isoformat() if away else None,
            error=away.sentence if away else None,
            pace=flow.pace,
            transactions=flow.transaction_progress,
            row_loss=flow.row_loss,
            ignored=dict(flow.ignored),
            unread=flow.count_lag(flow.position),
            call={"doing": doing, "since": since.isoformat()} if now - since > LONG_CALL else None,
        )


DeadLetterTotals = Mapping[DeadLetterGroup, int] | None


def list_open_dead_letters(letters: DeadLetterTotals) -> tuple[dict[str, Any], ...] | None:
    """The number of open dead letters, by `source`, `table` (empty if unknown) and `lane` (empty if no lane got the
    record)."""
    return None if letters is None else tuple({**asdict(group), "open": n} for group, n in sorted(letters.items()))


def _make_lane_report(run: LaneRun, flow: SourceProgress, now: datetime, letters: DeadLetterTotals) -> LaneReport:
    position = Position({**run.begin, **run.applied})
    lag = flow.count_lag(flow.get_position(run)) if flow.end and (flow.outage is None or flow.outage.answers) else None
    problem = run.problem or run.retrying or run.waiting
    lane = run.lane
    age = None if run.newest is None else max(0.0, now.timestamp() - run.newest / 1_000_000)
    names = ("applied", "folded", "superseded", "duplicate", "filtered", "rejected")
    return LaneReport(
        id=run.lane.id,
        table=run.lane.table,
        sink=run.lane.sink,
        policy=run.lane.policy,
        status=run.shown_status.value,
        position=position.to_json(),
        lag_records=lag,
        lag_seconds=0.0 if lag == 0 else age,
        counts=dict(zip(names, run.counts.as_tuple(), strict=True)),
        error=problem.sentence if problem else None,
        next_step=problem.next_step if problem else None,
        exit_code=int(problem.code) if run.status is LaneStatus.SUSPENDED and problem else None,
        applied_at=run.applied_at.isoformat() if run.applied_at else None,
        tombstones=describe_tombstones(run.lane, run.purged_up_to),
        handed=run.processed_to.to_json(),
        schemas=[to_summary(version) for _, version in sorted(run.schema.versions.items())],
        dead_letters=None if letters is None else count_for_lane(letters, lane.source, lane.table, lane.id),
    )


def describe_tombstones(lane: Lane, forgotten: DeleteHorizon | None) -> dict[str, Any] | None:
    """How long the lane keeps tombstones (`retention`, as text; None: forever), and which it has purged
    (`to_purge_summary`). None for a lane without tombstones."""
    if lane.policy not in CURRENT_ROW_POLICIES:
        return None
    retention = None if lane.retention is None else str(lane.retention)
    return {"retention": retention, "forgotten": to_purge_summary(forgotten) or None}
