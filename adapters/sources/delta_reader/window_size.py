"""How many offsets to read at once, so that their records are no more than a batch may have."""

from __future__ import annotations

import sys

from replicator.domain.errors import Fatal


class WindowTooLarge(Exception):
    """A window holds more than one batch may: read a shorter one."""


FILLED = 0.9
"""How full a batch is to be: records are not of one size, and one that is too long is begun again."""
SPARE = 1.1


class WindowSize:
    """`reach` offsets at once, for batches of at most `records`, and `size` bytes. How many that are is known only when they
    are read."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._bytes = records, size
        self.reach = records

    def refuse_more(self, records: int, size: int) -> None:
        """Raise TooMuch, and reach less far from now on, when that is more than one batch may have. One offset may always
        be read."""
        if self.reach > 1 and (records > self._records or size > self._bytes):
            self._shrink(records, size)
            raise WindowTooLarge

    def grow(self, records: int, size: int) -> None:
        """A window had that. Reach further where offsets have holes, or records are small."""
        if records > self._records or size > self._bytes:
            self._shrink(records, size)
            return
        room = min(self._records / max(1, records), self._bytes / max(1, size))
        if room > SPARE / FILLED:
            self.reach = max(self.reach + 1, int(self.reach * min(2.0, room * FILLED)))

    def _shrink(self, records: int, size: int) -> None:
        """So that as many records of that size fit."""
        fit = min(self._records, self._bytes * records // max(1, size)) * FILLED
        self.reach = max(1, min(self.reach - 1, int(fit)))


class WholeTableSize(WindowSize):
    """`mode: batch`: all that is there, of at most `size` bytes where it is read in this process, is one batch."""

    def __init__(self, table: str, size: int) -> None:
        super().__init__(sys.maxsize, size)
        self._table = table

    def refuse_more(self, records: int, size: int) -> None:  # noqa: ARG002
        """Raise Fatal when that is more than fits. Nothing was handed over."""
        if size > self._bytes:
            raise Fatal(
                f"What has accumulated in {self._table} has more than the {self._bytes:,} bytes of keys and values that fit "
                "into one batch (`mode: batch`). Nothing of it was applied.",
                next_step="Raise `limits.memory`; or leave `mode` out, and it is applied in several batches.",
            )

    def grow(self, records: int, size: int) -> None:
        """Nothing changes."""
