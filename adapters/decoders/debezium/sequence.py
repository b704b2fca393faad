"""Sequences of changes, by connector."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.sequence import EPOCH_SHIFT

from ...arrow.frame_slices import list_true_indices
from ...arrow.record_errors import UNREADABLE, build_or_reject
from ..json.schema_frames import split_record
from .records import NO_SOURCE, SourceBlock

# Log positions of Oracle, SQL Server and MongoDB as three integers, and a check for the presence of a position.


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
ReadPosition = Callable[[SourceBlock, str | None, int, bool], Elements]
"""Returns the elements of a change, from its source block, its operation, its record's offset, and whether its table has a
key. Raises ValueError for a malformed position."""


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


def _oracle_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    """(commit SCN, order in the transaction, tie-breaker). Snapshot rows have the SCN of their read, which later commits
    exceed. The offset breaks ties if the connector sends no `txSeq`, and in tables without a key."""
    scn = _to_int(source.commit_scn if source.commit_scn is not None else source.scn)
    tx_order = _to_int(source.txSeq) or 0
    if op == Op.READ:
        return scn, tx_order, 0 if keyed else offset
    return scn, tx_order, 1 if keyed and source.txSeq is not None else offset + 1


def _sqlserver_position(source: SourceBlock, op: str | None, offset: int, keyed: bool) -> Elements:
    """LSN of the commit (80 bits), LSN of the change (80) and event serial number (22), split into numbers of 56, 63 and
    63 bits. In snapshot rows missing values count as 0, below all changes of the commit."""
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


def _mongodb_position(source: SourceBlock, _op: str | None, offset: int, _keyed: bool) -> Elements:
    """(seconds, ordinal in the second, offset), as in the oplog. From connector 3.4 on, `ts_ms` is the server's wall
    clock, which may stand still or go back. But the ordinal restarts with each second of the oplog. So the offset alone
    orders the changes of such connectors. They sort after all changes of older ones."""
    ordinal = _to_int(source.ord)
    if ordinal is None:
        return NOWHERE
    version = VERSION.match(source.version or "")
    if version is None or (int(version[1]), int(version[2])) >= BY_WALL_CLOCK:
        return ABOVE_TIMES, 0, offset
    seconds = None if source.ts_ms is None else source.ts_ms // 1000
    return seconds, ordinal, offset


def _to_int(value: int | str | None) -> int | None:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            raise ValueError("holds text that is no number")
        return int(value)
    return value


def _parse_lsn(text: str | None) -> int | None:
    if text is None or text in NO_LSN:
        return None
    match = LSN.match(text)
    if match is None:
        raise ValueError("is not of the form 00000027:00000ac0:0002")
    return int("".join(match.groups()), 16)


# The order of changes, per connector.


ELEMENTS = 3
LSN_PAIR = r'^\[\s*(?:null|"(?P<commit>\d{1,18})")\s*,\s*(?:null|"(?P<own>\d{1,18})")\s*\]$'
FILE_NUMBER = re.compile(r"\.(\d{1,17})\Z")


def missing_sequence_reject(sentence: str) -> Reject:
    """The reject of a record that cannot be ordered."""
    return Reject(RejectCode.NO_SEQUENCE, sentence)


@dataclass
class ChangeOrder:
    """`_seq_1` to `_seq_3` and `_tx` of consecutive changes, and errors by index of changes without a sequence."""

    elements: list[pa.Array]
    tx: pa.Array
    errors: dict[int, Reject]


@dataclass(frozen=True)
class SequenceFacts:
    """The facts that order changes: source blocks, transaction blocks, operations, offsets, and whether the table has a
    key. All have the same length."""

    sources: list[SourceBlock]
    transactions: list[Any]
    ops: list[Any]
    offsets: pa.Array
    keyed: list[bool]

    def take(self, indices: list[int]) -> SequenceFacts:
        """The facts of the changes at these indices."""
        return SequenceFacts(
            [self.sources[i] for i in indices],
            [self.transactions[i] for i in indices],
            [self.ops[i] for i in indices],
            self.offsets.take(pa.array(indices, pa.int64())),
            [self.keyed[i] for i in indices],
        )


def order_changes(facts: SequenceFacts, epoch: int) -> ChangeOrder:
    """The order of changes, possibly of several connectors."""
    connectors = [s.connector for s in facts.sources]
    distinct = dict.fromkeys(connectors)
    if len(distinct) == 1:
        return _find_order(connectors[0])(facts, epoch)
    parts = []
    for name in distinct:
        indices = [i for i, c in enumerate(connectors) if c == name]
        parts.append((indices, _find_order(name)(facts.take(indices), epoch)))
    indices = [p for part_indices, _ in parts for p in part_indices]
    back = pa.array(sorted(range(len(indices)), key=indices.__getitem__), pa.int64())
    elements = [pa.concat_arrays([o.elements[k] for _, o in parts]).take(back) for k in range(ELEMENTS)]
    tx = pa.concat_arrays([o.tx for _, o in parts]).take(back)
    return ChangeOrder(elements, tx, {part_indices[i]: e for part_indices, o in parts for i, e in o.errors.items()})


def _find_order(connector: str | None) -> Callable[[SequenceFacts, int], ChangeOrder]:
    return CONNECTORS.get(connector or "", lambda facts, _: _unknown_order(facts, connector))


def _unknown_order(facts: SequenceFacts, connector: str | None) -> ChangeOrder:
    label = f"connector {connector[:40]!r}" if connector else "a connector that it does not name"
    reason = missing_sequence_reject(f"the record comes from {label}, whose log positions are not known to this decoder")
    if facts.sources and all(s is NO_SOURCE for s in facts.sources):
        reason = missing_sequence_reject("the record has no source block, so its place in the log is unknown")
    count = len(facts.sources)
    nothing = pa.nulls(count, pa.int64())
    return ChangeOrder([nothing] * ELEMENTS, pa.nulls(count, pa.string()), dict.fromkeys(range(count), reason))


def postgres_order(facts: SequenceFacts, epoch: int) -> ChangeOrder:
    """(commit LSN, LSN, order). The first is `sequence[0]`, which Debezium sets to the commit of the previous transaction
    and which is equal within a transaction. It is null for snapshot rows and a slot's first transaction, which use their
    own LSN."""
    errors: dict[int, Reject] = {}
    texts = pa.array([s.sequence for s in facts.sources], pa.string())
    pair = pc.extract_regex(texts, LSN_PAIR)
    errors |= dict.fromkeys(
        list_true_indices(pc.and_(pc.is_valid(texts), pc.is_null(pair))),
        missing_sequence_reject("its source.sequence is not a pair of log positions"),
    )
    lsn = _parse_numbers([s.lsn for s in facts.sources], "source.lsn", errors)
    own = pc.coalesce(lsn, _parse_digits(pc.struct_field(pair, "own")))
    commit = pc.coalesce(_parse_digits(pc.struct_field(pair, "commit")), own)
    own = _lower_incremental(own, facts)
    order = _order_in_transaction(facts, errors)
    tx = _to_texts([s.txId for s in facts.sources])
    if tx.null_count:
        tx = pc.coalesce(tx, _transaction_ids(facts))
    return _check_elements([commit, own, order], tx, epoch, errors, "source.lsn")


def _order_in_transaction(facts: SequenceFacts, errors: dict[int, Reject]) -> pa.Array:
    """The tie-breaker of changes with the same log position, such as rows of one COPY.

    - With a key: 0, because such rows differ in their key. The order in the transaction is not used, as it may differ
      when a change is sent again. A connector that resumes within a transaction restarts its count.
    - Without a key: the order in the transaction, or without transaction metadata the offset.
    """
    nothing = pa.repeat(pa.scalar(0, pa.int64()), len(facts.keyed))
    alone = [keyed or op == Op.TRUNCATE for keyed, op in zip(facts.keyed, facts.ops, strict=True)]
    if all(alone):
        return nothing
    pairs = zip(facts.transactions, alone, strict=True)
    totals = [None if t is None or one else _to_number(t.total_order) for t, one in pairs]
    orders = pc.coalesce(_parse_numbers(totals, "transaction.total_order", errors), facts.offsets)
    return pc.if_else(pa.array(alone, pa.bool_()), nothing, orders)


def binlog_order(facts: SequenceFacts, epoch: int) -> ChangeOrder:
    """(number of the binlog file, position, row). Snapshot rows share one position; in a table without a key the offset
    distinguishes them."""
    errors: dict[int, Reject] = {}
    files = [s.file for s in facts.sources]
    numbers: dict[str | None, int | None] = {}
    for name in set(files):
        match = FILE_NUMBER.search(name or "")
        numbers[name] = int(match[1]) if match else None
    file = pa.array([numbers[name] for name in files], pa.int64())
    pos = _lower_incremental(_parse_numbers([s.pos for s in facts.sources], "source.pos", errors), facts)
    row = _parse_numbers([s.row or 0 for s in facts.sources], "source.row", errors)
    if Op.READ in facts.ops and not all(facts.keyed):
        snapshot = pa.array([op == Op.READ and not keyed for op, keyed in zip(facts.ops, facts.keyed, strict=True)])
        row = pc.if_else(snapshot, facts.offsets, row)
    tx = pc.coalesce(_transaction_ids(facts), pa.array([s.gtid for s in facts.sources], pa.string()))
    return _check_elements([file, pos, row], tx, epoch, errors, "source.file and source.pos")


def mariadb_order(facts: SequenceFacts, epoch: int) -> ChangeOrder:
    """(number of the binlog file, position, order in the transaction). From 11.4 on MariaDB gives all changes of a
    transaction the position of its start, unless `binlog_legacy_event_pos` is set. Only Debezium's count distinguishes
    them, or without transaction metadata the offset. Snapshot rows are ordered as in `binlog_order`."""
    order = binlog_order(facts, epoch)
    read = pa.array([op == Op.READ for op in facts.ops], pa.bool_())
    counts = pa.array(list(map(_parse_count, facts.transactions)), pa.int64())
    order.elements[2] = pc.if_else(read, order.elements[2], pc.coalesce(counts, facts.offsets))
    return order


def _parse_count(transaction: Any) -> int | None:
    """The order of a change among all changes of its transaction, if known."""
    total = None if transaction is None else _to_number(transaction.total_order)
    return total if isinstance(total, int) and 0 <= total < 1 << 63 else None


def _to_number(value: int | str | None) -> int | str | None:
    """The number in a text of digits; other values as they are."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else value


def _lower_incremental(positions: pa.Array, facts: SequenceFacts) -> pa.Array:
    """Log positions, reduced by one for rows of incremental snapshots. No change has such a position, as each takes more
    than one byte of the log (see `is_incremental`)."""
    if Op.READ.value not in facts.ops:
        return positions
    read = [op == Op.READ and is_incremental(s) for op, s in zip(facts.ops, facts.sources, strict=True)]
    return pc.subtract(positions, pa.array(read).cast(pa.int64())) if any(read) else positions


def _position_order(read_position: ReadPosition, names: str) -> Callable[[SequenceFacts, int], ChangeOrder]:
    """The order of a connector whose positions are read one by one. Elements beyond 64 bits are null."""

    def make_order(facts: SequenceFacts, epoch: int) -> ChangeOrder:
        positions: list[Elements] = []
        errors: dict[int, Reject] = {}
        rows = zip(facts.sources, facts.ops, facts.offsets.to_pylist(), facts.keyed, strict=True)
        for row, (source, op, offset, keyed) in enumerate(rows):
            try:
                position = read_position(source, op, offset, keyed)
            except ValueError as error:
                position = NOWHERE
                errors[row] = missing_sequence_reject(f"its log position {error}")
            positions.append(position)
        columns = [[e if e is not None and e < 1 << 63 else None for e in column] for column in zip(*positions, strict=True)]
        ids = [s.txId if t is None or t.id is None else t.id for s, t in zip(facts.sources, facts.transactions, strict=True)]
        elements = [pa.array(column, pa.int64()) for column in columns]
        return _check_elements(elements, _to_texts(ids), epoch, errors, names)

    return make_order


CONNECTORS: dict[str, Callable[[SequenceFacts, int], ChangeOrder]] = {
    "postgresql": postgres_order,
    "mysql": binlog_order,
    "mariadb": mariadb_order,
    "oracle": _position_order(_oracle_position, "source.commit_scn, or source.scn"),
    "sqlserver": _position_order(_sqlserver_position, "source.commit_lsn and source.change_lsn"),
    "mongodb": _position_order(_mongodb_position, "source.ts_ms and source.ord"),
}


def offset_order(facts: SequenceFacts, epoch: int) -> ChangeOrder:
    """The order of changes without a log position. Lanes order them by their own columns, and this order breaks ties
    (`TableSpec.unordered`)."""
    first = pa.repeat(pa.scalar(epoch << EPOCH_SHIFT, pa.int64()), len(facts.sources))
    nothing = pa.repeat(pa.scalar(0, pa.int64()), len(facts.sources))
    return ChangeOrder([first, nothing, facts.offsets], _transaction_ids(facts), {})


def to_offset_element(offsets: pa.Array, epoch: int) -> pa.Array:
    """The only element in tables with `tombstones: delete`, because a tombstone has no other position."""
    return pc.add(offsets, pa.scalar(epoch << EPOCH_SHIFT, pa.int64()))


def _check_elements(
    elements: list[pa.Array], tx: pa.Array, epoch: int, errors: dict[int, Reject], names: str
) -> ChangeOrder:
    """The order, with the epoch in the top bits of the first element. A null or negative element is an error, and a first
    element that leaves no room for the epoch."""
    first = elements[0]
    for element in elements:
        for index in list_true_indices(pc.fill_null(pc.less(element, 0), True)):
            errors.setdefault(index, missing_sequence_reject(f"its log position ({names}) is missing or malformed"))
    for index in list_true_indices(pc.fill_null(pc.greater_equal(first, 1 << EPOCH_SHIFT), False)):
        errors.setdefault(index, missing_sequence_reject("its log position leaves no room for the epoch"))
    if errors:
        usable = pa.array([i not in errors for i in range(len(first))])
        first = pc.if_else(usable, first, None)
    return ChangeOrder([pc.add(first, pa.scalar(epoch << EPOCH_SHIFT, pa.int64())), *elements[1:]], tx, errors)


def _parse_numbers(values: list[Any], name: str, errors: dict[int, Reject]) -> pa.Array:
    """64-bit integers; other values are errors."""
    array, bad = build_or_reject(lambda numbers: pa.array(numbers, pa.int64()), values, name)
    errors |= dict.fromkeys(bad, missing_sequence_reject(f"its {name} is not a 64-bit number"))
    return array


def _parse_digits(digits: pa.Array) -> pa.Array:
    """Digits as integers; empty text (a group that did not match) is null."""
    return pc.if_else(pc.equal(digits, ""), None, digits).cast(pa.int64())


def _transaction_ids(facts: SequenceFacts) -> pa.Array:
    return _to_texts([None if t is None else t.id for t in facts.transactions])


def _to_texts(values: Sequence[int | str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.int64()).cast(pa.string())
    except (pa.ArrowException, OverflowError, TypeError):
        return pa.array([None if v is None else str(v)[:200] for v in values], pa.string())


# Check for log positions in the records of a table.


SEEN = 200
"""Records that are examined before a table counts as one without log positions."""


class PositionEvent(msgspec.Struct, gc=False):
    """The fields of a change event with its log position."""

    op: str | None = None
    source: SourceBlock | None = None


_event = msgspec.json.Decoder(PositionEvent).decode


BY_COMMIT = ("postgresql", "oracle", "sqlserver")
"""Connectors whose sequences begin with the position of the commit (see `sequence`)."""


def check_positions(values: pa.ChunkedArray, depth: int) -> tuple[bool, bool]:
    """Two flags. First: some record has a log position, or no record is readable (those are rejected one by one, with
    their errors). Second: the position begins with that of the commit."""
    readable = 0
    for text in (value.as_py() for value in values if value.is_valid):
        try:
            event = _event(split_record(text, depth)[1])
        except UNREADABLE:
            continue
        if event.source is not None and has_position(event.source, event.op):
            return True, event.source.connector in BY_COMMIT
        readable += 1
        if readable == SEEN:
            break
    return readable == 0, False
