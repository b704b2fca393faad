"""The event log as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa

from replicator.domain.erasures import ERASED_RECORD
from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.event_log import CutSides, LogCut, Offsets, is_time_ordered
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Lane
from replicator.ports.sink import RecordErasure, SinkFeatures

from ...postgres.event_log_reader import empty_records, open_snapshot, read_topic_records
from ...postgres.lane_state import TOUCH_STATE, read_state
from ...postgres.names import TableLocation, escape, quote_name, read_dsn
from ...sql.dialect import text_literal
from ...stores import EventLogSettings
from .gold import describe_inputs
from .lanes import PostgresLanes


class PostgresEventLog(PostgresLanes):
    """`ports.sink.Sink` for lanes whose plan is `domain.event_log.make_event_log_plan()`.

    Options: `dsn`, `schema` and `table` (default `cdc_raw.cdc_events`). All lanes append to this table, rows
    and position in one transaction. The table may already exist, with `headers` as jsonb and with additional
    columns.
    """

    policies = frozenset({EVENT_LOG_POLICY})
    frame = pa.Table

    def __init__(self, options: EventLogSettings | Mapping[str, Any]) -> None:
        settings = EventLogSettings.read(options)
        if settings.dsn is None:
            raise ConfigProblem("an event log in PostgreSQL needs `dsn`", next_step="Name the database.")
        dsn = read_dsn(settings.dsn)
        self._log = TableLocation(dsn, settings.schema_name, settings.table)
        super().__init__(dsn, lambda _: (settings.schema_name, settings.table), "event log")

    @property
    def features(self) -> SinkFeatures:
        erasure = RecordErasure(self.records, self.empty, self.end_versions)
        inputs = describe_inputs(self._log)
        return replace(super().features, record_erasure=erasure, find_cut=self.find_cut, projection_inputs=inputs)

    def records(self, lane: Lane) -> Iterator[pa.Table]:
        state = self.state(lane)
        topics = sorted({p.topic for p in state.position}) if state else []
        if topics:
            with self.session.transaction(f"reading the records of lane {lane.id}") as cursor:
                cursor.execute("BEGIN")
                yield from read_topic_records(cursor, quote_name(*self._find_table(lane)), topics)

    def empty(self, lane: Lane, places: Sequence[tuple[str, int, int]]) -> str:
        """See `ports.sink.RecordErasure.empty`. It is one transaction."""
        if places:
            self._acquire(lane)
            with self._exclusive_transaction(lane, "emptying records of") as cursor:
                cursor.execute(TOUCH_STATE, (lane.pipeline, lane.id))
                ids = [f"{topic}-{partition}-{offset}" for topic, partition, offset in places]
                empty_records(cursor, quote_name(*self._find_table(lane)), ids, ERASED_RECORD)
        return ""

    def find_cut(self, topics: Collection[str], at: datetime | Position, covered: Position) -> LogCut | None:
        with open_snapshot(self.session, self._log) as cursor:
            if isinstance(at, datetime):
                return cut_at_time(cursor, self._log, topics, at, covered)
            return cut_at_positions(cursor, self._log, topics, at, covered)

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:
        """Deletes the records of the topics that the lane has applied. Records of other lanes stay.

        Only the lane's state lists these topics. Raises DataLoss when the state cannot be read.
        """
        try:
            state = read_state(cursor, lane.pipeline, lane.id)
        except DataLoss as lost:
            key = f"pipeline = {text_literal(lane.pipeline)} AND lane = {text_literal(lane.id)}"
            raise DataLoss(
                f"{lost.sentence}, so it is unknown which records belong to lane {lane.id}",
                next_step=f"Restore it. Or stop the daemon, delete the records of its topics from {relation}, and run "
                f"`UPDATE _replicator.positions SET state = NULL WHERE {key}`: the lane then starts from scratch.",
            ) from lost
        topics = sorted({p.topic for p in state.position}) if state else []
        cursor.execute(f"DELETE FROM {escape(relation)} WHERE topic = ANY(%s)".encode(), (topics,))


# The log cut of a time, found with two queries over positions and times.

OF_TOPICS = 'l.topic COLLATE "C" = ANY(%s) AND l."partition" IS NOT NULL AND l."offset" IS NOT NULL'


def cut_at_time(
    cursor: psycopg.Cursor, log: TableLocation, topics: Collection[str], at: datetime, covered: Position
) -> LogCut | None:
    """See `ports.sink.SinkFeatures.find_cut`. Both queries read the snapshot of the cursor."""
    early, late = _read_offsets(
        cursor,
        f'SELECT l.topic::text, l."partition"::int4, max(l."offset") FILTER (WHERE l.ts <= %s)::int8, '
        f'min(l."offset") FILTER (WHERE l.ts > %s)::int8 FROM {escape(log.relation)} AS l WHERE {OF_TOPICS} GROUP BY 1, 2',
        (at, at, sorted(topics)),
    )
    if not is_time_ordered(early, late):
        return None
    return replace(cut_at_positions(cursor, log, topics, late, covered), at=at)


def cut_at_positions(
    cursor: psycopg.Cursor, log: TableLocation, topics: Collection[str], splits: Offsets, covered: Position
) -> LogCut:
    """See `domain.event_log.CutSides.to_cut`."""
    at = [*zip(*((place.topic, place.partition, offset) for place, offset in splits.items()), strict=True)] or [(), (), ()]
    firsts, lasts, nexts = _read_offsets(
        cursor,
        'SELECT l.topic::text, l."partition"::int4, min(l."offset")::int8, '
        'max(l."offset") FILTER (WHERE s.at IS NULL OR l."offset" < s.at)::int8, '
        f'min(l."offset") FILTER (WHERE l."offset" >= s.at)::int8 FROM {escape(log.relation)} AS l '
        "LEFT JOIN unnest(%s::text[], %s::int4[], %s::int8[]) AS s (topic, number, at) "
        f'ON s.topic = l.topic COLLATE "C" AND s.number = l."partition" WHERE {OF_TOPICS} GROUP BY 1, 2',
        (*map(list, at), sorted(topics)),
    )
    return CutSides(firsts, lasts, nexts).to_cut(splits, covered)


def _read_offsets(cursor: psycopg.Cursor, statement: str, args: tuple[object, ...]) -> list[Mapping[TopicPartition, int]]:
    """One mapping per column after the partition, of the partitions where the column is not null."""
    rows = cursor.execute(statement.encode(), args).fetchall()
    columns = range(2, len(cursor.description or ()))
    return [{TopicPartition(row[0], row[1]): row[n] for row in rows if row[n] is not None} for n in columns]
