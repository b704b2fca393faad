"""Removes a lane from a database in one transaction: its table, tombstones, staging tables, schemas and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from replicator.ports.frames import Lane
from replicator.ports.sink import ErasureResult, LaneArtifact

from ...apply.ownership import is_owned, ownership_remark
from ...postgres.ddl import find_own_view
from ...postgres.erasure import remove_key, to_target_key
from ...postgres.lane_state import FORGET_LANE, OTHER_WRITER, SCHEMA, SELECT_LANE, TOUCH_STATE, withdraw_completeness
from ...postgres.names import quote_name
from .lane_ownership import refuse_other_writer
from .lanes import PostgresLanes
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


class DroppableLanes(PostgresLanes):
    """`PostgresLanes` with one table per lane: `ports.sink.LaneRemoval`."""

    one_writer = True

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        with self.session.cursor(f"looking for lane {lane.id}") as cursor:
            return read_remains(cursor, lane, *self._find_table(lane)).artifacts

    def refuse_second_writer(self, lane: Lane) -> None:
        with self.session.cursor(f"looking who writes the table of lane {lane.id}") as cursor:
            if (cursor.execute(KNOWN).fetchone() or (False,))[0]:
                refuse_other_writer(cursor, lane, quote_name(*self._find_table(lane)))

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        """See `ports.sink.KeyErasure.erase`. It is one transaction. The server's files contain the row until the
        table is vacuumed."""
        if not self.list_artifacts(lane):
            return ErasureResult()
        number, (schema, table) = self._acquire(lane, removing=True), self._find_table(lane)
        wanted = to_target_key(lane, key)
        with self._exclusive_transaction(lane, "removing a row of") as cursor:
            drop_shared_tables(cursor, number)
            cursor.execute(TOUCH_STATE, (lane.pipeline, lane.id))
            rows = remove_key(cursor, quote_name(schema, table), wanted)
            return ErasureResult(rows, remove_key(cursor, side_table_name(number), wanted))

    def _list_side_tables(self, lane: Lane) -> list[str]:
        with self.session.cursor(f"looking for lane {lane.id}") as cursor:
            (known,) = cursor.execute(KNOWN).fetchone() or (False,)
            row = cursor.execute(SELECT_LANE, (lane.pipeline, lane.id)).fetchone() if known else None
        return [side_table_name(row[0])] if row else []

    def drop(self, lane: Lane) -> None:
        """Drops all or nothing: a drop that is killed removes nothing.

        A table that another lane also writes stays unchanged. Raises Fatal, with their names, when other
        objects depend on the table.
        """
        if not self.list_artifacts(lane):
            return
        self._acquire(lane, removing=True)
        schema_and_table = self._find_table(lane)
        with self._exclusive_transaction(lane, "dropping") as cursor:
            withdraw_completeness(cursor, lane)
            _remove_lane(cursor, read_remains(cursor, lane, *schema_and_table), *schema_and_table)
            cursor.execute(FORGET_LANE.format(sql.SQL("schemas")), (lane.pipeline, lane.id))
            cursor.execute(FORGET_LANE.format(sql.SQL("schema_versions")), (lane.pipeline, lane.id))
            cursor.execute(FORGET_LANE.format(sql.SQL("positions")), (lane.pipeline, lane.id))
        self._release(lane)


def read_remains(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> PostgresLaneRemains:
    """The objects of the lane with this table."""
    (known,) = cursor.execute(KNOWN).fetchone() or (False,)
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


def _remove_lane(cursor: psycopg.Cursor, found: PostgresLaneRemains, schema: str, table: str) -> None:
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
