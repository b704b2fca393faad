"""The transaction tracker: computes the completeness watermark of lanes that do not wait for each other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from replicator.application.lane_registry import LaneRegistry, SourceContext
from replicator.application.lane_runs import LaneRun
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.transactions import CompletenessWatermark, TransactionMark, TransactionPart
from replicator.ports.components import TransactionRules
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F
from replicator.ports.source import BACKFILL_TOPICS

from .barrier import TransactionBarrier, TransactionProgress
from .pending_transactions import LowestOffsets

REREAD_RECORDS = 1_000
"""Records of each partition that are read and counted again at a start.

They prove transactions that were incomplete at the end of the last run. Lanes skip records that they have
applied.
"""


class TransactionTracker(TransactionBarrier[F]):
    """A `TransactionBarrier` that releases every change at once. Its watermark is never exact: parts of later
    transactions may be visible.

    A table's lane gets the transaction topic only as far as `CompletenessEvidence` proves
    complete. So a position in that topic means the same as with a barrier.
    """

    def __init__(
        self,
        rules: TransactionRules,
        context: SourceContext[F],
        decoder: Decoder,
        registry: LaneRegistry[F],
        runtime: RuntimeContext[F],
    ) -> None:
        super().__init__(rules, context, decoder, registry, runtime)
        self._evidence = CompletenessEvidence(rules.patience, self)

    @property
    def progress(self) -> TransactionProgress:
        last = self._evidence.last_proven
        ended_at = last.at.isoformat() if last and last.at else None
        return TransactionProgress(last.name if last else None, ended_at, exact=False, held_bytes=0, given_up=0)

    @property
    def held_back_problem(self) -> None:
        """None: nothing is held back."""
        return None

    def find_start(self, start: Position, usual: Position, read_end: Callable[[], Position]) -> Position:
        """See `TransactionBarrier.find_start`; lower by `REREAD_RECORDS` records in partitions that lanes have
        applied."""
        begin, beginning = super().find_start(start, usual, read_end), self._context.source.beginning()
        applied = {p for run in self._registry.list_runs() for p in run.applied if not p.topic.startswith(BACKFILL_TOPICS)}
        applied = {p for p in applied if not self._is_transaction_topic(p)}
        lower = {p: max(o - REREAD_RECORDS, min(o, beginning.get(p, o))) for p, o in begin.only(applied).items()}
        return Position({**begin, **lower})

    def _start_tracking(self, runs: Sequence[LaneRun], passed_marks: Mapping[str, Position]) -> None:
        passed, before = Position(), any(run.applied for run in runs)
        for run in runs:
            passed = passed.advanced_to(self._select_transaction_topic(run.applied))
        unknown = any(run.applied and not passed_marks[run.lane.id] for run in runs)
        self._evidence = CompletenessEvidence(self._rules.patience, self, passed)
        if before:
            self._evidence.doubt_until(self.end)
        if unknown:
            self._evidence.begin_at(self.end, self._clock())

    def is_copied(self, table: str) -> bool:
        rules = self._context.rules_for(table)
        return bool(self._registry.tables.get(table)) or (rules is not None and bool(rules.lanes))

    def set_end(self, end: Position) -> None:
        super().set_end(end)
        self._evidence.set_end(end, self._clock())

    def count_changes(self, table: str) -> Callable[[F], None]:
        return lambda changes: self._parts.extend(self._tracking.exact_parts(changes, table))

    def observe_catch_up(self, table: str) -> None:
        """Count nothing: no change waits for a proof, and after a start the records are read again."""

    def advance(self, position: Position, batch: Batch[F] | None = None) -> None:
        """Update the watermark."""
        self._read = position
        marks = self._tracking.marks(batch.frame, self._rules.topic, self._decoder) if batch else ()
        self._evidence.observe(marks, self._parts, self._clock())
        self._parts = []
        self._evidence.advance(position)
        self.hold_from = self._evidence.barrier

    def _find_complete(self, sink: str) -> CompletenessWatermark | None:
        behind, _ = self._find_behind(sink)
        last = self._evidence.last_proven
        if behind:
            return CompletenessWatermark(self._context.name, behind=behind)
        # Without a proof yet, the watermark published last stays true.
        return CompletenessWatermark(self._context.name, last.name, last.at) if last else None


# Completeness evidence: finds the transactions of a source that are provably complete, without holding changes
# back.

log = structlog.get_logger(__name__)

MAX_REMEMBERED = 100_000
"""The highest number of transactions kept of each kind."""


@dataclass
class ObservedTransaction:
    """The changes of a transaction read so far.

    - `counts`: the number of different changes per table.
    - `max_sequences`: the highest sequence per table and partition.
    - `begun`: its begin mark was read.
    - `repeated`: some changes were sent twice, so that the counts prove nothing.
    """

    counts: dict[str, int] = field(default_factory=dict)
    max_sequences: dict[tuple[str, TopicPartition], SequenceKey] = field(default_factory=dict)
    begun: bool = False
    repeated: bool = False

    def add_part(self, part: TransactionPart) -> None:
        """Add changes. A connector that restarts within a transaction goes back in the source's log."""
        table_partition = (part.table, part.partition)
        highest = self.max_sequences.get(table_partition)
        if part.low is None or part.high is None or (highest is not None and part.low <= highest):
            self.repeated = True
            return
        self.max_sequences[table_partition] = part.high
        self.counts[part.table] = self.counts.get(part.table, 0) + part.changes


@dataclass
class ObservedEnd:
    """The end mark of a transaction.

    - `moved`: the time of the last record of the transaction.
    - `until`: an end of the stream that was read at least `patience` after `moved`.
    """

    mark: TransactionMark
    moved: float
    until: Position | None = None


class CopiedTables(Protocol):
    """The tables of a source that lanes copy."""

    def is_copied(self, table: str) -> bool:
        """True if the table has a lane, running or halted, or will have one with its first record."""
        ...


class CompletenessEvidence:
    """The transactions of one source in the order of their ends. Pure bookkeeping.

    `last_proven` is the newest proven transaction. A transaction is proven if all changes that its end mark
    counts were read for every copied table. Repeated changes do not count, and the connector must not have
    restarted in between.

    An unproven transaction blocks later ones, for as long as it may still be completed. It is given up, and
    never named, if nothing of it was read for `patience` seconds. The stream must also have been read up to an
    end requested after that.

    Why that is safe: by then a running connector has sent everything before the end mark. A killed connector
    sends unacknowledged records again, and repeats the end mark before any later record; that mark blocks in
    the same way.

    `passed`: the `barrier` that an earlier run reached.
    """

    def __init__(self, patience: float, tables: CopiedTables, passed: Mapping[TopicPartition, int] | None = None) -> None:
        self._patience = patience
        self._tables = tables
        self._passed = dict(passed or {})
        self._sure_at: Position | None = None
        self._until: Position | None = None
        self._unsure_since: float | None = None
        self._last: TransactionMark | None = None
        self._open: TransactionMark | None = None
        self._seen: OrderedDict[str, ObservedTransaction] = OrderedDict()
        self._ends: deque[ObservedEnd] = deque()
        self._ends_of: dict[str, list[ObservedEnd]] = {}
        self._ends_from = LowestOffsets()
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._unproven: OrderedDict[str, None] = OrderedDict()

    def doubt_until(self, end: Position) -> None:
        """Name no transaction until the stream was read up to `end`: lanes may have applied records above the
        current position."""
        self._sure_at = end

    def begin_at(self, end: Position, now: float) -> None:
        """Give up transactions that end before `end`: they were not tracked from their beginning.

        No transaction is named until the stream was read up to an end requested after `patience` seconds.
        """
        self._until, self._unsure_since = end, now

    @property
    def last_proven(self) -> TransactionMark | None:
        """The newest transaction up to which everything was read; None if unknown."""
        return None if self._sure_at is not None or self._unsure_since is not None else self._last

    @property
    def barrier(self) -> Position:
        """The first end mark after the last proven transaction.

        Everything below it is complete. After a start, marks have to be read again from there.
        """
        passed = Position({self._open.partition: self._open.offset}) if self._open else Position()
        return Position.lowest([passed, self._ends_from.position])

    def observe(self, marks: Iterable[TransactionMark], parts: Iterable[TransactionPart], now: float) -> None:
        """Process the marks of a batch, and its exact `parts` (`ports.engine.TransactionTracking.exact_parts`)."""
        moved = set()
        for mark in marks:
            if mark.tx in self._proven:
                continue
            moved.add(mark.tx)
            one = self._get_observed(mark.tx)
            if mark.ended:
                self._ends.append(ObservedEnd(mark, now))
                self._ends_of.setdefault(mark.tx, []).append(self._ends[-1])
                self._ends_from.add(_end_name(mark), mark.partition, mark.offset)
            else:
                one.repeated = one.repeated or one.begun
                one.begun = True
        for part in sorted(parts, key=lambda p: (p.partition, p.last)):
            if part.tx not in self._proven:
                self._get_observed(part.tx).add_part(part)
                moved.add(part.tx)
        for tx in moved:
            for end in self._ends_of.get(tx, ()):
                end.moved, end.until = now, None

    def _get_observed(self, tx: str) -> ObservedTransaction:
        """The record of a transaction.

        A transaction that was given up before was partly counted already, so it proves nothing.
        """
        if tx not in self._seen:
            self._seen[tx] = ObservedTransaction(repeated=tx in self._unproven)
            if len(self._seen) > MAX_REMEMBERED:
                _add_bounded(self._unproven, self._seen.popitem(last=False)[0])
        return self._seen[tx]

    def set_end(self, end: Position, now: float) -> None:
        """Set the end of the stream."""
        if self._unsure_since is not None and now - self._unsure_since >= self._patience:
            self._sure_at, self._unsure_since = end, None
        for one in self._ends:
            if one.until is None and now - one.moved >= self._patience:
                one.until = end

    def advance(self, position: Position) -> None:
        """Prove transactions or give them up, as far as possible. `position`: the stream was read up to here."""
        if self._sure_at is not None and position.covers(self._sure_at):
            self._sure_at = None
        while self._ends and self._pass_end(self._ends[0], position):
            mark = self._ends.popleft().mark
            del self._ends_of[mark.tx][0]
            if not self._ends_of[mark.tx]:
                del self._ends_of[mark.tx]
            self._ends_from.remove(_end_name(mark))
        if self._until is not None and position.covers(self._until):
            self._until = None

    def _pass_end(self, end: ObservedEnd, position: Position) -> bool:
        mark = end.mark
        one = self._seen.get(mark.tx, ObservedTransaction())
        lacks = any(one.counts.get(t, 0) < n for t, n in mark.events.items() if self._tables.is_copied(t))
        if mark.tx in self._proven or not (one.repeated or lacks):
            _add_bounded(self._proven, mark.tx)
        elif self._is_below(mark) or self._until is not None or (end.until is not None and position.covers(end.until)):
            _add_bounded(self._unproven, mark.tx)
        else:
            return False
        self._seen.pop(mark.tx, None)
        if mark.tx in self._proven or self._is_below(mark):
            self._last, self._open = mark, None
        else:
            self._open = self._open or mark
            log.info("transaction not proven to be complete: a later one is published", transaction=mark.name)
        return True

    def _is_below(self, mark: TransactionMark) -> bool:
        """True if the mark is below a transaction that an earlier run has proven."""
        return mark.offset < self._passed.get(mark.partition, 0)


def _end_name(end: TransactionMark) -> str:
    """A name for an end mark, with its offset: a killed connector sends the mark twice."""
    return f"{end.tx}@{end.offset}"


def _add_bounded(transactions: OrderedDict[str, None], tx: str) -> None:
    transactions[tx] = None
    if len(transactions) > MAX_REMEMBERED:
        transactions.popitem(last=False)
