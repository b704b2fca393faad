"""Starts a lane from the stored state of another lane: rows, side rows and state, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import ApplyPlan, cdc_sequence_columns
from replicator.ports.checkpoints import CheckpointUnsupported, StoredLane
from replicator.ports.frames import Lane

from ...postgres.errors import is_row_refusal
from ...postgres.lane_state import WRITE_STATE, read_state, state_to_json, write_schema_versions
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import quote_name
from ...postgres.types import ColumnConversion
from .conform import conform_to_columns
from .table_swap import SwappableLanes
from .target import PostgresTarget

STAGE = "_replicator_beside"


class RestorableLanes(SwappableLanes):
    """`SwappableLanes` that can start from a checkpoint: `ports.sink.SinkFeatures.restore_state`."""

    def restore(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        target = self.prepare_target(lane, plan)
        with self._exclusive_transaction(lane, "filling the table of") as cursor:
            if read_state(cursor, lane.pipeline, lane.id) is not None:
                raise Fatal(f"lane {lane.id} has a state, so that it cannot begin with another lane's")
            with _refuse_unconvertible_rows():
                for rows in stored.rows():
                    _copy_rows(cursor, (target.schema, target.table), rows, target.fits)
                _copy_side_rows(cursor, target, stored.side_rows())
            write_schema_versions(cursor, lane, stored.versions)
            cursor.execute(WRITE_STATE, (state_to_json(stored.state), lane.pipeline, lane.id))


@contextmanager
def _refuse_unconvertible_rows() -> Iterator[None]:
    """Raises CheckpointUnsupported for a row that the server refuses."""
    try:
        yield
    except psycopg.Error as error:
        if is_row_refusal(error):
            raise CheckpointUnsupported(f"has a row that the target refuses (SQLSTATE {error.sqlstate})") from error
        raise


def _copy_rows(
    cursor: psycopg.Cursor, relation: Sequence[str], rows: pa.Table, fits: Mapping[str, ColumnConversion]
) -> None:
    """Copies the rows. Raises CheckpointUnsupported if one does not fit."""
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
            _run(
                cursor, f"CREATE TEMP TABLE {STAGE} ON COMMIT DROP AS SELECT {columns} FROM {target.side_table} WITH NO DATA"
            )
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
    _run(
        cursor,
        f"INSERT INTO {target.side_table} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {STAGE} ORDER BY {order}",
    )


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)
