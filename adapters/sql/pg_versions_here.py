"""Stages 2 to 4 of a plan that keeps versions, with stage 3 in this process: the versions of a batch's keys are read, those
that begin with a change are copied into the target, and those that were there end, change or go by a merge.

For targets whose columns keep what they are given and compare it as Arrow does, see `keeps_as_is`: windows over whole rows
take the server several times as long as DuckDB takes for numbers, and a version that is copied straight in is written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from replicator.domain.change import OP
from replicator.domain.plan import CDC_UNSENT, START_AT, Cut, Facts, cdc_sequence_columns

from .dialect import POSTGRES
from .history_events import carried, related_select
from .local_history import Versions, versions
from .pg_connection import planning
from .pg_copy import copy_rows, copy_statement
from .pg_names import quoted
from .pg_reader import form_of, select_as
from .pg_target import Target
from .repair import from_columns

BULK_KEYS = 50_000
"""From here on one scan of the target is cheaper than a look-up per key."""
PIECE = 16 << 20
"""Bytes of versions that are read at a time."""
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
"""By PostgreSQL's type the type of Arrow with the same values, told apart alike; a time zone says nothing of a value."""
COLUMNS = (
    "SELECT a.attname, t.typname, a.atttypmod, coalesce(c.collisdeterministic, true), r.relkind IN ('r', 'p') "
    "AND NOT r.relrowsecurity FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid "
    "JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation "
    "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped"
)
TEXTS = "_text"
"""The type of `_cdc_unsent`."""
OPTIONS = csv.ParseOptions(newlines_in_values=True)


def keeps_as_is(cursor: psycopg.Cursor, target: str, kinds: pa.Schema) -> bool:
    """Every column of these types keeps, and compares, the values of its type of Arrow, and rows may be copied in."""
    there = {name: found for name, *found in cursor.execute(COLUMNS, (target,)).fetchall()}
    return all(field.name in there and _as_is(field, *there[field.name]) for field in kinds)


def _as_is(field: pa.Field, kind: str, parameter: int, bytewise: bool, plain_table: bool) -> bool:
    if not (plain_table and bytewise):
        return False
    if field.name == CDC_UNSENT:
        return kind == TEXTS
    if pa.types.is_decimal(field.type):
        # As numeric's own input reads it: 16 bits of precision, then the scale.
        declared = divmod(parameter - 4, 1 << 16)
        return kind == "numeric" and declared == (field.type.precision, field.type.scale)
    wanted = pa.timestamp(field.type.unit) if pa.types.is_timestamp(field.type) else field.type
    rounds = parameter >= 0 and (pa.types.is_timestamp(wanted) or pa.types.is_time(wanted))
    return not rounds and KEPT.get(kind) == wanted


class VersionsHere:
    """One write of a history, in the caller's transaction, whose changes are in memory."""

    def __init__(self, cursor: psycopg.Cursor, target: Target) -> None:
        self._cursor = cursor
        self._target = target

    def judged(self, rows: pa.Table, facts: Facts, cuts: Sequence[Cut]) -> Versions:
        """Stages 2 and 3 of a rows frame, for which nothing matters that is remembered. `cuts`: all truncates. The staging
        table is empty, and is left so."""
        plan, lowest, moves = self._target.plan, facts.lowest, facts.moves
        if plan.history is None or lowest is None:
            raise AssertionError("only histories have versions, and only changes have sequences")
        names = [*plan.table.keys, *(from_columns(plan) if moves else ())]
        keys = rows.select(names).group_by(names).aggregate([])
        self._stage(keys)
        select = related_select(
            plan, POSTGRES, self._target.relation, quoted(self._target.stage), lowest, moves=moves, cuts=()
        )
        with planning(self._cursor, bulk=keys.num_rows >= BULK_KEYS):
            related = self._read(select, rows.schema)
        self._empty()
        return versions(plan, plan.history, rows, related, None, lowest=lowest, cuts=cuts)

    def write(self, done: Versions) -> None:
        """Stage 4. A version that begins with a change of the batch was not there: what is there begins at its sequence, and
        a change that comes to the same sequence is known. The others may have been."""
        target, names = self._target, list(self._target.fits)
        into = copy_statement((target.schema, target.table), names)
        copy_rows(self._cursor, into, done.write.filter(done.begins).select(names), target.forms(names))
        others = done.write.filter(pc.invert(done.begins))
        if others.num_rows:
            self._stage(others.select([OP, *names]))
            with planning(self._cursor, bulk=others.num_rows >= BULK_KEYS):
                self._cursor.execute(target.merge(), prepare=False)
            self._empty()

    def remember(self, marks: pa.Table) -> bool:
        """Keep what the versions do not show; True when there is anything."""
        if not marks.num_rows:
            return False
        plan = self._target.plan
        names = [OP, *plan.table.keys, *cdc_sequence_columns(plan.table.sequence), START_AT, CDC_UNSENT, *carried(plan)]
        self._stage(marks.select(names))
        columns, stage = ", ".join(map(quoted, names)), quoted(self._target.stage)
        insert = f"INSERT INTO {self._target.ledger} ({columns}) SELECT {columns} FROM {stage} ON CONFLICT DO NOTHING"
        kept = self._cursor.execute(insert.encode(), prepare=False).rowcount  # A cursor has it until its next statement.
        self._empty()
        return kept > 0

    def _stage(self, rows: pa.Table) -> None:
        names = rows.column_names
        copy_rows(self._cursor, self._target.copy(names), rows, self._target.forms(names))
        if rows.num_rows >= BULK_KEYS:
            keys = ", ".join(
                quoted(n) for n in names if n in (*self._target.plan.merge_keys, *from_columns(self._target.plan))
            )
            self._cursor.execute(f"ANALYZE {quoted(self._target.stage)} ({keys})".encode(), prepare=False)

    def _empty(self) -> None:
        self._cursor.execute(f"TRUNCATE {quoted(self._target.stage)}".encode(), prepare=False)

    def _read(self, select: str, kinds: pa.Schema) -> pa.Table:
        """The rows of a SELECT with the columns of the target, with their types among `kinds`."""
        names = [c.name for c in self._target.plan.target]
        forms = {n: _form(kinds.field(n)) for n in names}
        chosen = ", ".join(select_as(n, how) for n, (_, how) in forms.items())
        copy = f"COPY (SELECT {chosen} FROM ({select}) AS v) TO STDOUT (FORMAT csv)"
        schema = pa.schema([kinds.field(n) for n in names])
        pieces = [_parsed(piece, forms, schema) for piece in self._pieces(copy)]
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def _pieces(self, copy: str) -> Iterator[bytes]:
        """What a COPY gives, some rows at a time. Each message of the protocol is one row."""
        with self._cursor.copy(copy.encode()) as out:
            piece = bytearray()
            for row in out:
                piece += row
                if len(piece) >= PIECE:
                    yield bytes(piece)
                    piece = bytearray()
            if piece:
                yield bytes(piece)


Form = tuple[pa.DataType, str]
"""The type that a column is read as from CSV, and the SQL template that selects it so."""


def _form(field: pa.Field) -> Form:
    if field.name == CDC_UNSENT:
        return pa.string(), "array_to_json({0})::text"
    kind, how = form_of(field.type)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.int64(), how
    if pa.types.is_date(kind):
        return pa.int32(), how
    return (pa.string() if pa.types.is_decimal(kind) else kind), how


def _parsed(piece: bytes, forms: dict[str, Form], schema: pa.Schema) -> pa.Table:
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
    return pa.table([_typed(found[field.name], field) for field in schema], schema=schema)


def _typed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.name == CDC_UNSENT:
        lists = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return pa.chunked_array([pa.array(lists, field.type)])
    return column.cast(field.type)
