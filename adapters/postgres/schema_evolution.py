"""Renames, removes and widens columns of a table after its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from replicator.domain.schema_evolution import TargetReshape

from .names import quote_name
from .types import AnyType, new_type
from .views import find_own_view

DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def reshape_statements(
    schema: str, table: str, types: Mapping[str, AnyType], reshaping: TargetReshape, end: str = ""
) -> Iterator[str]:
    """The rest of `reshaping` for a table whose columns have these `types`.

    A column keeps its type if it is not the one that replicator creates. `end`: for scd2, the column that is
    NULL in open versions.
    """
    there, relation = dict(types), quote_name(schema, table)
    for column in (quote_name(name) for name in reshaping.emptied if name in there):
        is_open = f" AND {quote_name(end)} IS NULL" if end else ""
        yield f"UPDATE {relation} SET {column} = NULL WHERE {column} IS NOT NULL{is_open}"
    for old, new in reshaping.renames:
        if old in there and new in reshaping.replaced and there.pop(new, None) is not None:
            yield f"ALTER TABLE {relation} DROP COLUMN {quote_name(new)}"
        if old in there and new not in there:
            there[new] = there.pop(old)
            yield f"ALTER TABLE {relation} RENAME COLUMN {quote_name(old)} TO {quote_name(new)}"
    for name in reshaping.removals:
        if there.pop(name, None) is not None:
            yield f"ALTER TABLE {relation} DROP COLUMN {quote_name(name)}"
    for change in reshaping.types:
        before, after = new_type(change.before), type_name(new_type(change.after))
        if change.name in there and type_name(there[change.name]) == type_name(before) != after:
            column = quote_name(change.name)
            there[change.name] = new_type(change.after)
            values = "NULL" if change.name in reshaping.emptied and not end else column
            yield f"ALTER TABLE {relation} ALTER COLUMN {column} TYPE {after} USING {values}::{after}"


def type_name(kind: AnyType) -> str | None:
    """The type as SQL; None for an unknown type."""
    try:
        return str(kind.compile(dialect=DIALECT))
    except sa.exc.CompileError:
        return None


def reshape_side_table(cursor: psycopg.Cursor, relation: str, reshaping: TargetReshape) -> None:
    """Renames and removes the same columns in a side table, if it exists. `tombstones.align_types` changes its
    types."""
    names = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    there = {name for (name,) in cursor.execute(names, (relation,)).fetchall()}
    for old, new in reshaping.renames:
        if old in there and new in reshaping.replaced and new in there:
            there = there - {new}
            cursor.execute(f"ALTER TABLE {relation} DROP COLUMN {quote_name(new)}".encode(), prepare=False)
        if old in there and new not in there:
            there = {*there - {old}, new}
            cursor.execute(
                f"ALTER TABLE {relation} RENAME COLUMN {quote_name(old)} TO {quote_name(new)}".encode(), prepare=False
            )
    for name in there.intersection(reshaping.removals):
        cursor.execute(f"ALTER TABLE {relation} DROP COLUMN {quote_name(name)}".encode(), prepare=False)


def reshape(
    connection: sa.Connection,
    schema: str,
    table: str,
    columns: Mapping[str, Any],
    reshaping: TargetReshape,
    *,
    end: str = "",
) -> bool:
    """Runs the statements; False when there were none. `columns` as SQLAlchemy reflects them.

    The table's view is dropped first, because it depends on the types. `views.ensure_view` creates it again.
    """
    types = {name: column["type"] for name, column in columns.items()}
    statements = list(reshape_statements(schema, table, types, reshaping, end))
    driver: Any = connection.connection.driver_connection
    view = find_own_view(driver.cursor(), schema, table) if statements else None
    if view is not None:
        statements.insert(0, f"DROP VIEW {quote_name(schema, view)}")
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))
    return bool(statements)
