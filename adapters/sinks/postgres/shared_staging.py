"""Staging tables that every session sees, so that several processes can fill one in parallel.

Each write has its own in schema `_replicator`: `staging_<number of the lane>_<random>`. It is unlogged, and has
the columns of the lane's staging table and `_cdc_attempt`.

Every attempt commits its own rows, perhaps more than once: failed tasks are repeated, and slow tasks can run
twice at the same time. Only rows of attempts that are reported as successful are read. Tables of a failed batch
are dropped when the lane is prepared, and before its next batch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, chain

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.change import ERROR, RAW_RECORD_POSITION, RECORD_POSITION
from replicator.domain.errors import Fatal, Retryable
from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import Write

from ...apply.rows_frame import to_rows
from ...postgres.connection import PostgresSession, planner_hints
from ...postgres.errors import translate_error
from ...postgres.lane_state import SCHEMA
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import quote_name
from ...postgres.types import ColumnConversion
from .refused_rows import RefusedRow, copy_with_bisection, find_refusal
from .row_provider import ProvidedRows, RowProvider, conform_to_columns
from .target import STAGED_ROW, PostgresTarget

ATTEMPT = "_cdc_attempt"
"""The attempt that copied a row."""

END_WITHIN_MS = 5_000
LEFT = sql.SQL("SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace({}) AND starts_with(c.relname, %s)")
END_COPYING = sql.SQL(
    "SELECT pg_terminate_backend(pid, {}) FROM pg_stat_activity "
    "WHERE datname = current_database() AND starts_with(application_name, %s)"
)


@dataclass(frozen=True)
class CopyResult:
    """The result of one attempt.

    - `part`: the attempts are read in this order.
    - `rows`: how many rows were copied, numbered below `bound`.
    - `truncates`: how many truncates are not rows.
    - `rejects`: rejects with `_error`.
    """

    part: int
    attempt: int
    rows: int = 0
    bound: int = 0
    truncates: int = 0
    rejects: pa.Table | None = None


def create_shared_table(cursor: psycopg.Cursor, target: PostgresTarget) -> str:
    """Creates a staging table for one write; returns its name."""
    # Random, so that a late task of an ended instance finds no table, and cannot add rows to a newer write.
    name = f"{_prefix(target.number)}{secrets.token_hex(6)}"
    shape = target.empty_select(f", NULL::bigint AS {quote_name(ATTEMPT)}")
    cursor.execute(f"CREATE UNLOGGED TABLE {quote_name(SCHEMA, name)} AS {shape}".encode(), prepare=False)
    return name


def copy_role(name: str) -> str:
    """The role (`connection.PostgresSession`) of sessions that copy into this table; it identifies them."""
    return name


def drop_shared_tables(cursor: psycopg.Cursor, number: int) -> None:
    """Drops the staging tables of the lane with this number, and ends sessions that still copy into them."""
    for name in list_shared_tables(cursor, number):
        _drop_table(cursor, name)


def list_shared_tables(cursor: psycopg.Cursor, number: int) -> list[str]:
    """The existing staging tables of the lane with this number."""
    return [name for (name,) in cursor.execute(LEFT.format(sql.Literal(SCHEMA)), (_prefix(number),)).fetchall()]


def _drop_table(cursor: psycopg.Cursor, name: str) -> None:
    # A copy that still runs locks the table: an abandoned task, or a task of an instance that has ended.
    cursor.execute(END_COPYING.format(sql.Literal(END_WITHIN_MS)), (f"replicator {copy_role(name)} ",))
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)), prepare=False)


def _prefix(number: int) -> str:
    return f"staging_{number}_"


def reject_columns(*, event_log: bool) -> tuple[str, ...]:
    """The columns of a rejected row besides the reason: its position, and for a record its key and value."""
    return (*RAW_RECORD_POSITION, "key", "value") if event_log else RECORD_POSITION


@dataclass(frozen=True)
class SharedStaging:
    """A `RowProvider` and its `TargetRows`, in a staging table that attempts filled.

    - `before`: the lane's state at the time of copying.
    - `trimmed`: how many rows were left out, because they are below that state or repeated.
    - `late`: rejects of a watermark.
    """

    name: str
    before: LaneState
    trimmed: int
    attempts: Sequence[CopyResult]
    late: pa.Table | None = None
    firsts: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", sorted(self.attempts, key=lambda one: one.part))
        object.__setattr__(self, "firsts", [0, *accumulate(one.bound for one in self.attempts)])

    def provide_rows(
        self,
        write: Write[RowProvider],
        before: LaneState,
        target: PostgresTarget,  # noqa: ARG002
        applied_at: datetime,  # noqa: ARG002
        *,
        isolate: bool,  # noqa: ARG002
    ) -> ProvidedRows:
        """Values were already checked, by this program and by the server, when they were copied."""
        # An earlier write of the call may have absorbed a change. The copied rows do not depend on it.
        if before != replace(self.before, max_side_table_sequence=before.max_side_table_sequence):
            raise Retryable(f"the state of lane {write.lane.id} changed while its rows were copied")
        rejects = [rows for rows in (self.late, *(one.rejects for one in self.attempts)) if rows is not None]
        truncates = sum(one.truncates for one in self.attempts)
        copied_count = self.count + sum(rows.num_rows for rows in rejects) + truncates + self.trimmed
        if copied_count != write.folded.rows:
            raise Fatal(
                f"of {format_count(write.folded.rows, 'row')} for lane {write.lane.id} {copied_count} were copied",
                next_step=f"Nothing of the batch was applied. `replicator lanes resume {write.lane.id}` copies it again; if "
                "that ends the same, use the local engine for this lane and report it.",
            )
        return ProvidedRows(self, rejects, self.trimmed, truncates)

    def discard(self, cursor: psycopg.Cursor) -> None:
        _drop_table(cursor, self.name)

    @property
    def count(self) -> int:
        return sum(one.rows for one in self.attempts)

    @property
    def bound(self) -> int:
        return self.firsts[-1]

    def inline(self, conversions: Mapping[str, ColumnConversion]) -> str | None:  # noqa: ARG002
        """None: the rows are already on the server."""
        return None

    def copy_to_staging(
        self,
        cursor: psycopg.Cursor,
        target: PostgresTarget,
        names: Sequence[str],  # noqa: ARG002
        *,
        isolate: bool,  # noqa: ARG002
    ) -> list[RefusedRow]:
        """Stages all columns, because rejects are read from the staging table."""
        columns = [name for name in target.list_columns(whole=True) if name != STAGED_ROW]
        into, select_list = (sql.SQL(", ").join(sql.Identifier(*p, n) for n in columns) for p in ((), ("s",)))
        query = sql.SQL(
            "INSERT INTO {stage} ({row}, {into}) SELECT a.first + s.{row}, {select_list} FROM {shared} AS s "
            "JOIN unnest(%s::bigint[], %s::int[]) AS a(attempt, first) ON s.{attempt} = a.attempt{order}"
        ).format(
            stage=sql.Identifier(target.staging_table),
            row=sql.Identifier(STAGED_ROW),
            into=into,
            select_list=select_list,
            shared=sql.Identifier(SCHEMA, self.name),
            attempt=sql.Identifier(ATTEMPT),
            # Appended rows keep their order, because an identity column numbers them in it.
            order=sql.SQL("" if target.plan.merge_keys else " ORDER BY 1"),
        )
        with planner_hints(cursor, bulk=True):
            attempts = [one.attempt for one in self.attempts]
            count = cursor.execute(query, (attempts, list(self.firsts[:-1])), prepare=False).rowcount
        if count != self.count:
            # A server empties its unlogged tables when it recovers from a crash.
            raise Retryable(f"of {format_count(self.count, 'copied row')} for lane {target.lane.id} {count} are there")
        return []

    def rejects(self, cursor: psycopg.Cursor, target: PostgresTarget, sentences: Mapping[int, str]) -> pa.Table:
        """See `TargetRows.rejects`, with the columns `reject_columns`."""
        names = reject_columns(event_log=target.event_log)
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {} = ANY(%s) ORDER BY 1").format(
            sql.Identifier(STAGED_ROW),
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.Identifier(target.staging_table),
            sql.Identifier(STAGED_ROW),
        )
        rows = cursor.execute(query, (list(sentences),)).fetchall()
        numbers, *columns = zip(*rows, strict=True)
        errors = pa.array([sentences[number] for number in numbers], pa.string())
        return pa.table([*map(pa.array, columns), errors], names=[*names, ERROR])


# Copies rows from any process into a staging table that every session sees.


@dataclass(frozen=True)
class SharedCopy:
    """The parameters of an attempt to copy folded rows of one write. They can be pickled; the repr shows no
    secret."""

    dsn: str = field(repr=False)
    lane: str
    table: str
    plan: ApplyPlan
    conversions: Mapping[str, ColumnConversion]
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
        conversions = dict(target.conversions)
        return cls(dsn, target.lane.id, table, target.plan, conversions, columns, forms, target.event_log, applied_at)

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
        copy_result, rejects = CopyResult(part, attempt), []
        try:
            with PostgresSession(self.dsn, copy_role(self.table)).open() as connection, connection.cursor() as cursor:
                for piece in chain([first], filled):
                    copy_result, bad = self._copy_piece(cursor, piece, copy_result)
                    rejects += bad
        except psycopg.Error as error:
            raise translate_error(error, doing) from error
        names = [*reject_columns(event_log=self.event_log), ERROR]
        if not rejects:
            return copy_result
        # Some have the target's types, others the source's.
        all_rejects = pa.concat_tables([bad.select(names) for bad in rejects], promote_options="permissive")
        return replace(copy_result, rejects=all_rejects)

    def _copy_piece(self, cursor: psycopg.Cursor, piece: pa.Table, before: CopyResult) -> tuple[CopyResult, list[pa.Table]]:
        frame = piece if self.event_log else to_rows(piece, self.plan, self.applied_at)
        plan = None if self.event_log else self.plan
        rows, rejects = conform_to_columns(frame, self.conversions, plan, isolate=False)
        numbered_rows = self._number_rows(rows, before)
        statement = copy_statement((SCHEMA, self.table), self.names)
        sentences: dict[int, str] = {}
        if find_refusal(cursor, lambda: copy_rows(cursor, statement, numbered_rows.select(self.names), self.forms)):
            rows, more = conform_to_columns(rows, self.conversions, plan, isolate=True)
            rejects += more
            numbered_rows = self._number_rows(rows, before)
            refused_rows = copy_with_bisection(cursor, statement, numbered_rows.select(self.names), self.forms, isolate=True)
            sentences = {one.number - before.bound: str(one.reject) for one in refused_rows}
        if sentences:
            errors = pa.array(list(sentences.values()), pa.string())
            rejects.append(rows.take(pa.array(list(sentences), pa.int64())).append_column(ERROR, errors))
        count = numbered_rows.num_rows - len(sentences)
        truncates = piece.num_rows - frame.num_rows
        after = replace(
            before,
            rows=before.rows + count,
            bound=before.bound + numbered_rows.num_rows,
            truncates=before.truncates + truncates,
        )
        return after, rejects

    def _number_rows(self, rows: pa.Table, before: CopyResult) -> pa.Table:
        numbers = pa.array(range(before.bound, before.bound + rows.num_rows), pa.int32())
        attempts = pa.repeat(pa.scalar(before.attempt, pa.int64()), rows.num_rows)
        return rows.append_column(STAGED_ROW, numbers).append_column(ATTEMPT, attempts)
