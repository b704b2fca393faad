"""How many offsets to read at once, so that their records are no more than a batch may have."""

from __future__ import annotations


class TooMuch(Exception):
    """A window holds more than one batch may: read a shorter one."""


class Pace:
    """`reach` offsets at once, for batches of at most `records`, and `size` bytes. How many that are is known only when they
    are read."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._bytes = records, size
        self.reach = records

    def refuse_more(self, records: int, size: int) -> None:
        """Raise TooMuch, and reach less far from now on, when that is more than one batch may have. One offset may always
        be read."""
        if self.reach > 1 and (records > self._records or size > self._bytes):
            self._shorten(records, size)
            raise TooMuch

    def read(self, records: int, size: int) -> None:
        """A window had that. Reach further where offsets have holes, or records are small."""
        if records > self._records or size > self._bytes:
            self._shorten(records, size)
        elif 2 * records <= self._records and 2 * size <= self._bytes:
            self.reach *= 2

    def _shorten(self, records: int, size: int) -> None:
        fit = self._bytes * records // max(1, size)
        self.reach = max(1, min(self.reach // 2, fit))
