"""Views of what holds now, beside tables that keep more than that."""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from replicator.domain.plan import CDC_DELETED, ApplyPlan, end_sequence_columns

from .pg_names import MAX_BYTES, quoted

log = logging.getLogger(__name__)
OURS = "replicator: the rows of {table} that hold now"
CURRENT, LIVING = "_current", "_living"
"""What is added to the name of a table: of a history, and of one whose deleted rows stay."""

REMARK = "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c WHERE c.oid = to_regclass(%s)"


def view_of(plan: ApplyPlan, table: str) -> str | None:
    """The name of the view that belongs to a target; None where the target holds current rows only, or the name would be too
    long."""
    name = f"{table}{CURRENT if plan.history else LIVING}"
    return name if condition(plan) and len(name.encode()) <= MAX_BYTES else None


def condition(plan: ApplyPlan) -> str:
    """Which rows of a target hold now; empty where all do."""
    if plan.history:
        return f"{quoted(end_sequence_columns(plan.table.sequence)[0])} IS NULL"
    return f"{quoted(CDC_DELETED)} IS NOT TRUE" if plan.soft_deletes else ""


def own_view(cursor: psycopg.Cursor, schema: str, table: str) -> str | None:
    """The name of the view that was made for the table, where it is there."""
    for name in (f"{table}{CURRENT}", f"{table}{LIVING}"):
        row = cursor.execute(REMARK, (quoted(schema, name),)).fetchone()
        if row is not None and row[0] == OURS.format(table=table):
            return name
    return None


def ensure_view(cursor: psycopg.Cursor, schema: str, table: str, plan: ApplyPlan) -> None:
    """Create the view that `view_of` names, or bring its columns up to date. A relation of that name that is not such a view
    stays as it is."""
    name = view_of(plan, table)
    if name is None:
        return
    mine = OURS.format(table=table)
    row = cursor.execute(REMARK, (quoted(schema, name),)).fetchone()
    if row is not None and row[0] != mine:
        log.warning("%s.%s is there already, and is no view of %s: it stays as it is", schema, name, table)
        return
    select = f"SELECT * FROM {quoted(schema, table)} WHERE {condition(plan)}"
    relation, comment = quoted(schema, name), mine.replace("'", "''")
    make = f"CREATE OR REPLACE VIEW {relation} AS {select}; COMMENT ON VIEW {relation} IS '{comment}'"
    try:
        with cursor.connection.transaction():
            cursor.execute(make.encode(), prepare=False)
    except errors.InvalidTableDefinition:
        log.warning("columns of %s.%s were renamed or removed: drop the view %s, and it is made anew", schema, table, name)
