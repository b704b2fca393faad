"""Delivery: applies the writes of one sink until each is committed or its lane is suspended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Generic

import structlog

from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.options import Backoff
from replicator.application.problem import (
    AccountingError,
    Problem,
    Stopped,
    ensure_accounting,
    make_accounting_error,
    to_problem,
)
from replicator.application.quarantine.rejects import RejectKind, make_stop_error
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import (
    ConfigProblem,
    ExitCode,
    Fatal,
    Fenced,
    ReplicatorError,
    Retryable,
    RowsWait,
    TooManyRejects,
)
from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import ApplyPlan, Counts
from replicator.domain.position import TopicPartition
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import F, Lane, LaneOutcome
from replicator.ports.runtime import LaneCommitted
from replicator.ports.sink import Sink

from .bounded_queue import (
    WAKE_SECONDS,
    PublishRequest,
    RecordFrames,
    WriteRequest,
    group_into_packs,
    group_into_rounds,
    join_writes,
    measure_writes,
)
from .bulk_load import BulkLoader

log = structlog.get_logger(__name__)

FEW_LANES = 3
"""Up to this number of new lanes are written together with the others.

If there are more, they wait and are written one by one.
"""
NEW_LANE_SECONDS = 0.1
"""The longest time that other lanes wait for new ones."""
WAITS_FOR_ROWS = Problem(ExitCode.OK, "Its rows wait for rows of other lanes.")


class Delivery(Generic[F]):
    """Applies the writes of one sink. Only the thread of its worker uses it.

    Reactions to errors of the sink:
    - `Retryable`: wait, read the lanes' states again, skip committed writes and repeat the rest, until
      `abandon` is set.
    - `RowsWait`: set the writes of its lanes aside, and retry them after other commits or after some time,
      together with newer writes of the lane. After `row_patience` the rows are rejected.
    - Any other error with several writes: apply each by itself, to find the one that fails.
    - Any other error with one write: suspend its lane. The others go on.
    - `Fenced`, `TooManyRejects` and errors of the dead-letter store are raised: they concern the whole program.

    A bundle is committed whole, except for a single lane that fails, and never waits for rows.
    """

    def __init__(
        self, name: str, sink: Sink[F], runtime: RuntimeContext[F], bulk_loader: BulkLoader[F] | None = None
    ) -> None:
        self._name = name
        self._sink = sink
        self._bulk_loader = bulk_loader
        self._stop = runtime.stop
        self._engine = runtime.engine
        self._lanes = runtime.lanes
        self._rejects = runtime.rejects
        self._telemetry = runtime.telemetry
        self._abandon = runtime.abandon
        self._clock = runtime.clock
        self._idle_timeout = runtime.idle_timeout
        self._options = runtime.options
        self._prepared: dict[str, tuple[int, ApplyPlan]] = {}
        self._waiting: dict[str, list[WriteRequest[F]]] = {}
        """By lane the writes that wait for rows of other lanes, in order."""
        self._waiting_since: dict[str, float] = {}
        """By lane, on the clock."""
        self._new_lane_writes: list[WriteRequest[F]] = []
        self._retry_at = 0.0
        self._committed = self._is_last_try = False
        self._reject_kinds: dict[str, dict[tuple[TopicPartition, int], list[RejectKind]]] = {}
        """Rejects by lane and record. If a sink rejects a record in several attempts, the last one counts."""
        self._publisher = WatermarkPublisher(name, sink, runtime)

    def deliver(
        self, requests: Iterable[WriteRequest[F]], publish_requests: Mapping[str, PublishRequest] = MappingProxyType({})
    ) -> None:
        """Apply all requests. On return each is committed, void, or of a suspended lane, unless `abandon` is set.

        `publish_requests`: by source, the watermark that is true then, if it is newer than the requests' own.
        """
        requests = tuple(requests)
        self._publisher.begin_commit(requests)
        if any(request.bundle and request.run.lane.id in self._waiting for request in requests):
            self._write_new_lanes(None)
            self._retry_waiting(last=True)  # Bundles never wait, and must not overtake writes that do.
        for pack in group_into_packs(request for request in requests if request.bundle):
            live = [request for request in pack if self._lanes.is_live(request.run, request.generation)]
            last = collect_publish_requests(live)
            groups = [self._join_writes(group) for round_ in group_into_rounds(live) for group in round_]
            self._apply_with_retry(
                [_set_watermark(group, last.get(group.run.lane.source)) for group in groups], recheck=False
            )
        self._deliver_rounds(self._defer_new_lanes([request for request in requests if not request.bundle]))
        self._write_new_lanes(
            NEW_LANE_SECONDS if not publish_requests and not any(request.write.complete for request in requests) else None
        )
        while self._waiting and (self._committed or self._clock() >= self._retry_at) and not self._abandon.is_set():
            self._retry_waiting()
        self._publisher.end_commit(requests, publish_requests)

    def _defer_new_lanes(self, requests: Sequence[WriteRequest[F]]) -> Sequence[WriteRequest[F]]:
        """The writes of lanes that the sink has prepared. If there are few other lanes, all writes.

        Otherwise the writes of new lanes wait in `_new_lane_writes`, and later writes of such a lane wait behind them.
        """
        deferred = {request.run.lane.id for request in self._new_lane_writes}
        new = deferred | {request.run.lane.id for request in requests if request.run.lane.id not in self._prepared}
        if self._bulk_loader is not None or (not deferred and len(new) <= FEW_LANES):
            return requests
        self._new_lane_writes += [request for request in requests if request.run.lane.id in new]
        return [request for request in requests if request.run.lane.id not in new]

    def _write_new_lanes(self, seconds: float | None) -> None:
        """Write new lanes one at a time, for `seconds`. None, or too much memory in use: write all of them.

        The sink creates a table for each. Other lanes must not stand still while it creates a thousand.
        """
        until = None if seconds is None else self._clock() + seconds
        while self._new_lane_writes and not self._abandon.is_set():
            lane = self._new_lane_writes[0].run.lane.id
            lane_items = [request for request in self._new_lane_writes if request.run.lane.id == lane]
            self._new_lane_writes = [request for request in self._new_lane_writes if request.run.lane.id != lane]
            self._deliver_rounds(lane_items)
            is_small = measure_writes(self._new_lane_writes) < self._options.handover_bytes
            if until is not None and is_small and self._clock() >= until:
                return

    def _deliver_rounds(self, requests: Iterable[WriteRequest[F]]) -> None:
        for round_ in group_into_rounds(requests):
            live = [group for group in round_ if self._lanes.is_live(group[0].run, group[0].generation)]
            self._apply_with_retry([self._join_writes(group) for group in live], recheck=False)

    def _retry_waiting(self, *, last: bool = False) -> None:
        """Retry the writes that wait for rows of other lanes.

        `last`: rows that the target still refuses are rejected.
        """
        self._is_last_try = last
        waiting, self._waiting, self._committed = self._waiting, {}, False
        self._waiting_since = {lane: since for lane, since in self._waiting_since.items() if lane in waiting}
        self._retry_at = self._clock() + self._options.row_retry
        for requests in waiting.values():
            self._lanes.wait_for_rows(requests[0].run, None)
        self._deliver_rounds(request for requests in waiting.values() for request in requests)
        self._is_last_try = False

    def _defer_waiting(self, pending: Sequence[WriteRequest[F]], error: RowsWait) -> list[WriteRequest[F]]:
        """Set the writes of the lanes in `error` aside. Returns the others."""
        now = self._clock()
        if not self._waiting:
            self._retry_at = now + self._options.row_retry
        for request in (request for request in pending if request.run.lane.id in error.lanes):
            lane = request.run.lane.id
            if lane not in self._waiting_since:
                log.warning("rows wait for rows of other lanes", lane=lane, sentence=error.sentence)
                self._waiting_since[lane] = now
            self._append_waiting(request, to_problem(error))
        return [request for request in pending if request.run.lane.id not in error.lanes]

    def _append_waiting(self, request: WriteRequest[F], problem: Problem) -> None:
        requests = self._waiting.setdefault(request.run.lane.id, [])
        requests.append(request.withdraw_watermark())
        is_full = measure_writes(requests) >= self._options.handover_bytes
        self._lanes.wait_for_rows(request.run, problem, is_full=is_full)

    def _defer_blocked(self, pending: Sequence[WriteRequest[F]]) -> list[WriteRequest[F]]:
        """Let writes wait that are behind a waiting write of their lane. Returns the others."""
        free = []
        for request in pending:
            if request.run.lane.id not in self._waiting or request.bundle:
                free.append(request)
            else:
                self._append_waiting(request, request.run.waiting or WAITS_FOR_ROWS)
        return free

    def _can_wait(self, request: WriteRequest[F]) -> bool:
        if request.bundle or self._is_last_try:
            return False
        since = self._waiting_since.get(request.run.lane.id)
        if self._new_lane_writes:  # The missing row may be in one of these.
            return True
        return since is None or self._clock() - since < self._options.row_patience

    @property
    def due_in(self) -> float | None:
        """Seconds until `deliver` has work even without new requests; None if there is none."""
        due = [0.0] if self._new_lane_writes else []
        publish_in = self._publisher.due_in
        if publish_in is not None:
            due.append(publish_in)
        if self._waiting:
            due.append(max(0.0, self._retry_at - self._clock()))
        return min(due, default=None)

    def finish(self) -> None:
        """Finish the work; no more requests follow.

        Spilled rows are loaded into their targets, unless `stop` is set: then a later run continues. Writes that
        wait for rows of other lanes are retried until no other sink has writes in flight, and then for the last
        time.
        """
        self._write_new_lanes(None)
        while self._waiting and not self._stop.is_set() and not self._abandon.is_set():
            self._retry_waiting(last=not self._lanes.is_busy(without=self._name))
            if self._waiting and not self._committed:
                self._abandon.wait(min(self._options.row_retry, WAKE_SECONDS))
        if self._bulk_loader is not None and not self._stop.is_set():
            for request in self._bulk_loader.list_placeholder_writes():
                self._apply_with_retry([request], recheck=False)
            for lane, error in self._bulk_loader.find_orphans().items():
                run = self._lanes.find(lane)
                if run is not None and run.status is not LaneStatus.SUSPENDED:  # A suspended lane has its reason already.
                    self._lanes.suspend(run, to_problem(error), error)
        self._publisher.finish()

    def _join_writes(self, group: Sequence[WriteRequest[F]]) -> WriteRequest[F]:
        """Join writes of one lane, once the engine answers."""
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        while True:
            try:
                return join_writes(self._engine, group)
            except Retryable as error:
                log.warning("engine away", sink=self._name, sentence=error.sentence, attempt=backoff.attempts)
                self._idle_timeout.record_failure("Sink", self._name, error.sentence)
                if backoff.wait(self._abandon):
                    raise Stopped from error

    def _apply_with_retry(self, pending: Sequence[WriteRequest[F]], *, recheck: bool) -> None:
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        while pending := self._defer_blocked([p for p in pending if self._lanes.is_live(p.run, p.generation)]):
            try:
                if recheck:
                    pending = self._record_committed(pending)
                self._apply_once(pending)
                if recheck:
                    self._lanes.set_sink_outage(self._name, None)
                return
            except RowsWait as error:
                pending = self._defer_waiting(pending, error)
            except Retryable as error:
                self._raise_unless_lane_error(error)
                self._lanes.set_sink_outage(self._name, to_problem(error))
                log.warning("sink away", sink=self._name, sentence=error.sentence, attempt=backoff.attempts)
                self._idle_timeout.record_failure("Sink", self._name, error.sentence)
                if backoff.wait(self._abandon):
                    return
                recheck = True
            except Exception as error:
                self._raise_unless_lane_error(error)
                self._apply_one_by_one(pending, error)
                return

    def _raise_unless_lane_error(self, error: Exception) -> None:
        """Raise errors that concern the whole program, even if the sink wrapped them."""
        if self._rejects.broken is not None:
            raise self._rejects.broken
        if isinstance(error, Fenced | TooManyRejects):
            raise error

    def _apply_one_by_one(self, pending: Sequence[WriteRequest[F]], error: Exception) -> None:
        if len(pending) == 1:
            self._lanes.suspend(pending[0].run, to_problem(error), error)
            return
        if pending[0].bundle:
            # Commit the bundle without the one lane that fails. If more than one fails, all writes are tried one by one.
            pending = [request.withdraw_watermark() for request in pending]
            for lane in dict.fromkeys(request.run.lane.id for request in pending):
                try:
                    pending = self._record_committed(pending)
                    self._apply_once([request for request in pending if request.run.lane.id != lane])
                except Retryable:
                    # It says nothing about the other lanes. Begin again once the sink answers.
                    self._apply_with_retry(pending, recheck=True)
                    return
                except Exception as other_error:
                    self._raise_unless_lane_error(other_error)
                else:
                    pending = [request for request in pending if request.run.lane.id == lane]
                    break
        for one in pending:
            self._apply_with_retry([one], recheck=True)

    def _record_committed(self, pending: Sequence[WriteRequest[F]]) -> list[WriteRequest[F]]:
        """Record the writes that the sink has committed: a failed apply may have committed. Returns the others, which are
        all that is still to do: a write is recorded once. If the sink does not answer, none is."""
        committed, uncommitted = [], []
        for request in pending:
            # The loader tracks the rows behind a placeholder.
            is_placeholder = self._bulk_loader is not None and self._bulk_loader.is_placeholder(request)
            state = None if is_placeholder else self._sink.state(request.run.lane)
            if state is not None and not request.write.span.after(state.position):
                outcome = LaneOutcome(state.position, Counts(applied=request.write.folded.rows), state.purged_up_to)
                committed.append((request, outcome))
            else:
                uncommitted.append(request)
        for request, outcome in committed:
            self._record_writes([request], outcome, 0.0)
        return uncommitted

    def _apply_once(self, pending: Sequence[WriteRequest[F]]) -> None:
        self._reject_kinds.clear()  # A failed attempt has rejected nothing.
        if self._bulk_loader is not None:
            for request in pending:
                # Load spilled rows before the target is prepared for another plan.
                if self._bulk_loader.is_other_plan(request):
                    self._load_target(self._bulk_loader, request.run)
        ready = [request for request in pending if self._prepare_lane(request)]
        if self._bulk_loader is not None:
            ready = [request for request in ready if not self._spill_write(self._bulk_loader, request)]
        if not ready:
            return
        began = self._clock()
        # A lane may have halted since the watermark was computed, then its rows are not in this commit.
        valid = self._publisher.list_valid(collect_publish_requests(request for request in ready if request.bundle))
        writes = [
            replace(
                request.write,
                may_wait=self._can_wait(request),
                complete=valid.get(request.run.lane.source, request.write.complete),
            )
            for request in ready
        ]
        names = ", ".join(dict.fromkeys(request.run.lane.id for request in ready))
        with self._lanes.note_sink_call(self._name, f"applying {names}"):
            applied = self._sink.apply(writes, lambda lane, rows: self._reject_rows(ready, lane, rows))
        seconds = self._clock() - began
        for lane in dict.fromkeys(request.run.lane.id for request in ready):
            requests = [request for request in ready if request.run.lane.id == lane]
            outcome = applied.get(lane)
            if outcome is not None:
                self._record_writes(requests, outcome, seconds)
            try:
                _check_outcome(lane, requests, outcome)
            except AccountingError as error:
                self._lanes.suspend(requests[0].run, to_problem(error), error)

    def _spill_write(self, bulk_loader: BulkLoader[F], request: WriteRequest[F]) -> bool:
        """True if no other write is needed: the write was spilled, or it is the placeholder of spilled rows and
        loads them.

        Before any other write of the lane its spilled rows are loaded too.
        """
        is_placeholder = bulk_loader.is_placeholder(request)
        at = None if is_placeholder else bulk_loader.spill_write(request)
        if at is not None:
            self._lanes.record_commit(request.run, at, Counts(), None)
        elif bulk_loader.has_spilled(request.run.lane):
            self._load_target(bulk_loader, request.run)
        return is_placeholder or at is not None

    def _load_target(self, bulk_loader: BulkLoader[F], run: LaneRun) -> None:
        began, raw = self._clock(), bulk_loader.read_records(run.lane)
        log.info("loading spilled rows", lane=run.lane.id)
        with self._lanes.note_sink_call(self._name, f"loading {run.lane.id}"):
            outcome = bulk_loader.load_target(run.lane, lambda lane, rows: self._store_rejects(lane, rows, raw))
        self._record_commit(run, outcome, outcome.counts, None, self._clock() - began)

    def _prepare_lane(self, request: WriteRequest[F]) -> bool:
        """Prepare the sink for a new plan. False if that suspended the lane."""
        lane, plan = request.run.lane, request.write.plan
        prepared = self._prepared.get(lane.id)
        if prepared and prepared[0] == request.generation and (prepared[1] is plan or prepared[1] == plan):
            return True
        try:
            if plan.watermark is not None and not self._sink.features.watermarks:
                raise ConfigProblem(
                    f"The sink of lane {lane.id} does not support watermarks.",
                    next_step=f"Remove 'watermark' from the entry, or from its table ({lane.config_line}).",
                )
            with self._lanes.note_sink_call(self._name, f"preparing {lane.id}"):
                self._sink.prepare(lane, plan)
        except (Retryable, Fenced):
            raise
        except Exception as error:
            self._lanes.suspend(request.run, to_problem(error), error)
            return False
        self._prepared[lane.id] = (request.generation, plan)
        return True

    def _record_writes(self, requests: Sequence[WriteRequest[F]], outcome: LaneOutcome, seconds: float) -> None:
        run, folded = requests[0].run, [request.write.folded for request in requests]
        counts = sum((part.counts for part in folded), outcome.counts)
        newest = max((part.facts.newest for part in folded if part.facts.newest is not None), default=None)
        self._record_commit(run, outcome, counts, newest, seconds)

    def _record_commit(self, run: LaneRun, outcome: LaneOutcome, counts: Counts, newest: int | None, seconds: float) -> None:
        self._lanes.record_commit(run, outcome.position, counts, newest, outcome.purged_up_to)
        self._waiting_since.pop(run.lane.id, None)
        self._committed = True
        self._idle_timeout.record_progress()
        self._telemetry.record(LaneCommitted(run.lane.id, counts, seconds, newest))
        self._rejects.publish_counts(kind for kinds in self._reject_kinds.pop(run.lane.id, {}).values() for kind in kinds)
        self._rejects.count_records(counts.rejected)

    def _reject_rows(self, pending: Sequence[WriteRequest[F]], lane: Lane, rows: F) -> None:
        requests = [p for p in pending if p.run.lane.id == lane.id]
        if not requests:
            raise Fatal(f"The sink rejected rows of lane {lane.id}, but no write of this lane was in progress.")
        self._store_rejects(lane, rows, RecordFrames(tuple(dict.fromkeys(raw for one in requests for raw in one.raw))))

    def _store_rejects(self, lane: Lane, rows: F, raw: RecordFrames[F]) -> None:
        stored = self._rejects.keep_rejects(rows, raw, stage="apply", source=lane.source, table=lane.table, lane=lane.id)
        by_record: dict[tuple[TopicPartition, int], list[RejectKind]] = {}
        for one in stored:
            by_record.setdefault((one.partition, one.offset), []).append(one.kind)
        self._reject_kinds.setdefault(lane.id, {}).update(by_record)
        if lane.stops:
            raise make_stop_error(self._engine.frames.rejected(rows, raw)[0])


def _check_outcome(lane: str, requests: Sequence[WriteRequest[F]], outcome: LaneOutcome | None) -> None:
    """AccountingError unless the outcome accounts for all rows of the lane's writes, and reaches their end."""
    if outcome is None:
        raise make_accounting_error(f"The sink returned no outcome for lane {lane} after a write.")
    rows, total = sum(request.write.folded.rows for request in requests), outcome.counts.total
    ensure_accounting(rows == total, f"Lane {lane} got {format_count(rows, 'row')}, but accounts for {total}.")
    is_whole = not requests[-1].write.span.after(outcome.position)
    ensure_accounting(is_whole, f"Lane {lane} applied a span, but its position is before the end.")


# Publishes the completeness watermark in sinks that commit lane by lane.

PublishWatermark = Callable[[Sequence[Lane], CompletenessWatermark], None]
RETRY_SECONDS = 30.0
"""Seconds between attempts to publish a watermark."""


class WatermarkPublisher(Generic[F]):
    """Publishes the watermarks of one sink; does nothing if the sink does not support it. Only the sink's worker uses it.

    A watermark is true once its bundle, and all bundles before it, are committed. It is published then, but at
    most every `publish_every` seconds. Nothing is published while writes are in flight: a watermark describes
    committed tables.
    """

    def __init__(self, name: str, sink: Sink[F], runtime: RuntimeContext[F]) -> None:
        self._name = name
        self._publish = sink.features.publish
        self._lanes = runtime.lanes
        self._clock = runtime.clock
        self._abandon = runtime.abandon
        self._every = runtime.options.publish_every
        self._due: dict[str, PublishRequest] = {}
        self._next = 0.0

    @property
    def due_in(self) -> float | None:
        """Seconds until `end_commit` has a watermark to publish; None if there is none."""
        return max(0.0, self._next - self._clock()) if self._due else None

    def begin_commit(self, requests: Iterable[WriteRequest[F]]) -> None:
        """Call before requests are committed: they make older watermarks of their sources obsolete."""
        for source in {request.run.lane.source for request in requests}:
            self._due.pop(source, None)

    def end_commit(self, requests: Sequence[WriteRequest[F]], publish_requests: Mapping[str, PublishRequest]) -> None:
        """Call after all requests are committed. From then on their watermarks and the `publish_requests` are true.

        Exceptions are writes that became void (see `list_valid`); nothing is published once `abandon` is set.
        """
        if self._publish is None or self._abandon.is_set():
            return
        self._due.update({**collect_publish_requests(requests), **publish_requests})
        if self._due and self._clock() >= self._next:
            self._publish_due(self._publish)

    def finish(self) -> None:
        """Publish the last watermarks. No other call follows."""
        if self._publish is not None and not self._abandon.is_set():
            self._publish_due(self._publish)

    def _publish_due(self, publish: PublishWatermark) -> None:
        self._next = self._clock() + self._every
        for source, complete in self.list_valid(self._due).items():
            try:
                publish([run.lane for run in self._list_runs(source)], complete)
                del self._due[source]
            except ReplicatorError as error:
                # The tables are correct, and the watermark published last is still true: retry later.
                log.warning("watermark not published", sink=self._name, source=source, sentence=error.sentence)
                self._next = self._clock() + RETRY_SECONDS

    def list_valid(self, publish_requests: Mapping[str, PublishRequest]) -> dict[str, CompletenessWatermark]:
        """By source, the watermark of its request.

        If writes became void since the request was made, rows before it may be missing. Its watermark then
        names no transaction, and lists the halted lanes as behind.
        """
        valid = {}
        for source, request in publish_requests.items():
            complete = request.complete
            if request.voided != self._lanes.voided:
                halted = {run.lane.id for run in self._list_runs(complete.source) if run.status is not LaneStatus.RUNNING}
                complete = CompletenessWatermark(complete.source, behind=tuple(sorted(halted | set(complete.behind))))
            valid[source] = complete
        return valid

    def _list_runs(self, source: str) -> list[LaneRun]:
        """The table lanes of the source in this sink."""
        runs = self._lanes.list_runs()
        return [run for run in runs if (run.lane.sink, run.lane.source, run.is_event_log) == (self._name, source, False)]


def _set_watermark(request: WriteRequest[F], last: PublishRequest | None) -> WriteRequest[F]:
    """The write with the last watermark of its source: all writes of one commit publish the same."""
    if last is None:
        return request
    return replace(request, write=replace(request.write, complete=last.complete), voided=last.voided)


def collect_publish_requests(requests: Iterable[WriteRequest[F]]) -> dict[str, PublishRequest]:
    """By source, the watermark of its last request."""
    return {i.run.lane.source: PublishRequest(i.write.complete, i.voided) for i in requests if i.write.complete}
