"""The work of transaction tracking is proportional to the stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from replicator.application.transactions import barrier, pending_transactions, tracker
from replicator.application.transactions.pending_transactions import PendingTransactions
from replicator.application.transactions.tracker import CompletenessEvidence
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import TransactionMark, TransactionPart
from replicator.ports.components import TransactionRules

MARKS, ORDERS, ITEMS = TopicPartition("cdc.transaction", 0), TopicPartition("orders", 0), TopicPartition("items", 0)
COUNTED = {module.__file__ for module in (barrier, tracker, pending_transactions)}
FEW, MANY = 50, 300
IN_ONE_BATCH = 5
Batch = tuple[Sequence[TransactionMark], Sequence[TransactionPart]]


class Tables:
    """Both tables are followed, and copied."""

    def is_followed(self, table: str) -> bool:
        return True

    def partitions(self, table: str) -> list[TopicPartition]:
        return [ORDERS if table == "orders" else ITEMS]

    is_copied = is_followed


def begin(n: int) -> TransactionMark:
    return TransactionMark(MARKS, 2 * n, str(n), str(n), ended=False)


def end(n: int) -> TransactionMark:
    return TransactionMark(MARKS, 2 * n + 1, str(n), str(n), ended=True, events={"orders": 1, "items": 1})


def change(n: int, partition: TopicPartition) -> TransactionPart:
    return TransactionPart(str(n), partition.topic, partition, 1, n, n, 1, (n, n), (n, n))


def batches(of: Sequence[TransactionMark | TransactionPart]) -> Iterator[Batch]:
    for start in range(0, len(of), IN_ONE_BATCH):
        some = of[start : start + IN_ONE_BATCH]
        yield (
            [one for one in some if isinstance(one, TransactionMark)],
            [one for one in some if isinstance(one, TransactionPart)],
        )


def one_batch(n: int) -> Iterator[Batch]:
    marks = [mark for i in range(n) for mark in (begin(i), end(i))]
    yield marks, [change(i, partition) for partition in (ORDERS, ITEMS) for i in range(n)]


def ends_first(n: int) -> Iterator[Batch]:
    yield from batches([mark for i in range(n) for mark in (begin(i), end(i))])
    yield from batches([change(i, partition) for i in range(n) for partition in (ORDERS, ITEMS)])


def changes_first(n: int) -> Iterator[Batch]:
    yield from batches([change(i, ORDERS) for i in range(n)])
    yield from batches([change(i, ITEMS) for i in range(n)])
    yield from batches([mark for i in range(n) for mark in (begin(i), end(i))])


def one_table_last(n: int) -> Iterator[Batch]:
    yield from batches([one for i in range(n) for one in (begin(i), change(i, ORDERS), end(i))])
    yield from batches([change(i, ITEMS) for i in range(n)])


def first_end_lost(n: int) -> Iterator[Batch]:
    for marks, parts in one_table_last(n):
        yield [mark for mark in marks if mark.tx != "0" or not mark.ended], parts


def early_ends_lost(n: int) -> Iterator[Batch]:
    for marks, parts in changes_first(n):
        yield [mark for mark in marks if int(mark.tx) > n // 2 or not mark.ended], parts


ORDERS_OF_READING = (one_batch, ends_first, changes_first, one_table_last, first_end_lost, early_ends_lost)


def held_together(limit: int) -> Callable[[Iterator[Batch]], None]:
    def read(stream: Iterator[Batch]) -> None:
        books, at = PendingTransactions(TransactionRules(MARKS.topic, limit, 60.0), Tables()), Position()
        for marks, parts in stream:
            at = at.advanced_to({one.partition: last_of(one) + 1 for one in (*marks, *parts)})
            books.observe(marks, parts, 1.0, 0.0)
            books.advance(at, 0.0)
            assert books.barrier is not None and books.held_bytes >= 0

    return read


def last_of(one: TransactionMark | TransactionPart) -> int:
    return one.offset if isinstance(one, TransactionMark) else one.last


def prove_stream(stream: Iterator[Batch]) -> None:
    books, at = CompletenessEvidence(60.0, Tables()), Position()
    for marks, parts in stream:
        at = at.advanced_to({one.partition: last_of(one) + 1 for one in (*marks, *parts)})
        books.observe(marks, parts, 0.0)
        books.advance(at)
        assert books.barrier is not None


def work(read: Callable[[Iterator[Batch]], None], stream: Iterator[Batch]) -> int:
    """How many instructions of the two modules reading the stream takes."""
    done = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        if frame.f_code.co_filename not in COUNTED:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        done += event == "opcode"
        return count

    known = sys.gettrace()
    sys.settrace(count)
    try:
        read(stream)
    finally:
        sys.settrace(known)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("stream", ORDERS_OF_READING, ids=lambda stream: stream.__name__)
@pytest.mark.parametrize(
    "read", [held_together(1 << 30), held_together(20), prove_stream], ids=["held_together", "with_a_small_limit", "proven"]
)
def test_work_grows_with_the_number_of_transactions(
    read: Callable[[Iterator[Batch]], None], stream: Callable[[int], Iterator[Batch]]
) -> None:
    few, many = work(read, stream(FEW)), work(read, stream(MANY))
    assert few > FEW, "the instructions of the two modules are counted"
    assert many / few < 1.5 * MANY / FEW
