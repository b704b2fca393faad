"""Views of what holds now, in PostgreSQL."""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from replicator.domain.plan import ApplyPlan

from .dialect import POSTGRES, text_literal
from .pg_names import MAX_BYTES, quoted
from .views import OURS, VIEWS, holding, view_of

log = logging.getLogger(__name__)

REMARK = "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c WHERE c.oid = to_regclass(%s)"


def name_of_view(plan: ApplyPlan, table: str) -> str | None:
    """The name of the view that belongs to a target; None where the target holds current rows only, or the name would be too
    long."""
    view = view_of(plan)
    return f"{table}{view}" if view and len(f"{table}{view}".encode()) <= MAX_BYTES else None


def own_view(cursor: psycopg.Cursor, schema: str, table: str) -> str | None:
    """The name of the view that was made for the table, where it is there."""
    for name in (f"{table}{view}" for view in VIEWS):
        row = cursor.execute(REMARK, (quoted(schema, name),)).fetchone()
        if row is not None and row[0] == OURS.format(table=table):
            return name
    return None


def view_statements(plan: ApplyPlan, schema: str, table: str) -> str | None:
    """What makes the view, or brings its columns up to date; None where there is to be none."""
    name = name_of_view(plan, table)
    if name is None:
        return None
    relation, select = quoted(schema, name), holding(view_of(plan), POSTGRES, quoted(schema, table))
    remark = text_literal(OURS.format(table=table))
    return f"CREATE OR REPLACE VIEW {relation} AS {select}; COMMENT ON VIEW {relation} IS {remark}"


def _is_behind(cursor: psycopg.Cursor, view: str, table: str) -> bool:
    """Whether the table has columns that the view has not. Without need nobody is asked for the right to make views."""
    lacking = cursor.execute(
        "SELECT FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped "
        "AND NOT EXISTS (SELECT FROM pg_attribute v WHERE v.attrelid = %s::regclass AND v.attname = a.attname) LIMIT 1",
        (table, view),
    )
    return lacking.fetchone() is not None


def ensure_view(cursor: psycopg.Cursor, schema: str, table: str, plan: ApplyPlan) -> None:
    """Create the view that `name_of_view` names, or bring its columns up to date. A relation of that name that is not such a
    view stays as it is."""
    name, make = name_of_view(plan, table), view_statements(plan, schema, table)
    if name is None or make is None:
        return
    row = cursor.execute(REMARK, (quoted(schema, name),)).fetchone()
    if row is not None and row[0] != OURS.format(table=table):
        log.warning("%s.%s is there already, and is no view of %s: it stays as it is", schema, name, table)
        return
    if row is not None and not _is_behind(cursor, quoted(schema, name), quoted(schema, table)):
        return
    try:
        with cursor.connection.transaction():
            cursor.execute(make.encode(), prepare=False)
    except errors.InvalidTableDefinition:
        log.warning("columns of %s.%s were renamed or removed: drop the view %s, and it is made anew", schema, table, name)
