"""Tombstones in PostgreSQL, and the side table of a lane: one per lane in schema `_replicator`, with the key of the
target.

Its name in the database is `tombstones_<number>` under every policy. For scd2 it holds absorbed changes (`scd2`), with a
sequence for each column the column versions (`per_column`).

Its key columns have the target's types, so that joins use the primary key. The lane's number is its name, not
the target's name, so two lanes never share one.
"""

from __future__ import annotations

import psycopg

from replicator.domain.policy.plan import ApplyPlan, cdc_sequence_columns
from replicator.domain.sequence import Sequence

from ...postgres.lane_state import SCHEMA
from ...postgres.names import quote_name
from ...sql.dialect import POSTGRES
from ...sql.reconcile import not_above_condition


def side_table_name(number: int) -> str:
    """The table of the lane with this number, as SQL."""
    return quote_name(SCHEMA, f"tombstones_{number}")


def align_types(cursor: psycopg.Cursor, name: str, target: str) -> None:
    """Changes the columns of a side table to the types of the target's columns, which may be wider now."""
    altered = cursor.execute(
        "SELECT m.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_attribute m USING (attname) "
        "WHERE a.attrelid = %s::regclass AND m.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped "
        "AND NOT m.attisdropped AND format_type(a.atttypid, a.atttypmod) <> format_type(m.atttypid, m.atttypmod)",
        (target, name),
    ).fetchall()
    for column, kind in altered:
        alter = f"ALTER TABLE {name} ALTER COLUMN {quote_name(column)} TYPE {kind} USING {quote_name(column)}::{kind}"
        cursor.execute(alter.encode(), prepare=False)


def ensure_tombstones(cursor: psycopg.Cursor, number: int, plan: ApplyPlan, target: str) -> str:
    """Creates the lane's table if it does not exist; returns its name as SQL."""
    name = side_table_name(number)
    (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone() or (False,)
    if not there:
        keys = [quote_name(k) for k in plan.table.keys]
        sequence = [quote_name(n) for n in cdc_sequence_columns(plan.table.sequence)]
        columns = ", ".join(f"t.{n}" for n in (*keys, *sequence))
        select = f"SELECT {columns} FROM {target} AS t WITH NO DATA"
        cursor.execute(
            f"CREATE TABLE {name} AS {select}; ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(keys)})".encode(),
            prepare=False,
        )
    align_types(cursor, name, target)
    return name


def drop_side_table(cursor: psycopg.Cursor, number: int) -> None:
    """Drops the lane's table: under another policy or key it has other columns."""
    cursor.execute(f"DROP TABLE IF EXISTS {side_table_name(number)}".encode(), prepare=False)


def delete_statement(side_table: str, plan: ApplyPlan, high: Sequence) -> str:
    """Removes the tombstones that are not above `high`."""
    return (
        f"DELETE FROM {side_table} AS l WHERE "
        f"{not_above_condition(POSTGRES, 'l', cdc_sequence_columns(plan.table.sequence), high)}"
    )


def upsert_statement(side_table: str, plan: ApplyPlan, rows: str) -> str:
    """Stores tombstones, given as SQL text after FROM. The highest sequence per key stays."""
    keys = ", ".join(map(quote_name, plan.table.keys))
    sequence = [quote_name(n) for n in cdc_sequence_columns(plan.table.sequence)]
    columns = f"{keys}, {', '.join(sequence)}"
    sets = ", ".join(f"{n} = excluded.{n}" for n in sequence)
    newer = f"({', '.join(f'excluded.{n}' for n in sequence)}) > ({', '.join(f'l.{n}' for n in sequence)})"
    return (
        f"INSERT INTO {side_table} AS l ({columns}) SELECT {columns} FROM {rows} "
        f"ON CONFLICT ({keys}) DO UPDATE SET {sets} WHERE {newer}"
    )
