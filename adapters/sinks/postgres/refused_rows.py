"""Finds the rows that the database refuses, by bisecting a failed statement under savepoints. All other rows
are written.

Another row of the batch can be the reason: a parent that is written later, or a unique value. Such rows are
tried again after the others. Rows that swap unique values are deleted and inserted again in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.errors import Reject

from ...postgres.errors import describe_refusal, is_row_refusal, is_waiting_for_rows
from ...postgres.literals import copy_rows
from ...postgres.names import quote_name
from ...sql.dialect import POSTGRES
from ...sql.render import merge_condition
from .target import STAGED_ROW, PostgresTarget, numbers_condition

UNIQUE = ("23505", "23P01")
ACTS_ON_OTHERS = sql.SQL(
    "SELECT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::regclass AND confdeltype <> 'a')"
)
"""True when a foreign key refers to the table with a delete rule other than NO ACTION.

Only NO ACTION waits for the end of the statement and then checks that the key exists.
"""
COLUMNS = sql.SQL(
    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
    "AND attgenerated = '' ORDER BY attnum"
)
CONSTRAINT = sql.SQL(
    "SELECT conrelid = %(t)s::regclass, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint "
    "WHERE contype = 'f' AND conname = %(n)s AND %(t)s::regclass IN (conrelid, confrelid)"
)


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """The number of a row that the database refuses, the error, and for people the reason why it waits."""

    number: int
    error: psycopg.Error
    columns: Sequence[str] = ()
    waits_for: str = ""

    @property
    def waits(self) -> bool:
        """True when the row may be accepted later, after other rows."""
        return is_waiting_for_rows(self.error)

    @property
    def reject(self) -> Reject:
        """The reject with the reason."""
        reject = describe_refusal(self.error, self.columns)
        return Reject(reject.code, f"{reject.sentence}; {self.waits_for}") if self.waits_for else reject


class RowsWaiting(Exception):
    """Rows of a write wait for other rows. The message is the sentence of the first row."""


def copy_with_bisection(
    cursor: psycopg.Cursor, statement: sql.Composed, rows: pa.Table, forms: Sequence[str], *, isolate: bool
) -> list[RefusedRow]:
    """Copies `rows`, numbered by their column `_cdc_row`, and returns the refused rows. Without `isolate`,
    refusals are raised."""
    if not isolate:
        copy_rows(cursor, statement, rows, forms)
        return []

    def attempt(first: int, last: int) -> None:
        copy_rows(cursor, statement, rows.slice(first, last - first), forms)

    return _bisect(cursor, attempt, rows[STAGED_ROW].to_pylist(), rows.column_names)


def merge_with_bisection(
    cursor: psycopg.Cursor, target: PostgresTarget, numbers: Sequence[int], *, reconciled: bool
) -> list[RefusedRow]:
    """Stage 4 for the rows with these ascending numbers. Returns the refused rows."""
    refusals = _merge(cursor, target, numbers, reconciled)
    while waiting := sorted(one.number for one in refusals if one.waits):
        rest = _merge(cursor, target, waiting, reconciled)
        if len(rest) == len(waiting):
            swaps = _swap_rows(cursor, target, [one.number for one in rest if one.error.sqlstate in UNIQUE], reconciled)
            rest = [one for one in rest if one.number not in swaps]
        refusals = [*(one for one in refusals if not one.waits), *rest]
        if len(rest) == len(waiting):
            break
    reasons: dict[str | None, str] = {}
    for one in refusals:
        name = one.error.diag.constraint_name
        if one.waits and name not in reasons:
            reasons[name] = _describe_wait(cursor, target, one.error)
    return [RefusedRow(o.number, o.error, o.columns, reasons.get(o.error.diag.constraint_name, "")) for o in refusals]


def _merge(cursor: psycopg.Cursor, target: PostgresTarget, numbers: Sequence[int], reconciled: bool) -> list[RefusedRow]:
    def attempt(first: int, last: int) -> None:
        cursor.execute(target.merge(numbers[first:last], reconciled=reconciled), prepare=False)

    return _bisect(cursor, attempt, numbers, list(target.conversions))


def _swap_rows(cursor: psycopg.Cursor, target: PostgresTarget, numbers: Iterable[int], reconciled: bool) -> set[int]:
    """Applies the changes of rows that swap unique values, and returns their numbers.

    It deletes and inserts these rows in one statement. At its end every key exists again, so foreign keys hold.
    It does nothing when a foreign key would change or refuse child rows at once.
    """
    (acts,) = cursor.execute(ACTS_ON_OTHERS, (target.relation,)).fetchone() or (False,)
    remaining_numbers = sorted(numbers)
    while len(remaining_numbers) > 1 and target.plan.merge_keys and not acts:
        cursor.execute("SAVEPOINT exchange")
        moving = _RowSwap(cursor, target, remaining_numbers, reconciled)
        if len(moving.numbers) > 1 and find_refusal(cursor, moving.replace_rows) is None:
            cursor.execute("RELEASE SAVEPOINT exchange")
            return set(moving.numbers)
        bad = moving.find_culprits() if len(moving.numbers) > 1 else []
        cursor.execute("ROLLBACK TO SAVEPOINT exchange; RELEASE SAVEPOINT exchange", prepare=False)
        if not bad:
            break
        remaining_numbers = [number for number in moving.numbers if number not in bad]
    return set()


class _RowSwap:
    """A temporary table with rows of the target after their changes. Each row has the number of its staged
    change."""

    def __init__(self, cursor: psycopg.Cursor, target: PostgresTarget, numbers: Sequence[int], reconciled: bool) -> None:
        self._cursor = cursor
        self._relation = target.relation
        self._table = quote_name(f"moving_{target.number}")
        staged = target.select_applying([numbers_condition(numbers)], reconciled=reconciled)
        self._same = merge_condition(target.plan, POSTGRES)
        self._run(f"DROP TABLE IF EXISTS pg_temp.{self._table}")
        self._run(
            f"CREATE TEMP TABLE {self._table} ON COMMIT DROP AS SELECT t.*, s.{quote_name(STAGED_ROW)} "
            f"FROM {self._relation} AS t JOIN {staged} AS s ON {self._same}"
        )
        rows = self._run(f"SELECT {quote_name(STAGED_ROW)} FROM {self._table} ORDER BY 1").fetchall()
        self.numbers: list[int] = [number for (number,) in rows]
        names = [quote_name(name) for (name,) in cursor.execute(COLUMNS, (self._relation,)).fetchall()]
        self._columns = ", ".join(names)
        # A delete removes its row from the temporary table, so another table stores the keys of the target's rows.
        self._keys = quote_name(f"moved_{target.number}")
        self._run(f"DROP TABLE IF EXISTS pg_temp.{self._keys}")
        keys = ", ".join(map(quote_name, target.plan.merge_keys))
        self._run(f"CREATE TEMP TABLE {self._keys} ON COMMIT DROP AS SELECT {keys} FROM {self._table}")
        if self.numbers:
            cursor.execute(target.merge(self.numbers, reconciled=reconciled, into=self._table), prepare=False)

    def replace_rows(self, numbers: Sequence[int] | None = None) -> None:
        """Replaces the target's rows by the changed rows, or by those with these ascending numbers.

        The count makes the statement delete all rows before it inserts the first one.
        """
        condition = "" if numbers is None else f" AND {numbers_condition(numbers)}"
        self._run(
            f"WITH gone AS (DELETE FROM {self._relation} AS t USING {self._keys} AS s WHERE {self._same} RETURNING 1) "
            f"INSERT INTO {self._relation} ({self._columns}) OVERRIDING SYSTEM VALUE "
            f"SELECT {self._columns} FROM {self._table} WHERE (SELECT count(*) FROM gone) >= 0{condition}"
        )

    def find_culprits(self) -> list[int]:
        """The rows that are refused even when all others are deleted first. Changes nothing."""
        good: list[int] = []
        bad = []
        waiting = [self.numbers]
        while waiting:
            part = waiting.pop()
            if not self._has_collision(sorted([*good, *part])):
                good += part
            elif len(part) == 1:
                bad += part
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
        return bad

    def _has_collision(self, numbers: Sequence[int]) -> bool:
        """True when unique values collide.

        Foreign keys are checked last. An error from one means that nothing collides; the other keys are missing
        in this attempt.
        """
        self._run("SAVEPOINT attempt")
        try:
            self.replace_rows(numbers)
        except psycopg.Error as error:
            if not is_row_refusal(error):
                raise
            return error.sqlstate in UNIQUE
        finally:
            self._run("ROLLBACK TO SAVEPOINT attempt; RELEASE SAVEPOINT attempt")
        return False

    def _run(self, statement: str) -> psycopg.Cursor:
        return self._cursor.execute(statement.encode(), prepare=False)


def _describe_wait(cursor: psycopg.Cursor, target: PostgresTarget, error: psycopg.Error) -> str:
    """The condition under which the database accepts the row."""
    if error.sqlstate in UNIQUE:
        return "it waits until another row of the table has other values"
    parameters = {"t": target.relation, "n": error.diag.constraint_name}
    row = cursor.execute(CONSTRAINT, parameters).fetchone()
    if row is None:
        return ""
    is_child, child, parent = row
    return f"it waits for its row of table {parent}" if is_child else f"it waits until no row of table {child} refers to it"


def _bisect(
    cursor: psycopg.Cursor, attempt: Callable[[int, int], None], numbers: Sequence[int], columns: Sequence[str]
) -> list[RefusedRow]:
    """Runs `attempt` over index ranges in order. A refused range is halved."""
    refused_rows: list[RefusedRow] = []
    waiting = [(0, len(numbers))] if numbers else []
    while waiting:
        first, last = waiting.pop()
        error = find_refusal(cursor, partial(attempt, first, last))
        if error is None:
            continue
        if last - first == 1:
            refused_rows.append(RefusedRow(numbers[first], error, columns))
            continue
        middle = (first + last) // 2
        waiting += [(middle, last), (first, middle)]
    return refused_rows


def find_refusal(cursor: psycopg.Cursor, attempt: Callable[[], None]) -> psycopg.Error | None:
    """The error of a row that the database refuses in `attempt`, which is then undone; None when all rows are
    accepted."""
    cursor.execute("SAVEPOINT part")
    try:
        attempt()
    except psycopg.Error as error:
        if not is_row_refusal(error):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part", prepare=False)
        return error
    cursor.execute("RELEASE SAVEPOINT part")
    return None
