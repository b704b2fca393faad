"""Views of the current rows, in PostgreSQL."""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from replicator.domain.policy.plan import ApplyPlan

from ..sql.dialect import POSTGRES, text_literal
from ..sql.views import OURS, VIEWS, current_rows_query, find_view
from .names import MAX_BYTES, quote_name

log = logging.getLogger(__name__)

REMARK = "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c WHERE c.oid = to_regclass(%s)"


def view_name(plan: ApplyPlan, table: str) -> str | None:
    """The name of the target's view; None when the target has only current rows, or the name would be too long."""
    view = find_view(plan)
    return f"{table}{view}" if view and len(f"{table}{view}".encode()) <= MAX_BYTES else None


def find_own_view(cursor: psycopg.Cursor, schema: str, table: str) -> str | None:
    """The name of the existing view that replicator created for the table."""
    for name in (f"{table}{view}" for view in VIEWS):
        row = cursor.execute(REMARK, (quote_name(schema, name),)).fetchone()
        if row is not None and row[0] == OURS.format(table=table):
            return name
    return None


def render_view(plan: ApplyPlan, schema: str, table: str) -> str | None:
    """The statement that creates or updates the view; None when there is none."""
    name = view_name(plan, table)
    if name is None:
        return None
    relation, select = quote_name(schema, name), current_rows_query(find_view(plan), POSTGRES, quote_name(schema, table))
    remark = text_literal(OURS.format(table=table))
    return f"CREATE OR REPLACE VIEW {relation} AS {select}; COMMENT ON VIEW {relation} IS {remark}"


def _is_behind(cursor: psycopg.Cursor, view: str, table: str) -> bool:
    """True when the view lacks columns of the table. Otherwise the right to create views is not needed."""
    lacking = cursor.execute(
        "SELECT FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped "
        "AND NOT EXISTS (SELECT FROM pg_attribute v WHERE v.attrelid = %s::regclass AND v.attname = a.attname) LIMIT 1",
        (table, view),
    )
    return lacking.fetchone() is not None


def ensure_view(cursor: psycopg.Cursor, schema: str, table: str, plan: ApplyPlan) -> None:
    """Creates or updates the view of `view_name`. Another relation with that name stays unchanged."""
    name, make = view_name(plan, table), render_view(plan, schema, table)
    if name is None or make is None:
        return
    row = cursor.execute(REMARK, (quote_name(schema, name),)).fetchone()
    if row is not None and row[0] != OURS.format(table=table):
        log.warning("%s.%s already exists, and is not a view of %s: it stays as it is", schema, name, table)
        return
    if row is not None and not _is_behind(cursor, quote_name(schema, name), quote_name(schema, table)):
        return
    try:
        with cursor.connection.transaction():
            cursor.execute(make.encode(), prepare=False)
    except errors.InvalidTableDefinition:
        log.warning(
            "columns of %s.%s were renamed or removed: drop the view %s, and it is created again", schema, table, name
        )
