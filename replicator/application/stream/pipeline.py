"""The pipeline of one source: reads its stream and writes it to every lane."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic

import structlog

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.delivery.bounded_queue import BatchRecords, RecordFrame, WriteRequest, count_bytes
from replicator.application.lane_registry import LaneRegistry, SourceContext
from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.options import Backoff
from replicator.application.problem import Problem, Stopped, to_problem
from replicator.application.quarantine.poison_records import MAIN_READER, PoisonRecordFinder
from replicator.application.runtime_context import RuntimeContext
from replicator.application.sink_features import store_schema_version
from replicator.application.transactions.barrier import NoTransactions, TransactionBarrier
from replicator.application.transactions.tracker import TransactionTracker
from replicator.domain.errors import DataLoss, Fenced, Retryable, refuse_losses
from replicator.domain.policy.plan import Counts, LaneState
from replicator.domain.position import Position, Span
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F, Lane, RoutedBatch
from replicator.ports.runtime import RecordsRead, SourceLag, StreamPace
from replicator.ports.sink import Sink

from .batch_decoder import BatchDecoder, prefetch_batches
from .catch_up import CatchUp
from .source_progress import SourceCall, SourceOutage, SourceProgress
from .table_buffer import SchemaSlice, TableBuffer, TableSlice
from .write_builder import WriteBuilder, cover_topics, select_identities

log = structlog.get_logger(__name__)
READING_STREAM = "reading"


class SourcePipeline(Generic[F]):
    """Runs one source in the calling thread, until it is stopped or, with `once`, has caught up.

    Steps of each batch, while workers apply earlier writes:
    - Run the commands of operators.
    - Route the records; rejects are durable before anything else happens.
    - Write the event logs, then the changes of each table to its lanes.
    - Let lanes that are behind catch up for a while.

    If the source raises `Retryable`, the pipeline waits and resumes at its current position. Any other error
    ends the program.
    """

    def __init__(self, context: SourceContext[F], decoder: Decoder, runtime: RuntimeContext[F]) -> None:
        self.context = context
        self.progress = SourceProgress(
            began=runtime.clock(),
            is_sparse=context.source.features.sparse_offsets,
            transactions=context.transactions.topic if context.transactions else None,
        )
        self.registry = LaneRegistry(context, runtime)
        self._runtime = runtime
        self._poison_records = context.poison_records or PoisonRecordFinder(
            None, runtime.engine.frames, runtime.rejects, context.name, runtime.decoding
        )
        self.decoder = decoder
        """The decoder of all records. A retry of a dead letter decodes poison records too."""
        self._safe_decoder = safe_decoder = self._poison_records.filter_poison_records(decoder)
        self._catalog = Catalog(runtime.engine.frames, safe_decoder, context.rules_for, self.registry.keys)
        self._decoding = BatchDecoder(
            context, safe_decoder, self._catalog, runtime, self._poison_records, progress=self.progress
        )
        self._write_builder = WriteBuilder(
            runtime, self._catalog, safe_decoder, partial(store_schema_version, context.workers), self._poison_records
        )
        self._batch_records: BatchRecords[F] = BatchRecords(packed=runtime.options.gather > 0)
        self._transactions: NoTransactions[F] = NoTransactions()
        if (rules := context.transactions) is not None:
            kind = TransactionBarrier if rules.together else TransactionTracker
            self._transactions = kind(rules, context, safe_decoder, self.registry, runtime)
        self._catch_up = CatchUp(
            context,
            runtime,
            registry=self.registry,
            catalog=self._catalog,
            decoding=self._decoding,
            write_builder=self._write_builder,
            batch_records=self._batch_records,
            poison_records=self._poison_records,
            transactions=self._transactions,
            find_target=self._find_catch_up_target,
            join_lane=self._join_lane,
            hand_over=self._hand_over,
            beat=self._record_beat,
        )
        runtime.rejects.mask_source(context.name, safe_decoder, private=context.private)
        self._buffers: dict[str, TableBuffer[F]] = {}
        self._tables_without_position: dict[str, float] = {}
        """Per new table whose changes are buffered until its lanes have a position: the deadline, on the clock."""
        self._identity: dict[str, str] = {}
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._advancing: dict[str, Future[LaneState | None]] = {}
        self._position: Position | None = None
        self._waited = 0.0
        """Seconds for which the stream has waited for its source, outages not counted."""
        self._has_opened_lanes = self._has_partial_batch = False
        self._reported_at = self._beat_at = runtime.clock()

    @property
    def last_beat(self) -> float:
        """The time, on the clock, when the stream last turned or waited for a sink or its source."""
        return self._beat_at

    def _record_beat(self) -> None:
        self._beat_at = self._runtime.clock()

    @property
    def held_back_problem(self) -> Problem | None:
        """The reason why records wait for the rest of a transaction; None if none wait."""
        return self._transactions.held_back_problem

    def post(self, command: Callable[[], None]) -> None:
        """Run a command in the pipeline's thread, between two batches. May be called from any thread."""
        self._commands.put(command)

    def run(self, *, once: bool) -> None:
        """Run the source as the class describes.

        EnvironmentProblem if `RuntimeContext.idle_timeout` reaches its limit.
        """
        # An alert for a source that brings nothing needs the counter before the first record.
        self._runtime.telemetry.record(RecordsRead(self.context.name, 0, {}))
        self._poison_records.begin_run()
        try:
            self._run_with_retry(once=once)
        finally:
            self._poison_records.end_run()

    def _run_with_retry(self, *, once: bool) -> None:
        stop, options = self._runtime.stop, self._runtime.options
        backoff = Backoff(options.first_delay, options.longest_delay)
        while not stop.is_set():
            before = self._position
            try:
                self._read_stream(once=once)
                return
            except Stopped:
                return
            except Retryable as error:
                if self._position != before:
                    backoff.reset()
                if self._has_partial_batch:
                    self._reset_to_committed()
                self._record_outage(error)
                self._runtime.idle_timeout.record_failure("Source", self.context.name, error.sentence)
                backoff.wait(stop)
                self._record_beat()

    @contextmanager
    def _mark_partial_batch(self) -> Iterator[None]:
        """Marks that lanes and buffers have moved ahead of the queued writes. The mark stays if the block fails."""
        self._has_partial_batch = True
        yield
        self._has_partial_batch = False

    def _reset_to_committed(self) -> None:
        """Resume from the committed positions, like a new run: lanes and buffers are ahead of the queued writes."""
        with self._runtime.lanes.get_lock():
            for run in self.registry.list_runs():
                if run.is_active:
                    self.registry.restart_lane(run)
        self.registry.knows_tables = bool(self.registry.topics)
        self._buffers.clear()
        self._tables_without_position.clear()
        self._position, self._has_partial_batch = None, False

    def _read_stream(self, *, once: bool) -> None:
        if self._position is None:
            start = self._open_stream()
        else:
            start = self._position
            # A topic may have been created again while the source was away.
            refuse_losses(self.context.source.losses(start, self._identity))
        self._position = self.progress.position = start
        self._catch_up.join_caught_up()

        # Report later: a source that fails at the same records needs time to do so before its outage is cleared.
        self._reported_at = self._runtime.clock()
        with (
            prefetch_batches(
                self._runtime, self._safe_decoder, self._batch_records, self.process_batch, once=once
            ) as consume,
            self._note_source_call(READING_STREAM),
        ):

            def consume_batch(batch: Batch[F]) -> None:
                # While a batch is processed, the pipeline does not wait for the source.
                if self.progress.call is not None and self.progress.outage is None:
                    self._waited += self._runtime.clock() - self.progress.call.since
                self.progress.call = None
                consume(batch)
                self.progress.call = SourceCall(READING_STREAM, self._runtime.clock())

            # The loop over the batches is in the source (for Kafka `adapters/sources/kafka/source.py`). It calls
            # `process_batch` for each batch, and for an empty one while no records arrive.
            self.context.source.run(start, consume_batch, self._runtime.stop, once=once)
        if once and not self._runtime.stop.is_set():
            self._catch_up_all()
            self._hand_over_released(lambda _, buffer: buffer.release_all())
            features = self.context.source.features
            if features.unmatched is not None and not self.context.source.end():
                self.progress.unmatched = features.unmatched()
            if features.files is not None:
                self.progress.absent, self.progress.damaged = features.files.absent(), features.files.damaged()
        self._advance_idle_lanes()

    @contextmanager
    def _note_source_call(self, doing: str) -> Iterator[None]:
        """Notes that the pipeline waits for the source, while the block runs."""
        before, self.progress.call = self.progress.call, SourceCall(doing, self._runtime.clock())
        try:
            yield
        finally:
            self.progress.call = before

    def _open_stream(self) -> Position:
        """The start of the main stream: per partition, the highest position of a lane that can resume.

        - While no table is known, it is the lowest instead: the stream must find the tables.
        - Without such a lane, it is the position where the partition began for the source, as far as its records
          still exist.
        """
        with self._note_source_call("looking for its start"):
            start, beginning = self.context.source.start(), self.context.source.beginning()
        if not self._has_opened_lanes:
            self.registry.open_lanes(start, beginning)
            self._has_opened_lanes = True
            self.progress.row_loss = self.registry.row_loss
        start = Position({p: max(o, beginning.get(p, o)) for p, o in self.registry.began.only(start).items()})
        self.registry.receive_states(self._runtime.options.state_patience)
        positions = [run.processed_to for run in self.registry.list_runs() if run.status is LaneStatus.CATCHING_UP]
        if self.registry.knows_tables:
            begin = Position({**start, **Position.highest(positions)})
            # Lanes that start with a snapshot read it by themselves: other lanes must not get it.
            after_snapshots = self.context.source.features.after_snapshots
            begin = begin if after_snapshots is None else after_snapshots(begin)
            return self._transactions.find_start(begin, start, self.context.source.end)
        self._transactions.find_start(start, start, self.context.source.end)
        return Position({**start, **Position.lowest([*positions, start]).only(start)})

    def process_batch(self, batch: Batch[F]) -> None:
        """Decode a batch of the main stream and queue its writes. Also for an empty batch. Returns when the next one
        may be read."""
        self._record_beat()
        if not batch.span:
            self._runtime.idle_timeout.record_failure(
                "Source", self.context.name, "It delivers no records, although it is not at its end."
            )
        self._run_commands()
        self.registry.receive_states(0)
        self._catch_up.join_caught_up()
        self._wait_for_room()
        self._release_placed()
        if batch.span:
            batch = self._drop_redelivered(batch)
            for piece in self._poison_records.split_batch(batch, MAIN_READER, self._runtime.wait_for_sinks):
                self._wait_for_room()
                self._process_records(piece)
        else:
            self._release_complete_transactions()
            self._hand_over_released(lambda _, buffer: buffer.release_idle())
        self._catch_up.run_turn(self._runtime.options.catch_up_turn)
        if self._runtime.clock() - self._reported_at >= self._runtime.options.report_every:
            self._reported_at = self._runtime.clock()
            self._runtime.rejects.open.refresh()
            self._advance_idle_lanes()
            self.report_positions()

    def _drop_redelivered(self, batch: Batch[F]) -> Batch[F]:
        """The batch without records that were read before; DataLoss if the source skipped records."""
        position = self._position or Position()
        gaps = batch.span.gaps(position)
        if gaps:
            raise DataLoss(
                f"Source {self.context.name} skipped records of {gaps[0]}.",
                next_step="Start again: lanes resume at their own positions.",
            )
        span = batch.span.after(position)
        if span == batch.span:
            return batch
        frames = self._runtime.engine.frames
        frame, _ = frames.split(batch.frame, span)
        return replace(batch, frame=frame, span=span, records=frames.count(frame))

    def _process_records(self, batch: Batch[F]) -> None:
        """Decode a batch and queue its writes: for the event logs, then for the lanes of each table."""
        position = self._position or Position()
        end = position.advanced_to(batch.span.end)
        self._identity.update(batch.identity)
        self._transactions.begin_batch(batch)
        self._batch_records.begin(batch)
        routed = self._decoding.route_batch(batch)
        tracking = self._runtime.engine.features.transactions
        if tracking is not None and batch.records:
            with self._poison_records.note_decoding(batch.span):
                connector = tracking.connector(batch.frame, self._safe_decoder)
            self.registry.store_connector(connector)
            self.progress.row_loss = self.registry.row_loss
        begin = Position({**batch.span.start, **self._transactions.limit_to_barrier(position)})
        topics = self._transactions.add_transaction_topic(routed.topics)
        if new := self.registry.register_batch(topics, Span(begin, begin.advanced_to(batch.span.end))):
            self._place_lanes(new)
        # Decode everything before any position moves: if decoding fails, the batch is read again.
        by_table = self._decode_tables(routed, batch)
        with self._mark_partial_batch():
            # The changes of one table decide which changes of another may be released.
            self._transactions.advance(end, batch)
            self.progress.transaction_progress = self._transactions.progress
            logs = self._let_lanes_fall_back(self.registry.event_logs, batch.span.start)
            excluded = {run.lane.sink: self.registry.list_excluded_topics(run.lane.sink) for run in self.registry.event_logs}
            requests = self._write_builder.build_log_writes(batch, routed, logs, excluded)
            records = self._batch_records.get_records(batch)
            for table, slices in by_table.items():
                requests += self._buffer_changes(table, slices, routed, batch.span, records)
            self.registry.save_keys()
            self._position = self.progress.position = end
            self._runtime.idle_timeout.record_progress()
            self.progress.records += batch.records
            self._decoding.count_records(batch, routed)
            if batch.records and self.progress.outage and not self.progress.outage.answers:
                self._clear_outage()
            self._hand_over(requests)

    def _decode_tables(self, routed: RoutedBatch[F], batch: Batch[F]) -> dict[str, Sequence[SchemaSlice[F]]]:
        """Per table that at least one lane applies: its changes."""
        if self._transactions.is_active:
            tables: Collection[str] = self.registry.tables  # The transaction topic is one of each table.
        else:
            tables = self.registry.list_affected_tables(batch.span)
        by_table = {}
        for table in tables:
            topics, on_decoded = self.registry.topics[table], self._transactions.count_changes(table)
            start = Position({**cover_topics(batch.span, topics).start, **self._ensure_buffer(table).released})
            followers = self._let_lanes_fall_back(self.registry.tables[table], start)
            if not followers and table not in self._tables_without_position:
                self._buffers.pop(table, None)
                continue
            try:
                by_table[table] = self._decoding.decode_changes(table, batch, routed, topics, on_decoded)
            except UnusableTable as error:
                for run in followers:
                    self._runtime.lanes.suspend(run, to_problem(error.cause), error.cause)
                self._buffers.pop(table, None)
        return by_table

    def _buffer_changes(
        self,
        table: str,
        decoded: Sequence[SchemaSlice[F]],
        routed: RoutedBatch[F],
        read: Span,
        records: RecordFrame[F],
    ) -> list[WriteRequest[F]]:
        span = cover_topics(read, self.registry.topics[table])
        buffer, union = self._ensure_buffer(table), self._catalog.get_union(table)
        self.registry.store_key(table, union.keys if union else ())
        buffer.hold_from = self._find_hold_start(table, Position({**span.start, **buffer.released}))
        drops = routed.drops.get(table, ())
        slices = buffer.add_batch(decoded, union, span, records if span else None, drops=drops)
        return self._make_slice_writes(table, slices)

    def _find_hold_start(self, table: str, released: Position) -> Position:
        """Per partition the offset from which on the table's buffer releases nothing: transactions are incomplete
        there, or the table waits for its lanes."""
        return released if table in self._tables_without_position else self._transactions.hold_from

    def _make_slice_writes(self, table: str, slices: Sequence[TableSlice[F]]) -> list[WriteRequest[F]]:
        followers = [run for run in self.registry.tables[table] if run.status is LaneStatus.RUNNING]
        return self._write_builder.build_slice_writes(slices, followers, self._identity)

    def _hand_over(self, requests: Sequence[WriteRequest[F]]) -> None:
        """Queue the writes of each sink. Callers make room first."""
        by_sink: dict[str, list[WriteRequest[F]]] = {}
        for request in self._transactions.bundle_writes(requests):
            by_sink.setdefault(request.run.lane.sink, []).append(request)
        for sink, of_sink in by_sink.items():
            self.context.workers[sink].queue.put(of_sink)

    def _let_lanes_fall_back(self, runs: Sequence[LaneRun], start: Position) -> list[LaneRun]:
        """Let lanes that are behind `start` or full fall back to catching up, instead of skipping records. Returns the
        lanes that run on.

        A full lane reads by itself once it has room again.
        """
        for run in runs:
            if run.is_full or any(
                run.processed_to.get(p, o) < o and self.registry.is_covered(run, p) for p, o in start.items()
            ):
                self._runtime.lanes.fall_back(run)
        return [run for run in runs if run.status is LaneStatus.RUNNING]

    def _ensure_buffer(self, table: str) -> TableBuffer[F]:
        if table not in self._buffers:
            topics = self.registry.topics[table]
            position = self._position or Position()
            at = position.only(p for p in position if p.topic in topics)
            self._buffers[table] = TableBuffer(self._runtime.engine.frames, self._runtime.options, at, lambda: self._waited)
            # Transaction marks are not read twice, and some of them may be held back.
            self._buffers[table].released = Position({**at, **self._transactions.limit_to_barrier(at)})
        return self._buffers[table]

    def _place_lanes(self, new: Sequence[str]) -> None:
        """Wait a short time until the sinks return the positions of the lanes of new tables.

        While some are missing, the stream does not wait again: a thousand new tables would delay the others for
        minutes. The changes of a new table are buffered instead, so that its lanes need not read them again.
        """
        options = self._runtime.options
        if self._transactions.is_active:  # A barrier counts no changes that are read before a lane has its position.
            self.registry.receive_states(options.state_patience)
        else:
            self.registry.receive_states(0 if self._tables_without_position else options.new_patience)
            until = self._runtime.clock() + options.state_patience
            self._tables_without_position.update((table, until) for table in new if self.registry.is_new(table))
        self._catch_up.join_caught_up()

    def _release_placed(self) -> None:
        """Queue the buffered changes of tables whose lanes now have a position.

        Lanes that need too much time or memory read the changes again.
        """
        deadlines, buffers = self._tables_without_position, self._buffers
        size = count_bytes(one for table in deadlines if table in buffers for one in buffers[table].raw)
        now = self._runtime.clock() if size <= self._runtime.options.hold_bytes else float("inf")
        placed = {t for t, until in deadlines.items() if now >= until or not self.registry.is_new(t)}
        for table in placed:
            del deadlines[table]
        if placed:
            self._hand_over_released(lambda table, buffer: self._release_held(table, buffer) if table in placed else ())

    def _find_catch_up_target(self, run: LaneRun) -> Position:
        """The position up to which a lane has to read before it can join the main stream."""
        if run.is_event_log:
            position = self._position or Position()
            return position.only(p for p in position if self.registry.is_covered(run, p))
        return self._ensure_buffer(run.lane.table).released

    def _join_lane(self, run: LaneRun, buffer: TableBuffer[F], has_read: bool) -> None:
        if not run.is_event_log:
            self._ensure_buffer(run.lane.table).absorb_buffer(buffer)
            if has_read:
                self._transactions.doubt_late_lane(run.lane.table)
        self._runtime.lanes.join_lane(run)

    def reset_table(self, table: str) -> None:
        """Drop the schemas and buffered changes of a table whose lanes have all stopped: an old schema may be the
        reason."""
        if all(run.status in (LaneStatus.SUSPENDED, LaneStatus.PAUSED) for run in self.registry.tables.get(table, ())):
            self._catalog.discard_schemas(table)
            self._buffers.pop(table, None)

    def _wait_for_room(self) -> None:
        """Wait for sinks whose queue is full.

        If one sink does not answer and another does, the stream goes on without the first. Its lanes resume
        from their own positions once it answers.
        """

        def is_only_sink_away(sink: str) -> bool:
            self._record_beat()
            # Lanes that catch up count too: this thread also reads for them.
            active = [run for run in self.registry.list_runs() if run.is_active]
            return any(run.retrying for run in active if run.lane.sink == sink) and any(
                run.retrying is None for run in active if run.lane.sink != sink
            )

        running = [run for run in self.registry.list_runs() if run.status is LaneStatus.RUNNING]
        for sink in sorted({run.lane.sink for run in running}):
            has_room = self.context.workers[sink].queue.wait_for_room(partial(is_only_sink_away, sink), self._runtime.stop)
            if not has_room and not self._runtime.stop.is_set():
                for run in running:
                    if run.lane.sink == sink:
                        self._runtime.lanes.fall_back(run)

    def _run_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _release_complete_transactions(self) -> None:
        """Queue the changes that no longer wait for the rest of a transaction."""
        if not self._transactions.is_active:
            return
        self._transactions.advance_idle(self._position or Position(), self._read_older)
        self.progress.transaction_progress = self._transactions.progress
        self._hand_over_released(self._release_held)

    def _read_older(self, table: str, end: Position, consume: Callable[[F], None]) -> bool:
        """Pass the decoded records of a table before `end` to `consume`, as far back as one catch-up read. False if the run
        is to end."""
        source, most = self.context.source, self._runtime.options.catch_up_offsets
        beginning = source.beginning()
        span = Span.between({p: max(beginning.get(p, o), o - most) for p, o in end.items()}, end)

        def decode(batch: Batch[F]) -> None:
            for frame in self._decoding.decode_again(table, batch):
                consume(frame)

        try:
            if span:
                source.read(span.start, span.end, decode, self._runtime.stop)
        except (DataLoss, UnusableTable) as error:
            log.info("cannot read the records before the start", table=table, error=str(error))
        return not self._runtime.stop.is_set()

    def _release_held(self, table: str, buffer: TableBuffer[F]) -> Sequence[TableSlice[F]]:
        buffer.hold_from = self._find_hold_start(table, buffer.released)
        return buffer.release_ready()

    def _hand_over_released(self, release: Callable[[str, TableBuffer[F]], Sequence[TableSlice[F]]]) -> None:
        """Queue released changes of all buffers."""
        with self._mark_partial_batch():
            self._hand_over(
                [
                    request
                    for table, buffer in self._buffers.items()
                    for request in self._make_slice_writes(table, release(table, buffer))
                ]
            )

    def _advance_idle_lanes(self) -> None:
        """Write the positions of lanes that had no rows to write. Never waits for a sink."""
        for run in self.registry.list_runs():
            buffer = self._buffers.get(run.lane.table)
            has_room = self.context.workers[run.lane.sink].queue.has_room()
            if run.status is LaneStatus.RUNNING and buffer is not None and has_room:
                empty = buffer.make_empty(self._catalog.get_union(run.lane.table))
                if empty is None and not self._transactions.is_active:
                    self._advance_unplanned_lane(run)
                identity = select_identities(self._identity, run.processed_to)
                with self._mark_partial_batch():
                    self._hand_over(self._write_builder.build_position_write(run, empty, identity))
        self._transactions.publish_complete()

    def _advance_unplanned_lane(self, run: LaneRun) -> None:
        """Move the position of a lane that got no change since the start, so that there is no plan for a write.

        All its records were rejected or ignored. Its target must exist.
        """
        generation = run.generation

        def finish(answer: Future[LaneState | None]) -> None:
            error = answer.exception()
            if isinstance(error, Fenced):
                self._runtime.fail(error)
            elif self._runtime.lanes.is_live(run, generation) and not isinstance(error, Stopped):
                if isinstance(error, Exception):
                    self._runtime.lanes.suspend(run, to_problem(error), error)
                elif error is None and (state := answer.result()) is not None:
                    self._runtime.lanes.record_commit(run, state.position, Counts(), None)

        span = self._runtime.lanes.find_unapplied(run)
        before = self._advancing.get(run.lane.id)
        if span and run.applied and (before is None or before.done()):
            answer = self.context.workers[run.lane.sink].submit(lambda sink: _advance_position(sink, run.lane, span))
            self._advancing[run.lane.id] = answer
            answer.add_done_callback(finish)

    def _catch_up_all(self) -> None:
        """Run until no lane is behind or waits for its sink."""
        stop = self._runtime.stop
        while not stop.is_set():
            self._record_beat()
            self._run_commands()
            self.registry.receive_states(0)
            if not self._catch_up.run_turn(self._runtime.options.catch_up_turn) and not self.registry.has_pending:
                self._release_placed()
                self._release_complete_transactions()
                return
            stop.wait(0.01)

    def _record_outage(self, error: Retryable, *, answers: bool = False) -> None:
        """Log the outage once, and keep it until records arrive.

        With `answers` the source fails in some partitions only. The outage then stays until `report_positions`
        succeeds: records of one partition do not prove that all are read.
        """
        outage = self.progress.outage
        self.progress.outage = SourceOutage(outage.since if outage else self._runtime.clock(), error.sentence, answers)
        write_log = log.debug if outage else log.warning
        write_log("source away", source=self.context.name, sentence=error.sentence)

    def _clear_outage(self) -> None:
        outage, self.progress.outage = self.progress.outage, None
        if outage is not None:
            log.info("source back", source=self.context.name, seconds_away=round(self._runtime.clock() - outage.since, 1))

    def report_positions(self) -> None:
        """Send the lowest position of the lanes to the source, and the lag to telemetry. Both are hints."""
        features = self.context.source.features
        self.progress.pace = None if features.pace is None else features.pace()
        if self.progress.pace is not None:
            self._runtime.telemetry.record(StreamPace(self.context.name, features.engine, self.progress.pace))
        runs = self.registry.list_runs()
        self.progress.excluded = {
            run.lane.sink: frozenset(self.registry.list_excluded_topics(run.lane.sink)) for run in self.registry.event_logs
        }
        lowest = Position.lowest([self.progress.get_position(run) for run in runs])
        answers = False
        try:
            with self._note_source_call("looking for its end"):
                self.progress.end, answers = self.context.source.end(), True
                self.registry.suspend_incomplete()
                self._transactions.set_end(self.progress.end)
                self._runtime.telemetry.record(SourceLag(self.context.name, self.progress.find_lowest_lag(runs)))
                self.context.source.committed(lowest)
        except Retryable as error:
            self._record_outage(error, answers=answers)
        else:
            self._clear_outage()


def _advance_position(sink: Sink[F], lane: Lane, span: Span) -> LaneState | None:
    """Move the lane to the end of `span`, in which it has no records; returns its state after that.

    A lane that is not at the start of `span` stays: rows of an initial load may not be in its target yet.
    """
    state = sink.state(lane)
    if state is None or not state.position or any(state.position.get(p, o) != o for p, o in span.start.items()):
        return state
    state = replace(state, position=state.position.advanced_to(span.end))
    sink.skip(lane, state)
    return state
