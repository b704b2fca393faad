"""The first rows, read by several connections at the same time, each with a range of the cursor column."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from .cursor_values import CursorValues, Value
from .database import QueryConnection, QueryDatabase
from .journal import CursorRange

TURN = 0.2
Come = tuple[int, pa.Table | None]
"""Rows of the part with that number; None at its end."""


def split_range(reading: QueryConnection, count: int) -> tuple[CursorRange, ...]:
    """At most `count` ranges of equal width, with all rows below the highest value. Empty if nothing can be divided."""
    low, high = reading.read_lowest(), reading.read_highest()
    if low is None or high is None or low == high:
        return ()
    points = sorted({_value_between(low, high, i, count) for i in range(count)} | {high})
    texts = [reading.borders.to_text(point) for point in points]
    return tuple(CursorRange(lower, upper) for lower, upper in pairwise(texts))


def _value_between(low: Value, high: Value, number: int, count: int) -> Value:
    width: Any = high - low
    if isinstance(width, timedelta):
        return low + width * number // count
    return low + type(low)(int(width) * number // count) if isinstance(low, Decimal) else low + width * number // count


class ParallelReader:
    """Reads the unfinished parts, each from its position, with a connection of its own. Few rows are queued."""

    def __init__(self, database: QueryDatabase, parts: tuple[CursorRange, ...], borders: CursorValues) -> None:
        self._database, self._parts, self._borders = database, parts, borders
        self._come: Queue[Come | BaseException] = Queue(1)
        self._ended = Event()

    def read_rows(self) -> Iterator[Come]:
        """The rows, for each part in its order. Raises the first error of any part."""
        numbers = [number for number, part in enumerate(self._parts) if not part.done]
        threads = [
            Thread(target=self._read_range, args=(number,), name=f"range {number}", daemon=True) for number in numbers
        ]
        for thread in threads:
            thread.start()
        left = len(threads)
        try:
            while left:
                come = self._next_rows()
                if isinstance(come, BaseException):
                    raise come
                left -= come[1] is None
                yield come
        finally:
            self._ended.set()

    def _next_rows(self) -> Come | BaseException:
        while True:
            try:
                return self._come.get(timeout=TURN)
            except Empty:
                self._database.refuse_cancelled()

    def _read_range(self, number: int) -> None:
        part = self._parts[number]
        at = part.border or part.lower
        try:
            with self._database.connect() as reading:
                lower, upper = (None if text is None else self._borders.from_text(text) for text in (at, part.upper))
                for rows in reading.read_rows(lower, upper):
                    if not self._offer((number, rows)):
                        return
            self._offer((number, None))
        except BaseException as problem:  # Raised in the thread that reads the queue.
            self._offer(problem)

    def _offer(self, come: Come | BaseException) -> bool:
        while not self._ended.is_set():
            try:
                self._come.put(come, timeout=TURN)
            except Full:
                continue
            return True
        return False
