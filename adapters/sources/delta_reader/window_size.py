"""The number of offsets per read, adjusted to the limits of a batch."""

from __future__ import annotations

import sys

from replicator.domain.errors import Fatal


class WindowTooLarge(Exception):
    """A window has more records than a batch may have: read a shorter one."""


FILLED = 0.9
"""The target size of a batch, relative to its limits. Record sizes vary, and a window that is too large is read again."""
SPARE = 1.1


class WindowSize:
    """`reach`: the number of offsets to read at once, for batches of at most `records`, and `size` bytes. The real
    numbers are known only after reading."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._bytes = records, size
        self.reach = records

    def refuse_more(self, records: int, size: int) -> None:
        """Raise WindowTooLarge and reduce `reach` if the window is too large for a batch. One offset is always
        allowed."""
        if self.reach > 1 and (records > self._records or size > self._bytes):
            self._shrink(records, size)
            raise WindowTooLarge

    def grow(self, records: int, size: int) -> None:
        """Adjust `reach` to a window of this size. It grows if offsets have holes or records are small."""
        if records > self._records or size > self._bytes:
            self._shrink(records, size)
            return
        room = min(self._records / max(1, records), self._bytes / max(1, size))
        if room > SPARE / FILLED:
            self.reach = max(self.reach + 1, int(self.reach * min(2.0, room * FILLED)))

    def _shrink(self, records: int, size: int) -> None:
        """Reduce `reach` so that records of this size fit."""
        fit = min(self._records, self._bytes * records // max(1, size)) * FILLED
        self.reach = max(1, min(self.reach - 1, int(fit)))


class WholeTableSize(WindowSize):
    """`mode: batch`: all records are one batch, with at most `size` bytes if this process reads it."""

    def __init__(self, table: str, size: int) -> None:
        super().__init__(sys.maxsize, size)
        self._table = table

    def refuse_more(self, records: int, size: int) -> None:  # noqa: ARG002
        """Raise Fatal if the batch exceeds the limit. No batch was delivered then."""
        if size > self._bytes:
            raise Fatal(
                f"The new rows of {self._table} have more than the {self._bytes:,} bytes of keys and values that fit into "
                "one batch (`mode: batch`). None of them was applied.",
                next_step="Raise `limits.memory`. Or remove `mode`: then they are applied in several batches.",
            )

    def grow(self, records: int, size: int) -> None:
        """Does nothing: there is one window."""
