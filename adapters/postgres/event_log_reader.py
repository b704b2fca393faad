"""An event log in PostgreSQL: its first and last offsets, its records in order, and the erasure of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa

from replicator.domain.change import RAW, RAW_RECORD_POSITION, TIMESTAMP
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.event_log import ERASED_COLUMNS
from replicator.domain.position import Position, TopicPartition

from ..event_log import LogBounds, drop_repeated, to_raw
from ..sql.dialect import text_literal
from .connection import PostgresSession
from .errors import translate_error
from .lane_state import parse_state
from .names import TableLocation, escape, has_relation, quote_name

LOGGED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("headers", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
ERASED_AT_ONCE = 5_000

Wanted = Callable[[str], bool]
Stretch = tuple[TopicPartition, int, int]
"""A partition, its first offset, and the offset after the last."""
ORDER = 'l.topic COLLATE "C", l."partition", l."offset"'
"""Topics are compared as bytes, as in every event log, with any collation of the database."""
INDEX = '(topic COLLATE "C", "partition", "offset")'
"""The columns of an index that returns records in that order."""
PLACED = 'l.topic IS NOT NULL AND l."partition" IS NOT NULL AND l."offset" IS NOT NULL'
AT_ONCE = 100
"""Partitions per statement."""
FIRST_ROWS, MOST_ROWS, PIECE_BYTES = 64, 512, 4 * 1024 * 1024
"""Rows per fetch: few at first, then as many as fit into PIECE_BYTES by the size of the last ones. The number
grows slowly, so that large records after small ones fit into memory."""
TIME = (
    "CASE WHEN l.\"timestamp\" BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' "
    'THEN (extract(epoch FROM l."timestamp") * 1000000)::int8 END'
)
"""The times that a frame can store, in microseconds."""
COLUMNS = f'l.topic::text, l."partition"::int4, l."offset"::int8, {TIME}, l.headers::text, l.key, l.value'
MICROSECONDS = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in LOGGED])


@dataclass(frozen=True, slots=True)
class LogState:
    """The log in one snapshot.

    - `table`: changes when the table is recreated.
    - `file`: changes when the table is emptied or rewritten.
    - `covered`: the positions of the lanes that write it.
    """

    table: int
    file: int | None
    covered: Position
    bounds: LogBounds

    def is_covered_by(self, table: int, file: int | None, covered: Mapping[TopicPartition, int]) -> bool:
        """True when the lanes' positions show everything that changed since.

        Only these lanes write the log, each record in the transaction that stores the position, and no lane has
        started again.
        """
        return (
            (table, file) == (self.table, self.file)
            and all(partition in covered for partition in self.bounds.ends)
            and all(covered.get(partition, -1) >= offset for partition, offset in self.covered.items())
        )


@contextmanager
def open_snapshot(session: PostgresSession, location: TableLocation) -> Iterator[psycopg.Cursor]:
    """A cursor with the snapshot at the start of the block, for any duration.

    Raises EnvironmentProblem when the log does not exist. The driver's errors are translated.
    """
    doing = f"reading the event log {location.schema}.{location.table}"
    try:
        with session.transaction(doing) as cursor:
            if not has_relation(cursor, location.relation):
                raise EnvironmentProblem(
                    f"There is no table {location.url}.", next_step="Start the pipeline that writes this event log first."
                )
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            # Lock before the snapshot is taken: after a TRUNCATE the table is empty in all snapshots.
            cursor.execute(f"LOCK TABLE {location.relation} IN ACCESS SHARE MODE".encode())
            yield cursor
    except psycopg.Error as error:
        raise translate_error(error, doing) from error


def read_log_state(
    cursor: psycopg.Cursor, location: TableLocation, wanted: Wanted, state: LogState | None = None
) -> LogState:
    """The log of the wanted topics, in the snapshot of the cursor. With `state`, an earlier state, it need not
    scan all records.

    Raises ConfigProblem for a table that is not an event log.
    """
    table, file = _read_identity(cursor, location)
    covered = _read_covered(cursor, location, wanted)
    if state is not None and state.is_covered_by(table, file, covered):
        firsts, ends = dict(state.bounds.firsts), dict(state.bounds.ends)
        for fresh in (p for p in covered if p not in ends):
            statement = f'SELECT min(l."offset")::int8 FROM {location.relation} AS l WHERE {_partition_condition(fresh)}'
            (first,) = cursor.execute(statement.encode()).fetchone() or (None,)
            if first is not None:
                firsts[fresh] = first
    else:
        extremes = {p: at for p, at in _read_extremes(cursor, location, table).items() if wanted(p.topic)}
        firsts = {p: first for p, (first, _) in extremes.items()}
        ends = {p: last + 1 for p, (_, last) in extremes.items()}
    for where, offset in covered.items():
        ends[where] = max(offset, ends.get(where, offset))
        firsts.setdefault(where, offset)
    return LogState(table, file, covered, LogBounds(Position(firsts), Position(ends)))


def read_records(
    cursor: psycopg.Cursor,
    location: TableLocation,
    stretches: Iterable[Stretch],
    since: datetime | None,
    until: datetime | None,
) -> Iterator[pa.Table]:
    """The records of these offset ranges as raw frames, a few at a time, by topic, partition and offset, each
    once.

    Records with a time at the source are only returned if it is in the period.
    """
    times = [(sign, time.astimezone(UTC)) for sign, time in ((">=", since), ("<=", until)) if time is not None]
    bounds = [f"l.ts {sign} {text_literal(time.isoformat())}" for sign, time in times]
    period = f" AND (l.ts IS NULL OR ({' AND '.join(bounds)}))" if bounds else ""
    every = sorted(stretches)
    last: list[Any] = []
    for at in range(0, len(every), AT_ONCE):
        where = " OR ".join(
            f'({_partition_condition(p)} AND l."offset" >= {first:d} AND l."offset" < {end:d})'
            for p, first, end in every[at : at + AT_ONCE]
        )
        statement = f"SELECT {COLUMNS} FROM {location.relation} AS l WHERE ({where}){period} ORDER BY {ORDER}"
        for rows in _fetch_frames(cursor, statement.encode()):
            frame = drop_repeated(rows)
            if last == [frame[name][0].as_py() for name in RAW_RECORD_POSITION]:
                frame = frame.slice(1)
            if frame.num_rows:
                last = [frame[name][-1].as_py() for name in RAW_RECORD_POSITION]
                yield to_raw(frame)


def _fetch_frames(cursor: psycopg.Cursor, statement: bytes) -> Iterator[pa.Table]:
    """Fetches a few rows at a time from a server-side cursor."""
    count = FIRST_ROWS
    with cursor.connection.cursor("records", binary=True) as rows:
        rows.execute(statement)
        while records := rows.fetchmany(count):
            columns = zip(zip(*records, strict=True), MICROSECONDS, strict=True)
            piece = pa.table([pa.array(values, field.type) for values, field in columns], schema=MICROSECONDS)
            fit = PIECE_BYTES * piece.num_rows // max(1, piece.nbytes)
            count = max(1, min(fit, 2 * count, MOST_ROWS))
            yield piece.cast(LOGGED)


def _read_identity(cursor: psycopg.Cursor, location: TableLocation) -> tuple[int, int | None]:
    """The ids of the table and of its file. Raises ConfigProblem unless it has the columns of an event log."""
    row = cursor.execute(
        "SELECT c.oid::int8, pg_relation_filenode(c.oid)::int8, array(SELECT attname::text FROM pg_attribute "
        "WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) FROM pg_class c WHERE c.oid = %s::regclass",
        (location.relation,),
    ).fetchone()
    table, file, names = row or (0, None, [])
    missing = sorted({*RAW.names, "ts"} - set(names))
    if missing:
        raise ConfigProblem(
            f"The table {location.url} is not an event log: it lacks the column(s) {', '.join(missing)}.",
            next_step="Name the table that an `event_log` sink writes.",
        )
    return table, file


def _read_covered(cursor: psycopg.Cursor, location: TableLocation, wanted: Wanted) -> Position:
    position = Position()
    if has_relation(cursor, "_replicator.positions"):
        lanes = cursor.execute(
            "SELECT pipeline, lane, state::text FROM _replicator.positions WHERE target = %s AND state IS NOT NULL",
            (location.relation,),
        )
        for pipeline, lane, text in lanes.fetchall():
            state = parse_state(text, pipeline, lane)
            if state is not None:
                position = position.advanced_to({p: o for p, o in state.position.items() if wanted(p.topic)})
    return position


def _read_extremes(cursor: psycopg.Cursor, location: TableLocation, table: int) -> dict[TopicPartition, tuple[int, int]]:
    """The first and the last offset of every partition that has records."""
    statement = (
        'SELECT l.topic::text COLLATE "C", l."partition"::int4, min(l."offset")::int8, max(l."offset")::int8 '
        f"FROM {location.relation} AS l WHERE {PLACED} GROUP BY 1, 2"
    )
    parts = ", ".join(f"pg_get_indexdef(indexrelid, {n}, true)" for n in (1, 2, 3))
    (has_index,) = cursor.execute(
        f"SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %s AND indisvalid AND indpred IS NULL "
        f"AND ({parts}) = (%s, %s, %s) AND indcollation[0] = '\"C\"'::regcollation)",
        (table, *(quote_if_needed(name) for name in RAW_RECORD_POSITION)),
    ).fetchone() or (False,)
    if has_index:  # One on `INDEX`.
        # Jumps from each partition to the next, and reads only both ends of each.
        first = f'SELECT l.topic COLLATE "C" AS topic, l."partition" AS number FROM {location.relation} AS l WHERE {PLACED}'
        behind = '(l.topic COLLATE "C", l."partition") > (p.topic, p.number)'
        one = f'SELECT {{}}(l."offset")::int8 FROM {location.relation} AS l WHERE l.topic COLLATE "C" = p.topic'
        one = f'({one} AND l."partition" = p.number)'
        ordered = 'ORDER BY l.topic COLLATE "C", l."partition" LIMIT 1'
        statement = (
            f"WITH RECURSIVE p AS (({first} {ordered}) UNION ALL "
            f"SELECT n.topic, n.number FROM p CROSS JOIN LATERAL ({first} AND {behind} {ordered}) AS n) "
            f"SELECT p.topic::text, p.number::int4, {one.format('min')}, {one.format('max')} FROM p"
        )
    rows = cursor.execute(statement.encode()).fetchall()
    return {TopicPartition(topic, number): (first, last) for topic, number, first, last in rows}


def quote_if_needed(name: str) -> str:
    """A position column as the server spells it in definitions."""
    return quote_name(name) if name == "offset" else name


def _partition_condition(partition: TopicPartition) -> str:
    return f'l.topic COLLATE "C" = {text_literal(partition.topic)} AND l."partition" = {partition.partition:d}'


# For the erasure of keys.


def read_topic_records(cursor: psycopg.Cursor, relation: str, topics: Sequence[str]) -> Iterator[pa.Table]:
    """The records of these topics in an event log, as raw frames, in the caller's transaction."""
    names = ", ".join(f"{quote_name(name)}::text" if name == "headers" else quote_name(name) for name in LOGGED.names)
    with cursor.connection.cursor("records") as rows:
        rows.execute(f"SELECT {names} FROM {escape(relation)} WHERE topic = ANY(%s)".encode(), (list(topics),))
        while records := rows.fetchmany(ERASED_AT_ONCE):
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*records, strict=True), LOGGED, strict=True)
            ]
            yield to_raw(pa.table(columns, schema=LOGGED))


def empty_records(cursor: psycopg.Cursor, relation: str, event_ids: Sequence[str], error: str) -> None:
    """Empties these records of an event log, except their positions and times, in the caller's transaction."""
    values = ", ".join(f"{quote_name(name)} = NULL" for name in ERASED_COLUMNS)
    statement = f"UPDATE {escape(relation)} SET {values}, error = %s WHERE event_id = ANY(%s)"
    cursor.execute(statement.encode(), (error, list(event_ids)), prepare=False)
