"""Stages 2 to 4 of an scd2 plan, with stage 3 in this process.

It reads the versions of the batch's keys, copies new versions straight into the target, and changes existing
versions with a merge.

It needs columns that store and compare values as Arrow does, see `has_lossless_columns`. It is faster, because
the server's windows over whole rows take several times as long as DuckDB's over numbers. A copied version is
also written only once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from replicator.domain.change import OP
from replicator.domain.policy.plan import CDC_UNSENT, START_AT, Facts, Truncate, cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey

from ...apply.scd2_in_process import Scd2Result, compute_versions
from ...apply.value_codes import encode_rows
from ...postgres.connection import planner_hints
from ...postgres.literals import copy_rows, copy_statement
from ...postgres.names import quote_name
from ...postgres.table_reader import select_expression, stored_form
from ...sql.dialect import POSTGRES
from ...sql.reconcile import old_key_columns
from ...sql.scd2_events import carried_columns, select_candidates
from .binary_copy import can_copy_binary, copy_binary
from .target import PostgresTarget

BULK_KEYS = 50_000
"""From this number of keys, one scan of the target is cheaper than a look-up per key."""
PART = 40_000
"""The number of changes in a slice. The server writes the versions of one slice while the next is reconciled."""
PIECE = 16 << 20
"""The size in bytes of one read of versions."""
KEPT: dict[str, pa.DataType] = {
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
    there = {name: found for name, *found in cursor.execute(COLUMNS, (target,)).fetchall()}
    return all(field.name in there and _is_lossless(field, *there[field.name]) for field in kinds)


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
    return not rounds and KEPT.get(kind) == wanted


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
            plan, POSTGRES, self._target.relation, quote_name(self._target.stage), lowest, moves=moves, truncates=()
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
        names, done = list(self._target.fits), []
        for part in judged:
            self._copy_versions(part.write.filter(part.begins).select(names))
            self._merge_others(part.write.filter(pc.invert(part.begins)).select([OP, *names]))
            done.append(part)
        return done

    def _merge_others(self, others: pa.Table) -> None:
        """Merges the other versions of a slice while the next slice is reconciled."""
        if others.num_rows:
            self._stage_rows(others)
            with planner_hints(self._cursor, bulk=others.num_rows >= BULK_KEYS):
                self._cursor.execute(self._target.merge(), prepare=False)
            self._empty_stage()

    def _copy_versions(self, begun: pa.Table) -> None:
        """Copies new versions straight into the target."""
        relation, names = (self._target.schema, self._target.table), begun.column_names
        if can_copy_binary(begun):
            copy_binary(self._cursor, relation, begun)
        else:
            copy_rows(self._cursor, copy_statement(relation, names), begun, self._target.list_forms(names))

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
        columns, stage = ", ".join(map(quote_name, names)), quote_name(self._target.stage)
        insert = f"INSERT INTO {self._target.side_table} ({columns}) SELECT {columns} FROM {stage} ON CONFLICT DO NOTHING"
        kept = self._cursor.execute(insert.encode(), prepare=False).rowcount  # Read now: the next statement overwrites it.
        self._empty_stage()
        return kept > 0

    def _stage_rows(self, rows: pa.Table) -> None:
        names = rows.column_names
        copy_rows(self._cursor, self._target.copy_into_stage(names), rows, self._target.list_forms(names))
        if rows.num_rows >= BULK_KEYS:
            keys = ", ".join(
                quote_name(n) for n in names if n in (*self._target.plan.merge_keys, *old_key_columns(self._target.plan))
            )
            self._cursor.execute(f"ANALYZE {quote_name(self._target.stage)} ({keys})".encode(), prepare=False)

    def _empty_stage(self) -> None:
        self._cursor.execute(f"TRUNCATE {quote_name(self._target.stage)}".encode(), prepare=False)

    def _read_select(self, select: str, kinds: pa.Schema) -> pa.Table:
        """The rows of a SELECT with the columns of the target, in the types of `kinds`."""
        names = [c.name for c in self._target.plan.target]
        forms = {n: _find_form(kinds.field(n)) for n in names}
        chosen = ", ".join(select_expression(n, how) for n, (_, how) in forms.items())
        copy = f"COPY (SELECT {chosen} FROM ({select}) AS v) TO STDOUT (FORMAT csv)"
        schema = pa.schema([kinds.field(n) for n in names])
        pieces = [_parse_copy(piece, forms, schema) for piece in self._read_copy(copy)]
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


Form = tuple[pa.DataType, str]
"""The type in which a column is read from CSV, and the SQL template that selects it."""


def _find_form(field: pa.Field) -> Form:
    if field.name == CDC_UNSENT:
        return pa.string(), "array_to_json({0})::text"
    kind, how = stored_form(field.type)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.int64(), how
    if pa.types.is_date(kind):
        return pa.int32(), how
    return (pa.string() if pa.types.is_decimal(kind) else kind), how


def _parse_copy(piece: bytes, forms: dict[str, Form], schema: pa.Schema) -> pa.Table:
    options = csv.ConvertOptions(
        column_types={n: kind for n, (kind, _) in forms.items()},
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = csv.ReadOptions(column_names=list(forms), use_threads=False, block_size=len(piece) + 1)
    found = csv.read_csv(pa.BufferReader(piece), reading, OPTIONS, options)
    return pa.table([_to_type(found[field.name], field) for field in schema], schema=schema)


def _to_type(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.name == CDC_UNSENT:
        lists = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return pa.chunked_array([pa.array(lists, field.type)])
    return column.cast(field.type)


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
    return {int(found["values"]): int(found["counts"]) for found in pc.value_counts(parts).to_pylist()}
