"""The release of transactions by the barrier, without a pipeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from replicator.application.transactions.pending_transactions import PendingTransactions
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart
from replicator.ports.components import TransactionRules

MARKS = TopicPartition("cdc.transaction", 0)
ORDERS, ITEMS = TopicPartition("orders", 0), TopicPartition("items", 0)
TABLES = {"orders": [ORDERS], "items": [ITEMS]}


class Tables:
    """Both tables are followed."""

    def __init__(self, followed=TABLES):
        self.followed = followed

    def is_followed(self, table):
        return table in self.followed

    def partitions(self, table):
        return TABLES[table]


class Stream:
    """Tells what was read, with offsets that count up."""

    def __init__(self, max_bytes=1000, patience=10.0, **more):
        self.held = PendingTransactions(
            TransactionRules("cdc.transaction", max_bytes, patience), more.pop("tables", Tables()), **more
        )
        self.at = {MARKS: 0, ORDERS: 0, ITEMS: 0}
        self.now = 0.0

    def next(self, partition, count=1):
        self.at[partition] += count
        return self.at[partition] - count

    def tell(self, *, marks=(), parts=(), later=0.0):
        self.now += later
        self.held.observe(marks, parts, 1.0, self.now)
        self.held.advance(Position(self.at), self.now)

    def begin(self, tx):
        self.tell(marks=[TransactionMark(MARKS, self.next(MARKS), tx, tx, False)])

    def end(self, tx, **events):
        self.tell(marks=[TransactionMark(MARKS, self.next(MARKS), tx, tx, True, events)])

    def changes(self, tx, table, count=1):
        partition = TABLES[table][0]
        first = self.next(partition, count)
        self.tell(parts=[TransactionPart(tx, table, partition, count, first, first + count - 1)])

    @property
    def barrier(self):
        return dict(self.held.barrier)

    @property
    def last(self):
        return self.held.last and self.held.last.tx


def test_transaction_waits_for_its_end_and_all_changes():
    stream = Stream()
    stream.changes("1", "orders")
    assert stream.barrier == {ORDERS: 0}
    stream.end("1", orders=1, items=2)
    assert stream.barrier == {ORDERS: 0, MARKS: 0}
    stream.changes("1", "items")
    assert stream.barrier == {ORDERS: 0, MARKS: 0, ITEMS: 0}
    stream.changes("1", "items")
    assert not stream.held.barrier and stream.last == "1" and stream.held.is_exact


def test_transaction_is_not_released_before_an_earlier_one():
    stream = Stream()
    stream.changes("1", "orders")
    stream.end("1", orders=1, items=1)
    stream.end("2", orders=1)
    stream.changes("2", "orders")
    assert stream.barrier == {ORDERS: 0, MARKS: 0} and stream.last is None
    stream.changes("1", "items")
    assert not stream.held.barrier and stream.last == "2"


def test_transaction_after_a_lost_end_is_not_published():
    """It is held back with that one. When that one is given up, completeness is unknown."""
    stream = Stream(patience=10.0)
    stream.begin("a")
    stream.changes("a", "orders")
    stream.begin("b")
    stream.changes("b", "orders")
    stream.end("b", orders=1)
    assert stream.barrier[ORDERS] == 0
    assert stream.last is None
    stream.tell(later=11.0)
    assert not stream.held.is_exact
    assert stream.last is None


def test_tables_without_lanes_are_not_waited_for():
    stream = Stream(tables=Tables({"orders"}))
    stream.changes("1", "orders")
    stream.end("1", orders=1, items=7)
    assert stream.last == "1"


def test_transactions_complete_at_the_start_are_not_waited_for():
    stream = Stream(first_offsets={"items": Position({MARKS: 1})})
    stream.changes("1", "orders")
    stream.end("1", orders=1, items=1)
    assert stream.last == "1"
    stream.end("2", items=1)
    assert stream.last == "1"


def test_later_transaction_in_all_partitions_ends_the_wait():
    stream = Stream()
    stream.end("1", items=2)
    stream.changes("1", "items")
    assert stream.last is None
    stream.changes("2", "items")
    assert stream.last == "1"


def test_connector_killed_in_a_transaction_counts_from_zero():
    """It sends the last changes again and counts only those. So the counted number may arrive before all changes do."""
    stream = Stream()
    stream.begin("1")
    stream.changes("1", "items", 4)
    stream.begin("1")
    stream.end("1", items=3)
    assert stream.last is None, "the 4 may lack the last one"
    stream.changes("1", "items", 3)
    assert stream.last is None
    stream.changes("2", "items")
    assert stream.last == "1"


def test_transaction_sent_twice_counts_once():
    stream = Stream()
    stream.changes("1", "orders")
    stream.end("1", orders=1)
    stream.changes("1", "orders")
    assert not stream.held.barrier
    stream.end("1", orders=1)
    assert not stream.held.barrier and stream.held.is_exact


def test_too_large_transaction_is_released_as_not_exact():
    stream = Stream(max_bytes=5)
    stream.changes("1", "items", 4)
    stream.changes("1", "orders", 2)
    assert not stream.held.barrier and not stream.held.is_exact and stream.held.given_up_count == 1
    stream.changes("2", "items")
    assert stream.barrier == {ITEMS: 4}
    stream.end("1", items=4, orders=3)
    stream.end("2", items=1)
    assert not stream.held.barrier and stream.last is None
    stream.changes("1", "orders")
    assert stream.last == "2" and stream.held.is_exact


def test_patience_restarts_with_each_part_of_a_large_transaction():
    stream = Stream()
    for _ in range(30):
        stream.now += 9.0
        stream.changes("1", "items")
    assert stream.barrier == {ITEMS: 0}
    stream.tell(later=10.0)
    assert not stream.held.barrier and stream.held.lost


def test_missing_ends_hold_nothing_back_until_one_arrives():
    stream = Stream()
    stream.changes("1", "items")
    stream.tell(later=10.0)
    stream.changes("2", "items")
    assert stream.held.lost and not stream.held.barrier and not stream.held.is_exact
    stream.end("2", items=2)
    assert not stream.held.lost and not stream.held.is_exact
    stream.changes("3", "items")
    stream.end("3", items=1)
    assert stream.held.is_exact and stream.last == "3"


def test_missing_changes_are_waited_for_once():
    stream = Stream()
    stream.changes("1", "orders")
    stream.end("1", orders=1, items=1)
    stream.tell(later=10.0)
    assert stream.last == "1"
    stream.changes("2", "orders")
    stream.end("2", orders=1, items=1)
    assert stream.last == "2" and not stream.held.is_exact
    stream.changes("3", "items")
    stream.end("3", items=1)
    assert stream.last == "3" and stream.held.is_exact


@pytest.mark.parametrize("reached", [False, True])
def test_nothing_is_held_back_before_lanes_are_held_together(reached):
    stream = Stream()
    stream.held.until = Position({MARKS: 1, ITEMS: 2})
    stream.end("1", items=5)
    stream.changes("2", "items", 1 + reached)
    assert bool(stream.held.barrier) is False and not stream.held.is_exact
    stream.changes("3", "orders")
    assert bool(stream.held.barrier) is reached


def test_backfilled_rows_may_be_newer_than_the_watermark():
    """Until a transaction is complete that ended after they were read; one of that moment may be among what they show."""
    stream, read = Stream(), datetime(2024, 1, 1, 12, 0, 0, 500, UTC)
    stream.held.concurrent_time = read
    assert not stream.held.is_exact
    for tx, at in (("1", read - timedelta(seconds=1)), ("2", read), ("3", None)):
        stream.changes(tx, "orders")
        stream.tell(marks=[TransactionMark(MARKS, stream.next(MARKS), tx, tx, True, {"orders": 1}, at)])
        assert stream.last == tx and not stream.held.is_exact and not stream.barrier
    stream.changes("4", "orders")
    later = read + timedelta(microseconds=1)
    stream.tell(marks=[TransactionMark(MARKS, stream.next(MARKS), "4", "4", True, {"orders": 1, "items": 1}, later)])
    assert stream.last == "3" and not stream.held.is_exact
    stream.changes("4", "items")
    assert stream.last == "4" and stream.held.is_exact
