"""The swap of a lane's table and its rebuild, in the caller's transaction.

The rebuild's table is renamed. It gets the settings that others made on the old one: owner, grants, comments of
columns, storage parameters and indexes. Views of the old table then read the new one. If something cannot be
kept, the swap names it and changes nothing.
"""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from replicator.domain.errors import Fatal
from replicator.ports.frames import Lane

from ...apply.ownership import ownership_remark
from ...postgres.connection import PostgresSession
from ...postgres.ddl import find_own_view
from ...postgres.names import quote_name
from ...sql.dialect import text_literal
from .lane_removal import read_remains
from .tombstones import drop_side_table, side_table_name

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
HAS = sql.SQL("SELECT to_regclass(%s) IS NOT NULL")


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
    held = [name for (name,) in cursor.execute(NOT_KEPT, {"t": quote_name(schema, table)}).fetchall()]
    views = cursor.execute(VIEWS, (quote_name(schema, table),)).fetchall()
    held += [f"materialized view {schema}.{name}" for schema, name, kind, *_ in views if kind != "v"]
    (_, _, identity) = cursor.execute(LOOKS, (quote_name(schema, table),)).fetchone() or ("", None, "")
    held += ["replica identity of an index"] if identity == "i" else []
    if held:
        raise Fatal(
            f"table {schema}.{table} has objects that its rebuild would not have: {', '.join(held)}",
            next_step="Drop them, repeat the command, and create them again. Or name another table with `--into`.",
        )


def swap_tables(cursor: psycopg.Cursor, lane: Lane, relation: tuple[str, str], anew: str, number: int) -> None:
    """Renames table `anew` of the same schema to the lane's table `relation`, and drops the old one.

    The exclusive lock on the old one starts as late as possible.
    """
    schema, table = relation
    old, new, gone = quote_name(schema, table), quote_name(schema, anew), f"_replaced_{number}"
    view = find_own_view(cursor, schema, anew)
    if view:
        _run(cursor, f"DROP VIEW {quote_name(schema, view)}")
    _copy_settings(cursor, old, new)
    indexes = _create_missing_indexes(cursor, old, new, number)
    views = cursor.execute(VIEWS, (old,)).fetchall()
    _run(cursor, f"ALTER TABLE {old} RENAME TO {quote_name(gone)}")
    _run(cursor, f"ALTER TABLE {new} RENAME TO {quote_name(table)}")
    for view_schema, name, _, text, options in views:
        told = f" WITH ({', '.join(options)})" if options else ""
        _run(cursor, f"CREATE OR REPLACE VIEW {quote_name(view_schema, name)}{told} AS {text}")
    _run(cursor, f"DROP TABLE {quote_name(schema, gone)}")
    for made, name in indexes:
        _run(cursor, f"ALTER INDEX {quote_name(schema, made)} RENAME TO {quote_name(name)}")
    _rename_indexes(cursor, schema, table, anew)
    _run(cursor, f"COMMENT ON TABLE {old} IS {text_literal(ownership_remark(lane))}")


def _copy_settings(cursor: psycopg.Cursor, old: str, new: str) -> None:
    """Gives the new table the settings that others made on the old one."""
    owner, options, identity = cursor.execute(LOOKS, (old,)).fetchone() or ("", None, "")
    if (owner,) != (cursor.execute(LOOKS, (new,)).fetchone() or ("",))[:1]:
        _run(cursor, f"ALTER TABLE {new} OWNER TO {quote_name(owner)}")
    if options:
        _run(cursor, f"ALTER TABLE {new} SET ({', '.join(options)})")
    if identity in ("f", "n"):
        _run(cursor, f"ALTER TABLE {new} REPLICA IDENTITY {'FULL' if identity == 'f' else 'NOTHING'}")
    for column, number, name, privilege, grantable in cursor.execute(GRANTS, {"t": old, "n": new}).fetchall():
        what = f"{privilege} ({quote_name(column)})" if column else privilege
        to = quote_name(name) if number else "PUBLIC"
        _run(cursor, f"GRANT {what} ON {new} TO {to}{' WITH GRANT OPTION' if grantable else ''}")
    for column, remark in cursor.execute(REMARKS, {"t": old, "n": new}).fetchall():
        _run(cursor, f"COMMENT ON COLUMN {new}.{quote_name(column)} IS {text_literal(remark)}")


def _create_missing_indexes(cursor: psycopg.Cursor, old: str, new: str, number: int) -> list[tuple[str, str]]:
    """Creates indexes of the old table that the new one lacks. Returns their temporary and their final names."""
    there = {text for _, _, text in cursor.execute(INDEXES, (new,)).fetchall()}
    made = []
    for at, (name, unique, text) in enumerate(cursor.execute(INDEXES, (old,)).fetchall()):
        if text not in there:
            made.append((f"_index_{number}_{at}", name))
            _run(cursor, f"CREATE {'UNIQUE ' if unique else ''}INDEX {quote_name(made[-1][0])} ON {new} {text}")
    return made


def _rename_indexes(cursor: psycopg.Cursor, schema: str, table: str, anew: str) -> None:
    """Renames indexes and constraints that contain the table's former name, if the new names are free."""
    relation = quote_name(schema, table)
    for kind, name in cursor.execute(NAMED, {"t": relation, "n": anew}).fetchall():
        wanted = name.replace(anew, table)
        if kind == "constraint":
            _run(cursor, f"ALTER TABLE {relation} RENAME CONSTRAINT {quote_name(name)} TO {quote_name(wanted)}")
        elif cursor.execute(HAS, (quote_name(schema, wanted),)).fetchone() == (False,):
            _run(cursor, f"ALTER INDEX {quote_name(schema, name)} RENAME TO {quote_name(wanted)}")


def move_tombstones(cursor: psycopg.Cursor, number: int, other: int) -> None:
    """Replaces the tombstones of lane `number` by those of the other lane."""
    drop_side_table(cursor, number)
    name = side_table_name(other)
    if cursor.execute(HAS, (name,)).fetchone() == (True,):
        _run(cursor, f"ALTER TABLE {name} RENAME TO {quote_name(f'tombstones_{number}')}")
        _rename_indexes(cursor, "_replicator", f"tombstones_{number}", f"tombstones_{other}")


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)
