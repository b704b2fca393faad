"""Finds the log cut of a time in an event log in PostgreSQL, with two queries over positions and times."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

import psycopg

from replicator.domain.as_of import CutSides, LogCut, Offsets, is_time_ordered
from replicator.domain.position import Position, TopicPartition

from ...postgres.options import TableLocation

OF_TOPICS = 'l.topic COLLATE "C" = ANY(%s) AND l."partition" IS NOT NULL AND l."offset" IS NOT NULL'


def cut_at_time(
    cursor: psycopg.Cursor, log: TableLocation, topics: Collection[str], at: datetime, covered: Position
) -> LogCut | None:
    """See `ports.sink.SinkFeatures.find_cut`. Both queries read the snapshot of the cursor."""
    early, late = _read_offsets(
        cursor,
        f'SELECT l.topic::text, l."partition"::int4, max(l."offset") FILTER (WHERE l.ts <= %s)::int8, '
        f'min(l."offset") FILTER (WHERE l.ts > %s)::int8 FROM {_relation_name(log)} AS l WHERE {OF_TOPICS} GROUP BY 1, 2',
        (at, at, sorted(topics)),
    )
    if not is_time_ordered(early, late):
        return None
    return replace(cut_at_positions(cursor, log, topics, late, covered), at=at)


def cut_at_positions(
    cursor: psycopg.Cursor, log: TableLocation, topics: Collection[str], splits: Offsets, covered: Position
) -> LogCut:
    """See `domain.as_of.CutSides.to_cut`."""
    at = [*zip(*((place.topic, place.partition, offset) for place, offset in splits.items()), strict=True)] or [(), (), ()]
    firsts, lasts, nexts = _read_offsets(
        cursor,
        'SELECT l.topic::text, l."partition"::int4, min(l."offset")::int8, '
        'max(l."offset") FILTER (WHERE s.at IS NULL OR l."offset" < s.at)::int8, '
        f'min(l."offset") FILTER (WHERE l."offset" >= s.at)::int8 FROM {_relation_name(log)} AS l '
        "LEFT JOIN unnest(%s::text[], %s::int4[], %s::int8[]) AS s (topic, number, at) "
        f'ON s.topic = l.topic COLLATE "C" AND s.number = l."partition" WHERE {OF_TOPICS} GROUP BY 1, 2',
        (*map(list, at), sorted(topics)),
    )
    return CutSides(firsts, lasts, nexts).to_cut(splits, covered)


def _relation_name(log: TableLocation) -> str:
    return log.relation.replace("%", "%%")


def _read_offsets(cursor: psycopg.Cursor, statement: str, given: tuple[object, ...]) -> list[Mapping[TopicPartition, int]]:
    """One mapping per column after the partition, of the partitions where the column is not null."""
    rows = cursor.execute(statement.encode(), given).fetchall()
    columns = range(2, len(cursor.description or ()))
    return [{TopicPartition(row[0], row[1]): row[n] for row in rows if row[n] is not None} for n in columns]
