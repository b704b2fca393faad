"""Offsets of rows: the table version, and the row's number in it.

The rows that a version changed precede the rows that the table contains in it. A reader of changes continues from the
changes of one version to those of the next. Only a reader that starts with the whole table reads the second kind.
"""

from __future__ import annotations

from typing import NamedTuple

SHIFT = 34
WHOLE = 1 << (SHIFT - 1)
"""The bit that marks offsets of rows of the whole table."""
MOST_ROWS = WHOLE


class RowOffset(NamedTuple):
    """Row `row` among the rows that `version` changed; with `whole`, among all rows of the table in that version."""

    version: int
    whole: bool
    row: int

    @property
    def offset(self) -> int:
        """The offset in the stream."""
        return (self.version << SHIFT) | (WHOLE if self.whole else 0) | self.row


def parse_offset(offset: int) -> RowOffset:
    """The row with that offset."""
    inside = offset & ((1 << SHIFT) - 1)
    return RowOffset(offset >> SHIFT, inside >= WHOLE, inside & (WHOLE - 1))


def first_change_offset(version: int) -> int:
    """The offset of the first row that `version` changed. The stream ends there if the version before is the newest."""
    return RowOffset(version, False, 0).offset


def skip_whole(offset: int) -> int:
    """The offset. If it is a row of a whole table, the start of the changes of the next version."""
    place = parse_offset(offset)
    return first_change_offset(place.version + 1) if place.whole else offset


def start_offset(offset: int) -> int:
    """The start of a whole table at or below an offset."""
    place = parse_offset(offset)
    if place.whole:
        return first_whole_offset(place.version)
    return first_whole_offset(place.version - 1) if place.version else first_change_offset(0)


def first_whole_offset(version: int) -> int:
    """The offset of the first row of the whole table in `version`."""
    return RowOffset(version, True, 0).offset
