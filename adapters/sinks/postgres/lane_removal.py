"""The objects of a lane with a table of its own: found, and dropped, in the caller's transaction.

A removal drops the table, tombstones, staging tables, schemas and the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact

from ...apply.ownership import is_owned, ownership_remark
from ...postgres.ddl import find_own_view
from ...postgres.lane_state import FORGET_LANE, OTHER_WRITER, SCHEMA, SELECT_LANE, withdraw_completeness
from ...postgres.names import quote_name
from .shared_staging import drop_shared_tables, list_shared_tables
from .tombstones import side_table_name

WRITTEN = "_cdc_seq_1"
"""Null only in rows from before replication started."""

TABLE = sql.SQL(
    "SELECT c.relkind::text, obj_description(c.oid, 'pg_class'), "
    "EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped) "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)
KNOWN = sql.SQL("SELECT to_regclass('_replicator.positions') IS NOT NULL AND to_regclass('_replicator.schemas') IS NOT NULL")
FOUND = "it existed before the lane: the rows of the lane are removed, the table stays"


@dataclass(frozen=True)
class PostgresLaneRemains:
    """The objects of one lane in a database.

    - `number`: the lane's number; None when it has no position.
    - `is_removable`: its table may be dropped.
    - `is_written`: its table stays, but the lane's rows in it can be identified and deleted.
    """

    number: int | None
    is_removable: bool
    is_written: bool
    artifacts: Sequence[LaneArtifact]


def has_lanes(cursor: psycopg.Cursor) -> bool:
    """True when a lane was ever prepared in this database."""
    return cursor.execute(KNOWN).fetchone() == (True,)


def read_remains(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> PostgresLaneRemains:
    """The objects of the lane with this table."""
    known = has_lanes(cursor)
    row = cursor.execute(SELECT_LANE, (lane.pipeline, lane.id)).fetchone() if known else None
    others = cursor.execute(OTHER_WRITER, (quote_name(schema, table), lane.pipeline, lane.id)).fetchone() if known else None
    kind, remark, written = cursor.execute(TABLE, (WRITTEN, schema, table)).fetchone() or ("", "", False)
    mine = bool(kind) and (row is not None or remark == ownership_remark(lane))
    goes = mine and kind in ("r", "p") and is_owned(remark) and others is None
    belongings = [] if row is None else _list_artifacts(cursor, row[0], f"lane {lane.id} of pipeline {lane.pipeline}")
    if mine:
        shared = f"lane {others[1]} of pipeline {others[0]} writes it too: it stays as it is" if others else FOUND
        stays = "" if goes else shared
        belongings.insert(0, LaneArtifact("table", f"{schema}.{table}", stays))
    view = find_own_view(cursor, schema, table) if goes else None
    belongings += [LaneArtifact("view", f"{schema}.{view}")] if view else []
    emptied = mine and not goes and others is None and written and kind in ("r", "p")
    return PostgresLaneRemains(None if row is None else row[0], goes, emptied, belongings)


def _list_artifacts(cursor: psycopg.Cursor, number: int, lane: str) -> list[LaneArtifact]:
    """The artifacts of a lane that has a position."""
    side_table = side_table_name(number)
    (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (side_table,)).fetchone() or (False,)
    found = [LaneArtifact("remembered deletes", f"{SCHEMA}.tombstones_{number}")] if there else []
    found += [LaneArtifact("staging table", f"{SCHEMA}.{name}") for name in list_shared_tables(cursor, number)]
    return [*found, *(LaneArtifact(what, f"{SCHEMA}.{what}, {lane}") for what in ("schemas", "positions"))]


def remove_lane(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> None:
    """Drops everything of the lane. A table that another lane also writes stays unchanged."""
    withdraw_completeness(cursor, lane)
    found = read_remains(cursor, lane, schema, table)
    relation, view = quote_name(schema, table), find_own_view(cursor, schema, table) if found.is_removable else None
    if found.number is not None:
        drop_shared_tables(cursor, found.number)
        cursor.execute(f"DROP TABLE IF EXISTS {side_table_name(found.number)}".encode(), prepare=False)
    if view:
        cursor.execute(f"DROP VIEW {quote_name(schema, view)}".encode(), prepare=False)
    if found.is_removable:
        cursor.execute(f"DROP TABLE {relation}".encode(), prepare=False)
    elif found.is_written:
        cursor.execute(f"DELETE FROM {relation} WHERE {quote_name(WRITTEN)} IS NOT NULL".encode(), prepare=False)
    for stored in ("schemas", "schema_versions", "positions"):
        cursor.execute(FORGET_LANE.format(sql.SQL(stored)), (lane.pipeline, lane.id))
