"""The objects of a lane in the database: found, dropped, swapped with its rebuild's, or filled from a stored state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.change import ERROR
from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import cdc_sequence_columns
from replicator.ports.frames import Lane
from replicator.ports.sink import CheckpointUnsupported, LaneArtifact, StoredLane

from ...apply.projections import is_owned, ownership_remark
from ...postgres.connection import PostgresSession
from ...postgres.ddl import find_own_view
from ...postgres.errors import is_row_refusal
from ...postgres.lane_state import FORGET_LANE, OTHER_WRITER, SCHEMA, SELECT_LANE, withdraw_completeness
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import has_relation, quote_name
from ...postgres.types import ColumnConversion
from ...sql.dialect import text_literal
from ...sql.render import OURS
from .row_provider import conform_to_columns
from .shared_staging import drop_shared_tables, list_shared_tables
from .target import PostgresTarget, drop_side_table, side_table_name

# Found, and dropped, in the caller's transaction, for a lane with a table of its own.
#
# A removal drops the table, tombstones, staging tables, schemas and the position.

SEQUENCE_COLUMN = "_cdc_seq_1"
"""Null only in rows from before replication started."""

TABLE = sql.SQL(
    "SELECT c.relkind::text, obj_description(c.oid, 'pg_class'), "
    "EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped) "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)
HAS_LANES = sql.SQL(
    "SELECT to_regclass('_replicator.positions') IS NOT NULL AND to_regclass('_replicator.schemas') IS NOT NULL"
)
EXISTED_BEFORE = "it existed before the lane: the rows of the lane are removed, the table stays"


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
    return cursor.execute(HAS_LANES).fetchone() == (True,)


def read_remains(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> PostgresLaneRemains:
    """The objects of the lane with this table."""
    has_positions = has_lanes(cursor)
    key, relation = (lane.pipeline, lane.id), quote_name(schema, table)
    row = cursor.execute(SELECT_LANE, key).fetchone() if has_positions else None
    others = cursor.execute(OTHER_WRITER, (relation, *key)).fetchone() if has_positions else None
    kind, remark, has_written_column = cursor.execute(TABLE, (SEQUENCE_COLUMN, schema, table)).fetchone() or ("", "", False)
    is_own_table = bool(kind) and (row is not None or remark == ownership_remark(lane))
    is_removable = is_own_table and kind in ("r", "p") and is_owned(remark) and others is None
    belongings = []
    if row is not None:
        if has_relation(cursor, side_table_name(row[0])):
            belongings.append(LaneArtifact("remembered deletes", f"{SCHEMA}.tombstones_{row[0]}"))
        belongings += [LaneArtifact("staging table", f"{SCHEMA}.{name}") for name in list_shared_tables(cursor, row[0])]
        rows_of = f"lane {lane.id} of pipeline {lane.pipeline}"
        belongings += [LaneArtifact(name, f"{SCHEMA}.{name}, {rows_of}") for name in ("schemas", "positions")]
    if is_own_table:
        shared = f"lane {others[1]} of pipeline {others[0]} writes it too: it stays as it is" if others else EXISTED_BEFORE
        stays = "" if is_removable else shared
        belongings.insert(0, LaneArtifact("table", f"{schema}.{table}", stays))
    view = find_own_view(cursor, schema, table) if is_removable else None
    belongings += [LaneArtifact("view", f"{schema}.{view}")] if view else []
    emptied = is_own_table and not is_removable and others is None and has_written_column and kind in ("r", "p")
    return PostgresLaneRemains(None if row is None else row[0], is_removable, emptied, belongings)


def remove_lane(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> None:
    """Drops everything of the lane. A table that another lane also writes stays unchanged."""
    withdraw_completeness(cursor, lane)
    remains = read_remains(cursor, lane, schema, table)
    relation, view = quote_name(schema, table), find_own_view(cursor, schema, table) if remains.is_removable else None
    if remains.number is not None:
        drop_shared_tables(cursor, remains.number)
        cursor.execute(f"DROP TABLE IF EXISTS {side_table_name(remains.number)}".encode(), prepare=False)
    if view:
        cursor.execute(f"DROP VIEW {quote_name(schema, view)}".encode(), prepare=False)
    if remains.is_removable:
        cursor.execute(f"DROP TABLE {relation}".encode(), prepare=False)
    elif remains.is_written:
        cursor.execute(f"DELETE FROM {relation} WHERE {quote_name(SEQUENCE_COLUMN)} IS NOT NULL".encode(), prepare=False)
    for own_table in ("schemas", "schema_versions", "positions"):
        cursor.execute(FORGET_LANE.format(sql.SQL(own_table)), (lane.pipeline, lane.id))


# The swap of a lane's table and its rebuild, in the caller's transaction.
#
# The rebuild's table is renamed. It gets the settings that others made on the old one: owner, grants, comments of
# columns, storage parameters and indexes. Views of the old table then read the new one. If something cannot be
# kept, the swap names it and changes nothing.

READERS_SECONDS = 10.0
"""How long to wait for readers that started before the new table was complete."""

EARLIER_READERS = sql.SQL(
    "SELECT a.pid, a.application_name FROM pg_stat_activity a, _replicator.positions p "
    "WHERE p.pipeline = %s AND p.lane = %s AND a.datname = current_database() AND a.pid <> pg_backend_pid() "
    "AND age(a.backend_xmin) >= age(p.xmin) ORDER BY 1 LIMIT 1"
)
NOT_KEPT = sql.SQL(
    "SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(t)s::regclass AND NOT tgisinternal "
    "UNION ALL SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = %(t)s::regclass "
    "UNION ALL SELECT 'row security' FROM pg_class WHERE oid = %(t)s::regclass AND relrowsecurity "
    "UNION ALL SELECT 'constraint ' || conname FROM pg_constraint "
    "WHERE contype = 'f' AND %(t)s::regclass IN (conrelid, confrelid) OR contype = 'c' AND conrelid = %(t)s::regclass "
    "UNION ALL SELECT 'publication ' || pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
    "WHERE prrelid = %(t)s::regclass "
    "UNION ALL SELECT 'statistics ' || stxname FROM pg_statistic_ext WHERE stxrelid = %(t)s::regclass "
    "UNION ALL SELECT 'table ' || inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %(t)s::regclass ORDER BY 1"
)
READING = "pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class c ON c.oid = r.ev_class "
VIEWS = sql.SQL(
    "SELECT DISTINCT n.nspname, c.relname, c.relkind::text, pg_get_viewdef(c.oid), c.reloptions FROM "
    + READING
    + "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE d.classid = 'pg_rewrite'::regclass "
    "AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s::regclass AND c.oid <> d.refobjid ORDER BY 1, 2"
)
LOOKS = sql.SQL("SELECT pg_get_userbyid(relowner), reloptions, relreplident::text FROM pg_class WHERE oid = %s::regclass")
GRANTS = sql.SQL(
    "SELECT NULL::text, g.grantee, pg_get_userbyid(g.grantee), g.privilege_type, g.is_grantable "
    "FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = %(t)s::regclass AND g.grantee <> c.relowner "
    "UNION ALL SELECT a.attname, g.grantee, pg_get_userbyid(g.grantee), g.privilege_type, g.is_grantable "
    "FROM pg_attribute a, aclexplode(a.attacl) g WHERE a.attrelid = %(t)s::regclass AND NOT a.attisdropped "
    "AND a.attname IN (SELECT n.attname FROM pg_attribute n WHERE n.attrelid = %(n)s::regclass AND NOT n.attisdropped)"
)
REMARKS = sql.SQL(
    "SELECT a.attname, col_description(a.attrelid, a.attnum) FROM pg_attribute a JOIN pg_attribute n "
    "ON n.attrelid = %(n)s::regclass AND n.attname = a.attname AND NOT n.attisdropped "
    "WHERE a.attrelid = %(t)s::regclass AND a.attnum > 0 AND col_description(a.attrelid, a.attnum) IS NOT NULL"
)
INDEXES = sql.SQL(
    "SELECT c.relname, i.indisunique, substr(pg_get_indexdef(c.oid), 1 + length(format('CREATE %%sINDEX %%I ON %%I.%%I ', "
    "CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname, n.nspname, t.relname))) FROM pg_index i "
    "JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid "
    "JOIN pg_namespace n ON n.oid = t.relnamespace WHERE i.indrelid = %s::regclass AND i.indisvalid "
    "AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.conrelid = i.indrelid)"
)
NAMED = sql.SQL(
    "SELECT 'index', c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %(t)s::regclass "
    "AND strpos(c.relname, %(n)s) > 0 UNION ALL SELECT 'constraint', conname FROM pg_constraint "
    "WHERE conrelid = %(t)s::regclass AND conindid = 0 AND strpos(conname, %(n)s) > 0"
)


def await_readers(session: PostgresSession, rebuilt: Lane) -> None:
    """Waits until no snapshot is older than the rows of `rebuilt`. Raises Fatal when that takes too long.

    A reader that started before the new table was complete would find it empty.
    """
    end = time.monotonic() + READERS_SECONDS
    while True:
        with session.cursor(f"looking for readers before lane {rebuilt.id}") as cursor:
            reader = cursor.execute(EARLIER_READERS, (rebuilt.pipeline, rebuilt.id)).fetchone()
        if reader is None:
            return
        if time.monotonic() > end:
            raise Fatal(
                f"server process {reader[0]} ({reader[1]!r}) has an older snapshot than the new table of "
                f"{rebuilt.id}, so it would see neither the old rows nor the new",
                next_step="Repeat the command when its transaction has ended.",
            )
        time.sleep(0.1)


def refuse_unswappable(cursor: psycopg.Cursor, lane: Lane, schema: str, table: str) -> None:
    """Raises Fatal for a table that does not belong to the lane alone, or has objects that the swap would lose."""
    if not read_remains(cursor, lane, schema, table).is_removable:
        raise Fatal(
            f"table {schema}.{table} does not exist, or it existed before lane {lane.id}, or another lane writes it, too",
            next_step="Name another table with `--into`.",
        )
    obstacles = [name for (name,) in cursor.execute(NOT_KEPT, {"t": quote_name(schema, table)}).fetchall()]
    views = cursor.execute(VIEWS, (quote_name(schema, table),)).fetchall()
    obstacles += [f"materialized view {schema}.{name}" for schema, name, kind, *_ in views if kind != "v"]
    (_, _, identity) = cursor.execute(LOOKS, (quote_name(schema, table),)).fetchone() or ("", None, "")
    obstacles += ["replica identity of an index"] if identity == "i" else []
    if obstacles:
        raise Fatal(
            f"table {schema}.{table} has objects that its rebuild would not have: {', '.join(obstacles)}",
            next_step="Drop them, repeat the command, and create them again. Or name another table with `--into`.",
        )


def swap_tables(cursor: psycopg.Cursor, lane: Lane, relation: tuple[str, str], rebuilt_table: str, number: int) -> None:
    """Renames table `rebuilt_table` of the same schema to the lane's table `relation`, and drops the old one.

    The exclusive lock on the old one starts as late as possible.
    """
    schema, table = relation
    old, new, replaced_table = quote_name(schema, table), quote_name(schema, rebuilt_table), f"_replaced_{number}"
    _copy_settings(cursor, old, new)
    indexes = _create_missing_indexes(cursor, old, new, number)
    old_view, new_view = (find_own_view(cursor, schema, name) for name in (table, rebuilt_table))
    # A view with readers cannot be dropped, so it is updated as the views of others are.
    is_read = old_view and cursor.execute(VIEWS, (quote_name(schema, old_view),)).fetchall()
    if old_view and new_view and not is_read:
        _copy_settings(cursor, quote_name(schema, old_view), quote_name(schema, new_view))
        _run(cursor, f"DROP VIEW {quote_name(schema, old_view)}")
    elif new_view:
        _run(cursor, f"DROP VIEW {quote_name(schema, new_view)}")
        new_view = None
    views = cursor.execute(VIEWS, (old,)).fetchall()
    _run(cursor, f"ALTER TABLE {old} RENAME TO {quote_name(replaced_table)}")
    _run(cursor, f"ALTER TABLE {new} RENAME TO {quote_name(table)}")
    if new_view:
        view = new_view.replace(rebuilt_table, table, 1)
        _run(cursor, f"ALTER VIEW {quote_name(schema, new_view)} RENAME TO {quote_name(view)}")
        _run(cursor, f"COMMENT ON VIEW {quote_name(schema, view)} IS {text_literal(OURS.format(table=table))}")
    _update_views(cursor, lane, views)
    _run(cursor, f"DROP TABLE {quote_name(schema, replaced_table)}")
    for temporary_name, name in indexes:
        _run(cursor, f"ALTER INDEX {quote_name(schema, temporary_name)} RENAME TO {quote_name(name)}")
    _rename_indexes(cursor, schema, table, rebuilt_table)
    _run(cursor, f"COMMENT ON TABLE {old} IS {text_literal(ownership_remark(lane))}")


def _update_views(cursor: psycopg.Cursor, lane: Lane, views: Iterable[tuple[Any, ...]]) -> None:
    """Lets the views read the table that now has the lane's name. Raises Fatal for a view that does not fit it."""
    for schema, name, _, text, options in views:
        with_clause = f" WITH ({', '.join(options)})" if options else ""
        try:
            _run(cursor, f"CREATE OR REPLACE VIEW {quote_name(schema, name)}{with_clause} AS {text}")
        except psycopg.errors.InsufficientPrivilege:
            raise
        except psycopg.ProgrammingError as error:
            raise Fatal(
                f"view {schema}.{name} does not fit the rebuilt table of {lane.id}: {error.diag.message_primary}",
                next_step="Drop it, repeat the command, and create it again. Or name another table with `--into`.",
            ) from error


def _copy_settings(cursor: psycopg.Cursor, old: str, new: str) -> None:
    """Gives the new table or view the settings that others made on the old one."""
    owner, options, identity = cursor.execute(LOOKS, (old,)).fetchone() or ("", None, "")
    new_owner, _, new_identity = cursor.execute(LOOKS, (new,)).fetchone() or ("", None, "")
    if owner != new_owner:
        _run(cursor, f"ALTER TABLE {new} OWNER TO {quote_name(owner)}")
    if options:
        _run(cursor, f"ALTER TABLE {new} SET ({', '.join(options)})")
    if identity in ("f", "n") and identity != new_identity:
        _run(cursor, f"ALTER TABLE {new} REPLICA IDENTITY {'FULL' if identity == 'f' else 'NOTHING'}")
    for column, number, name, privilege, grantable in cursor.execute(GRANTS, {"t": old, "n": new}).fetchall():
        right = f"{privilege} ({quote_name(column)})" if column else privilege
        to = quote_name(name) if number else "PUBLIC"
        _run(cursor, f"GRANT {right} ON {new} TO {to}{' WITH GRANT OPTION' if grantable else ''}")
    for column, remark in cursor.execute(REMARKS, {"t": old, "n": new}).fetchall():
        _run(cursor, f"COMMENT ON COLUMN {new}.{quote_name(column)} IS {text_literal(remark)}")


def _create_missing_indexes(cursor: psycopg.Cursor, old: str, new: str, number: int) -> list[tuple[str, str]]:
    """Creates indexes of the old table that the new one lacks. Returns their temporary and their final names."""
    existing_indexes = {text for _, _, text in cursor.execute(INDEXES, (new,)).fetchall()}
    created_indexes = []
    for at, (name, unique, text) in enumerate(cursor.execute(INDEXES, (old,)).fetchall()):
        if text not in existing_indexes:
            created_indexes.append((f"_index_{number}_{at}", name))
            _run(cursor, f"CREATE {'UNIQUE ' if unique else ''}INDEX {quote_name(created_indexes[-1][0])} ON {new} {text}")
    return created_indexes


def _rename_indexes(cursor: psycopg.Cursor, schema: str, table: str, anew: str) -> None:
    """Renames indexes and constraints that contain the table's former name, if the new names are free."""
    relation = quote_name(schema, table)
    for kind, name in cursor.execute(NAMED, {"t": relation, "n": anew}).fetchall():
        wanted = name.replace(anew, table)
        if kind == "constraint":
            _run(cursor, f"ALTER TABLE {relation} RENAME CONSTRAINT {quote_name(name)} TO {quote_name(wanted)}")
        elif not has_relation(cursor, quote_name(schema, wanted)):
            _run(cursor, f"ALTER INDEX {quote_name(schema, name)} RENAME TO {quote_name(wanted)}")


def move_tombstones(cursor: psycopg.Cursor, number: int, other: int) -> None:
    """Replaces the tombstones of lane `number` by those of the other lane."""
    drop_side_table(cursor, number)
    name = side_table_name(other)
    if has_relation(cursor, name):
        _run(cursor, f"ALTER TABLE {name} RENAME TO {quote_name(f'tombstones_{number}')}")
        _rename_indexes(cursor, "_replicator", f"tombstones_{number}", f"tombstones_{other}")


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)


# The rows of another lane's stored state, copied into the tables of a lane in the caller's transaction.

STAGE = "_replicator_beside"


def copy_stored_rows(cursor: psycopg.Cursor, target: PostgresTarget, stored: StoredLane) -> None:
    """Copies rows and side rows. Raises CheckpointUnsupported for a row that does not fit, or that the server refuses."""
    try:
        for rows in stored.rows():
            _copy_rows(cursor, (target.schema, target.table), rows, target.conversions)
        _copy_side_rows(cursor, target, stored.side_rows())
    except psycopg.Error as error:
        if is_row_refusal(error):
            raise CheckpointUnsupported(f"has a row that the target refuses (SQLSTATE {error.sqlstate})") from error
        raise


def _copy_rows(
    cursor: psycopg.Cursor, relation: Sequence[str], rows: pa.Table, conversions: Mapping[str, ColumnConversion]
) -> None:
    good, rejects = conform_to_columns(rows, conversions, None, isolate=True)
    if rejects:
        raise CheckpointUnsupported(f"has rows that the target would reject ({rejects[0][ERROR][0].as_py()})")
    names = rows.column_names
    forms = [conversions[name].form for name in names]
    copy_rows(cursor, copy_statement(relation, names), good.select(names), forms)


def _copy_side_rows(cursor: psycopg.Cursor, target: PostgresTarget, pieces: Iterable[pa.Table]) -> None:
    """Copies the row with the highest sequence of each key (for scd2, of each change), through a temporary table."""
    names: list[str] = []
    for rows in pieces:
        if not names:
            names = rows.column_names
            columns = ", ".join(map(quote_name, names))
            create = f"CREATE TEMP TABLE {STAGE} ON COMMIT DROP AS SELECT {columns} FROM {target.side_table} WITH NO DATA"
            cursor.execute(create.encode(), prepare=False)
        _copy_rows(
            cursor,
            (STAGE,),
            rows,
            {name: target.conversions.get(name, ColumnConversion(rows.schema.field(name).type)) for name in names},
        )
    if not names:
        return
    plan = target.plan
    of_one = [quote_name(name) for name in (plan.merge_keys if plan.history else plan.table.keys)]
    newest = [f"{quote_name(n)} DESC" for n in cdc_sequence_columns(plan.table.sequence) if n in names]
    columns, keys, order = ", ".join(map(quote_name, names)), ", ".join(of_one), ", ".join([*of_one, *newest])
    newest_rows = f"SELECT DISTINCT ON ({keys}) {columns} FROM {STAGE} ORDER BY {order}"
    cursor.execute(f"INSERT INTO {target.side_table} ({columns}) {newest_rows}".encode(), prepare=False)
