"""Finds the rows that the database refuses, by halving what fails under savepoints; everything else goes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.errors import Reject

from .pg_copy import copy_rows
from .pg_errors import refusal, refuses_row
from .pg_target import ROW, Target

Refused = tuple[int, Reject]
"""The number of a row, and why it was refused."""


def copy_bisecting(
    cursor: psycopg.Cursor, statement: sql.Composed, rows: pa.Table, forms: Sequence[str], *, careful: bool
) -> list[Refused]:
    """COPY `rows`, whose column `_cdc_row` numbers them, but for those it returns. Not careful: refusals are raised."""
    if not careful:
        copy_rows(cursor, statement, rows, forms)
        return []
    numbers = rows[ROW].to_pylist()

    def attempt(first: int, last: int) -> None:
        copy_rows(cursor, statement, rows.slice(first, last - first), forms)

    return _bisect(cursor, attempt, numbers, rows.column_names)


def merge_bisecting(cursor: psycopg.Cursor, target: Target, numbers: Sequence[int], *, repaired: bool) -> list[Refused]:
    """Stage 4 over the rows of these ascending numbers, but for those it returns."""

    def attempt(first: int, last: int) -> None:
        cursor.execute(target.merge(numbers[first], numbers[last - 1] + 1, repaired=repaired), prepare=False)

    return _bisect(cursor, attempt, numbers, list(target.fits))


def _bisect(
    cursor: psycopg.Cursor, attempt: Callable[[int, int], None], numbers: Sequence[int], columns: Sequence[str]
) -> list[Refused]:
    """Runs `attempt` over ranges of places, in order, each whole or in halves."""
    refused: list[Refused] = []
    waiting = [(0, len(numbers))] if numbers else []
    while waiting:
        first, last = waiting.pop()
        error = refused_at_once(cursor, partial(attempt, first, last))
        if error is None:
            continue
        if last - first == 1:
            refused.append((numbers[first], refusal(error, columns)))
            continue
        middle = (first + last) // 2
        waiting += [(middle, last), (first, middle)]
    return refused


def refused_at_once(cursor: psycopg.Cursor, attempt: Callable[[], None]) -> psycopg.Error | None:
    """Why the database refuses some row of `attempt`, which is then undone; None when it takes them all."""
    cursor.execute("SAVEPOINT part")
    try:
        attempt()
    except psycopg.Error as error:
        if not refuses_row(error):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part", prepare=False)
        return error
    cursor.execute("RELEASE SAVEPOINT part")
    return None
