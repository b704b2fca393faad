"""One source's stream on its way to every lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic

import structlog

from replicator.domain.errors import DataLoss, Fenced, Retryable
from replicator.domain.plan import Counts, LaneState
from replicator.domain.position import Position, Span
from replicator.domain.transactions import Part as TransactionPart
from replicator.ports.decoder import Decoder
from replicator.ports.engine import SeesTransactions
from replicator.ports.frames import Batch, F, Routed
from replicator.ports.source import HasSnapshots, NamesFiles, NamesTopics

from .alignment import Aligner
from .catalog import Catalog, Unusable
from .catch_up import CatchUp, Toolbox
from .crashes import MAIN, Crashes
from .decoding import Decoding
from .feed import Chunk, Feed, Part
from .flow import Away, Flow, SourceCall
from .following import Follower
from .handover import Handed
from .lanes import LaneRun, LaneStatus
from .lookahead import Begin, looking_ahead
from .problem import Problem, Stopped, problem_of
from .remembering import note
from .replay import Replay
from .retry import Backoff
from .roster import Place, Roster, highest_of
from .shared import Shared
from .skipping import advanced
from .writes import Writes, covered, only_topics

log = structlog.get_logger(__name__)
READING = "reading"


class Pipeline(Generic[F]):
    """Runs one source in the calling thread until it is stopped or, with `once`, has caught up.

    Per batch: what operators asked for; route (rejects durable first); event logs; each table's changes to its lanes; a turn
    for the lanes that are behind. Workers apply meanwhile. `Retryable` of the source: wait, and go on from the
    current position. Anything else ends the program.
    """

    def __init__(self, place: Place[F], decoder: Decoder, shared: Shared[F]) -> None:
        self.place = place
        self.flow = Flow(
            began=shared.clock(),
            is_sparse=getattr(place.source, "has_sparse_offsets", False),
            transactions=place.transactions.topic if place.transactions else None,
        )
        self.roster = Roster(place, shared)
        self._shared = shared
        self._crashes = place.crashes or Crashes(None, shared.engine, shared.rejects, place.name, shared.decoding)
        # Who asks for a record to be tried again has it decoded.
        self._asked, decoder = decoder, self._crashes.sparing(decoder)
        self._decoder = decoder
        self._catalog = Catalog(shared.engine, decoder, place.rules_for, self.roster.keys)
        self._decoding = Decoding(place, decoder, self._catalog, shared, self._crashes, flow=self.flow)
        self._writes = Writes(shared, self._catalog, decoder, partial(note, place.workers), self._crashes)
        self._begin = Begin(shared.engine, decoder, self._writes.keeping)
        rules = place.transactions
        kind = Aligner if rules is None or rules.together else Follower
        self._aligner = kind(rules, place, decoder, self.roster, shared) if rules else None
        seen = self._aligner.read_beside if self._aligner else lambda _: None
        tools = Toolbox(place, shared, self.roster, self._catalog, self._decoding, self._writes, self._crashes, seen)
        self._catch_up = CatchUp(tools, self._target, self._joined, self._hand_over, self._beat)
        self.replay = Replay(place, self._asked, self._catalog, shared)
        self._feeds: dict[str, Feed[F]] = {}
        self._unplaced: dict[str, float] = {}
        """New tables whose changes wait in their feeds for lanes to be placed; until when, on the clock."""
        self._identity: dict[str, str] = {}
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._advancing: dict[str, Future[LaneState | None]] = {}
        self._position: Position | None = None
        self._enlisted = self._has_partial_batch = False
        self._told = self._turned = shared.clock()

    @property
    def turned(self) -> float:
        """When the stream last turned or waited for a sink or its source, on the clock."""
        return self._turned

    def _beat(self) -> None:
        self._turned = self._shared.clock()

    @property
    def held_back(self) -> Problem | None:
        """Why records that were read are not with their lanes; None where none are held back for a transaction."""
        return self._aligner.held_back if self._aligner else None

    def post(self, command: Callable[[], None]) -> None:
        """Have a command done by the pipeline's thread, between two batches. From any thread."""
        self._commands.put(command)

    def run(self, *, once: bool) -> None:
        """See the class. EnvironmentProblem when `Shared.silence` has its limit."""
        self._crashes.begin()
        try:
            self._run(once=once)
        finally:
            self._crashes.end()

    def _run(self, *, once: bool) -> None:
        stop, options = self._shared.stop, self._shared.options
        backoff = Backoff(options.first_delay, options.longest_delay)
        while not stop.is_set():
            before = self._position
            try:
                self._read(once=once)
                return
            except Stopped:
                return
            except Retryable as error:
                if self._position != before:
                    backoff.reset()
                if self._has_partial_batch:
                    self._begin_again()
                self._is_away(error)
                self._shared.silence.extend("Source", self.place.name, error.sentence)
                backoff.wait(stop)
                self._beat()

    @contextmanager
    def _handing_over(self) -> Iterator[None]:
        """In the block lanes and feeds move on before their writes are handed over. If it fails, they are ahead of these."""
        self._has_partial_batch = True
        yield
        self._has_partial_batch = False

    def _begin_again(self) -> None:
        """Start from the committed positions, as a new run does: lanes and feeds are ahead of what was handed over."""
        with self._shared.lanes.under_lock():
            for run in self.roster.runs():
                if run.status in (LaneStatus.RUNNING, LaneStatus.CATCHING_UP):
                    self.roster.restart(run)
        self.roster.knows_tables = bool(self.roster.topics)
        self._feeds.clear()
        self._unplaced.clear()
        self._position, self._has_partial_batch = None, False

    def _read(self, *, once: bool) -> None:
        start = self._open() if self._position is None else self._position
        self._position = self.flow.position = start
        self._catch_up.join()
        # It is not back before it has had time to fail again, at the same records.
        self._told = self._shared.clock()
        with looking_ahead(self._shared, self._begin, self.apply_batch, once=once) as take, self._calling(READING):
            self.place.source.run(start, self._answered(take), self._shared.stop, once=once)
        if once and not self._shared.stop.is_set():
            self._catch_everything_up()
            self._flush()
            if isinstance(self.place.source, NamesTopics) and not self.place.source.end():
                self.flow.unmatched = self.place.source.unmatched()
            if isinstance(self.place.source, NamesFiles):
                self.flow.absent, self.flow.damaged = self.place.source.absent(), self.place.source.damaged()
        self._pay()

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        """Within, the source is waited for."""
        before, self.flow.call = self.flow.call, SourceCall(doing, self._shared.clock())
        try:
            yield
        finally:
            self.flow.call = before

    def _answered(self, take: Callable[[Batch[F]], None]) -> Callable[[Batch[F]], None]:
        """`take`, while which the source is not waited for."""

        def taking(batch: Batch[F]) -> None:
            self.flow.call = None
            take(batch)
            self.flow.call = SourceCall(READING, self._shared.clock())

        return taking

    def _open(self) -> Position:
        """Where the main stream begins: per partition the highest position of a lane that can go on; where there is none,
        where the partition began for the source, as far as its records are still there."""
        with self._calling("looking for where it begins"):
            start, beginning = self.place.source.start(), self.place.source.beginning()
        if not self._enlisted:
            self.roster.open(start, beginning)
            self._enlisted = True
            self.flow.row_loss = self.roster.row_loss
        start = Position({p: max(o, beginning.get(p, o)) for p, o in self.roster.began.only(start).items()})
        self.roster.settle(self._shared.options.state_patience)
        known = [run.handed for run in self.roster.runs() if run.status is LaneStatus.CATCHING_UP]
        if self.roster.knows_tables:
            begin = self._after_snapshots(Position({**start, **highest_of(known)}))
            return self._aligner.begin(begin, start, self.place.source.end()) if self._aligner else begin
        if self._aligner:
            self._aligner.begin(start, start, self.place.source.end())
        return Position({**start, **Position.lowest([*known, start]).only(start)})

    def _after_snapshots(self, position: Position) -> Position:
        """Lanes that begin with a snapshot read it by themselves: others must not get it."""
        source = self.place.source
        return source.after_snapshots(position) if isinstance(source, HasSnapshots) else position

    def apply_batch(self, batch: Batch[F]) -> None:
        """Take a batch of the main stream, or an empty one; returns when the next may be read."""
        self._beat()
        if not batch.span:
            self._shared.silence.extend("Source", self.place.name, "No records come, though it is not at its end.")
        self._obey()
        self.roster.settle(0)
        self._catch_up.join()
        self._make_room()
        self._release_placed()
        if batch.span:
            for piece in self._crashes.pieces(self._fresh(batch), MAIN, self._shared.wait_for_sinks):
                self._make_room()
                self._advance(piece)
        else:
            self._idle()
        self._catch_up.turn(self._shared.options.catch_up_turn)
        self._tell()

    def _fresh(self, batch: Batch[F]) -> Batch[F]:
        """The batch without records that came before; DataLoss when some between were left out."""
        position = self._position or Position()
        gaps = batch.span.gaps(position)
        if gaps:
            raise DataLoss(
                f"Source {self.place.name} left out records of {gaps[0]}.",
                next_step="Start again: lanes go on from their own positions.",
            )
        span = batch.span.after(position)
        if span == batch.span:
            return batch
        frame = self._shared.engine.within(batch.frame, span)
        return replace(batch, frame=frame, span=span, records=self._shared.engine.count(frame))

    def _advance(self, batch: Batch[F]) -> None:
        self._identity.update(batch.identity)
        if self._aligner:
            self._aligner.attend(batch)
        self._writes.keeping.begin(batch)
        routed = self._decoding.route(batch)
        if isinstance(self._shared.engine, SeesTransactions) and batch.records:
            with self._crashes.decoding(batch.span):
                connector = self._shared.engine.connector(batch.frame, self._decoder)
            self.roster.learn_connector(connector)
            self.flow.row_loss = self.roster.row_loss
        if new := self._meet(routed, batch.span):
            self._place_lanes(new)
        # All of it before anything moves: what cannot be decoded now comes again.
        found = self._decoded_tables(routed, batch)
        with self._handing_over():
            if self._aligner:  # What was read of one table decides what may go of another.
                self._aligner.turn((self._position or Position()).advanced_to(batch.span.end), batch)
                self.flow.alignment = self._aligner.shown
            handed = self._of_logs(batch, routed)
            for table, parts in found.items():
                handed += self._fed(table, parts, routed, batch)
            self.roster.save_learned()
            self._position = self.flow.position = (self._position or Position()).advanced_to(batch.span.end)
            self._shared.silence.end()
            self.flow.records += batch.records
            self._decoding.count(batch, routed)
            if batch.records and self.flow.away and not self.flow.away.answers:
                self._is_back()
            self._hand_over(handed)

    def _place_lanes(self, new: Sequence[str]) -> None:
        """Give the sinks some time to say where the lanes of new tables stand. While some of them have not, the stream does
        not wait again: of a thousand new tables the others would wait for minutes. What comes of a new table waits instead,
        so that its lanes need not read it again."""
        options = self._shared.options
        if self._aligner:  # Of transactions, what comes before a lane is placed is not counted.
            self.roster.settle(options.state_patience)
        else:
            self.roster.settle(0 if self._unplaced else options.new_patience)
            until = self._shared.clock() + options.state_patience
            self._unplaced.update((table, until) for table in new if self.roster.is_new(table))
        self._catch_up.join()

    def _release_placed(self) -> None:
        """Hand over what waits for lanes that are placed now. Lanes that take too long, or too much memory, read again."""
        size = sum(self._feeds[table].size for table in self._unplaced if table in self._feeds)
        now = self._shared.clock() if size <= self._shared.options.hold_bytes else float("inf")
        placed = {t for t, until in self._unplaced.items() if now >= until or not self.roster.is_new(t)}
        for table in placed:
            del self._unplaced[table]
        if placed:
            self._let_go(lambda table, feed: self._released(table, feed) if table in placed else ())

    def _meet(self, routed: Routed[F], span: Span) -> Sequence[str]:
        if self._aligner is None:
            return self.roster.meet(routed.topics, span)
        begin = Position({**span.start, **self._aligner.let_go(self._position or Position())})
        return self.roster.meet(self._aligner.topics(routed.topics), Span(begin, begin.advanced_to(span.end)))

    def _of_logs(self, batch: Batch[F], routed: Routed[F]) -> list[Handed[F]]:
        excluded = {run.lane.sink: self.roster.excluded(run.lane.sink) for run in self.roster.logs}
        return self._writes.of_batch(batch, routed, self._followers(self.roster.logs, batch.span.start), excluded)

    def _decoded_tables(self, routed: Routed[F], batch: Batch[F]) -> dict[str, Sequence[Part[F]]]:
        """The changes of each table that some lane takes."""
        aligner = self._aligner
        tables = self.roster.tables if aligner else self.roster.touched(batch.span)
        found = {t: self._decoded(t, routed, batch, aligner.seen(t) if aligner else None) for t in tables}
        return {table: parts for table, parts in found.items() if parts is not None}

    def _decoded(
        self, table: str, routed: Routed[F], batch: Batch[F], seen: Callable[[F], None] | None = None
    ) -> Sequence[Part[F]] | None:
        """The changes of a table; None when no lane takes them."""
        span = covered(batch.span, self.roster.topics[table])
        followers = self._followers(self.roster.tables[table], Position({**span.start, **self._feed(table).released}))
        if not followers and table not in self._unplaced:
            self._feeds.pop(table, None)
            return None
        try:
            runs, drops = [run for run in routed.runs if run.table == table], routed.drops.get(table, ())
            topics = self.roster.topics[table]
            return self._decoding.changes(table, runs, batch, topics=topics, drops=drops, seen=seen)
        except Unusable as error:
            for run in followers:
                self._shared.lanes.suspend(run, problem_of(error.cause), error.cause)
            self._feeds.pop(table, None)
            return None

    def _fed(self, table: str, parts: Sequence[Part[F]], routed: Routed[F], batch: Batch[F]) -> list[Handed[F]]:
        span = covered(batch.span, self.roster.topics[table])
        feed, known = self._feed(table), self._catalog.table(table)
        self.roster.learn_key(table, known.keys if known else ())
        feed.barrier = self._barrier(table, Position({**span.start, **feed.released}))
        records = self._writes.keeping.of(batch)
        drops = routed.drops.get(table, ())
        chunks = feed.take(parts, known, span, records if span else None, records.size, drops=drops)
        return self._of_chunks(table, chunks)

    def _barrier(self, table: str, released: Position) -> Position:
        """From where on nothing of a table that was released so far is released."""
        if self._aligner:
            return self._aligner.barrier
        return released if table in self._unplaced else Position()

    def _of_chunks(self, table: str, chunks: Sequence[Chunk[F]]) -> list[Handed[F]]:
        followers = [run for run in self.roster.tables[table] if run.status is LaneStatus.RUNNING]
        return [h for c in chunks for h in self._writes.of_chunk(c, followers, only_topics(self._identity, c.end))]

    def _followers(self, runs: Sequence[LaneRun], start: Position) -> list[LaneRun]:
        """The running lanes; one that has not got up to `start` falls back to catching up instead of skipping records. So
        does one that is full, which reads for itself once it is not."""
        for run in runs:
            if run.is_full or any(run.handed.get(p, o) < o and self.roster.covers(run, p) for p, o in start.items()):
                self._shared.lanes.fall_back(run)
        return [run for run in runs if run.status is LaneStatus.RUNNING]

    def _feed(self, table: str) -> Feed[F]:
        if table not in self._feeds:
            topics = self.roster.topics[table]
            position = self._position or Position()
            at = position.only(p for p in position if p.topic in topics)
            self._feeds[table] = Feed(self._shared.engine, self._shared.options, at, self._shared.clock)
            if self._aligner:  # Marks that were read are not read again, and not all of them are let go.
                self._feeds[table].released = Position({**at, **self._aligner.let_go(at)})
        return self._feeds[table]

    def _target(self, run: LaneRun) -> Position:
        """Where the main stream stands for a lane that is behind."""
        if run.is_event_log:
            position = self._position or Position()
            return position.only(p for p in position if self.roster.covers(run, p))
        return self._feed(run.lane.table).released

    def _joined(self, run: LaneRun, feed: Feed[F], has_read: bool) -> None:
        if not run.is_event_log:
            self._feed(run.lane.table).absorb(feed)
            if self._aligner and has_read:
                self._aligner.lane_joins(run.lane.table)
        self._shared.lanes.join(run)

    def _hand_over(self, items: Sequence[Handed[F]]) -> None:
        """To each sink its writes; a sink with a full slot is waited for last. Callers see to room first, and call once:
        a second call may wait for a sink that is away."""
        by_sink: dict[str, list[Handed[F]]] = {}
        for item in self._aligner.bundled(items) if self._aligner else items:
            by_sink.setdefault(item.run.lane.sink, []).append(item)
        workers = self.place.workers
        for sink in sorted(by_sink, key=lambda name: not workers[name].has_room()):
            workers[sink].hand_over(by_sink[sink], self._shared.stop)

    def forget(self, table: str) -> None:
        """Learn a table anew whose lanes have all stopped: what its records looked like before may be why they did."""
        if all(run.status in (LaneStatus.SUSPENDED, LaneStatus.PAUSED) for run in self.roster.tables.get(table, ())):
            self._catalog.forget(table)
            self._feeds.pop(table, None)

    def _make_room(self) -> None:
        """Wait for sinks whose slot is full. While one of them is away and others are not, these do not wait for it: its
        lanes read for themselves, from where they are, once it is back."""
        running = [run for run in self.roster.runs() if run.status is LaneStatus.RUNNING]
        for sink in sorted({run.lane.sink for run in running}):
            mine = [run for run in running if run.lane.sink == sink]
            others = [run for run in running if run.lane.sink != sink]
            has_room = self.place.workers[sink].wait_for_room(partial(self._only_away, mine, others), self._shared.stop)
            for run in [] if has_room or self._shared.stop.is_set() else mine:
                self._shared.lanes.fall_back(run)

    def _only_away(self, mine: Sequence[LaneRun], others: Sequence[LaneRun]) -> bool:
        """True when the sink of the lanes `mine` does not answer, and one of the others does."""
        self._beat()
        return any(run.retrying for run in mine) and any(run.retrying is None for run in others)

    def _obey(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _idle(self) -> None:
        self._align()
        self._let_go(lambda table, feed: feed.idle(self._catalog.table(table)))

    def _align(self) -> None:
        """Hand over what is held back for transactions no longer."""
        if self._aligner:
            self._aligner.turn(self._position or Position())
            while self._look_back(self._aligner):
                self._aligner.turn(self._position or Position())
            self.flow.alignment = self._aligner.shown
            self._let_go(self._released)

    def _look_back(self, aligner: Aligner[F]) -> bool:
        """Find, for the transaction that is waited for, what lanes had of it before the start: nothing else is to come now.
        False where there is nothing to look for."""
        tables = aligner.look_back()
        for table, end in tables.items():
            found = self._had_before(aligner, table, end)
            if self._shared.stop.is_set():
                return False
            aligner.count_older(table, found)
        return bool(tables)

    def _had_before(self, aligner: Aligner[F], table: str, end: Position) -> Sequence[TransactionPart]:
        """What transactions have of a table before `end`."""
        source, most = self.place.source, self._shared.options.catch_up_offsets
        beginning, found = source.beginning(), list[TransactionPart]()
        start = Position({p: max(beginning.get(p, o), o - most) for p, o in end.items()})
        span = Span(start, end).only(p for p, o in end.items() if start[p] < o)

        def count(batch: Batch[F]) -> None:
            for frame in self._decoding.again(table, batch):
                found.extend(aligner.older(frame, table))

        try:
            if span:
                source.read(span.start, span.end, count, self._shared.stop)
        except (DataLoss, Unusable) as error:
            log.info("cannot look for what came before the start", table=table, error=str(error))
        return found

    def _released(self, table: str, feed: Feed[F]) -> Sequence[Chunk[F]]:
        feed.barrier = self._barrier(table, feed.released)
        return feed.release(self._catalog.table(table))

    def _flush(self) -> None:
        self._let_go(lambda table, feed: feed.flush(self._catalog.table(table)))

    def _let_go(self, chunks: Callable[[str, Feed[F]], Sequence[Chunk[F]]]) -> None:
        """What feeds no longer hold back, of all of them at once: after the first there may be no room."""
        with self._handing_over():
            self._hand_over([h for t, feed in self._feeds.items() for h in self._of_chunks(t, chunks(t, feed))])

    def _pay(self) -> None:
        """Bring positions of lanes that had nothing to write to where they are; not worth waiting for a sink."""
        for run in self.roster.runs():
            feed = self._feeds.get(run.lane.table)
            has_room = self.place.workers[run.lane.sink].has_room()
            if run.status is LaneStatus.RUNNING and feed is not None and has_room:
                empty = feed.empty(self._catalog.table(run.lane.table))
                if empty is None and self._aligner is None:
                    self._advance_alone(run)
                with self._handing_over():
                    self._hand_over(self._writes.owed(run, empty, only_topics(self._identity, run.handed)))
        if self._aligner:
            self._aligner.tell()

    def _advance_alone(self, run: LaneRun) -> None:
        """Bring the position of a lane to where it is that got no change since the start, so that there is no plan for a
        write: all that came was rejected or ignored. Its target has to be there."""
        span = self._shared.lanes.unapplied(run)
        before = self._advancing.get(run.lane.id)
        if span and run.applied and (before is None or before.done()):
            worker, generation = self.place.workers[run.lane.sink], run.generation
            answer = worker.ask(lambda sink: advanced(sink, run.lane, span))
            self._advancing[run.lane.id] = answer
            answer.add_done_callback(partial(self._advanced, run, generation))

    def _advanced(self, run: LaneRun, generation: int, answer: Future[LaneState | None]) -> None:
        error = answer.exception()
        if isinstance(error, Fenced):
            self._shared.fail(error)
        elif self._shared.lanes.is_live(run, generation) and not isinstance(error, Stopped):
            if isinstance(error, Exception):
                self._shared.lanes.suspend(run, problem_of(error), error)
            elif error is None and (state := answer.result()) is not None:
                self._shared.lanes.settled(run, state.position, Counts(), None)

    def _catch_everything_up(self) -> None:
        """Until no lane is behind or waits for its sink."""
        stop = self._shared.stop
        while not stop.is_set():
            self._beat()
            self._obey()
            self.roster.settle(0)
            if not self._catch_up.turn(self._shared.options.catch_up_turn) and not self.roster.waits:
                self._release_placed()
                self._align()
                return
            stop.wait(0.01)

    def _tell(self) -> None:
        if self._shared.clock() - self._told >= self._shared.options.tell_every:
            self._told = self._shared.clock()
            self._shared.rejects.open.refresh()
            self._pay()
            self.tell_source()

    def _is_away(self, error: Retryable, *, answers: bool = False) -> None:
        """Said once, and remembered until records come, or, where it `answers`, until `tell_source` succeeds: records of a
        partition do not show that all are read."""
        known = self.flow.away
        self.flow.away = Away(known.since if known else self._shared.clock(), error.sentence, answers)
        tell = log.debug if known else log.warning
        tell("source away", source=self.place.name, sentence=error.sentence)

    def _is_back(self) -> None:
        known, self.flow.away = self.flow.away, None
        if known is not None:
            log.info("source back", source=self.place.name, seconds_away=round(self._shared.clock() - known.since, 1))

    def tell_source(self) -> None:
        """Tell the source how far every lane has got, and telemetry how far that is from the end. Both are hints."""
        self._tell_pace()
        runs = self.roster.runs()
        self.flow.excluded = {run.lane.sink: frozenset(self.roster.excluded(run.lane.sink)) for run in self.roster.logs}
        lowest = Position.lowest([self.flow.position_of(run) for run in runs])
        answers = False
        try:
            with self._calling("looking for its end"):
                self.flow.end, answers = self.place.source.end(), True
                self.roster.suspend_late()
                if self._aligner:
                    self._aligner.asked(self.flow.end)
                self._shared.telemetry.lag(self.place.name, self.flow.lag_behind(runs))
                self.place.source.committed(lowest)
        except Retryable as error:
            self._is_away(error, answers=answers)
        else:
            self._is_back()

    def _tell_pace(self) -> None:
        source: Any = self.place.source
        self.flow.pace = source.pace() if hasattr(source, "pace") else None
        if self.flow.pace is not None:
            self._shared.telemetry.pace(self.place.name, source.engine, self.flow.pace)
