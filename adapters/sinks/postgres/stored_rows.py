"""The rows of another lane's stored state, copied into the tables of a lane in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psycopg
import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.policy.plan import cdc_sequence_columns
from replicator.ports.sink import CheckpointUnsupported, StoredLane

from ...postgres.errors import is_row_refusal
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import quote_name
from ...postgres.types import ColumnConversion
from .conform import conform_to_columns
from .target import PostgresTarget

STAGE = "_replicator_beside"


def copy_stored_rows(cursor: psycopg.Cursor, target: PostgresTarget, stored: StoredLane) -> None:
    """Copies rows and side rows. Raises CheckpointUnsupported for a row that does not fit, or that the server refuses."""
    try:
        for rows in stored.rows():
            _copy_rows(cursor, (target.schema, target.table), rows, target.fits)
        _copy_side_rows(cursor, target, stored.side_rows())
    except psycopg.Error as error:
        if is_row_refusal(error):
            raise CheckpointUnsupported(f"has a row that the target refuses (SQLSTATE {error.sqlstate})") from error
        raise


def _copy_rows(
    cursor: psycopg.Cursor, relation: Sequence[str], rows: pa.Table, fits: Mapping[str, ColumnConversion]
) -> None:
    good, rejects = conform_to_columns(rows, fits, careful=True)
    if rejects:
        raise CheckpointUnsupported(f"has rows that the target would reject ({rejects[0][ERROR][0].as_py()})")
    names = rows.column_names
    forms = [fits[name].form for name in names]
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
            {name: target.fits.get(name, ColumnConversion(rows.schema.field(name).type)) for name in names},
        )
    if not names:
        return
    plan = target.plan
    of_one = [quote_name(name) for name in (plan.merge_keys if plan.history else plan.table.keys)]
    newest = [f"{quote_name(n)} DESC" for n in cdc_sequence_columns(plan.table.sequence) if n in names]
    columns, keys, order = ", ".join(map(quote_name, names)), ", ".join(of_one), ", ".join([*of_one, *newest])
    newest_rows = f"SELECT DISTINCT ON ({keys}) {columns} FROM {STAGE} ORDER BY {order}"
    cursor.execute(f"INSERT INTO {target.side_table} ({columns}) {newest_rows}".encode(), prepare=False)
