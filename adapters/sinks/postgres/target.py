"""A prepared target: its table, its temporary tables, and the statements that move rows between them.

Per lane and connection there is one staging table with the types of the target's columns, so that PostgreSQL
checks lengths, domains and enums early. A second table with the same columns holds the rows that stage 3
completed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import psycopg
from psycopg import sql

from replicator.domain.change import OP, RECORD_POSITION, RESET, UNCHANGED
from replicator.domain.policy.late_changes import LatenessLimit
from replicator.domain.policy.plan import CDC_OP, ApplyPlan, DeleteHorizon, cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import Lane

from ...apply.stages import side_columns
from ...postgres.lane_state import SCHEMA
from ...postgres.literals import ARRAY_FORM, PLAIN_FORM, copy_statement
from ...postgres.names import has_relation, quote_name
from ...postgres.types import ColumnConversion
from ...sql.dialect import POSTGRES
from ...sql.reconcile import (
    APPLY,
    INCOMPLETE,
    LATE,
    VERDICT,
    not_above_condition,
    old_key_columns,
    other_row_condition,
    purged_condition,
    reconcile_select,
)
from ...sql.render import render_merge

PLACEHOLDER = "\0rows\0"
"""Stands for the rows of a parameter in a statement; no identifier can contain it."""

STAGED_ROW = "_cdc_row"
"""The number of a row in the batch; it matches the server's answers with the rows in memory."""


@dataclass
class PostgresTarget:
    """The destination of one lane's rows.

    - `number`: part of the names of its temporary tables.
    - `indexed`: an index finds each row.
    - `is_table`: it is neither a view nor a foreign table.
    - `side_table`: the table of tombstones, of absorbed changes (scd2) or of column versions, as SQL.
    - `filled`: the open transaction has written rows into the temporary tables.
    - `without_equality`: columns of an scd2 target that are compared as text.
    - `is_lossless`: every column stores and compares values as Arrow does (`scd2.has_lossless_columns`), so stage 3 can run
      in this process.
    """

    lane: Lane
    plan: ApplyPlan
    schema: str
    table: str
    conversions: dict[str, ColumnConversion]
    number: int
    indexed: bool
    is_table: bool
    side_table: str | None
    without_equality: frozenset[str] = frozenset()
    is_lossless: bool = False
    staged: dict[str, int] = field(default_factory=dict)
    filled: bool = False

    def __post_init__(self) -> None:
        self._known: dict[object, bytes] = {}

    def _render_once(self, key: object, render: Callable[[], str]) -> bytes:
        """Renders each statement once, because rendering takes longer than a small write."""
        if key not in self._known:
            self._known[key] = render().encode()
        return self._known[key]

    @cached_property
    def relation(self) -> str:
        """The table as SQL."""
        return quote_name(self.schema, self.table)

    @property
    def staging_table(self) -> str:
        """The staging table's name; it has no schema."""
        return f"stage_{self.number}"

    @property
    def reconciled_table(self) -> str:
        """The name of the table of completed rows."""
        return f"reconciled_{self.number}"

    @property
    def event_log(self) -> bool:
        """The rows are records, not changes: they have no operation and no missing values."""
        return self.plan.fold == "none" and not self.plan.table.sequence

    def list_columns(self, *, whole: bool) -> list[str]:
        """The columns to send: the input of stage 4, and with `whole` also the input of stage 3."""
        if self.event_log:
            return [STAGED_ROW, *self.conversions]
        extra = [UNCHANGED, RESET, *old_key_columns(self.plan), *RECORD_POSITION]
        return [STAGED_ROW, OP, *self.conversions, *(extra if whole else [])]

    def list_forms(self, names: Sequence[str]) -> list[str]:
        """The literal form of each of these columns."""
        forms = {name: conversion.form for name, conversion in self.conversions.items()} | {UNCHANGED: ARRAY_FORM}
        keys = zip(old_key_columns(self.plan), self.plan.table.keys, strict=True)
        forms |= {name: self.conversions[key].form for name, key in keys if key in self.conversions}
        return [forms.get(name, PLAIN_FORM) for name in names]

    def copy_into_staging(self, names: Sequence[str]) -> sql.Composed:
        """COPY of these columns into the staging table."""
        return copy_statement((self.staging_table,), names)

    def merge(self, numbers: Sequence[int] | None = None, *, reconciled: bool = False, into: str | None = None) -> bytes:
        """Stage 4 over all rows that apply, or over the rows with these ascending numbers; into the target, or
        into `into`."""
        if numbers is None:
            return self._render_once(("merge", reconciled), lambda: self._merge([], reconciled, self.relation))
        return self._merge([numbers_condition(numbers)], reconciled, into or self.relation).encode()

    def _merge(self, conditions: list[str], reconciled: bool, relation: str) -> str:
        return render_merge(self.plan, POSTGRES, relation, self.select_applying(conditions, reconciled=reconciled))

    def select_applying(self, conditions: Sequence[str], *, reconciled: bool) -> str:
        """The staged (or completed) rows that apply, as a relation."""
        conditions = [*conditions, *([f"{quote_name(VERDICT)} = '{APPLY}'"] if reconciled else [])]
        rows = quote_name(self.reconciled_table if reconciled else self.staging_table)
        return f"(SELECT * FROM {rows} WHERE {' AND '.join(conditions)})" if conditions else rows

    def analyze(self, *, whole: bool, reconciled: bool = False) -> bytes:
        """ANALYZE of the staging table (or of the completed rows), only for columns that joins use."""
        names = [*(self.plan.merge_keys or (STAGED_ROW,)), *(old_key_columns(self.plan) if whole else ())]
        names += [VERDICT] if reconciled else []
        return (
            f"ANALYZE {quote_name(self.reconciled_table if reconciled else self.staging_table)} "
            f"({', '.join(map(quote_name, names))})".encode()
        )

    def reconcile(
        self,
        *,
        tombstones: bool,
        truncated_at: SequenceKey | None,
        resent: SequenceKey | None,
        lateness: LatenessLimit | None = None,
    ) -> bytes:
        """Stage 3, from the staging table into the table of completed rows.

        `resent`: see `get_resent_limit`. `lateness`: see `find_lateness_limit`.
        """
        if resent is not None or lateness is not None:
            return self._reconcile(tombstones, truncated_at, resent, lateness).encode()
        key = ("reconcile", tombstones, truncated_at)
        return self._render_once(key, lambda: self._reconcile(tombstones, truncated_at, None, None))

    def _reconcile(
        self, tombstones: bool, truncated_at: SequenceKey | None, resent: SequenceKey | None, lateness: LatenessLimit | None
    ) -> str:
        select = reconcile_select(
            self.plan,
            POSTGRES,
            rows=quote_name(self.staging_table),
            related=self.relation,
            tombstones=self.side_table if tombstones else None,
            truncated_at=truncated_at,
            resent=resent,
            lateness=lateness,
            keep=(STAGED_ROW,),
        )
        return f"INSERT INTO {quote_name(self.reconciled_table)} {select}"

    def delete_foreign_deletes(self) -> bytes:
        """Removes deletes of other rows than the target's from the staging table."""

        def render() -> str:
            where = other_row_condition(self.plan, POSTGRES, as_text=True)
            return f"DELETE FROM {quote_name(self.staging_table)} AS r USING {self.relation} AS t WHERE {where}"

        return self._render_once("foreign deletes", render)

    def select_ambiguous_deletes(self) -> bytes:
        """The numbers of staged deletes that may belong to another row than the target's."""

        def render() -> str:
            staged = quote_name(self.staging_table)
            where = other_row_condition(self.plan, POSTGRES, as_text=True, doubtful=True)
            return f"SELECT r.{quote_name(STAGED_ROW)} FROM {staged} AS r, {self.relation} AS t WHERE {where}"

        return self._render_once("ambiguous deletes", render)

    def count_verdicts(self) -> bytes:
        """The number of completed rows per verdict."""
        query = f"SELECT {quote_name(VERDICT)}, count(*) FROM {quote_name(self.reconciled_table)} GROUP BY 1"
        return self._render_once("verdicts", lambda: query)

    def select_given_up(self) -> bytes:
        """The rows that are incomplete or late: their numbers, verdicts, and missing columns."""
        columns = f"{quote_name(STAGED_ROW)}, {quote_name(VERDICT)}, {quote_name(UNCHANGED)}"
        query = (
            f"SELECT {columns} FROM {quote_name(self.reconciled_table)} WHERE {quote_name(VERDICT)} IN "
            f"('{INCOMPLETE}', '{LATE}')"
        )
        return query.encode()

    def delete_tombstones(self, max_sequence: SequenceKey) -> bytes:
        """Removes the tombstones that are not above `max_sequence`."""
        return delete_statement(self.side_table or "", self.plan, max_sequence).encode()

    def delete_marked_rows(self, horizon: DeleteHorizon) -> bytes:
        """Removes the marked rows whose tombstones are purged."""
        return f"DELETE FROM {self.relation} WHERE {purged_condition(self.plan, POSTGRES, horizon)}".encode()

    def merge_inline(self) -> bytes:
        """Stage 4 over rows in one JSON parameter."""
        return self._render_once(
            "merge inline",
            lambda: self._take_rows_from_parameter(render_merge(self.plan, POSTGRES, self.relation, PLACEHOLDER)),
        )

    def record_tombstones_inline(self) -> bytes:
        """`record_tombstones` for rows in one JSON parameter."""
        return self._render_once(
            "tombstones inline", lambda: self._take_rows_from_parameter(self._record_tombstones(f"{PLACEHOLDER} AS r WHERE"))
        )

    def _take_rows_from_parameter(self, statement: str) -> str:
        """The statement with rows from the parameter. The stored operation is also the row's operation."""
        operation = f", r.{quote_name(CDC_OP)} AS {quote_name(OP)}" if CDC_OP in self.conversions else ""
        rows = f"(SELECT r.*{operation} FROM json_populate_recordset(NULL::{self.relation}, \0::json) AS r)"
        return statement.replace(PLACEHOLDER, rows).replace("%", "%%").replace("\0", "%s")

    def record_tombstones(self, *, reconciled: bool) -> bytes:
        """Stores the deletes of the batch as tombstones, the highest sequence per key."""
        applied = f"{quote_name(self.reconciled_table)} WHERE {quote_name(VERDICT)} = '{APPLY}' AND"
        return self._render_once(
            ("tombstones", reconciled),
            lambda: self._record_tombstones(applied if reconciled else f"{quote_name(self.staging_table)} WHERE"),
        )

    def _record_tombstones(self, rows: str) -> str:
        return upsert_statement(self.side_table or "", self.plan, f"{rows} {quote_name(OP)} = 'd'")

    def create_temporary(self, cursor: psycopg.Cursor, generation: int, *, reconciled: bool) -> None:
        """Creates the temporary tables that this connection lacks. Empties tables that an earlier write of the
        transaction filled."""
        wanted = {self.staging_table: ""} | (
            {self.reconciled_table: f", NULL::text AS {quote_name(VERDICT)}"} if reconciled else {}
        )
        for name, more in wanted.items():
            if self.staged.get(name) != generation:
                table, select = quote_name(name), self.empty_select(more)
                create = f"CREATE TEMP TABLE {table} ON COMMIT DELETE ROWS AS {select}"
                cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{table}; {create}".encode(), prepare=False)
                self.staged[name] = generation
            elif self.filled:
                cursor.execute(f"TRUNCATE {quote_name(name)}".encode())
        self.filled = True

    def empty_select(self, more: str = "") -> str:
        """A query without rows that has the staging table's columns, and `more`."""
        columns = [f"t.{quote_name(n)}" for n in self.conversions]
        if not self.event_log:
            old = [
                f"t.{quote_name(k)} AS {quote_name(f)}"
                for f, k in zip(old_key_columns(self.plan), self.plan.table.keys, strict=True)
            ]
            topic, partition, offset = map(quote_name, RECORD_POSITION)
            columns = [f"NULL::text AS {quote_name(OP)}", *columns]
            columns += [f"NULL::text[] AS {quote_name(UNCHANGED)}", f"NULL::boolean AS {quote_name(RESET)}", *old]
            columns += [f"NULL::text AS {topic}", f"NULL::int AS {partition}", f"NULL::bigint AS {offset}"]
        names = ", ".join([f"NULL::int AS {quote_name(STAGED_ROW)}", *columns])
        return f"SELECT {names}{more} FROM {self.relation} AS t WITH NO DATA"


def numbers_condition(numbers: Sequence[int]) -> str:
    """The condition that a staged row has one of these ascending numbers."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{quote_name(STAGED_ROW)} BETWEEN {numbers[0]} AND {numbers[-1]}"
    return f"{quote_name(STAGED_ROW)} = ANY('{{{','.join(map(str, numbers))}}}'::int[])"


# The side table of a lane (`apply.stages.side_columns`): one per lane in schema `_replicator`.
#
# Its name in the database is `tombstones_<number>` under every policy. For scd2 it holds absorbed changes (`scd2`), with a
# sequence for each column the column versions (`per_column`).
#
# Its columns have the target's types, so that joins use the primary key. The lane's number is its name, not
# the target's name, so two lanes never share one.

DIFFERING = (
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod), m.attname IS NULL FROM pg_attribute a "
    "LEFT JOIN pg_attribute m ON m.attrelid = %s::regclass AND m.attname = a.attname AND NOT m.attisdropped "
    "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped "
    "AND (m.attname IS NOT NULL OR a.attname = ANY(%s)) "
    "AND format_type(a.atttypid, a.atttypmod) IS DISTINCT FROM format_type(m.atttypid, m.atttypmod)"
)
"""The columns of a target that its side table lacks or has in another type."""


def side_table_name(number: int) -> str:
    """The table of the lane with this number, as SQL."""
    return quote_name(SCHEMA, f"tombstones_{number}")


def ensure_side_table(cursor: psycopg.Cursor, number: int, plan: ApplyPlan, target: str) -> str | None:
    """The lane's table as SQL; None if the plan needs none.

    It is created if it does not exist. Its columns follow those of the target, which may be new, or wider now.
    """
    columns = [column.name for column in side_columns(plan)]
    if not columns:
        return None
    name = side_table_name(number)
    if not has_relation(cursor, name):
        of_target = {column.name for column in plan.target}
        select_list = ", ".join(f"{'' if n in of_target else 'NULL::text AS '}{quote_name(n)}" for n in columns)
        keys = ", ".join(map(quote_name, plan.merge_keys if plan.history else plan.table.keys))
        create = f"CREATE TABLE {name} AS SELECT {select_list} FROM {target} WITH NO DATA"
        cursor.execute(f"{create}; ALTER TABLE {name} ADD PRIMARY KEY ({keys})".encode(), prepare=False)
    for column, kind, is_missing in cursor.execute(DIFFERING, (name, target, columns)).fetchall():
        of_column = quote_name(column)
        add, alter = f"ADD COLUMN {of_column} {kind}", f"ALTER COLUMN {of_column} TYPE {kind} USING {of_column}::{kind}"
        cursor.execute(f"ALTER TABLE {name} {add if is_missing else alter}".encode(), prepare=False)
    return name


def drop_side_table(cursor: psycopg.Cursor, number: int) -> None:
    """Drops the lane's table: under another policy or key it has other columns."""
    cursor.execute(f"DROP TABLE IF EXISTS {side_table_name(number)}".encode(), prepare=False)


def delete_statement(side_table: str, plan: ApplyPlan, max_sequence: SequenceKey) -> str:
    """Removes the tombstones that are not above `max_sequence`."""
    return (
        f"DELETE FROM {side_table} AS l WHERE "
        f"{not_above_condition(POSTGRES, 'l', cdc_sequence_columns(plan.table.sequence), max_sequence)}"
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
