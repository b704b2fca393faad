"""Columns of a table that are renamed, removed or widened because its source's were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from replicator.domain.schema_changes import Reshaping

from .pg_names import quoted
from .pg_types import AnyType, new_type
from .pg_views import own_view

DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def reshaping_statements(
    schema: str, table: str, types: Mapping[str, AnyType], reshaping: Reshaping, end: str = ""
) -> Iterator[str]:
    """What is still to be done of `reshaping` to a table whose columns have these `types`. A column that has another type
    than the one made for its source keeps it. `end`: of a history, the column that is NULL in open versions."""
    there, relation = dict(types), quoted(schema, table)
    for column in (quoted(name) for name in reshaping.emptied if name in there):
        is_open = f" AND {quoted(end)} IS NULL" if end else ""
        yield f"UPDATE {relation} SET {column} = NULL WHERE {column} IS NOT NULL{is_open}"
    for old, new in reshaping.renames:
        if old in there and new in reshaping.replaced and there.pop(new, None) is not None:
            yield f"ALTER TABLE {relation} DROP COLUMN {quoted(new)}"
        if old in there and new not in there:
            there[new] = there.pop(old)
            yield f"ALTER TABLE {relation} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
    for name in reshaping.removals:
        if there.pop(name, None) is not None:
            yield f"ALTER TABLE {relation} DROP COLUMN {quoted(name)}"
    for change in reshaping.types:
        before, after = new_type(change.before), spelt(new_type(change.after))
        if change.name in there and spelt(there[change.name]) == spelt(before) != after:
            column = quoted(change.name)
            there[change.name] = new_type(change.after)
            values = "NULL" if change.name in reshaping.emptied and not end else column
            yield f"ALTER TABLE {relation} ALTER COLUMN {column} TYPE {after} USING {values}::{after}"


def spelt(kind: AnyType) -> str | None:
    """The type as SQL; None for one that is unknown here."""
    try:
        return str(kind.compile(dialect=DIALECT))
    except sa.exc.CompileError:
        return None


def reshape_beside(cursor: psycopg.Cursor, relation: str, reshaping: Reshaping) -> None:
    """The same names in a table beside the target, where it is; `pg_ledger.align` gives it the target's types."""
    names = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    there = {name for (name,) in cursor.execute(names, (relation,)).fetchall()}
    for old, new in reshaping.renames:
        if old in there and new in reshaping.replaced and new in there:
            there = there - {new}
            cursor.execute(f"ALTER TABLE {relation} DROP COLUMN {quoted(new)}".encode(), prepare=False)
        if old in there and new not in there:
            there = {*there - {old}, new}
            cursor.execute(f"ALTER TABLE {relation} RENAME COLUMN {quoted(old)} TO {quoted(new)}".encode(), prepare=False)
    for name in there.intersection(reshaping.removals):
        cursor.execute(f"ALTER TABLE {relation} DROP COLUMN {quoted(name)}".encode(), prepare=False)


def reshape(
    connection: sa.Connection, schema: str, table: str, columns: Mapping[str, Any], reshaping: Reshaping, *, end: str = ""
) -> bool:
    """Do it; False when there was nothing to be done. `columns` as SQLAlchemy reflects them. The view that belongs to the
    table is dropped first, since it holds fast to the types, and made anew by `pg_views.ensure_view`."""
    types = {name: column["type"] for name, column in columns.items()}
    statements = list(reshaping_statements(schema, table, types, reshaping, end))
    driver: Any = connection.connection.driver_connection
    view = own_view(driver.cursor(), schema, table) if statements else None
    if view is not None:
        statements.insert(0, f"DROP VIEW {quoted(schema, view)}")
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))
    return bool(statements)
