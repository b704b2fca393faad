"""Pending transactions: finds complete transactions, and the offsets below which changes can be released.

Pure bookkeeping."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import structlog

from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart
from replicator.ports.components import TransactionRules

# The lowest offset per partition of a changing set of names, in logarithmic time.


class LowestOffsets:
    """Names with an offset in any number of partitions. Each operation needs logarithmic time.

    A removed name stays in each heap until it is the lowest there.
    """

    def __init__(self) -> None:
        self._heaps: dict[TopicPartition, list[tuple[int, str]]] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}

    def add(self, name: str, partition: TopicPartition, offset: int) -> None:
        """Add an offset of a name. If the name has an offset in the partition, that one stays."""
        offsets = self._offsets.setdefault(name, {})
        if partition not in offsets:
            offsets[partition] = offset
            heappush(self._heaps.setdefault(partition, []), (offset, name))

    def remove(self, name: str) -> None:
        """Remove a name, if it is there."""
        self._offsets.pop(name, None)

    def clear(self) -> None:
        """Remove all names."""
        self._heaps.clear()
        self._offsets.clear()

    def find_lowest(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The lowest offset in a partition, and its name; None without any."""
        heap = self._heaps.get(partition, [])
        while heap and self._offsets.get(heap[0][1], {}).get(partition) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def list_below(self, position: Position) -> Iterator[str]:
        """The names with an offset below `position` in some partition. The caller must remove each name at once."""
        for partition, offset in position.items():
            while (lowest := self.find_lowest(partition)) is not None and lowest[0] < offset:
                yield lowest[1]

    @property
    def position(self) -> Position:
        """Per partition the lowest offset."""
        by_partition = {partition: self.find_lowest(partition) for partition in self._heaps}
        return Position({partition: lowest[0] for partition, lowest in by_partition.items() if lowest})


log = structlog.get_logger(__name__)

MAX_REMEMBERED = 100_000
"""The highest number of completed transactions kept. Changes that the connector sends again belong to one of them."""


@dataclass
class PendingTransaction:
    """An incomplete transaction.

    - `first`: its first offset per partition.
    - `counts`: its changes read so far, per table; `size`: about their bytes.
    - `has_begun`: its begin mark was read.
    - `is_repeated`: the begin mark was read twice. The connector restarted in it, has sent changes twice, and
      counts from zero again.
    - `has_ended`: its end mark was read.
    """

    first: dict[TopicPartition, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    size: float = 0.0
    has_begun: bool = False
    is_repeated: bool = False
    has_ended: bool = False


@dataclass
class TransactionEnd:
    """The end mark of a transaction, with a serial `number`.

    `is_over`: nothing of it is waited for any more. Then `first` is its beginning.
    """

    mark: TransactionMark
    number: int
    is_over: bool = False
    first: Position = field(default_factory=Position)


@dataclass(frozen=True, slots=True)
class IncompleteTransaction:
    """A transaction that blocks the others.

    `missing`: for each followed table that lacks changes, the number read and the number in the end mark. None
    before the end mark.
    """

    name: str
    missing: Mapping[str, tuple[int, int]] | None


class FollowedTables(Protocol):
    """The tables of a source that lanes follow."""

    def is_followed(self, table: str) -> bool:
        """True if a lane gets the table from the main stream, or will get it with its first record."""
        ...

    def partitions(self, table: str) -> Collection[TopicPartition]:
        """All partitions with records of the table; empty while unknown."""
        ...


class PendingTransactions:
    """The transactions of one source in the order of their ends.

    Complete transactions are released in this order, each after all earlier ones. So everything below `barrier`
    shows the source as it was after the last released one.

    A transaction is complete when its end mark was read, and for each followed table either holds:
    - As many changes were read as the end mark counts.
    - In every partition of the table, a later transaction has arrived.

    It is waited for up to `max_bytes`, and as long as something of it arrives within `patience` seconds. Then
    its changes are released as they arrive, and `is_exact` is False until it is complete.

    `concurrent_time`: the time at which rows were read outside of the transactions (a backfill). They show no
    transaction that ended later, and may show any earlier one. `is_exact` is False until a later one is
    complete.

    Nothing is held back in two cases:
    - Before `until` is reached: lanes begin to be held together, and their older transactions are unknown.
    - While end marks are missing (`lost`).

    `first_offsets`: by table, the end marks from which on it is followed.
    """

    def __init__(
        self, rules: TransactionRules, tables: FollowedTables, first_offsets: Mapping[str, Position] | None = None
    ) -> None:
        self._rules = rules
        self._tables = tables
        self._first_offsets = dict(first_offsets or {})
        self.until: Position | None = None
        self.sure_at: Position | None = None
        self.lost = False
        self.last: TransactionMark | None = None
        self.concurrent_time: datetime | None = None
        self._pending: dict[str, PendingTransaction] = {}
        self._held: OrderedDict[str, PendingTransaction] = OrderedDict()
        self._held_from = LowestOffsets()
        self._held_bytes = 0.0
        self._unplaced_parts: OrderedDict[str, list[TransactionPart]] = OrderedDict()
        self._let_go: set[str] = set()
        self._endless = LowestOffsets()
        self._ends: deque[TransactionEnd] = deque()
        self._ends_held: OrderedDict[str, TransactionEnd] = OrderedDict()
        self._ends_held_from = LowestOffsets()
        self._ends_let_go: OrderedDict[str, TransactionEnd] = OrderedDict()
        self._ends_let_go_behind: list[tuple[int, TransactionEnd]] = []
        self._changed: set[str] = set()
        self._numbers = count()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._waived: set[str] = set()
        self._newest: dict[str, dict[TopicPartition, str]] = {}
        self._waiting: tuple[str | None, float] = (None, 0.0)

    @property
    def is_exact(self) -> bool:
        """True if no incomplete transaction has changes below `barrier`.

        Unknown, hence False, until the stream was read up to `sure_at`, its end at the start. An earlier run
        may have released part of a transaction.
        """
        if self.sure_at is not None or self.until is not None or self.lost or self._let_go or self._waived:
            return False
        # All transactions that concurrently read rows may show must be complete.
        at = self.last.at if self.last else None
        return self.concurrent_time is None or (at is not None and at > self.concurrent_time)

    @property
    def given_up_count(self) -> int:
        """The number of incomplete transactions that are not waited for."""
        return len(self._let_go)

    @property
    def held_bytes(self) -> int:
        """About the bytes of the changes held back."""
        return int(self._held_bytes)

    @property
    def blocking_transaction(self) -> IncompleteTransaction | None:
        """The transaction that blocks the others; None if none does."""
        tx = self._first_waited_for()
        if tx is None:
            return None
        if (end := self._ends_held.get(tx)) is None:
            return IncompleteTransaction(tx, None)
        counts = self._pending[tx].counts
        return IncompleteTransaction(
            end.mark.name,
            {t: (counts.get(t, 0), end.mark.events[t]) for t in sorted(self._find_incomplete_tables(end.mark))},
        )

    def observe(
        self, marks: Iterable[TransactionMark], parts: Iterable[TransactionPart], size_of_one: float, now: float
    ) -> None:
        """Process the marks and changes of a batch. `size_of_one`: the mean size of its records."""
        for mark in marks:
            if self.lost:
                log.info("transactions are published again", transaction=mark.name)
                self._doubt_newest()
            if mark.tx in self._over:
                continue
            self._restart_patience(mark.tx, now)
            one = self._get_pending(mark.tx)
            if not mark.ended:
                one.has_begun, one.is_repeated = True, one.has_begun
            elif not one.has_ended:
                one.has_ended = True
                self._ends.append(TransactionEnd(mark, next(self._numbers)))
                self._endless.remove(mark.tx)
                self._wait_for_end(self._ends[-1])
        for part in sorted(parts, key=lambda p: (p.partition, p.last)):
            self._newest.setdefault(part.table, {})[part.partition] = part.tx
            if part.tx not in self._over and not self.lost:
                self._observe_part(part, size_of_one)
                self._restart_patience(part.tx, now)

    def observe_catch_up(self, parts: Iterable[TransactionPart], *, older: bool = False) -> None:
        """Count changes that are not held back, since a lane has applied them already.

        Changes of an unknown transaction count once it appears: it may be in the future, or long over. `older`:
        later changes of their tables were counted before.
        """
        for part in parts:
            if not older:
                self._newest.setdefault(part.table, {})[part.partition] = part.tx
            if part.tx in self._pending:
                self._observe_part(part, 0.0)
            elif part.tx not in self._over and not self.lost:
                self._unplaced_parts.setdefault(part.tx, []).append(part)
                if len(self._unplaced_parts) > MAX_REMEMBERED:
                    self._unplaced_parts.popitem(last=False)

    def _wait_for_end(self, end: TransactionEnd) -> None:
        tx = end.mark.tx
        if tx in self._let_go:
            heappush(self._ends_let_go_behind, (end.number, end))
        else:
            self._ends_held[tx] = end
            self._ends_held_from.add(tx, end.mark.partition, end.mark.offset)

    def _observe_part(self, part: TransactionPart, size_of_one: float) -> None:
        one = self._get_pending(part.tx)
        one.first.setdefault(part.partition, part.first)
        one.counts[part.table] = one.counts.get(part.table, 0) + part.count
        one.size += part.count * size_of_one
        if part.tx not in self._let_go:
            self._held_from.add(part.tx, part.partition, part.first)
            self._held_bytes += part.count * size_of_one
            return
        self._changed.add(part.tx)
        if not one.has_ended:
            self._endless.add(part.tx, part.partition, part.first)

    def _get_pending(self, tx: str) -> PendingTransaction:
        """The state of an incomplete transaction. A new one is held back."""
        if tx not in self._pending:
            self._pending[tx] = self._held[tx] = PendingTransaction()
            for part in self._unplaced_parts.pop(tx, ()):
                self._observe_part(part, 0.0)
        return self._pending[tx]

    def _doubt_newest(self) -> None:
        """Stop waiting for the newest transactions: part of them may be visible already."""
        self.lost = False
        for newest in self._newest.values():
            for partition, tx in newest.items():
                if tx not in self._over:
                    self._get_pending(tx).first[partition] = 0
                    self._stop_waiting(tx)

    def _stop_waiting(self, tx: str) -> None:
        """Release an incomplete transaction."""
        one = self._pending[tx]
        if self._held.pop(tx, None) is not None:
            self._held_bytes -= one.size
            self._held_from.remove(tx)
        self._let_go.add(tx)
        if not one.has_ended:
            for partition, offset in one.first.items():
                self._endless.add(tx, partition, offset)
        elif (end := self._ends_held.pop(tx, None)) is not None:
            self._ends_held_from.remove(tx)
            self._wait_for_end(end)

    def _drop_transaction(self, tx: str) -> None:
        """Delete all data of a transaction: it is complete, or its end was lost."""
        one = self._pending.pop(tx)
        if self._held.pop(tx, None) is not None:
            self._held_bytes -= one.size
        self._held_from.remove(tx)
        self._endless.remove(tx)
        self._let_go.discard(tx)
        self._over[tx] = None
        if len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)

    def _restart_patience(self, tx: str, now: float) -> None:
        if self._waiting[0] == tx:
            self._waiting = (tx, now)

    def advance(self, position: Position, now: float) -> None:
        """Release complete transactions, and incomplete ones after too long a wait.

        `position`: the stream was read up to here.
        """
        if self.until is not None and position.covers(self.until):
            # From here on changes are held back. Part of the open transactions is visible already.
            self.until = None
            self._stop_waiting_for_all(lambda one: bool(one.first))
        if self.sure_at is not None and position.covers(self.sure_at):
            # An open transaction may be visible in part, below the position of the start.
            self._stop_waiting_for_all(lambda one: one.has_begun and not one.first)
            self.sure_at = None
        self._pass_released_ends(self._changed)
        self._pass_ends()
        self._give_up_the_largest()
        while (tx := self._first_waited_for()) is not None:
            if self._waiting[0] != tx:
                self._waiting = (tx, now)
            if now - self._waiting[1] < self._rules.patience:
                break
            self._give_up_transaction(tx)
            self._pass_ends()
        self._update_last()

    def doubt_up_to(self, end: Position) -> None:
        """Note that changes up to `end` may be visible, of unknown incomplete transactions."""
        self._stop_waiting_for_all(lambda one: bool(one.first))
        self.sure_at = end

    def _stop_waiting_for_all(self, is_chosen: Callable[[PendingTransaction], bool]) -> None:
        for tx in [tx for tx, one in self._held.items() if is_chosen(one)]:
            self._stop_waiting(tx)

    def _give_up_the_largest(self) -> None:
        """Stop waiting while more than `max_bytes` are held back."""
        given_up, held_bytes, first = 0, self.held_bytes, self._first_waited_for()
        while self.held_bytes > self._rules.max_bytes and (tx := self._first_waited_for()) is not None:
            self._stop_waiting(tx)
            self._pass_ends()
            given_up += 1
        if given_up:
            event = "transactions larger than max_transaction_bytes become visible in parts"
            log.warning(event, transaction=first, transactions=given_up, held_bytes=held_bytes)

    def _give_up_transaction(self, tx: str) -> None:
        """Stop waiting for a transaction of which nothing has arrived for too long."""
        end = self._ends_held.get(tx)
        if end is None:
            self._update_last()
            self.lost = True
            self._held_bytes = 0.0
            for book in (
                self._pending,
                self._held,
                self._held_from,
                self._let_go,
                self._endless,
                self._ends,
                self._ends_held,
            ):
                book.clear()
            for more in (
                self._ends_held_from,
                self._ends_let_go,
                self._ends_let_go_behind,
                self._changed,
                self._unplaced_parts,
            ):
                more.clear()
            next_step = (
                f"Check that provide.transaction.metadata is on, and that the source reads topic {self._rules.topic}."
            )
            log.warning("the end of a transaction is missing: nothing is held back", transaction=tx, next_step=next_step)
            return
        lacking = self._find_incomplete_tables(end.mark)
        self._waived |= lacking
        self._stop_waiting(tx)
        self._pass_released_ends(self._ends_let_go)
        next_step = "Check that the source reads the topics of these tables, and that no transform drops their records."
        log.warning("changes of a transaction are missing", transaction=tx, tables=sorted(lacking), next_step=next_step)

    def _first_waited_for(self) -> str | None:
        """The name of the transaction that blocks the others."""
        if self.lost or self.until is not None:
            return None
        if self._ends_held:
            return next(iter(self._ends_held))
        return next((tx for tx, one in self._held.items() if one.first), None)

    def _pass_ends(self) -> None:
        """End transactions in order, up to the first one that blocks. Released ones do not block."""
        while True:
            next_end = next(iter(self._ends_held.values()), None)
            behind = self._ends_let_go_behind
            while behind and (next_end is None or behind[0][0] < next_end.number):
                _, end = heappop(behind)
                self._ends_let_go[end.mark.tx] = end
                self._pass_released_ends((end.mark.tx,))
            if next_end is None or not self._pass_end(next_end):
                return

    def _pass_released_ends(self, changed: Iterable[str]) -> None:
        """Try to end released transactions with new changes, and the oldest released ones.

        A later transaction may show that the rest of the oldest will not arrive.
        """
        for tx in [tx for tx in changed if tx in self._ends_let_go]:
            self._pass_end(self._ends_let_go[tx])
        self._changed.clear()
        while self._ends_let_go and self._pass_end(next(iter(self._ends_let_go.values()))):
            pass

    def _pass_end(self, end: TransactionEnd) -> bool:
        """End the transaction if it is complete, or if `until` is not reached yet. True if it ended."""
        lacking = self._find_incomplete_tables(end.mark)
        if not lacking - self._waived:
            self._waived -= set(end.mark.events) - lacking
        elif self.until is None:
            return False
        tx = end.mark.tx
        end.is_over, end.first = True, Position(self._pending[tx].first)
        self._ends_held.pop(tx, None)
        self._ends_held_from.remove(tx)
        self._ends_let_go.pop(tx, None)
        self._drop_transaction(tx)
        # These have no end mark, although a later transaction has ended: the mark was lost.
        for other in self._endless.list_below(end.first):
            self._drop_transaction(other)
        return True

    def _update_last(self) -> None:
        """Move `last`, but not past a transaction that is held back, even if that has no end mark: the mark may be
        lost."""
        while self._ends and self._ends[0].is_over and not self._is_held_before(self._ends[0].first):
            end = self._ends.popleft()
            self.last = end.mark if self.until is None else self.last

    def _is_held_before(self, first: Position) -> bool:
        lowest = ((offset, self._held_from.find_lowest(partition)) for partition, offset in first.items())
        return any(lowest_held is not None and lowest_held[0] < offset for offset, lowest_held in lowest)

    def _find_incomplete_tables(self, mark: TransactionMark) -> set[str]:
        """The followed tables with missing changes of the transaction."""
        one = self._pending[mark.tx]
        out = set()
        for table, changes in mark.events.items():
            if (one.is_repeated or one.counts.get(table, 0) < changes) and self._tables.is_followed(table):
                first = self._first_offsets.get(table, Position()).get(mark.partition, 0)
                if mark.offset >= first and not self._has_passed(table, mark.tx):
                    out.add(table)
        return out

    def _has_passed(self, table: str, tx: str) -> bool:
        """True if every partition of the table has a later transaction."""
        newest, partitions = self._newest.get(table, {}), self._tables.partitions(table)
        others = [newest.get(p, tx) for p in partitions]
        return bool(others) and all(o != tx and o in self._held for o in others)

    @property
    def barrier(self) -> Position:
        """Per partition the offset below which everything is released. Other partitions are released whole."""
        if self.lost or self.until is not None:
            return Position()
        return Position.lowest([self._held_from.position, self._ends_held_from.position])
