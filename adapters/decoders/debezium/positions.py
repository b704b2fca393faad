"""Log positions of Oracle, SQL Server and MongoDB as three integers, and a check for the presence of a position."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode

from .records import SourceBlock

LSN = re.compile(r"([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):([0-9a-fA-F]{4})\Z")
NO_LSN = ("00", "NULL", "")
"""Texts for a missing LSN."""
SERIAL_BITS = 22
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.")
BY_WALL_CLOCK = (3, 4)
"""The version of MongoDB's connector from which `source.ts_ms` is the server's wall clock, not the oplog's time."""
ABOVE_TIMES = 1 << 40
"""A number above every time in seconds."""
POSITIONS: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("sequence", "lsn"),
    "mysql": ("file",),
    "mariadb": ("file",),
    "oracle": ("commit_scn", "scn"),
    "sqlserver": ("commit_lsn",),
    "mongodb": ("ord",),
}
"""For each connector the fields of its source block of which at least one holds the log position."""

Elements = tuple[int | None, int | None, int | None]
NOWHERE: Elements = (None, None, None)
Found = tuple[list[Elements], dict[int, Reject]]


class PositionFacts(Protocol):
    """The facts that order changes; see `sequence.SequenceFacts`."""

    @property
    def sources(self) -> list[SourceBlock]:
        """The source block of each change."""

    @property
    def ops(self) -> list[Any]:
        """The operation of each change."""

    @property
    def offsets(self) -> pa.Array:
        """The offset of each change's record."""

    @property
    def keyed(self) -> list[bool]:
        """For each change, true if its table has a key."""


def has_position(source: SourceBlock, op: str | None) -> bool:
    """True if a source block has a log position. Snapshot rows of SQL Server need none: they are below all changes."""
    fields = POSITIONS.get(source.connector or "", ())
    if source.connector == "sqlserver" and op == Op.READ:
        return True
    return any(getattr(source, name) not in (None, "") for name in fields)


def is_incremental(source: SourceBlock) -> bool:
    """True if an incremental snapshot read the row while changes continued. The row is written before the change at which
    its window closed, and may have that change's log position. It counts as just before that position."""
    return source.snapshot == "incremental"


def oracle_positions(facts: PositionFacts) -> Found:
    """(commit SCN, order in the transaction, tie-breaker). Snapshot rows have the SCN of their read, which later commits
    exceed. The offset breaks ties if the connector sends no `txSeq`, and in tables without a key."""
    return _read_each(facts, _oracle_position)


def _oracle_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    scn = _to_int(source.commit_scn if source.commit_scn is not None else source.scn)
    place = _to_int(source.txSeq) or 0
    if op == Op.READ:
        return scn, place, 0 if keyed else offset
    return scn, place, 1 if keyed and source.txSeq is not None else offset + 1


def sqlserver_positions(facts: PositionFacts) -> Found:
    """LSN of the commit (80 bits), LSN of the change (80) and event serial number (22), split into numbers of 56, 63 and
    63 bits. In snapshot rows missing values count as 0, below all changes of the commit."""
    return _read_each(facts, _sqlserver_position)


def _sqlserver_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    commit, change, serial = _parse_lsn(source.commit_lsn), _parse_lsn(source.change_lsn), _to_int(source.event_serial_no)
    if op == Op.READ:
        # Below the change at whose position it was read. In tables without a key the offset distinguishes
        # rows.
        commit, change, serial = commit or 0, change or 0, max((serial or 0) - 1, 0)
    elif commit is None or change is None:
        return NOWHERE
    if (serial or 0) >> SERIAL_BITS:
        return NOWHERE
    whole = ((commit << 80 | change) << SERIAL_BITS) | (serial or 0)
    last = whole & (1 << 63) - 1
    return whole >> 126, whole >> 63 & (1 << 63) - 1, last if keyed or op != Op.READ or change else offset


def mongodb_positions(facts: PositionFacts) -> Found:
    """(seconds, ordinal in the second, offset), as in the oplog. From connector 3.4 on, `ts_ms` is the server's wall
    clock, which may stand still or go back. But the ordinal restarts with each second of the oplog. So the offset alone
    orders the changes of such connectors. They sort after all changes of older ones."""
    return _read_each(facts, _mongodb_position)


def _mongodb_position(source: SourceBlock, _op: str | None, offset: int, _keyed: bool) -> Elements:
    ordinal = _to_int(source.ord)
    if ordinal is None:
        return NOWHERE
    if _has_wall_clock(source):
        return ABOVE_TIMES, 0, offset
    seconds = None if source.ts_ms is None else source.ts_ms // 1000
    return seconds, ordinal, offset


def _has_wall_clock(source: SourceBlock) -> bool:
    found = VERSION.match(source.version or "")
    return found is None or (int(found[1]), int(found[2])) >= BY_WALL_CLOCK


def _read_each(facts: PositionFacts, place: Any) -> Found:
    """The elements of each change, and errors by index for malformed positions."""
    found: list[Elements] = []
    errors: dict[int, Reject] = {}
    rows = zip(facts.sources, facts.ops, facts.offsets.to_pylist(), facts.keyed, strict=True)
    for row, of in enumerate(rows):
        try:
            elements: Elements = place(*of)
        except ValueError as error:
            elements = NOWHERE
            errors[row] = Reject(RejectCode.NO_SEQUENCE, f"its log position {error}")
        found.append(elements)
    return found, errors


def to_arrays(found: Sequence[Elements]) -> list[pa.Array]:
    """The elements as columns; elements beyond 64 bits are null."""
    return [pa.array([_check_range(e) for e in column], pa.int64()) for column in zip(*found, strict=True)]


def _check_range(element: int | None) -> int | None:
    return element if element is not None and element < 1 << 63 else None


def _to_int(value: int | str | None) -> int | None:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            raise ValueError("holds text that is no number")
        return int(value)
    return value


def _parse_lsn(text: str | None) -> int | None:
    if text is None or text in NO_LSN:
        return None
    found = LSN.match(text)
    if found is None:
        raise ValueError("is not of the form 00000027:00000ac0:0002")
    return int("".join(found.groups()), 16)
