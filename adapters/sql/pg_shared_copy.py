"""Rows into a staging table that every session sees, from any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

import psycopg
import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.plan import ApplyPlan

from .pg_connection import Session
from .pg_copy import copy_rows, copy_statement
from .pg_errors import translated
from .pg_fitting import fitting
from .pg_refused import copy_bisecting, refused_at_once
from .pg_shared import ATTEMPT, Copied, copying_role, reject_names
from .pg_state import SCHEMA
from .pg_target import ROW, Target
from .pg_types import Fit
from .rows import to_rows


@dataclass(frozen=True)
class SharedCopy:
    """What an attempt needs to copy folded rows of one write into its table; can be pickled, and shows no secret."""

    dsn: str = field(repr=False)
    lane: str
    table: str
    plan: ApplyPlan
    fits: Mapping[str, Fit]
    names: tuple[str, ...]
    forms: tuple[str, ...]
    event_log: bool
    applied_at: datetime

    @classmethod
    def into(cls, table: str, target: Target, dsn: str, applied_at: datetime) -> SharedCopy:
        """For rows of the lane that `target` is."""
        names = target.names(whole=True)
        forms = (*target.forms(names), *target.forms([ATTEMPT]))
        columns = (*names, ATTEMPT)
        fits = dict(target.fits)
        return cls(dsn, target.lane.id, table, target.plan, fits, columns, forms, target.event_log, applied_at)

    def run(self, pieces: Iterable[pa.Table], part: int, attempt: int) -> Copied | None:
        """Copy all rows of `pieces` of a folded frame, and commit; None when there are none. What does not fit, or what the
        server refuses, is left out and returned. Raises the program's own errors."""
        filled = (piece for piece in pieces if piece.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        doing = f"copying rows of lane {self.lane}"
        copied, rejects = Copied(part, attempt), []
        try:
            with Session(self.dsn, copying_role(self.table)).open() as connection, connection.cursor() as cursor:
                for piece in chain([first], filled):
                    copied, bad = self._copied(cursor, piece, copied)
                    rejects += bad
        except psycopg.Error as error:
            raise translated(error, doing) from error
        names = [*reject_names(event_log=self.event_log), ERROR]
        return replace(copied, rejects=_together(rejects, names))

    def _copied(self, cursor: psycopg.Cursor, piece: pa.Table, before: Copied) -> tuple[Copied, list[pa.Table]]:
        given = piece if self.event_log else to_rows(piece, self.plan, self.applied_at)
        rows, rejects = fitting(given, self.fits, careful=False)
        numbered = self._numbered(rows, before)
        statement = copy_statement((SCHEMA, self.table), self.names)
        refused: dict[int, str] = {}
        if refused_at_once(cursor, lambda: copy_rows(cursor, statement, numbered.select(self.names), self.forms)):
            rows, more = fitting(rows, self.fits, careful=True)
            rejects += more
            numbered = self._numbered(rows, before)
            found = copy_bisecting(cursor, statement, numbered.select(self.names), self.forms, careful=True)
            refused = {one.number - before.bound: str(one.reject) for one in found}
        if refused:
            errors = pa.array(list(refused.values()), pa.string())
            rejects.append(rows.take(pa.array(list(refused), pa.int64())).append_column(ERROR, errors))
        count = numbered.num_rows - len(refused)
        truncates = piece.num_rows - given.num_rows
        after = replace(
            before,
            rows=before.rows + count,
            bound=before.bound + numbered.num_rows,
            truncates=before.truncates + truncates,
        )
        return after, rejects

    def _numbered(self, rows: pa.Table, before: Copied) -> pa.Table:
        numbers = pa.array(range(before.bound, before.bound + rows.num_rows), pa.int32())
        attempts = pa.repeat(pa.scalar(before.attempt, pa.int64()), rows.num_rows)
        return rows.append_column(ROW, numbers).append_column(ATTEMPT, attempts)


def _together(rejects: Sequence[pa.Table], names: Sequence[str]) -> pa.Table | None:
    """Rejects of all pieces: some have the target's types already, some the source's."""
    return pa.concat_tables([bad.select(names) for bad in rejects], promote_options="permissive") if rejects else None
