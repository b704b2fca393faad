"""The transaction barrier: all lanes of a source advance together, at transaction boundaries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import structlog

from replicator.application.delivery.bounded_queue import PublishRequest, WriteRequest
from replicator.application.lane_registry import LaneRegistry, SourceContext
from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.problem import Problem
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import ConfigProblem, ExitCode
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.transactions import CompletenessWatermark, TransactionPart
from replicator.ports.components import TransactionRules
from replicator.ports.decoder import Decoder
from replicator.ports.engine import TransactionTracking
from replicator.ports.frames import Batch, F
from replicator.ports.source import BACKFILL_TOPICS

from .pending_transactions import PendingTransactions

log = structlog.get_logger(__name__)

ReadOlder = Callable[[str, Position, Callable[[F], None]], bool]
"""Passes the decoded records of a table before a position on. False if the run is to end."""
REREAD_RECORDS = 10
"""Records of the transaction topic that are read again at a start."""


@dataclass(frozen=True, slots=True)
class TransactionProgress:
    """Progress in transactions, for people.

    - `last`: the newest transaction up to which all changes were queued for the lanes; `ended_at`: its end.
    - `held_bytes`: about the size of the changes that wait for the rest of their transaction.
    - `waits_for`: the transaction that blocks them, and its missing changes.
    - `exact`: see `CompletenessWatermark`.
    - `given_up`: the number of incomplete transactions that nothing waits for any more.
    """

    last: str | None
    ended_at: str | None
    exact: bool
    held_bytes: int
    given_up: int
    waits_for: str | None = None


class NoTransactions(Generic[F]):
    """A source without `transactions`: no change waits, and nothing is published. The docstrings are the contract for the
    two subclasses.

    - `is_active`: changes may have to wait.
    - `hold_from`: per partition the offset from which on changes are held back.
    - `end`: the end of the stream, as last read.
    """

    is_active = False

    def __init__(self) -> None:
        self.hold_from = self.end = Position()

    @property
    def progress(self) -> TransactionProgress | None:
        """The progress now."""
        return None

    @property
    def held_back_problem(self) -> Problem | None:
        """The transaction that blocks the others, its missing changes, and the next step; None if none blocks."""
        return None

    def find_start(self, start: Position, usual: Position, read_end: Callable[[], Position]) -> Position:  # noqa: ARG002
        """The start of the main stream instead of `start`, not above any lane that is followed. `usual`: where lanes
        without a position begin. `read_end` returns the end of the stream."""
        return start

    def add_transaction_topic(self, topics: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
        """The topics of the tables in a batch, plus the transaction topic for every table of the source."""
        return topics

    def limit_to_barrier(self, position: Position) -> Position:  # noqa: ARG002
        """The released position of the transaction topic, if all was read up to `position`."""
        return Position()

    def begin_batch(self, batch: Batch[F]) -> None:
        """Call before a batch is routed."""

    def count_changes(self, table: str) -> Callable[[F], None] | None:  # noqa: ARG002
        """A consumer of every decoded record of a batch."""
        return None

    def observe_catch_up(self, table: str) -> Callable[[F], None] | None:  # noqa: ARG002
        """A consumer of the decoded records that a lane of the table reads by itself."""
        return None

    def advance(self, position: Position, batch: Batch[F] | None = None) -> None:
        """Call after a batch was decoded or while none arrives. `position`: the stream was read up to here."""

    def advance_idle(self, position: Position, read_older: ReadOlder[F]) -> None:
        """Call instead of `advance` while no records arrive. May read older records."""

    def doubt_late_lane(self, table: str) -> None:
        """Call before a lane joins that has read by itself."""

    def set_end(self, end: Position) -> None:
        """Set the end of the stream."""

    def bundle_writes(self, requests: Sequence[WriteRequest[F]]) -> Sequence[WriteRequest[F]]:
        """Number the writes as one bundle, and add the watermark to publish."""
        return requests

    def publish_complete(self) -> None:
        """Publish watermarks in sinks that do not publish them with their commits."""


class TransactionBarrier(NoTransactions[F]):
    """Holds changes back until their transaction is complete. Only the thread of its source uses it.

    Every table of the source also has the transaction topic. So a lane's position, which is committed with its
    rows, also contains the transaction up to which the lane is complete.
    """

    is_active = True

    def __init__(
        self,
        rules: TransactionRules,
        context: SourceContext[F],
        decoder: Decoder,
        registry: LaneRegistry[F],
        runtime: RuntimeContext[F],
    ) -> None:
        super().__init__()
        tracking = runtime.engine.features.transactions
        if tracking is None or decoder.features.read_marks is None:
            raise ConfigProblem(
                f"Source {context.name} has 'transactions', which its format or the engine does not support.",
                next_step="Remove 'transactions' from the source.",
            )
        self._tracking: TransactionTracking[F] = tracking
        self._frames = runtime.engine.frames
        self._rules, self._context, self._decoder = rules, context, decoder
        self._registry, self._clock, self._lanes = registry, runtime.clock, runtime.lanes
        self._transactions = PendingTransactions(rules, self)
        self._parts: list[TransactionPart] = []
        self._counted: dict[str, dict[TopicPartition, range]] = {}
        self._looked_back: set[str] = set()
        self._bundles = 0
        self._read = Position()

    @property
    def progress(self) -> TransactionProgress:
        transactions, last = self._transactions, self._transactions.last
        ended_at = last.at.isoformat() if last and last.at else None
        exact = transactions.is_exact and self._registry.row_loss is None
        waits_for = problem.sentence if (problem := self.held_back_problem) else None
        return TransactionProgress(
            last.name if last else None, ended_at, exact, transactions.held_bytes, transactions.given_up_count, waits_for
        )

    @property
    def held_back_problem(self) -> Problem | None:
        """The connector sends the end of a transaction last. If all was read up to the end of the stream, changes still
        missing then are lost."""
        blocking = self._transactions.blocking_transaction
        if blocking is None:
            return None
        after = f"about {format_count(self._transactions.held_bytes, 'byte')} of source {self._context.name} wait for it"
        if blocking.missing is None:
            return Problem(
                ExitCode.RUNTIME,
                f"Transaction {blocking.name} has not ended in {self._rules.topic}, and {after}.",
                "Run again when the connector has sent the end. If it does not, check that the connector runs with "
                f"provide.transaction.metadata=true. `replicator run` waits {self._rules.patience:g} s, then continues.",
            )
        gaps = []
        for table, (count, expected) in blocking.missing.items():
            topics = self._registry.topics.get(table, frozenset()) - {self._rules.topic}
            gaps.append(f"{count} of {expected} of {table} ({', '.join(sorted(topics)) or 'no topic yet'}) have arrived")
        return Problem(
            ExitCode.DATA_LOSS,
            f"Transaction {blocking.name} lacks changes: {'; '.join(gaps)}. {after[0].upper()}{after[1:]}.",
            f"Check that the source reads these topics and that they still have the records. `replicator run` waits "
            f"{self._rules.patience:g} s, then continues without them. Load the tables again with "
            f"`replicator backfill {next(iter(blocking.missing), 'TABLE')}`.",
        )

    def find_start(self, start: Position, usual: Position, read_end: Callable[[], Position]) -> Position:
        self.end = read_end()
        if not self._has_transaction_topic:
            log.warning("the source does not read the topic of transactions yet", topic=self._rules.topic)
        runs = [r for r in self._registry.list_runs() if r.status is LaneStatus.CATCHING_UP and not r.is_event_log]
        # Only lanes whose sinks commit them together are held; all lanes if no sink does.
        runs = [run for run in runs if self._context.workers[run.lane.sink].is_atomic] or runs
        passed_in_sink: dict[str, Position] = {}
        for run in runs:
            before = passed_in_sink.get(run.lane.sink, Position())
            passed_in_sink[run.lane.sink] = before.advanced_to(self._select_transaction_topic(run.applied))
        # A lane without rows since `transactions` was configured has passed the marks of the other lanes of its sink.
        passed_marks = {
            run.lane.id: self._select_transaction_topic(run.applied or run.processed_to) or passed_in_sink[run.lane.sink]
            for run in runs
        }
        self._start_tracking(runs, passed_marks)
        marks = Position.lowest(passed_marks.values()) if all(passed_marks.values()) else Position()
        # Some marks are read again: the last transaction may not be published yet.
        marks = Position({p: max(o - REREAD_RECORDS, min(o, usual.get(p, o))) for p, o in marks.items()})
        return Position(
            {**start, **Position.lowest(run.processed_to for run in runs), **self._select_transaction_topic(usual), **marks}
        )

    def _start_tracking(self, runs: Sequence[LaneRun], passed_marks: Mapping[str, Position]) -> None:
        """Track the transactions of these lanes from here on. `passed_marks`: by lane, the marks that it has passed."""
        first_offsets = {run.lane.table: passed_marks[run.lane.id] for run in runs}
        for run in runs:
            first_offsets[run.lane.table] = Position.lowest([first_offsets[run.lane.table], passed_marks[run.lane.id]])
        last, lost = self._transactions.last, self._transactions.lost or not self._has_transaction_topic
        self._transactions = PendingTransactions(self._rules, self, first_offsets)
        self._transactions.last, self._transactions.lost = last, lost
        self._counted.clear()
        self._looked_back.clear()
        self._read_concurrent_time()
        self._transactions.sure_at = self.end if any(run.applied for run in runs) else None
        if any(run.applied and not passed_marks[run.lane.id] for run in runs):
            self._transactions.until = self.end

    @property
    def _has_transaction_topic(self) -> bool:
        return any(self._is_transaction_topic(p) for p in self.end)

    def _is_transaction_topic(self, partition: TopicPartition) -> bool:
        return partition.topic == self._rules.topic

    def _select_transaction_topic(self, position: Position) -> Position:
        return position.only(p for p in position if self._is_transaction_topic(p))

    def _read_concurrent_time(self) -> None:
        get_concurrent_time = self._context.source.features.get_concurrent_time
        if get_concurrent_time is not None:
            self._transactions.concurrent_time = get_concurrent_time()

    def limit_to_barrier(self, position: Position) -> Position:
        """A table without changes is complete up to `position`."""
        return Position({p: min(o, self.hold_from.get(p, o)) for p, o in self._select_transaction_topic(position).items()})

    def add_transaction_topic(self, topics: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
        all_tables = {table: frozenset[str]() for table in self._registry.tables}
        return {table: names | {self._rules.topic} for table, names in {**all_tables, **topics}.items()}

    def partitions(self, table: str) -> Collection[TopicPartition]:
        topics = self._registry.topics.get(table, frozenset()) - {self._rules.topic}
        return [p for p in self.end if p.topic in topics and not p.topic.startswith(BACKFILL_TOPICS)]

    def is_followed(self, table: str) -> bool:
        if table in self._registry.tables:
            return any(run.status is LaneStatus.RUNNING for run in self._registry.tables[table])
        rules = self._context.rules_for(table)
        return rules is not None and bool(rules.lanes)

    def observe_catch_up(self, table: str) -> Callable[[F], None] | None:
        """Counts each change once."""

        def count_changes(changes: F) -> None:
            counted = Position({p: offsets.stop for p, offsets in self._counted.get(table, {}).items()})
            parts = self._tracking.parts(changes, table)
            if any(part.first < counted.get(part.partition, 0) <= part.last for part in parts):
                _, uncounted = self._frames.split(changes, Span.below(counted))
                parts = self._tracking.parts(uncounted, table)
            new = [part for part in parts if part.first >= counted.get(part.partition, 0)]
            self._transactions.observe_catch_up(new)
            self._note_counted(new)

        return count_changes

    def _note_counted(self, parts: Sequence[TransactionPart]) -> None:
        for part in parts:
            of_table, last = self._counted.setdefault(part.table, {}), part.last + 1
            counted = of_table.get(part.partition, range(part.first, last))
            of_table[part.partition] = range(min(counted.start, part.first), max(counted.stop, last))

    def advance_idle(self, position: Position, read_older: ReadOlder[F]) -> None:
        """Lanes may have applied missing changes before the start: they are read and counted."""
        self.advance(position)
        while self._look_back(read_older):
            self.advance(position)

    def _look_back(self, read_older: ReadOlder[F]) -> bool:
        """False if there is nothing more to search, or the run is to end."""
        blocking = self._transactions.blocking_transaction
        tables = sorted(set(blocking.missing or () if blocking else ()) - self._looked_back)
        for table in tables:
            topics = self._registry.topics.get(table, frozenset()) - {self._rules.topic}
            first = {p: offsets.start for p, offsets in self._counted.get(table, {}).items()}
            uncounted = Position({p: first.get(p, o) for p, o in self._read.items() if p.topic in topics})
            is_done = read_older(table, uncounted, self.count_changes(table))
            parts, self._parts = self._parts, []
            if not is_done:
                return False
            self._looked_back.add(table)
            self._transactions.observe_catch_up(parts, older=True)
        return bool(tables)

    def doubt_late_lane(self, table: str) -> None:
        """Unless another lane of its table is followed, it shows more of the open transactions than the other lanes."""
        if not self.is_followed(table):
            self.end = self._context.source.end()
            self._transactions.doubt_up_to(self._read.advanced_to(self.end))

    def set_end(self, end: Position) -> None:
        self.end = end

    def begin_batch(self, batch: Batch[F]) -> None:
        self._parts = []  # Left from a batch that could not be decoded and is read again.
        self._tracking.attend(batch.frame, self._rules.topic)

    def count_changes(self, table: str) -> Callable[[F], None]:
        return lambda changes: self._parts.extend(self._tracking.parts(changes, table))

    def advance(self, position: Position, batch: Batch[F] | None = None) -> None:
        """Move the barrier."""
        now, self._read = self._clock(), position
        marks = self._tracking.marks(batch.frame, self._rules.topic, self._decoder) if batch else ()
        if batch and any(p.topic.startswith(BACKFILL_TOPICS) for p in batch.span.end):
            self._read_concurrent_time()
        self._transactions.observe(marks, self._parts, batch.size / max(1, batch.records) if batch else 0.0, now)
        self._note_counted(self._parts)
        self._parts = []
        self._transactions.advance(position, now)
        self.hold_from = self._transactions.barrier

    def publish_complete(self) -> None:
        """Needed for transactions without tables in the sink, and for transactions committed before a start: no
        write carries their watermark.
        """
        voided = self._lanes.voided
        for sink in {run.lane.sink for run in self._registry.list_runs() if not run.is_event_log}:
            worker = self._context.workers[sink]
            if not worker.is_atomic and (complete := self._find_complete(sink)) is not None:
                worker.queue.put_publish_request(self._context.name, PublishRequest(complete, voided))

    def bundle_writes(self, requests: Sequence[WriteRequest[F]]) -> list[WriteRequest[F]]:
        """A sink commits a bundle together if it can."""
        self._bundles += 1
        voided = self._lanes.voided  # Read first: writes that get void while watermarks are computed must count.
        sinks = {one.run.lane.sink for one in requests if not one.run.is_event_log}
        watermarks = {sink: self._find_complete(sink) for sink in sinks}
        out = []
        for request in requests:
            if request.run.is_event_log:
                out.append(request)
                continue
            sink = request.run.lane.sink
            bundle = self._bundles if self._context.workers[sink].is_atomic else 0
            write = replace(request.write, complete=watermarks[sink])
            out.append(replace(request, write=write, bundle=bundle, voided=voided))
        return out

    def _find_complete(self, sink: str) -> CompletenessWatermark | None:
        """The watermark of a sink once all queued writes are committed; None if there is nothing to publish."""
        behind, ahead = self._find_behind(sink)
        last = self._transactions.last
        exact = self._transactions.is_exact and not behind and not ahead and self._registry.row_loss is None
        if behind or ahead or last is None:
            return CompletenessWatermark(self._context.name, exact=exact, behind=behind)
        return CompletenessWatermark(self._context.name, last.name, last.at, exact)

    def _find_behind(self, sink: str) -> tuple[tuple[str, ...], bool]:
        """The lanes of a sink that are behind the barrier, and True if any lane is ahead of it.

        A lane is level if it runs and got all released changes and no others. After a start it may be ahead.
        """
        runs = [run for run in self._registry.list_runs() if run.lane.sink == sink and not run.is_event_log]
        lacks = {run.lane.id for run in runs if run.status is not LaneStatus.RUNNING}
        ahead = False
        of_topics: dict[str, dict[TopicPartition, int]] = {}
        for p, o in self._read.items():
            of_topics.setdefault(p.topic, {})[p] = min(o, self.hold_from.get(p, o))
        for run in runs:
            topics = self._registry.topics.get(run.lane.table, frozenset())
            let_go = {p: o for topic in topics for p, o in of_topics.get(topic, {}).items()}
            lacks |= {run.lane.id for p, o in let_go.items() if run.processed_to.get(p, o) < o}
            ahead |= any(run.processed_to.get(p, o) > o for p, o in let_go.items())
        return tuple(sorted(lacks)), ahead
