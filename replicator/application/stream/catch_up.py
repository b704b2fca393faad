"""Catch-up: lanes that are behind the main stream read by themselves, in small slices, until they can join it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import structlog

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.delivery.bounded_queue import BatchRecords, WriteRequest
from replicator.application.lane_registry import LaneRegistry, SourceContext
from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.problem import to_problem
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.application.runtime_context import RuntimeContext
from replicator.application.transactions.barrier import NoTransactions
from replicator.domain.errors import DataLoss, Retryable
from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch, F

from .batch_decoder import BatchDecoder
from .table_buffer import TableBuffer
from .write_builder import WriteBuilder, cover_topics

log = structlog.get_logger(__name__)


class SinkUnavailable(Exception):
    """The sink of the reading lane has no room and does not answer, or the lane is full. Reading goes on later."""


class ReadLimitExceeded(Exception):
    """A slice has more records than expected from its offsets. The other lanes have their turn first."""


@dataclass
class CatchUpLane(Generic[F]):
    """A lane that is catching up.

    - `read`: the position up to which it has read.
    - `buffer`: its own buffer, which holds changes back like the one of the main stream.
    - `reach`: the offsets per partition of its next read; more than usual if most offsets have no record.
    - `record_count`: the records of the current slice.
    - `has_read`: any slice had records.
    - `has_partial_batch`: lane and buffer have moved ahead of the queued writes.
    """

    run: LaneRun
    generation: int
    read: Position
    buffer: TableBuffer[F]
    reach: int
    record_count: int = 0
    has_partial_batch: bool = False
    has_read: bool = False

    def adapt_reach(self, piece: Span, usual: int) -> None:
        """Enlarge the reach after a slice with few records for its offsets; shrink it after one with many."""
        offsets = sum(end - piece.start[p] for p, end in piece.end.items())
        if self.record_count > usual:
            self.reach = max(usual, self.reach * usual // self.record_count)
        elif 2 * self.record_count < offsets:
            self.reach *= 2

    def find_unread(self, end: Position) -> Span:
        """The span that is left to read up to `end`."""
        read = Position({**self.run.processed_to, **self.read})  # Partitions may have begun since the lane fell behind.
        return Span.between(read, end)


class CatchUp(Generic[F]):
    """Lets lanes catch up. Only the thread of its source uses it. The main stream never goes back for a lane, and shares its
    decoder and its write builder.

    - `find_target(run)`: the position that the lane has to reach.
    - `join_lane(run, buffer, has_read)`: called for each lane that has reached it, even without reading.
    - `beat`: called while a sink is waited for.
    """

    def __init__(
        self,
        context: SourceContext[F],
        runtime: RuntimeContext[F],
        *,
        registry: LaneRegistry[F],
        catalog: Catalog[F],
        decoding: BatchDecoder[F],
        write_builder: WriteBuilder[F],
        batch_records: BatchRecords[F],
        poison_records: PoisonRecordFinder[F],
        transactions: NoTransactions[F],
        find_target: Callable[[LaneRun], Position],
        join_lane: Callable[[LaneRun, TableBuffer[F], bool], None],
        hand_over: Callable[[Sequence[WriteRequest[F]]], None],
        beat: Callable[[], None],
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._registry = registry
        self._catalog = catalog
        self._decoding = decoding
        self._write_builder = write_builder
        self._batch_records = batch_records
        self._poison_records = poison_records
        self._transactions = transactions
        self._find_target = find_target
        self._join_lane = join_lane
        self._hand_over = hand_over
        self._beat = beat
        self._behind: dict[str, CatchUpLane[F]] = {}

    def run_turn(self, seconds: float) -> bool:
        """Let lanes that are behind read, one slice each and round, until `seconds` are over or none can go on.

        True if lanes are still behind. The next turn begins with the lanes that have waited longest: one slice
        for each of a thousand lanes would block the stream for minutes.
        """
        deadline = self._runtime.clock() + seconds
        while behind := tuple(self._update_behind().values()):
            has_moved = False
            for one in behind:
                # Move it behind the lanes that have waited longer.
                self._behind[one.run.lane.id] = self._behind.pop(one.run.lane.id)
                has_moved |= self._read_slice(one)
                if self._runtime.clock() >= deadline or self._runtime.stop.is_set():
                    return bool(self._update_behind())
            if not has_moved:
                break
        return bool(self._update_behind())

    def join_caught_up(self) -> None:
        """Let lanes join that are not behind, without reading."""
        self._update_behind()

    def _update_behind(self) -> Mapping[str, CatchUpLane[F]]:
        """Begin with lanes that are behind now, and let lanes that have caught up join. Returns the others."""
        for run in self._registry.list_runs():
            if run.status is LaneStatus.CATCHING_UP and not self._is_current(run):
                buffer = TableBuffer(self._runtime.engine.frames, self._runtime.options, run.processed_to)
                reach = self._runtime.options.catch_up_offsets
                counted = {p: o for p, o in run.processed_to.items() if p in run.begin}
                self._decoding.add_counted(run.lane.table, Span(run.begin.only(counted), Position(counted)))
                self._behind[run.lane.id] = CatchUpLane(run, run.position_generation, run.processed_to, buffer, reach)
        for lane_id, behind in tuple(self._behind.items()):
            if behind.run.status is not LaneStatus.CATCHING_UP or not self._is_current(behind.run):
                del self._behind[lane_id]
            elif not self._find_distance(behind):
                del self._behind[lane_id]
                self._join_lane(behind.run, behind.buffer, behind.has_read)
        return self._behind

    def _is_current(self, run: LaneRun) -> bool:
        behind = self._behind.get(run.lane.id)
        return behind is not None and behind.generation == run.position_generation

    def _find_distance(self, behind: CatchUpLane[F]) -> Span:
        """The span between the lane and the main stream."""
        return behind.find_unread(self._find_target(behind.run))

    def _read_slice(self, behind: CatchUpLane[F]) -> bool:
        """Read one slice; False if the lane cannot go on now."""
        if behind.run.is_full or not self._context.workers[behind.run.lane.sink].queue.has_room():
            return False
        missing, behind.record_count = self._find_distance(behind), 0
        until = Position({p: min(o, missing.start[p] + behind.reach) for p, o in missing.end.items()})
        after_snapshots = self._context.source.features.after_snapshots
        if after_snapshots is not None:
            # A slice does not end within a snapshot: only lanes that start with the snapshot read it.
            until = Position({p: min(o, missing.end[p]) for p, o in after_snapshots(until).items()})
        try:
            self._context.source.read(missing.start, until, lambda b: self._process_batch(behind, b), self._runtime.stop)
            behind.adapt_reach(Span(missing.start, until), self._runtime.options.catch_up_offsets)
            return self._runtime.stop.is_set() or self._skip_holes(behind, until)
        except Retryable as error:
            # Repeated in every turn, so warn once.
            write_log = log.debug if behind.run.retrying else log.warning
            write_log("cannot catch up now", lane=behind.run.lane.id, sentence=error.sentence)
            with self._runtime.lanes.get_lock():
                if behind.has_partial_batch and self._runtime.lanes.is_live(behind.run, behind.generation):
                    self._registry.restart_lane(behind.run)  # Resumes from the committed position.
            self._runtime.lanes.set_sink_problem([behind.run], to_problem(error))
            self._runtime.idle_timeout.record_failure("Source", self._context.name, error.sentence)
            return False
        except SinkUnavailable:
            return False
        except ReadLimitExceeded:
            behind.adapt_reach(Span(missing.start, until), self._runtime.options.catch_up_offsets)
            return True
        except DataLoss as error:
            self._runtime.lanes.suspend(behind.run, to_problem(error))
            return True

    def _skip_holes(self, behind: CatchUpLane[F], until: Position) -> bool:
        """Pass offsets without a record at the end of the slice; False if the sink has no room for changes
        released by that."""
        holes = behind.find_unread(until)
        if holes and not self._has_room(behind):
            return False
        if holes:
            behind.has_partial_batch = True
            slices = behind.buffer.add_changes((), self._catalog.get_union(behind.run.lane.table), holes)
            requests = self._write_builder.build_slice_writes(slices, [behind.run], {})
            self._pass_writes(behind, requests, until)
        return True

    def _has_room(self, behind: CatchUpLane[F]) -> bool:
        """Wait for room in the sink's queue; False if the sink does not answer or the lane is full."""
        queue = self._context.workers[behind.run.lane.sink].queue

        def is_given_up() -> bool:
            self._beat()
            return behind.run.retrying is not None

        return queue.wait_for_room(is_given_up, self._runtime.stop) and not behind.run.is_full

    def _process_batch(self, behind: CatchUpLane[F], batch: Batch[F]) -> None:
        if not batch.span or not self._runtime.lanes.is_live(behind.run, behind.generation):
            return
        if not self._has_room(behind):
            raise SinkUnavailable
        self._runtime.idle_timeout.record_progress()
        for piece in self._poison_records.split_batch(batch, behind.run.lane.id, self._runtime.wait_for_sinks):
            try:
                requests = self._make_writes(behind, piece)
            except UnusableTable as error:
                self._runtime.lanes.suspend(behind.run, to_problem(error.cause), error.cause)
            else:
                self._pass_writes(behind, requests, piece.span.end)
        behind.record_count += batch.records
        behind.has_read |= bool(batch.records)
        limit = self._runtime.options.catch_up_offsets
        if behind.record_count > limit and behind.reach > limit:
            raise ReadLimitExceeded

    def _make_writes(self, behind: CatchUpLane[F], batch: Batch[F]) -> list[WriteRequest[F]]:
        table = behind.run.lane.table
        if behind.run.is_event_log:
            sink = behind.run.lane.sink
            routed_log = self._decoding.route_batch(batch) if self._context.private else None
            behind.has_partial_batch = True
            excluded = {sink: self._registry.list_excluded_topics(sink)}
            return self._write_builder.build_log_writes(batch, routed_log, [behind.run], excluded)
        routed = self._decoding.route_batch(batch)
        topics, drops = self._registry.topics[table], routed.drops.get(table, ())
        decoded = self._decoding.decode_changes(table, batch, routed, topics, self._transactions.observe_catch_up(table))
        behind.has_partial_batch = True
        span = cover_topics(batch.span, topics)
        raw = self._batch_records.get_records(batch)
        slices = behind.buffer.add_batch(decoded, self._catalog.get_union(table), span, raw, drops=drops)
        return self._write_builder.build_slice_writes(slices, [behind.run], batch.identity)

    def _pass_writes(self, behind: CatchUpLane[F], requests: Sequence[WriteRequest[F]], end: Position) -> None:
        behind.read = behind.read.advanced_to(end)
        self._hand_over(requests)
        behind.has_partial_batch = False
