"""Taking a lane out of a database: its table, remembered deletes, staging tables, schemas, position; in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from replicator.ports.frames import Lane
from replicator.ports.sink import Belonging, Erased

from .made import is_made, made_for
from .pg_erasing import key_of, remove_key
from .pg_lanes import refuse_other_writer
from .pg_ledger import ledger_name
from .pg_names import quoted
from .pg_shared import clear_shared, shared_names
from .pg_sink import PostgresLanes
from .pg_state import FORGET_LANE, OTHER_WRITER, SCHEMA, SELECT_LANE, TOUCH_STATE, take_back
from .pg_views import own_view

WRITTEN = "_cdc_seq_1"
"""Null in rows that were there before replication began, and in no other."""

TABLE = sql.SQL(
    "SELECT c.relkind::text, obj_description(c.oid, 'pg_class'), "
    "EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped) "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)
KNOWN = sql.SQL("SELECT to_regclass('_replicator.positions') IS NOT NULL AND to_regclass('_replicator.schemas') IS NOT NULL")
FOUND = "it was there before the lane wrote to it: the rows that the lane wrote go, the table stays"


@dataclass(frozen=True)
class Remains:
    """What a database keeps of one lane. `number`: the lane's, None when it has no position; `goes`: its table may be
    removed; `written`: its table holds rows that are told to be the lane's, and stays."""

    number: int | None
    goes: bool
    written: bool
    belongings: Sequence[Belonging]


class DroppableLanes(PostgresLanes):
    """`PostgresLanes` whose tables are of one lane each: `ports.sink.Drops`."""

    one_writer = True

    def belongings(self, lane: Lane) -> Sequence[Belonging]:
        """See `ports.sink.Drops.belongings`."""
        with self.session.using(f"looking for lane {lane.id}") as cursor:
            return remains(cursor, lane, *self._place(lane)).belongings

    def refuse_second_writer(self, lane: Lane) -> None:
        """See `ports.sink.RefusesSecondWriter.refuse_second_writer`."""
        with self.session.using(f"looking who writes the table of lane {lane.id}") as cursor:
            if (cursor.execute(KNOWN).fetchone() or (False,))[0]:
                refuse_other_writer(cursor, lane, quoted(*self._place(lane)))

    def erase(self, lane: Lane, key: Mapping[str, str]) -> Erased:
        """See `ports.sink.Erases.erase`, in one transaction. What the server's own files hold of it is gone once it has
        vacuumed the table."""
        if not self.belongings(lane):
            return Erased()
        number, (schema, table) = self._own(lane, removing=True), self._place(lane)
        wanted = key_of(lane, key)
        with self._alone(lane, "removing a row of") as cursor:
            clear_shared(cursor, number)
            cursor.execute(TOUCH_STATE, (lane.pipeline, lane.id))
            rows = remove_key(cursor, quoted(schema, table), wanted)
            return Erased(rows, remove_key(cursor, ledger_name(number), wanted))

    def _beside(self, lane: Lane) -> list[str]:
        with self.session.using(f"looking for lane {lane.id}") as cursor:
            (known,) = cursor.execute(KNOWN).fetchone() or (False,)
            row = cursor.execute(SELECT_LANE, (lane.pipeline, lane.id)).fetchone() if known else None
        return [ledger_name(row[0])] if row else []

    def drop(self, lane: Lane) -> None:
        """See `ports.sink.Drops.drop`. All or nothing: a drop that is killed removes nothing. A table that another lane
        writes, too, stays as it is. Fatal, naming them, when other objects depend on the table."""
        if not self.belongings(lane):
            return
        self._own(lane, removing=True)
        place = self._place(lane)
        with self._alone(lane, "dropping") as cursor:
            take_back(cursor, lane)
            _remove(cursor, remains(cursor, lane, *place), *place)
            cursor.execute(FORGET_LANE.format(sql.SQL("schemas")), (lane.pipeline, lane.id))
            cursor.execute(FORGET_LANE.format(sql.SQL("schema_versions")), (lane.pipeline, lane.id))
            cursor.execute(FORGET_LANE.format(sql.SQL("positions")), (lane.pipeline, lane.id))
        self._let_go(lane)


def remains(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> Remains:
    """What there is of the lane, whose table that is."""
    (known,) = cursor.execute(KNOWN).fetchone() or (False,)
    row = cursor.execute(SELECT_LANE, (lane.pipeline, lane.id)).fetchone() if known else None
    others = cursor.execute(OTHER_WRITER, (quoted(schema, table), lane.pipeline, lane.id)).fetchone() if known else None
    kind, remark, written = cursor.execute(TABLE, (WRITTEN, schema, table)).fetchone() or ("", "", False)
    mine = bool(kind) and (row is not None or remark == made_for(lane))
    goes = mine and kind in ("r", "p") and is_made(remark) and others is None
    belongings = [] if row is None else _of_row(cursor, row[0], f"lane {lane.id} of pipeline {lane.pipeline}")
    if mine:
        shared = f"lane {others[1]} of pipeline {others[0]} writes it too: it stays as it is" if others else FOUND
        stays = "" if goes else shared
        belongings.insert(0, Belonging("table", f"{schema}.{table}", stays))
    view = own_view(cursor, schema, table) if goes else None
    belongings += [Belonging("view", f"{schema}.{view}")] if view else []
    emptied = mine and not goes and others is None and written and kind in ("r", "p")
    return Remains(None if row is None else row[0], goes, emptied, belongings)


def _of_row(cursor: psycopg.Cursor, number: int, lane: str) -> list[Belonging]:
    """What belongs to a lane that has a position."""
    ledger = ledger_name(number)
    (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (ledger,)).fetchone() or (False,)
    found = [Belonging("remembered deletes", f"{SCHEMA}.tombstones_{number}")] if there else []
    found += [Belonging("staging table", f"{SCHEMA}.{name}") for name in shared_names(cursor, number)]
    return [*found, *(Belonging(what, f"{SCHEMA}.{what}, {lane}") for what in ("schemas", "positions"))]


def _remove(cursor: psycopg.Cursor, found: Remains, schema: str, table: str) -> None:
    relation, view = quoted(schema, table), own_view(cursor, schema, table) if found.goes else None
    if found.number is not None:
        clear_shared(cursor, found.number)
        cursor.execute(f"DROP TABLE IF EXISTS {ledger_name(found.number)}".encode(), prepare=False)
    if view:
        cursor.execute(f"DROP VIEW {quoted(schema, view)}".encode(), prepare=False)
    if found.goes:
        cursor.execute(f"DROP TABLE {relation}".encode(), prepare=False)
    elif found.written:
        cursor.execute(f"DELETE FROM {relation} WHERE {quoted(WRITTEN)} IS NOT NULL".encode(), prepare=False)
