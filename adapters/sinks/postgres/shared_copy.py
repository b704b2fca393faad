"""Copies rows from any process into a staging table that every session sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

import psycopg
import pyarrow as pa

from replicator.domain.change import ERROR
from replicator.domain.policy.plan import ApplyPlan

from ...apply.rows_frame import to_rows
from ...postgres.connection import PostgresSession
from ...postgres.errors import translate_error
from ...postgres.lane_state import SCHEMA
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.types import ColumnConversion
from .conform import conform_to_columns
from .refused_rows import copy_with_bisection, find_refusal
from .shared_staging import ATTEMPT, CopyResult, copy_role, reject_columns
from .target import ROW, PostgresTarget


@dataclass(frozen=True)
class SharedCopy:
    """The parameters of an attempt to copy folded rows of one write. They can be pickled; the repr shows no
    secret."""

    dsn: str = field(repr=False)
    lane: str
    table: str
    plan: ApplyPlan
    fits: Mapping[str, ColumnConversion]
    names: tuple[str, ...]
    forms: tuple[str, ...]
    event_log: bool
    applied_at: datetime

    @classmethod
    def for_table(cls, table: str, target: PostgresTarget, dsn: str, applied_at: datetime) -> SharedCopy:
        """For rows of the lane of `target`."""
        names = target.list_columns(whole=True)
        forms = (*target.list_forms(names), *target.list_forms([ATTEMPT]))
        columns = (*names, ATTEMPT)
        fits = dict(target.fits)
        return cls(dsn, target.lane.id, table, target.plan, fits, columns, forms, target.event_log, applied_at)

    def run(self, pieces: Iterable[pa.Table], part: int, attempt: int) -> CopyResult | None:
        """Copies all slices of a folded frame, and commits; None when there are no rows.

        Rows that do not fit or that the server refuses are returned as rejects. Raises only errors of this
        program.
        """
        filled = (piece for piece in pieces if piece.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        doing = f"copying rows of lane {self.lane}"
        copied, rejects = CopyResult(part, attempt), []
        try:
            with PostgresSession(self.dsn, copy_role(self.table)).open() as connection, connection.cursor() as cursor:
                for piece in chain([first], filled):
                    copied, bad = self._copy_piece(cursor, piece, copied)
                    rejects += bad
        except psycopg.Error as error:
            raise translate_error(error, doing) from error
        names = [*reject_columns(event_log=self.event_log), ERROR]
        return replace(copied, rejects=_merge_rejects(rejects, names))

    def _copy_piece(self, cursor: psycopg.Cursor, piece: pa.Table, before: CopyResult) -> tuple[CopyResult, list[pa.Table]]:
        given = piece if self.event_log else to_rows(piece, self.plan, self.applied_at)
        rows, rejects = conform_to_columns(given, self.fits, careful=False)
        numbered = self._number_rows(rows, before)
        statement = copy_statement((SCHEMA, self.table), self.names)
        refused: dict[int, str] = {}
        if find_refusal(cursor, lambda: copy_rows(cursor, statement, numbered.select(self.names), self.forms)):
            rows, more = conform_to_columns(rows, self.fits, careful=True)
            rejects += more
            numbered = self._number_rows(rows, before)
            found = copy_with_bisection(cursor, statement, numbered.select(self.names), self.forms, careful=True)
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

    def _number_rows(self, rows: pa.Table, before: CopyResult) -> pa.Table:
        numbers = pa.array(range(before.bound, before.bound + rows.num_rows), pa.int32())
        attempts = pa.repeat(pa.scalar(before.attempt, pa.int64()), rows.num_rows)
        return rows.append_column(ROW, numbers).append_column(ATTEMPT, attempts)


def _merge_rejects(rejects: Sequence[pa.Table], names: Sequence[str]) -> pa.Table | None:
    """The rejects of all slices. Some have the target's types, others the source's."""
    return pa.concat_tables([bad.select(names) for bad in rejects], promote_options="permissive") if rejects else None
