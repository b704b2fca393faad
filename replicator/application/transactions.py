"""Which transactions of a source are complete: everything of them was read. Pure bookkeeping; knows no frames."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import Mark, Part

from .rules import TransactionRules

log = structlog.get_logger(__name__)

REMEMBERED = 100_000
"""Transactions that were complete: what the connector sends of them again belongs to nothing new."""


@dataclass
class Pending:
    """A transaction that is not complete. `first`: its first offset per partition; `counts`: its changes per table, as read;
    `size`: about their bytes. `begun`: its beginning was told; `repeated`: more than once, so that the connector was
    restarted in it, has sent changes twice, and counts anew."""

    first: dict[TopicPartition, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    size: float = 0.0
    begun: bool = False
    repeated: bool = False


@dataclass
class End:
    """The end of a transaction, as told; `over` once nothing waits for it any more."""

    mark: Mark
    over: bool = False
    held_by: set[str] = field(default_factory=set)
    """Transactions before it whose end was not told: as long as they are waited for, it is held back with them."""


class Tables(Protocol):
    """What there is to know of a source's tables."""

    def is_followed(self, table: str) -> bool:
        """True when some lane gets the table as the stream brings it, or will, once its first record comes."""
        ...

    def partitions(self, table: str) -> Collection[TopicPartition]:
        """All partitions that its records are in; empty while that is not known."""
        ...


class Transactions:
    """The transactions of one source in the order of their ends. Complete ones are let go in this order, and none before
    all earlier ones: what lies below `barrier` is the source as it was after the last of them.

    A transaction is complete when its end was told, and of every table that is followed as many changes were read as the
    end says, or a later transaction has come in every partition of the table. It is waited for while it is not larger than
    `max_bytes` and something of it comes within `patience` seconds; then its changes go as they come, and
    `is_exact` is False until it is complete after all.

    Rows may be given `beside` the transactions, which show none that ended after that moment, and may show any before:
    `is_exact` is False until one that ended later is complete.

    Nothing is held back in two cases. `until` a position was read, where lanes begin to be held together whose older
    transactions nobody can tell; and while ends do not come (`lost`), until one does.
    """

    def __init__(self, rules: TransactionRules, tables: Tables, floor: Mapping[str, Position] | None = None) -> None:
        self._rules = rules
        self._tables = tables
        self._floor = dict(floor or {})
        self.until: Position | None = None
        self.sure_at: Position | None = None
        self.lost = False
        self.last: Mark | None = None
        self.beside: datetime | None = None
        self._pending: dict[str, Pending] = {}
        self._ends: list[End] = []
        self._over: OrderedDict[str, None] = OrderedDict()
        self._let_go: set[str] = set()
        self._waived: set[str] = set()
        self._newest: dict[str, dict[TopicPartition, str]] = {}
        self._waiting: tuple[str | None, float] = (None, 0.0)

    @property
    def is_exact(self) -> bool:
        """True when nothing of a transaction that is not complete lies below `barrier`. Not known before `sure_at`, the end
        of the stream at the start, was read: an earlier run may have let a part of a transaction go."""
        known = self.sure_at is None and self.until is None and not (self.lost or self._let_go or self._waived)
        return known and self._has_what_is_beside

    @property
    def _has_what_is_beside(self) -> bool:
        """True when all transactions are complete that rows beside them may show."""
        at = self.last.at if self.last else None
        return self.beside is None or (at is not None and at > self.beside)

    @property
    def _held(self) -> set[str]:
        """The transactions that are waited for."""
        return set(self._pending) - self._let_go

    @property
    def given_up(self) -> int:
        """The transactions that are not complete and not waited for."""
        return len(self._let_go)

    @property
    def held_bytes(self) -> int:
        """About the size of what is held back."""
        return int(sum(p.size for tx, p in self._pending.items() if tx not in self._let_go))

    def see(self, marks: Iterable[Mark], parts: Iterable[Part], size_of_one: float, now: float) -> None:
        """Take notice of what a batch tells; `size_of_one` is the mean size of its records."""
        for mark in marks:
            self._see_mark(mark, now)
        for part in sorted(parts, key=lambda p: (p.partition, p.last)):
            self._newest.setdefault(part.table, {})[part.partition] = part.tx
            if part.tx in self._over or self.lost:
                continue
            one = self._pending.setdefault(part.tx, Pending())
            one.first.setdefault(part.partition, part.first)
            one.counts[part.table] = one.counts.get(part.table, 0) + part.count
            one.size += part.count * size_of_one
            self._is_moving(part.tx, now)

    def _see_mark(self, mark: Mark, now: float) -> None:
        if self.lost:
            log.info("transactions are told again", transaction=mark.name)
            self._find_again()
        if mark.tx in self._over:
            return
        self._is_moving(mark.tx, now)
        if mark.ended:
            self._ends.append(End(mark))
            return
        one = self._pending.setdefault(mark.tx, Pending())
        one.begun, one.repeated = True, one.begun

    def _find_again(self) -> None:
        """Of the transactions that came last, some part may be visible already."""
        self.lost = False
        for newest in self._newest.values():
            for partition, tx in newest.items():
                if tx not in self._over:
                    self._pending.setdefault(tx, Pending()).first[partition] = 0
                    self._let_go.add(tx)

    def _is_moving(self, tx: str, now: float) -> None:
        if self._waiting[0] == tx:
            self._waiting = (tx, now)

    def turn(self, position: Position, now: float) -> None:
        """Let complete transactions go, and those that must not be waited for any longer. `position`: what was read."""
        if self.until is not None and _reaches(position, self.until):
            self._pass_all()
        if self.sure_at is not None and _reaches(position, self.sure_at):
            # One that goes on may be visible in part, below what was read since the start.
            self._let_go |= {tx for tx, one in self._pending.items() if one.begun and not one.first}
            self.sure_at = None
        self._advance()
        while (tx := self._first_waited_for()) is not None and self._is_enough(tx, now):
            self._advance()

    def _pass_all(self) -> None:
        """From here on transactions are held together. Of those that have begun, a part is visible already."""
        self.until = None
        self._let_go = {tx for tx, one in self._pending.items() if one.first}

    def _is_enough(self, tx: str, now: float) -> bool:
        """Give up waiting for the transaction where that is due."""
        if self._waiting[0] != tx:
            self._waiting = (tx, now)
        if self.held_bytes > self._rules.max_bytes:
            said = "transactions larger than max_transaction_bytes become visible in parts"
            log.warning(said, transaction=tx, held_bytes=self.held_bytes)
            self._let_go.add(tx)
        elif now - self._waiting[1] >= self._rules.patience:
            self._give_up(tx)
        else:
            return False
        return True

    def _give_up(self, tx: str) -> None:
        end = next((e.mark for e in self._ends if e.mark.tx == tx), None)
        if end is None:
            self.lost = True
            self._pending.clear()
            self._let_go.clear()
            self._ends.clear()
            next_step = f"Is provide.transaction.metadata on, and does the source read topic {self._rules.topic}?"
            log.warning("the end of a transaction does not come: nothing is held back", transaction=tx, next_step=next_step)
            return
        lacking = self._lacking(end)
        self._waived |= lacking
        self._let_go.add(tx)
        next_step = "Does the source read the topics of these tables, and does no transform drop their records?"
        log.warning("changes of a transaction do not come", transaction=tx, tables=sorted(lacking), next_step=next_step)

    def _first_waited_for(self) -> str | None:
        """The transaction that holds the others back."""
        if self.lost or self.until is not None:
            return None
        for end in self._ends:
            if not end.over and end.mark.tx not in self._let_go:
                return end.mark.tx
        return next((tx for tx, one in self._pending.items() if one.first and tx not in self._let_go), None)

    def _advance(self) -> None:
        for end in self._ends:
            if end.over:
                continue
            lacking = self._lacking(end.mark)
            if not lacking - self._waived:
                self._waived -= set(end.mark.events) - lacking
                self._end(end)
            elif self.until is not None:
                self._end(end)
            elif end.mark.tx not in self._let_go:
                break
        done = 0
        while done < len(self._ends) and self._ends[done].over and not self._ends[done].held_by & self._held:
            self.last = self._ends[done].mark if self.until is None else self.last
            done += 1
        del self._ends[:done]

    def _end(self, end: End) -> None:
        end.over = True
        tx = end.mark.tx
        mine = self._pending.pop(tx, Pending())
        self._let_go.discard(tx)
        self._over[tx] = None
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        end.held_by = {other for other in self._held if self._precedes(other, mine)}
        for other in [o for o in self._let_go if self._precedes(o, mine)]:
            self._let_go.discard(other)
            self._pending.pop(other, None)
            self._over[other] = None

    def _precedes(self, tx: str, mine: Pending) -> bool:
        """True for a transaction that was given up, whose end was never told though one behind it has ended."""
        if any(end.mark.tx == tx for end in self._ends) or tx not in self._pending:
            return False
        return any(first < mine.first.get(p, -1) for p, first in self._pending[tx].first.items())

    def _lacking(self, mark: Mark) -> set[str]:
        """The followed tables of which not all changes of the transaction have come."""
        one = self._pending.get(mark.tx) or Pending()
        out = set()
        for table, count in mark.events.items():
            floor = self._floor.get(table, Position()).get(mark.partition, 0)
            if not self._tables.is_followed(table) or mark.offset < floor or self._is_past(table, mark.tx):
                continue
            if one.repeated or one.counts.get(table, 0) < count:
                out.add(table)
        return out

    def _is_past(self, table: str, tx: str) -> bool:
        """True when every partition of the table has come to a later transaction."""
        newest, partitions = self._newest.get(table, {}), self._tables.partitions(table)
        others = [newest.get(p, tx) for p in partitions]
        return bool(others) and all(o != tx and o in self._pending and o not in self._let_go for o in others)

    @property
    def barrier(self) -> Position:
        """Per partition the offset below which everything is let go; partitions that are not in it are let go whole."""
        if self.lost or self.until is not None:
            return Position()
        held = [Position(one.first) for tx, one in self._pending.items() if tx not in self._let_go]
        ends = [e.mark for e in self._ends if not e.over and e.mark.tx not in self._let_go]
        return Position.lowest([*held, *(Position({mark.partition: mark.offset}) for mark in ends)])


def _reaches(position: Position, end: Position) -> bool:
    return all(position.get(p, 0) >= offset for p, offset in end.items())
