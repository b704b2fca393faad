"""A lane that begins with what a lane elsewhere has: rows, what is kept beside them, and state, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import psycopg
import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.errors import Fatal
from replicator.domain.plan import ApplyPlan, LaneState, cdc_sequence_columns
from replicator.domain.schema_versions import SchemaVersion
from replicator.ports.frames import Lane
from replicator.ports.state_snapshots import Unfit

from .pg_copy import copy_rows, copy_statement
from .pg_errors import refuses_row
from .pg_fitting import fitting
from .pg_names import quoted
from .pg_state import WRITE_STATE, read_state, to_json, write_versions
from .pg_swapping import SwappableLanes
from .pg_target import Target
from .pg_types import Fit

STAGE = "_replicator_beside"


class Held(Protocol):
    """What the lane has that is begun with."""

    state: LaneState
    versions: Sequence[SchemaVersion]

    def rows(self) -> Iterable[pa.Table]:
        """Its rows, with the columns of the plan's target."""

    def beside(self) -> Iterable[pa.Table]:
        """What is kept beside them, with the columns that the lane's own table of that has; of a key there may be several
        rows."""


class SeedableLanes(SwappableLanes):
    """`SwappableLanes` that can begin with what others have: `ports.state_snapshots.Seeds`."""

    def begin(self, lane: Lane, plan: ApplyPlan, held: Held) -> None:
        """See `ports.state_snapshots.Seeds.seed`."""
        target = self.prepared(lane, plan)
        with self._alone(lane, "filling the table of") as cursor:
            if read_state(cursor, lane.pipeline, lane.id) is not None:
                raise Fatal(f"lane {lane.id} has a state, so that it cannot begin with another lane's")
            with _refusing():
                for rows in held.rows():
                    _copy(cursor, (target.schema, target.table), rows, target.fits)
                _keep_beside(cursor, target, held.beside())
            write_versions(cursor, lane, held.versions)
            cursor.execute(WRITE_STATE, (to_json(held.state), lane.pipeline, lane.id))


@contextmanager
def _refusing() -> Iterator[None]:
    """Unfit for a row that the server refuses."""
    try:
        yield
    except psycopg.Error as error:
        if refuses_row(error):
            raise Unfit(f"has a row that the target refuses (SQLSTATE {error.sqlstate})") from error
        raise


def _copy(cursor: psycopg.Cursor, relation: Sequence[str], rows: pa.Table, fits: Mapping[str, Fit]) -> None:
    """Rows that all fit, by COPY. Unfit where one does not."""
    good, rejects = fitting(rows, fits, careful=True)
    if rejects:
        raise Unfit(f"has rows that the target would reject ({rejects[0][ERROR][0].as_py()})")
    names = rows.column_names
    forms = [fits[name].form for name in names]
    copy_rows(cursor, copy_statement(relation, names), good.select(names), forms)


def _keep_beside(cursor: psycopg.Cursor, target: Target, pieces: Iterable[pa.Table]) -> None:
    """Of each key, or each change, the row of the highest sequence: by way of a table of the transaction."""
    names: list[str] = []
    for rows in pieces:
        if not names:
            names = rows.column_names
            columns = ", ".join(map(quoted, names))
            _run(cursor, f"CREATE TEMP TABLE {STAGE} ON COMMIT DROP AS SELECT {columns} FROM {target.ledger} WITH NO DATA")
        _copy(cursor, (STAGE,), rows, {name: target.fits.get(name, Fit(rows.schema.field(name).type)) for name in names})
    if not names:
        return
    plan = target.plan
    of_one = [quoted(name) for name in (plan.merge_keys if plan.history else plan.table.keys)]
    newest = [f"{quoted(n)} DESC" for n in cdc_sequence_columns(plan.table.sequence) if n in names]
    columns, keys, order = ", ".join(map(quoted, names)), ", ".join(of_one), ", ".join([*of_one, *newest])
    _run(
        cursor,
        f"INSERT INTO {target.ledger} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {STAGE} ORDER BY {order}",
    )


def _run(cursor: psycopg.Cursor, statement: str) -> None:
    cursor.execute(statement.encode(), prepare=False)
