"""The first rows, read by several connections side by side: each a range of the cursor column."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from .borders import Borders, Value
from .database import Database, Reading
from .journal import Part

TURN = 0.2
Come = tuple[int, pa.Table | None]
"""Rows of the part of that number; None at its end."""


def cut(reading: Reading, count: int) -> tuple[Part, ...]:
    """At most so many ranges of one width: all rows that lie below the highest value. None where there is nothing to share
    out."""
    low, high = reading.lowest(), reading.highest()
    if low is None or high is None or low == high:
        return ()
    points = sorted({_between(low, high, i, count) for i in range(count)} | {high})
    texts = [reading.borders.text(point) for point in points]
    return tuple(Part(lower, upper) for lower, upper in pairwise(texts))


def _between(low: Value, high: Value, number: int, count: int) -> Value:
    width: Any = high - low
    if isinstance(width, timedelta):
        return low + width * number // count
    return low + type(low)(int(width) * number // count) if isinstance(low, Decimal) else low + width * number // count


class SideBySide:
    """Reads the parts that are not done, each from its border on, over a connection of its own. Few rows wait."""

    def __init__(self, database: Database, parts: tuple[Part, ...], borders: Borders) -> None:
        self._database, self._parts, self._borders = database, parts, borders
        self._come: Queue[Come | BaseException] = Queue(1)
        self._ended = Event()

    def rows(self) -> Iterator[Come]:
        """What comes, of each part in its order. Raises what any of them raises."""
        numbers = [number for number, part in enumerate(self._parts) if not part.done]
        threads = [Thread(target=self._read, args=(number,), name=f"range {number}", daemon=True) for number in numbers]
        for thread in threads:
            thread.start()
        left = len(threads)
        try:
            while left:
                come = self._next()
                if isinstance(come, BaseException):
                    raise come
                left -= come[1] is None
                yield come
        finally:
            self._ended.set()

    def _next(self) -> Come | BaseException:
        while True:
            try:
                return self._come.get(timeout=TURN)
            except Empty:
                self._database.refuse_ended()

    def _read(self, number: int) -> None:
        part = self._parts[number]
        at = part.border or part.lower
        try:
            with self._database.reading() as reading:
                lower, upper = (None if text is None else self._borders.value_of(text) for text in (at, part.upper))
                for rows in reading.rows(lower, upper):
                    if not self._hand_over((number, rows)):
                        return
            self._hand_over((number, None))
        except BaseException as problem:  # Raised where the rows are taken.
            self._hand_over(problem)

    def _hand_over(self, come: Come | BaseException) -> bool:
        while not self._ended.is_set():
            try:
                self._come.put(come, timeout=TURN)
            except Full:
                continue
            return True
        return False
