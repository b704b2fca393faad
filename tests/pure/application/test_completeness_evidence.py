"""Evidence that transactions are complete, if the lanes are not held together."""

from __future__ import annotations

import pytest

from replicator.application.transactions import tracker
from replicator.application.transactions.tracker import CompletenessEvidence
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart

MARKS = TopicPartition("cdc.transaction", 0)
ORDERS, ITEMS, MORE = TopicPartition("orders", 0), TopicPartition("items", 0), TopicPartition("items", 1)
PATIENCE = 10.0


class Copied:
    """Tables that lanes get."""

    def is_copied(self, table):
        return table in ("orders", "items")


class Stream:
    """Tells what was read, with offsets that count up; every change has the next place in the log."""

    def __init__(self, passed=None):
        self.proofs = CompletenessEvidence(PATIENCE, Copied(), passed)
        self.at = {MARKS: 0, ORDERS: 0, ITEMS: 0, MORE: 0}
        self.now, self.lsn = 0.0, 100

    def next(self, partition, count=1):
        self.at[partition] += count
        return self.at[partition] - count

    def tell(self, *, marks=(), parts=()):
        self.proofs.observe(marks, parts, self.now)
        self.proofs.advance(Position(self.at))

    def begin(self, tx):
        self.tell(marks=[TransactionMark(MARKS, self.next(MARKS), tx, tx, False)])

    def end(self, tx, **events):
        self.tell(marks=[TransactionMark(MARKS, self.next(MARKS), tx, tx, True, events)])

    def changes(self, tx, partition, count=1, *, low=None, different=None):
        first, low = self.next(partition, count), low or self.lsn
        high = low + count - 1
        self.lsn = max(self.lsn, high + 1)
        part = TransactionPart(
            tx, partition.topic, partition, count, first, first + count - 1, different or count, (7, low), (7, high)
        )
        self.tell(parts=[part])

    def later(self, seconds=PATIENCE):
        self.now += seconds
        self.proofs.set_end(Position(self.at), self.now)
        self.tell()

    def whole(self, tx):
        self.begin(tx)
        self.changes(tx, ORDERS)
        self.end(tx, orders=1)

    @property
    def last(self):
        return self.proofs.last_proven and self.proofs.last_proven.tx


@pytest.fixture
def stream():
    return Stream()


def test_transaction_is_complete_with_its_end_and_all_changes(stream):
    stream.begin("1")
    stream.changes("1", ORDERS)
    stream.end("1", orders=1, items=2, audit=5)
    stream.changes("1", ITEMS)
    assert stream.last is None and dict(stream.proofs.barrier) == {MARKS: 1}
    stream.changes("1", MORE)
    assert stream.last == "1" and not stream.proofs.barrier


def test_later_transaction_waits_for_an_earlier_one(stream):
    stream.whole("1")
    stream.begin("2")
    stream.end("2", items=1)
    stream.whole("3")
    assert stream.last == "1" and dict(stream.proofs.barrier) == {MARKS: 3}
    stream.changes("2", ITEMS)
    assert stream.last == "3"


def test_change_sent_twice_counts_once(stream):
    """Within a batch, whatever the end says: another change may not have been acknowledged."""
    stream.begin("1")
    stream.end("1", items=2)
    stream.changes("1", ITEMS, 2, different=1)
    assert stream.last is None


def test_change_sent_twice_in_two_batches_proves_nothing(stream):
    stream.begin("1")
    stream.end("1", items=2)
    stream.changes("1", ITEMS, low=100)
    stream.changes("1", ITEMS, low=100)
    assert stream.last is None
    stream.changes("1", MORE, low=101)
    assert stream.last is None


def test_changes_without_a_log_position_prove_nothing(stream):
    stream.begin("1")
    stream.end("1", items=1)
    stream.tell(parts=[TransactionPart("1", "items", ITEMS, 1, 0, 0, 1)])
    assert stream.last is None


def test_restarted_connector_counts_from_zero(stream):
    """The end counts fewer changes than exist."""
    stream.begin("1")
    stream.changes("1", ITEMS)
    stream.begin("1")
    stream.end("1", items=1)
    assert stream.last is None


def test_unproven_transaction_is_passed_after_the_patience(stream):
    stream.whole("1")
    stream.begin("2")
    stream.end("2", items=1)
    stream.whole("3")
    stream.later(PATIENCE - 1)
    assert stream.last == "1"
    stream.later(1)
    assert stream.last == "3"
    stream.begin("4")
    stream.end("4", items=1)
    stream.later()
    # What nothing later shows to be complete is looked at again after a start.
    assert stream.last == "3" and dict(stream.proofs.barrier) == {MARKS: 7}
    stream.whole("5")
    assert stream.last == "5" and not stream.proofs.barrier


def test_end_of_the_stream_is_read_before_a_transaction_is_passed(stream):
    stream.begin("1")
    stream.end("1", items=1)
    stream.whole("2")
    stream.now += PATIENCE
    stream.proofs.set_end(Position({**stream.at, ITEMS: 5}), stream.now)
    stream.tell()
    assert stream.last is None
    stream.next(ITEMS, 5)
    stream.tell()
    assert stream.last == "2"


def test_patience_restarts_with_every_record(stream):
    stream.begin("1")
    stream.end("1", items=3)
    stream.whole("2")
    stream.now += PATIENCE
    stream.proofs.set_end(Position({**stream.at, ITEMS: 1}), stream.now)
    stream.changes("1", ITEMS)
    stream.now += PATIENCE - 1
    stream.proofs.set_end(Position(stream.at), stream.now)
    stream.tell()
    assert stream.last is None


def test_repeated_transaction_holds_later_ones_back(stream):
    """The connector was killed before everything was acknowledged."""
    stream.whole("1")
    stream.begin("2")
    stream.changes("2", ITEMS, low=200)
    stream.end("2", items=2)
    stream.later()
    stream.begin("2")
    stream.end("2", items=1)
    stream.whole("3")
    stream.changes("2", ITEMS, low=200)
    assert stream.last == "1"
    stream.changes("2", MORE, low=201)
    stream.later()
    assert stream.last == "3"


def test_complete_transaction_sent_again_holds_nothing_back(stream):
    stream.whole("1")
    stream.whole("1")
    stream.whole("2")
    assert stream.last == "2" and not stream.proofs.barrier


def test_changes_below_the_barrier_are_complete_after_a_start():
    stream = Stream(passed={MARKS: 2})
    stream.proofs.doubt_until(Position({**stream.at, ORDERS: 1}))
    stream.begin("1")
    stream.end("1", items=2)
    assert stream.last is None and not stream.proofs.barrier
    stream.next(ORDERS)
    stream.tell()
    assert stream.last == "1"
    stream.begin("2")
    stream.end("2", items=2)
    assert stream.last == "1"


def test_lanes_of_an_earlier_run_begin_at_the_end_of_the_stream():
    stream = Stream()
    stream.proofs.begin_at(Position({MARKS: 2}), 0.0)
    stream.begin("1")
    stream.end("1", items=2)
    stream.whole("2")
    assert stream.last is None
    stream.later()
    assert stream.last == "2"


def test_evidence_is_bounded_and_dropped_evidence_proves_nothing(stream, monkeypatch):
    monkeypatch.setattr(tracker, "MAX_REMEMBERED", 2)
    stream.changes("1", ITEMS)
    stream.changes("2", ITEMS)
    stream.changes("3", ITEMS)
    stream.begin("1")
    stream.changes("1", MORE)
    stream.end("1", items=1)
    assert stream.last is None
