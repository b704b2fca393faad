"""Log positions of Oracle, SQL Server and MongoDB as three whole numbers; whether a source block has a position at all."""

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
"""How connectors write an LSN that is not there."""
SERIAL_BITS = 22
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.")
BY_WALL_CLOCK = (3, 4)
"""The version of MongoDB's connector from which `source.ts_ms` is the server's wall clock and not the oplog's time."""
ABOVE_TIMES = 1 << 40
"""Above every time in seconds."""
POSITIONS: Mapping[str, tuple[str, ...]] = {
    "postgresql": ("sequence", "lsn"),
    "mysql": ("file",),
    "mariadb": ("file",),
    "oracle": ("commit_scn", "scn"),
    "sqlserver": ("commit_lsn",),
    "mongodb": ("ord",),
}
"""Per connector the fields of its source block of which at least one says where in the log a change is."""

Elements = tuple[int | None, int | None, int | None]
NOWHERE: Elements = (None, None, None)
Found = tuple[list[Elements], dict[int, Reject]]


class PositionFacts(Protocol):
    """What orders changes; see `sequence.SequenceFacts`."""

    @property
    def sources(self) -> list[SourceBlock]:
        """Their source blocks."""

    @property
    def ops(self) -> list[Any]:
        """Their operations."""

    @property
    def offsets(self) -> pa.Array:
        """Where their records are in the topic."""

    @property
    def keyed(self) -> list[bool]:
        """Whether their tables have keys."""


def has_position(source: SourceBlock, op: str | None) -> bool:
    """Whether a source block says where in its log a change is. A row of SQL Server's snapshot need not: it is below all."""
    fields = POSITIONS.get(source.connector or "", ())
    if source.connector == "sqlserver" and op == Op.READ:
        return True
    return any(getattr(source, name) not in (None, "") for name in fields)


def is_incremental(source: SourceBlock) -> bool:
    """Whether a row was read by an incremental snapshot, while changes went on. Such a row is written out before the change
    at whose place in the log its window closed, and may carry that place: it counts as just before it."""
    return source.snapshot == "incremental"


def oracle_positions(facts: PositionFacts) -> Found:
    """(commit SCN, place in the transaction, order). Rows of a snapshot have the SCN that they were read at, which the
    commits after it exceed. Where the connector counts no places (`txSeq`), and in a table without a key, the offset
    decides."""
    return _read_each(facts, _oracle_position)


def _oracle_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    scn = _to_int(source.commit_scn if source.commit_scn is not None else source.scn)
    place = _to_int(source.txSeq) or 0
    if op == Op.READ:
        return scn, place, 0 if keyed else offset
    return scn, place, 1 if keyed and source.txSeq is not None else offset + 1


def sqlserver_positions(facts: PositionFacts) -> Found:
    """The commit's LSN (80 bits), the change's (80) and the event's serial number (22), cut into numbers of 56, 63 and 63
    bits. A row of a snapshot may lack any of them, which count as 0 then: it is below all changes of its commit."""
    return _read_each(facts, _sqlserver_position)


def _sqlserver_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    commit, change, serial = _parse_lsn(source.commit_lsn), _parse_lsn(source.change_lsn), _to_int(source.event_serial_no)
    if op == Op.READ:
        # Below the change at whose place it was read; rows of a table without a key are told apart by their offsets.
        commit, change, serial = commit or 0, change or 0, max((serial or 0) - 1, 0)
    elif commit is None or change is None:
        return NOWHERE
    if (serial or 0) >> SERIAL_BITS:
        return NOWHERE
    whole = ((commit << 80 | change) << SERIAL_BITS) | (serial or 0)
    last = whole & (1 << 63) - 1
    return whole >> 126, whole >> 63 & (1 << 63) - 1, last if keyed or op != Op.READ or change else offset


def mongodb_positions(facts: PositionFacts) -> Found:
    """(seconds, ordinal in the second, offset), as the oplog counts. From connector 3.4 on `ts_ms` is the wall clock of the
    server, which may stand still, and go back, while the ordinal begins anew with each second of the oplog: the offset
    alone tells the order of one document's changes, and such changes come after all of older connectors."""
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
    """The elements of each change; None, and why, for text that is no position."""
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
    """The elements as columns; an element beyond 64 bits is null."""
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
