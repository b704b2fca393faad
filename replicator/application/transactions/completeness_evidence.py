"""Which transactions of a source are known to be complete, where nothing of them is held back. Pure bookkeeping."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import Sequence
from replicator.domain.transactions import TransactionMark, TransactionPart

from .lowest_offsets import LowestOffsets

log = structlog.get_logger(__name__)

MAX_REMEMBERED = 100_000
"""Transactions of each kind that are remembered."""


@dataclass
class ObservedTransaction:
    """What was read of a transaction: per table how many different changes, and how far up in each partition. `repeated`:
    some was sent again, so that the counts prove nothing."""

    counts: dict[str, int] = field(default_factory=dict)
    max_sequences: dict[tuple[str, TopicPartition], Sequence] = field(default_factory=dict)
    begun: bool = False
    repeated: bool = False

    def add_part(self, part: TransactionPart) -> None:
        """Some more of it was read. A connector that is started again in a transaction goes back in the log."""
        place = (part.table, part.partition)
        known = self.max_sequences.get(place)
        if part.low is None or part.high is None or (known is not None and part.low <= known):
            self.repeated = True
            return
        self.max_sequences[place] = part.high
        self.counts[part.table] = self.counts.get(part.table, 0) + part.changes


@dataclass
class ObservedEnd:
    """The end of a transaction, as told. `moved`: when something was read of the transaction last. `until`: where the
    stream ended later than `patience` after that."""

    mark: TransactionMark
    moved: float
    until: Position | None = None


class CopiedTables(Protocol):
    """What there is to know of a source's tables."""

    def is_copied(self, table: str) -> bool:
        """True when a lane gets the table, is halted, or will get it once its first record comes."""
        ...


class CompletenessEvidence:
    """The transactions of one source in the order of their ends. `last_proven` is the newest that is proven: of every
    table that is copied as many different changes were read as its end says, in one go of the connector.

    What cannot be proven is waited for, so that nothing later is named before, until nothing was read of it for `patience`
    seconds and the stream was read up to an end that was asked for after that. Then it is passed, and never named. By then
    all that a running connector has sent before the end can be read; one that was killed sends what was not acknowledged
    again, and tells its end again, before anything later, which is then waited for in the same way.

    `passed`: the `barrier` that a run before this one reached.
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
        """Name nothing until the stream was read up to there: lanes got more than what is read first."""
        self._sure_at = end

    def begin_at(self, end: Position, now: float) -> None:
        """Transactions whose ends are told before were not followed: they are passed, and nothing is named until the stream
        was read up to an end that is asked for after `patience`."""
        self._until, self._unsure_since = end, now

    @property
    def last_proven(self) -> TransactionMark | None:
        """Up to which transaction all that belongs to it was read; None while that is not known."""
        return None if self._sure_at is not None or self._unsure_since is not None else self._last

    @property
    def barrier(self) -> Position:
        """The first end that was told after the last transaction that is proven: what lies below it is complete, and marks
        have to be read again from there after a start."""
        passed = Position({self._open.partition: self._open.offset}) if self._open else Position()
        return Position.lowest([passed, self._ends_from.position])

    def observe(self, marks: Iterable[TransactionMark], parts: Iterable[TransactionPart], now: float) -> None:
        """Take notice of what a batch tells. `parts` told exactly."""
        moved = {mark.tx for mark in marks if self._observe_mark(mark, now)}
        for part in sorted(parts, key=lambda p: (p.partition, p.last)):
            if part.tx not in self._proven:
                self._get_observed(part.tx).add_part(part)
                moved.add(part.tx)
        for tx in moved:
            for end in self._ends_of.get(tx, ()):
                end.moved, end.until = now, None

    def _observe_mark(self, mark: TransactionMark, now: float) -> bool:
        if mark.tx in self._proven:
            return False
        one = self._get_observed(mark.tx)
        if mark.ended:
            self._ends.append(ObservedEnd(mark, now))
            self._ends_of.setdefault(mark.tx, []).append(self._ends[-1])
            self._ends_from.add(_end_name(mark), mark.partition, mark.offset)
        else:
            one.repeated = one.repeated or one.begun
            one.begun = True
        return True

    def _get_observed(self, tx: str) -> ObservedTransaction:
        """What is known of a transaction. Of one that was given up some was counted before it came again."""
        if tx not in self._seen:
            self._seen[tx] = ObservedTransaction(repeated=tx in self._unproven)
            if len(self._seen) > MAX_REMEMBERED:
                _add_bounded(self._unproven, self._seen.popitem(last=False)[0])
        return self._seen[tx]

    def set_end(self, end: Position, now: float) -> None:
        """The stream was asked where it ends."""
        if self._unsure_since is not None and now - self._unsure_since >= self._patience:
            self._sure_at, self._unsure_since = end, None
        for one in self._ends:
            if one.until is None and now - one.moved >= self._patience:
                one.until = end

    def advance(self, position: Position) -> None:
        """Pass what can be passed. `position`: what was read."""
        if self._sure_at is not None and _covers_offsets(position, self._sure_at):
            self._sure_at = None
        while self._ends and self._pass_end(self._ends[0], position):
            mark = self._ends.popleft().mark
            del self._ends_of[mark.tx][0]
            if not self._ends_of[mark.tx]:
                del self._ends_of[mark.tx]
            self._ends_from.remove(_end_name(mark))
        if self._until is not None and _covers_offsets(position, self._until):
            self._until = None

    def _pass_end(self, end: ObservedEnd, position: Position) -> bool:
        mark = end.mark
        if self._is_proven(mark):
            _add_bounded(self._proven, mark.tx)
        elif (
            self._is_below(mark)
            or self._until is not None
            or (end.until is not None and _covers_offsets(position, end.until))
        ):
            _add_bounded(self._unproven, mark.tx)
        else:
            return False
        self._seen.pop(mark.tx, None)
        if mark.tx in self._proven or self._is_below(mark):
            self._last, self._open = mark, None
        else:
            self._open = self._open or mark
            log.info("transaction not proven to be complete: a later one is named", transaction=mark.name)
        return True

    def _is_below(self, mark: TransactionMark) -> bool:
        """True for what lies below a transaction that was proven before the start."""
        return mark.offset < self._passed.get(mark.partition, 0)

    def _is_proven(self, mark: TransactionMark) -> bool:
        if mark.tx in self._proven:
            return True
        one = self._seen.get(mark.tx, ObservedTransaction())
        lacks = any(one.counts.get(t, 0) < n for t, n in mark.events.items() if self._tables.is_copied(t))
        return not one.repeated and not lacks


def _end_name(end: TransactionMark) -> str:
    """An end is told again where the connector was killed."""
    return f"{end.tx}@{end.offset}"


def _add_bounded(transactions: OrderedDict[str, None], tx: str) -> None:
    transactions[tx] = None
    if len(transactions) > MAX_REMEMBERED:
        transactions.popitem(last=False)


def _covers_offsets(position: Position, end: Position) -> bool:
    return all(position.get(p, 0) >= offset for p, offset in end.items())
