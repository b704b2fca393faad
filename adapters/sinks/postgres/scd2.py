"""Stages 2 to 4 of an scd2 plan in the server: the statements and their side tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import psycopg

from replicator.domain.change import OP, UNCHANGED
from replicator.domain.policy.plan import (
    CDC_UNSENT,
    START_AT,
    ApplyPlan,
    Truncate,
    cdc_sequence_columns,
)
from replicator.domain.sequence import Sequence as SequenceKey

from ...postgres.names import quote_name
from ...sql.dialect import POSTGRES
from ...sql.reconcile import INCOMPLETE, VERDICT
from ...sql.render import render_merge
from ...sql.scd2 import absorbed_select, events_select, versions_select
from ...sql.scd2_events import CHANGE, KIND, ROW_NUMBER, Scd2Input, carried_columns, select_candidates
from .target import ROW, PostgresTarget
from .tombstones import align_types, side_table_name

WITHOUT_EQUALITY = ("json", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle", "citext")
"""Types that PostgreSQL cannot compare, compares by size, or calls equal although they differ."""
SMALL = 100
"""Up to this number of rows, an index on a temporary table costs more than it saves."""


def ensure_absorbed_changes(cursor: psycopg.Cursor, number: int, plan: ApplyPlan, target: str) -> str:
    """Creates the table of absorbed changes, or adds missing columns; returns its name as SQL."""
    name = side_table_name(number)
    (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone() or (False,)
    columns = [c.name for c in plan.target]
    if not there:
        keys = ", ".join(map(quote_name, plan.merge_keys))
        select = f"SELECT NULL::text AS {quote_name(OP)}, {', '.join(map(quote_name, columns))} FROM {target} WITH NO DATA"
        cursor.execute(
            f"CREATE TABLE {name} AS {select}; ALTER TABLE {name} ADD PRIMARY KEY ({keys})".encode(), prepare=False
        )
        return name
    missing = cursor.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a WHERE a.attrelid = %s::regclass "
        "AND a.attname = ANY(%s) AND NOT EXISTS (SELECT FROM pg_attribute m WHERE m.attrelid = %s::regclass "
        "AND m.attname = a.attname AND NOT m.attisdropped)",
        (target, columns, name),
    ).fetchall()
    for column, kind in missing:
        cursor.execute(f"ALTER TABLE {name} ADD COLUMN {quote_name(column)} {kind}".encode(), prepare=False)
    align_types(cursor, name, target)
    return name


def find_columns_without_equality(cursor: psycopg.Cursor, target: str) -> frozenset[str]:
    """The columns of the target that are compared as text, byte by byte."""
    rows = cursor.execute(
        "SELECT a.attname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "LEFT JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = %s::regclass "
        "AND (ltrim(t.typname, '_') = ANY(%s) OR NOT c.collisdeterministic)",
        (target, list(WITHOUT_EQUALITY)),
    ).fetchall()
    return frozenset(name for (name,) in rows)


class ServerScd2:
    """One write of an scd2 lane whose rows are in the staging table. Its temporary tables end with the
    transaction."""

    def __init__(self, cursor: psycopg.Cursor, target: PostgresTarget, applied_at: datetime) -> None:
        self._cursor = cursor
        self._target = target
        self._applied_at = applied_at
        self._related = quote_name(f"related_{target.number}")
        self._events = quote_name(f"events_{target.number}")

    def judge_changes(
        self,
        lowest: SequenceKey,
        truncates: Sequence[Truncate],
        late_truncates: Sequence[SequenceKey],
        *,
        absorbed_matter: bool,
        moves: bool,
    ) -> dict[str, int]:
        """Computes the events of the staged changes; returns how many changes have which verdict.

        `late_truncates`: truncates below the highest applied sequence. `absorbed_matter`: absorbed changes may matter.
        """
        plan, target = self._target.plan, self._target
        rows = f"(SELECT s.*, s.{quote_name(ROW)} AS {quote_name(ROW_NUMBER)} FROM {quote_name(target.stage)} AS s)"
        stage = quote_name(target.stage)
        related = select_candidates(plan, POSTGRES, target.relation, stage, lowest, moves=moves, truncates=late_truncates)
        self._create_temporary(
            self._related, related, indexed=(*plan.table.keys, *cdc_sequence_columns(plan.table.sequence))
        )
        absorbed = self._absorbed_select() if absorbed_matter else None
        self._known = Scd2Input(
            rows=rows,
            related=self._related,
            absorbed=absorbed,
            lowest=lowest,
            truncates=[
                (truncate.sequence, POSTGRES.instant(truncate.at)) for truncate in truncates if truncate.sequence >= lowest
            ],
            values=carried_columns(plan),
            compared=plan.history.tracked if plan.history else (),
            untracked=plan.history.untracked if plan.history else (),
            missing=self._missing_columns(absorbed),
            moves=moves,
            as_text=target.without_equality,
            applied_at=f"'{self._applied_at.isoformat()}'::timestamptz",
        )
        self._create_temporary(self._events, events_select(plan, POSTGRES, self._known))
        counted = (
            f"SELECT {quote_name(VERDICT)}, count(*) FROM {self._events} WHERE {quote_name(KIND)} = {CHANGE} GROUP BY 1"
        )
        return dict(self._run(counted).fetchall())

    def read_incomplete(self) -> list[tuple[int, list[str] | None]]:
        """The numbers of the changes that cannot be completed, and the columns that they lack."""
        query = (
            f"SELECT {quote_name(ROW_NUMBER)}, {quote_name(CDC_UNSENT)} FROM {self._events} WHERE "
            f"{quote_name(VERDICT)} = '{INCOMPLETE}'"
        )
        return self._run(query).fetchall()

    def write_versions(self) -> None:
        """Stage 4."""
        plan, target = self._target.plan, self._target
        versions = versions_select(plan, POSTGRES, self._known, self._events)
        self._run(render_merge(plan, POSTGRES, target.relation, f"({versions})"))

    def store_absorbed_changes(self) -> bool:
        """Stores the changes that the versions do not show; True when there are any."""
        names = [OP, *self._target.plan.table.keys, *cdc_sequence_columns(self._target.plan.table.sequence), START_AT]
        columns = ", ".join(map(quote_name, [*names, CDC_UNSENT, *self._known.values]))
        absorbed = absorbed_select(self._target.plan, POSTGRES, self._known, self._events)
        done = self._run(
            f"INSERT INTO {self._target.side_table} ({columns}) "
            f"SELECT {columns} FROM ({absorbed}) AS m ON CONFLICT DO NOTHING"
        )
        return done.rowcount > 0

    def _absorbed_select(self) -> str:
        """The absorbed changes of the batch's keys."""
        names = ", ".join(map(quote_name, self._target.plan.table.keys))
        keys = " UNION ".join(
            f"SELECT {names} FROM {relation}" for relation in (quote_name(self._target.stage), self._related)
        )
        absorbed = f"{self._target.side_table} AS m JOIN ({keys}) AS s USING ({names})"
        return f"(SELECT m.*, -1 AS {quote_name(ROW_NUMBER)} FROM {absorbed})"

    def _missing_columns(self, absorbed: str | None) -> tuple[str, ...]:
        unchanged_columns = {quote_name(self._target.stage): UNCHANGED, self._related: CDC_UNSENT} | (
            {absorbed: CDC_UNSENT} if absorbed else {}
        )
        parts = [
            f"SELECT unnest(x.{quote_name(column)}) AS name FROM {relation} AS x"
            for relation, column in unchanged_columns.items()
        ]
        found = {name for (name,) in self._run(" UNION ".join(parts)).fetchall()}
        return tuple(n for n in carried_columns(self._target.plan) if n in found)

    def _create_temporary(self, name: str, select: str, *, indexed: Sequence[str] = ()) -> None:
        """Creates a temporary table, with an index for joins from other rows."""
        self._run(f"DROP TABLE IF EXISTS pg_temp.{name}")
        made = self._run(f"CREATE TEMP TABLE {name} ON COMMIT DROP AS {select}")
        if indexed and made.rowcount > SMALL:
            self._run(f"CREATE INDEX ON {name} ({', '.join(map(quote_name, indexed))})")
            self._run(f"ANALYZE {name}")

    def _run(self, statement: str) -> psycopg.Cursor:
        return self._cursor.execute(statement.encode(), prepare=False)
