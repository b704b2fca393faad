"""Stages 2 to 4 of an scd2 plan: in the server, and with stage 3 in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from operator import itemgetter

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from replicator.domain.change import OP, UNCHANGED
from replicator.domain.policy.plan import CDC_UNSENT, START_AT, Facts, Truncate, cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey

from ...apply.scd2_in_process import Scd2Result, compute_versions, encode_rows
from ...postgres.connection import planner_hints
from ...postgres.literals import can_copy_binary, copy_binary, copy_rows, copy_statement
from ...postgres.names import quote_name
from ...postgres.table_reader import ReadForm, select_expression, stored_form
from ...sql.dialect import POSTGRES
from ...sql.reconcile import INCOMPLETE, VERDICT, old_key_columns
from ...sql.render import render_merge
from ...sql.scd2 import absorbed_select, events_select, versions_select
from ...sql.scd2_events import CHANGE, KIND, ROW_NUMBER, Scd2Input, carried_columns, render_truncates, select_candidates
from .target import STAGED_ROW, PostgresTarget

# In the server.

WITHOUT_EQUALITY = ("json", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle", "citext")
"""Types that PostgreSQL cannot compare, compares by size, or calls equal although they differ."""
SMALL = 100
"""Up to this number of rows, an index on a temporary table costs more than it saves."""


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
        staged = quote_name(target.staging_table)
        rows = f"(SELECT s.*, s.{quote_name(STAGED_ROW)} AS {quote_name(ROW_NUMBER)} FROM {staged} AS s)"
        related = select_candidates(plan, POSTGRES, target.relation, staged, lowest, moves=moves, truncates=late_truncates)
        self._create_temporary(
            self._related, related, indexed=(*plan.table.keys, *cdc_sequence_columns(plan.table.sequence))
        )
        absorbed = self._absorbed_select() if absorbed_matter else None
        self._scd2_input = Scd2Input(
            rows=rows,
            related=self._related,
            absorbed=absorbed,
            lowest=lowest,
            truncates=render_truncates(truncates, POSTGRES, lowest),
            missing=self._missing_columns(absorbed),
            moves=moves,
            as_text=target.without_equality,
            applied_at=f"'{self._applied_at.isoformat()}'::timestamptz",
        )
        self._create_temporary(self._events, events_select(plan, POSTGRES, self._scd2_input))
        query = f"SELECT {quote_name(VERDICT)}, count(*) FROM {self._events} WHERE {quote_name(KIND)} = {CHANGE} GROUP BY 1"
        return dict(self._run(query).fetchall())

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
        versions = versions_select(plan, POSTGRES, self._scd2_input, self._events)
        self._run(render_merge(plan, POSTGRES, target.relation, f"({versions})"))

    def store_absorbed_changes(self) -> bool:
        """Stores the changes that the versions do not show; True when there are any."""
        names = [OP, *self._target.plan.table.keys, *cdc_sequence_columns(self._target.plan.table.sequence), START_AT]
        columns = ", ".join(map(quote_name, [*names, CDC_UNSENT, *carried_columns(self._target.plan)]))
        absorbed = absorbed_select(self._target.plan, POSTGRES, self._scd2_input, self._events)
        cursor = self._run(
            f"INSERT INTO {self._target.side_table} ({columns}) "
            f"SELECT {columns} FROM ({absorbed}) AS m ON CONFLICT DO NOTHING"
        )
        return cursor.rowcount > 0

    def _absorbed_select(self) -> str:
        """The absorbed changes of the batch's keys."""
        names = ", ".join(map(quote_name, self._target.plan.table.keys))
        keys = " UNION ".join(
            f"SELECT {names} FROM {relation}" for relation in (quote_name(self._target.staging_table), self._related)
        )
        absorbed = f"{self._target.side_table} AS m JOIN ({keys}) AS s USING ({names})"
        return f"(SELECT m.*, -1 AS {quote_name(ROW_NUMBER)} FROM {absorbed})"

    def _missing_columns(self, absorbed: str | None) -> tuple[str, ...]:
        unchanged_columns = {quote_name(self._target.staging_table): UNCHANGED, self._related: CDC_UNSENT} | (
            {absorbed: CDC_UNSENT} if absorbed else {}
        )
        parts = [
            f"SELECT unnest(x.{quote_name(column)}) AS name FROM {relation} AS x"
            for relation, column in unchanged_columns.items()
        ]
        missing_names = {name for (name,) in self._run(" UNION ".join(parts)).fetchall()}
        return tuple(n for n in carried_columns(self._target.plan) if n in missing_names)

    def _create_temporary(self, name: str, select: str, *, indexed: Sequence[str] = ()) -> None:
        """Creates a temporary table, with an index for joins from other rows."""
        self._run(f"DROP TABLE IF EXISTS pg_temp.{name}")
        cursor = self._run(f"CREATE TEMP TABLE {name} ON COMMIT DROP AS {select}")
        if indexed and cursor.rowcount > SMALL:
            self._run(f"CREATE INDEX ON {name} ({', '.join(map(quote_name, indexed))})")
            self._run(f"ANALYZE {name}")

    def _run(self, statement: str) -> psycopg.Cursor:
        return self._cursor.execute(statement.encode(), prepare=False)


# With stage 3 in this process.
#
# It reads the versions of the batch's keys, copies new versions straight into the target, and changes existing
# versions with a merge.
#
# It needs columns that store and compare values as Arrow does, see `has_lossless_columns`. It is faster, because
# the server's windows over whole rows take several times as long as DuckDB's over numbers. A copied version is
# also written only once.

BULK_KEYS = 50_000
"""From this number of keys, one scan of the target is cheaper than a look-up per key."""
PART = 40_000
"""The number of changes in a slice. The server writes the versions of one slice while the next is reconciled."""
PIECE = 16 << 20
"""The size in bytes of one read of versions."""
LOSSLESS_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us"),
}
"""The Arrow type with the same values and the same equality, per PostgreSQL type. Time zones do not affect
values."""
COLUMNS = (
    "SELECT a.attname, t.typname, a.atttypmod, coalesce(c.collisdeterministic, true), r.relkind IN ('r', 'p') "
    "AND NOT r.relrowsecurity FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid "
    "JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation "
    "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped"
)
TEXTS = "_text"
"""The type of `_cdc_unsent`."""
OPTIONS = csv.ParseOptions(newlines_in_values=True)


def has_lossless_columns(cursor: psycopg.Cursor, target: str, kinds: pa.Schema) -> bool:
    """True when every column stores and compares the values of its Arrow type exactly, and rows can be copied in."""
    declarations = {name: declaration for name, *declaration in cursor.execute(COLUMNS, (target,)).fetchall()}
    return all(field.name in declarations and _is_lossless(field, *declarations[field.name]) for field in kinds)


def _is_lossless(field: pa.Field, kind: str, parameter: int, bytewise: bool, plain_table: bool) -> bool:
    if not (plain_table and bytewise):
        return False
    if field.name == CDC_UNSENT:
        return kind == TEXTS
    if pa.types.is_decimal(field.type):
        # The type modifier of numeric: the precision above the low 16 bits, the scale in them.
        declared = divmod(parameter - 4, 1 << 16)
        return kind == "numeric" and declared == (field.type.precision, field.type.scale)
    wanted = pa.timestamp(field.type.unit) if pa.types.is_timestamp(field.type) else field.type
    rounds = parameter >= 0 and (pa.types.is_timestamp(wanted) or pa.types.is_time(wanted))
    return not rounds and LOSSLESS_TYPES.get(kind) == wanted


class InProcessScd2:
    """One write of an scd2 lane with its changes in memory, in the caller's transaction."""

    def __init__(self, cursor: psycopg.Cursor, target: PostgresTarget) -> None:
        self._cursor = cursor
        self._target = target

    def judge_parts(self, rows: pa.Table, facts: Facts, truncates: Sequence[Truncate]) -> Iterator[Scd2Result]:
        """Stages 2 and 3 of a rows frame without relevant absorbed changes, one slice of keys after the other.

        `truncates`: all truncates. The staging table is empty before and after. The cursor is free while a result is
        yielded.
        """
        plan, lowest = self._target.plan, facts.lowest
        if plan.history is None or lowest is None:
            raise AssertionError("only histories have versions, and only changes have sequences")
        names = [*plan.table.keys, *(old_key_columns(plan) if facts.has_key_changes else ())]
        bulk = len(_keys(rows, names)) >= BULK_KEYS
        # One scan serves all keys. The delete and the insert of a key change need the same slice.
        parts = [rows] if bulk or facts.has_key_changes else split_by_key(rows, names, PART)
        judge = partial(compute_versions, plan, plan.history, absorbed=None, lowest=lowest, truncates=truncates)
        with ThreadPoolExecutor(1, "judging") as beside:
            coming = [beside.submit(judge, part, self._read_candidates(part, names, lowest, bulk=bulk)) for part in parts]
            yield from (one.result() for one in coming)

    def _read_candidates(self, rows: pa.Table, names: Sequence[str], lowest: SequenceKey, *, bulk: bool) -> pa.Table:
        """The versions that can matter for the keys in these columns."""
        plan, moves = self._target.plan, len(names) > len(self._target.plan.table.keys)
        self._stage_rows(_keys(rows, names))
        select = select_candidates(
            plan, POSTGRES, self._target.relation, quote_name(self._target.staging_table), lowest, moves=moves, truncates=()
        )
        with planner_hints(self._cursor, bulk=bulk):
            related = self._read_select(select, rows.schema)
        self._empty_stage()
        return related

    def write_versions(self, judged: Iterator[Scd2Result]) -> list[Scd2Result]:
        """Stage 4; returns the results.

        A version that starts with a change of the batch did not exist: a change with the sequence of an
        existing version is a duplicate. The other versions may exist, so they are merged.
        """
        names, results = list(self._target.conversions), []
        relation = (self._target.schema, self._target.table)
        for part in judged:
            begun = part.write.filter(part.begins).select(names)
            if can_copy_binary(begun):
                copy_binary(self._cursor, relation, begun)
            else:
                copy_rows(self._cursor, copy_statement(relation, names), begun, self._target.list_forms(names))
            # The others are merged while the next slice is reconciled.
            others = part.write.filter(pc.invert(part.begins)).select([OP, *names])
            if others.num_rows:
                self._stage_rows(others)
                with planner_hints(self._cursor, bulk=others.num_rows >= BULK_KEYS):
                    self._cursor.execute(self._target.merge(), prepare=False)
                self._empty_stage()
            results.append(part)
        return results

    def store_absorbed_changes(self, absorbed: pa.Table) -> bool:
        """Stores the changes that the versions do not show; True when there are any."""
        if not absorbed.num_rows:
            return False
        plan = self._target.plan
        names = [
            OP,
            *plan.table.keys,
            *cdc_sequence_columns(plan.table.sequence),
            START_AT,
            CDC_UNSENT,
            *carried_columns(plan),
        ]
        self._stage_rows(absorbed.select(names))
        columns, staging = ", ".join(map(quote_name, names)), quote_name(self._target.staging_table)
        insert = f"INSERT INTO {self._target.side_table} ({columns}) SELECT {columns} FROM {staging} ON CONFLICT DO NOTHING"
        count = self._cursor.execute(insert.encode(), prepare=False).rowcount  # Read now: the next statement overwrites it.
        self._empty_stage()
        return count > 0

    def _stage_rows(self, rows: pa.Table) -> None:
        names = rows.column_names
        copy_rows(self._cursor, self._target.copy_into_staging(names), rows, self._target.list_forms(names))
        if rows.num_rows >= BULK_KEYS:
            keys = ", ".join(
                quote_name(n) for n in names if n in (*self._target.plan.merge_keys, *old_key_columns(self._target.plan))
            )
            self._cursor.execute(f"ANALYZE {quote_name(self._target.staging_table)} ({keys})".encode(), prepare=False)

    def _empty_stage(self) -> None:
        self._cursor.execute(f"TRUNCATE {quote_name(self._target.staging_table)}".encode(), prepare=False)

    def _read_select(self, select: str, kinds: pa.Schema) -> pa.Table:
        """The rows of a SELECT with the columns of the target, in the types of `kinds`."""
        names = [c.name for c in self._target.plan.target]
        forms = {n: _find_form(kinds.field(n)) for n in names}
        select_list = ", ".join(select_expression(n, how) for n, (_, how) in forms.items())
        copy = f"COPY (SELECT {select_list} FROM ({select}) AS v) TO STDOUT (FORMAT csv)"
        schema = pa.schema([kinds.field(n) for n in names])
        options = csv.ConvertOptions(
            column_types={n: kind for n, (kind, _) in forms.items()},
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        pieces = []
        for piece in self._read_copy(copy):
            reading = csv.ReadOptions(column_names=names, use_threads=False, block_size=len(piece) + 1)
            rows = csv.read_csv(pa.BufferReader(piece), reading, OPTIONS, options)
            columns = {n: rows[n] for n in names}
            if CDC_UNSENT in columns:
                lists = [None if text is None else json.loads(text) for text in rows[CDC_UNSENT].to_pylist()]
                columns[CDC_UNSENT] = pa.chunked_array([pa.array(lists, schema.field(CDC_UNSENT).type)])
            pieces.append(pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema))
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def _read_copy(self, copy: str) -> Iterator[bytes]:
        """The output of a COPY, some rows at a time. Each message of the protocol is one row."""
        with self._cursor.copy(copy.encode()) as out:
            piece = bytearray()
            for row in out:
                piece += row
                if len(piece) >= PIECE:
                    yield bytes(piece)
                    piece = bytearray()
            if piece:
                yield bytes(piece)


def _keys(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    return rows.select(names).group_by(names).aggregate([])


def _find_form(field: pa.Field) -> ReadForm:
    if field.name == CDC_UNSENT:
        return pa.string(), "array_to_json({0})::text"
    kind, how = stored_form(field.type)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.int64(), how
    if pa.types.is_date(kind):
        return pa.int32(), how
    return (pa.string() if pa.types.is_decimal(kind) else kind), how


# Slices of a batch without common keys, so that one slice is reconciled while another is read or written.


def split_by_key(rows: pa.Table, names: Sequence[str], size: int) -> list[pa.Table]:
    """Slices of about `size` rows; larger if one key has more rows. Rows keep their order within a slice.

    Slices with the fewest keys are first: their target rows are read fast, so reconciling starts early.
    """
    if rows.num_rows < 2 * size:
        return [rows]
    numbers = encode_rows(rows, names)
    # Keys are numbered in the order of their first rows, so the counts belong to 0, 1, 2 ...
    ends = pc.cumulative_sum(pc.value_counts(numbers).field("counts"))
    part_of_key = pc.divide(pc.subtract(ends, 1), size)
    part_of = part_of_key.take(numbers)
    keys_of, rows_of = _count_keys(part_of_key), _count_keys(part_of)
    by_part, start, parts = rows.take(pc.array_sort_indices(part_of)), 0, []
    for part in sorted(rows_of):
        parts.append((keys_of[part], by_part.slice(start, rows_of[part])))
        start += rows_of[part]
    return [part for _, part in sorted(parts, key=itemgetter(0))]


def _count_keys(parts: pa.Array) -> dict[int, int]:
    return {int(entry["values"]): int(entry["counts"]) for entry in pc.value_counts(parts).to_pylist()}
