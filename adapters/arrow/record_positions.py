"""Records by topic, partition and offset: ends of frames, rows of a span, bytes of records, and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, OP, PARTITION, RAW_RECORD_POSITION, RECORD_POSITION, TABLE, TOPIC, TX, Op
from replicator.domain.erasures import KeyHashes
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.transactions import TransactionPart
from replicator.ports.decoder import TABLE_DROPPED, Decoder
from replicator.ports.frames import RejectedRecord

REST = ["key", "value", "timestamp", "headers"]


class RecordLocation(NamedTuple):
    """The position of one record."""

    topic: str
    partition: int
    offset: int


def find_ends(changes: pa.Table) -> Position:
    """See `ports.engine.Frames.ends`."""
    last = changes.group_by([TOPIC, PARTITION], use_threads=False).aggregate([(OFFSET, "max")])
    columns = (last[n].to_pylist() for n in (TOPIC, PARTITION, f"{OFFSET}_max"))
    return Position({TopicPartition(t, p): o + 1 for t, p, o in zip(*columns, strict=True)})


def payload_bytes(raw: pa.Table | pa.RecordBatch) -> int:
    """Bytes of keys and values."""
    return sum(pc.sum(pc.binary_length(raw.column(name))).as_py() or 0 for name in ("key", "value"))


def split_by_span(frame: pa.Table, span: Span) -> tuple[pa.Table, pa.Table]:
    """See `ports.engine.Frames.split`."""
    topic, partition, offset = RECORD_POSITION if TOPIC in frame.column_names else RAW_RECORD_POSITION
    topics = set(pc.unique(frame[topic]).to_pylist()) if span.end else ()
    inside = None
    for at, end in span.end.items():
        if at.topic not in topics:
            continue
        in_partition = pc.and_(pc.equal(frame[topic], at.topic), pc.equal(frame[partition], at.partition))
        in_range = pc.and_(pc.greater_equal(frame[offset], span.start[at]), pc.less(frame[offset], end))
        hit = pc.and_(in_partition, in_range)
        inside = hit if inside is None else pc.or_(inside, hit)
    number = 0 if inside is None else pc.sum(inside).as_py() or 0
    if number in (0, frame.num_rows):
        none = frame.slice(0, 0)
        return (frame, none) if number else (none, frame)
    return frame.filter(inside), frame.filter(pc.invert(inside))


def mask_later(raw: pa.Table, since: Mapping[tuple[str, int, str], int], hashes: KeyHashes) -> pa.Array:
    """For each record of a raw frame: True if `since` has an offset for its topic, partition and key hash, and the record
    is at or above it. Only possible keys are hashed, each once."""
    candidates = pa.repeat(pa.scalar(False), raw.num_rows)
    for topic, partition in {(topic, partition) for topic, partition, _ in since}:
        lowest = min(offset for (*at, _), offset in since.items() if at == [topic, partition])
        in_partition = pc.and_(pc.equal(raw["topic"], topic), pc.equal(raw["partition"], partition))
        candidates = pc.or_(candidates, pc.and_(in_partition, pc.greater_equal(raw["offset"], lowest)))
    numbers = pc.indices_nonzero(pc.and_(candidates, pc.is_valid(raw["key"])))
    key_hashes: dict[bytes, str] = {}
    rows = zip(*(raw[name].take(numbers).to_pylist() for name in (*RAW_RECORD_POSITION, "key")), strict=True)
    later = set()
    for number, (topic, partition, offset, key) in zip(numbers.to_pylist(), rows, strict=True):
        key_hash = key_hashes.get(key) or key_hashes.setdefault(key, hashes.hash_key(key))
        if offset >= since.get((topic, partition, key_hash), offset + 1):
            later.add(number)
    return pa.array([n in later for n in range(raw.num_rows)], pa.bool_()) if later else pa.repeat(False, raw.num_rows)


def collect_rejected(rows: pa.Table, raw: Sequence[pa.Table]) -> Sequence[RejectedRecord]:
    """See `ports.engine.Frames.rejected`."""
    names = RAW_RECORD_POSITION if "topic" in rows.column_names and TOPIC not in rows.column_names else RECORD_POSITION
    errors: dict[RecordLocation, str] = {}
    tables: dict[RecordLocation, str] = {}
    table_names = rows[TABLE].to_pylist() if TABLE in rows.column_names else repeat(None, rows.num_rows)
    for location, error, table in zip(_list_positions(rows, names), rows[ERROR].to_pylist(), table_names, strict=True):
        errors.setdefault(location, error)
        tables[location] = table or ""
    if not errors:
        return []
    records: dict[RecordLocation, RejectedRecord] = {}
    offsets = pa.array(sorted({location.offset for location in errors}), pa.int64())
    for frame in [rows, *raw] if names is RAW_RECORD_POSITION else raw:
        hits = frame.filter(pc.is_in(frame["offset"], value_set=offsets))
        for location, row in zip(_list_positions(hits, RAW_RECORD_POSITION), hits.select(REST).to_pylist(), strict=True):
            if location in errors:
                headers = row["headers"] and [(h["name"], h["value"]) for h in row["headers"]]
                records[location] = RejectedRecord(*location, row["key"], row["value"], "", row["timestamp"], headers)
    return [
        replace(records.get(location) or RejectedRecord(*location, None, None, ""), error=error, table=tables[location])
        for location, error in errors.items()
    ]


def _list_positions(rows: pa.Table, names: Sequence[str]) -> Iterable[RecordLocation]:
    return (RecordLocation(*row) for row in zip(*(rows[n].to_pylist() for n in names), strict=True))


# Records that report dropped tables, with table and position.


DROPS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("table", pa.string())])
"""One row per record."""


def find_drops(raw: pa.Table, routes: pa.Table, decoder: Decoder) -> pa.Table:
    """A table with schema `DROPS`, of records routed as `TABLE_DROPPED`, in their order."""
    drops = raw.filter(pc.fill_null(pc.equal(routes["ignored"], TABLE_DROPPED), False))
    if not drops.num_rows:
        return DROPS.empty_table()
    positions = drops.select(RAW_RECORD_POSITION).append_column("table", decoder.envelope(drops)["table"])
    return positions.filter(pc.is_valid(positions["table"])).cast(DROPS)


def group_by_table(drops: pa.Table) -> Mapping[str, Sequence[Position]]:
    """The positions by table: `ports.frames.RoutedBatch.drops`."""
    by_table: dict[str, list[Position]] = {}
    for topic, partition, offset, table in zip(*(drops[name].to_pylist() for name in DROPS.names), strict=True):
        by_table.setdefault(table, []).append(Position({TopicPartition(topic, partition): offset}))
    return by_table


# Transactions in a changes frame.


LOG_POSITION = ("_seq_1", "_seq_2")
"""The position of a change in the log. Later elements may differ when a change is sent again."""


def split_parts(changes: pa.Table, table: str) -> Sequence[TransactionPart]:
    """See `ports.engine.TransactionTracking.parts`."""
    grouped = _drop_snapshot_reads(changes).group_by([TX, TOPIC, PARTITION], use_threads=False)
    totals = grouped.aggregate([(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")])
    names = (TX, TOPIC, PARTITION, f"{OFFSET}_count", f"{OFFSET}_min", f"{OFFSET}_max")
    rows = zip(*(totals[name].to_pylist() for name in names), strict=True)
    return [TransactionPart(tx, table, TopicPartition(t, p), count, first, last) for tx, t, p, count, first, last in rows]


def split_exact_parts(changes: pa.Table, table: str) -> Sequence[TransactionPart]:
    """See `ports.engine.TransactionTracking.exact_parts`."""
    rows = _drop_snapshot_reads(changes)
    positions = list(zip(*(rows[name].to_pylist() for name in position_columns(rows.column_names)), strict=True))
    whole = zip(*(rows[name].to_pylist() for name in identity_columns(rows.column_names)), strict=True)
    different: dict[tuple[str, TopicPartition], set[str]] = {}
    reached: dict[tuple[str, TopicPartition], list[tuple[int | None, ...]]] = {}
    at = zip(*(rows[name].to_pylist() for name in (TX, TOPIC, PARTITION)), strict=True)
    for (tx, topic, partition), position, values in zip(at, positions, whole, strict=True):
        key = (tx, TopicPartition(topic, partition))
        different.setdefault(key, set()).add(repr(values))
        reached.setdefault(key, []).append(position)
    exact = []
    for part in split_parts(changes, table):
        key = (part.tx, part.partition)
        positions = reached[key]
        filled = [tuple(n for n in position if n is not None) for position in positions]
        counted = replace(part, changes=len(different[key]))
        if all(len(a) == len(b) for a, b in zip(filled, positions, strict=True)):
            counted = replace(counted, low=min(filled), high=max(filled))
        exact.append(counted)
    return exact


def position_columns(names: Sequence[str]) -> list[str]:
    """The columns of a changes frame with the position in the log."""
    return [name for name in LOG_POSITION if name in names]


def identity_columns(names: Sequence[str]) -> list[str]:
    """The columns of a changes frame that identify a change that is sent again. Columns of the table with names like
    bookkeeping columns are left out."""
    return [OP, *position_columns(names), *(name for name in names if not name.startswith("_"))]


def _drop_snapshot_reads(changes: pa.Table) -> pa.Table:
    return changes.filter(pc.and_(pc.is_valid(changes[TX]), pc.fill_null(pc.not_equal(changes[OP], Op.READ.value), True)))
