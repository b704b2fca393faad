"""Offsets of rows: the version of the table, and the number of the row in it.

The rows that a version changed come first, then those that the table has in it. Who reads on from the changes of one
version goes to those of the next; only who begins with a table as it is reads the second kind.
"""

from __future__ import annotations

from typing import NamedTuple

SHIFT = 34
WHOLE = 1 << (SHIFT - 1)
"""The bit of an offset that is set for rows of the table as it is in a version."""
MOST_ROWS = WHOLE


class RowOffset(NamedTuple):
    """Row `row` of those that `version` changed, or, where `whole`, of those that the table has in it."""

    version: int
    whole: bool
    row: int

    @property
    def offset(self) -> int:
        """Its number in the stream."""
        return (self.version << SHIFT) | (WHOLE if self.whole else 0) | self.row


def parse_offset(offset: int) -> RowOffset:
    """The place with that offset."""
    inside = offset & ((1 << SHIFT) - 1)
    return RowOffset(offset >> SHIFT, inside >= WHOLE, inside & (WHOLE - 1))


def first_change_offset(version: int) -> int:
    """The offset of the first row that `version` changed: where the stream ends when the version before is the newest."""
    return RowOffset(version, False, 0).offset


def skip_whole(offset: int) -> int:
    """The offset; where it is of a row of the table as it is in a version, where the changes of the next one begin."""
    place = parse_offset(offset)
    return first_change_offset(place.version + 1) if place.whole else offset


def start_offset(offset: int) -> int:
    """Where to begin with the table as it is, not above an offset."""
    place = parse_offset(offset)
    if place.whole:
        return first_whole_offset(place.version)
    return first_whole_offset(place.version - 1) if place.version else first_change_offset(0)


def first_whole_offset(version: int) -> int:
    """The offset of the first row of the table as it is in `version`."""
    return RowOffset(version, True, 0).offset
