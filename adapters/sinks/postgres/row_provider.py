"""The folded rows of a write, from any origin, on their way into the lane's staging table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, RAW_RECORD_POSITION, RECORD_POSITION
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import Write

from ...apply.conform import ROW_NUMBER, cast_rows, conform_changes, number_rows
from ...apply.lane_progress import drop_applied, filter_late
from ...apply.rows_frame import to_rows
from ...postgres.literals import JSON_FORM, text_column
from ...postgres.types import ColumnConversion
from .refused_rows import RefusedRow, copy_with_bisection
from .target import STAGED_ROW, PostgresTarget


class TargetRows(Protocol):
    """Rows that fit the target. Each has a unique number below `bound`; numbers may be missing."""

    @property
    def count(self) -> int:
        """The number of rows."""

    @property
    def bound(self) -> int:
        """A limit above every row number."""

    def inline(self, conversions: Mapping[str, ColumnConversion]) -> str | None:
        """The rows as `rows_to_json`; None when they need the staging table."""

    def copy_to_staging(
        self, cursor: psycopg.Cursor, target: PostgresTarget, names: Sequence[str], *, isolate: bool
    ) -> list[RefusedRow]:
        """Writes the columns `names` (at least) of the rows into the lane's staging table. Returns the refused
        rows."""

    def rejects(self, cursor: psycopg.Cursor, target: PostgresTarget, sentences: Mapping[int, str]) -> pa.Table:
        """The rows with these numbers as rejects: their positions, and as `_error` their sentences."""


@dataclass(frozen=True)
class ProvidedRows:
    """The input of a write.

    - `rows`: the rows that fit.
    - `rejects`: the rows that do not.
    - `trimmed`: how many rows were applied before or repeated.
    - `truncates`: how many truncates are not rows.
    """

    rows: TargetRows
    rejects: Sequence[pa.Table]
    trimmed: int
    truncates: int


class RowProvider(Protocol):
    """The frame of a write that PostgreSQL applies. It takes the place of the frame in `Write.folded`."""

    def provide_rows(
        self, write: Write[RowProvider], before: LaneState, target: PostgresTarget, applied_at: datetime, *, isolate: bool
    ) -> ProvidedRows:
        """The rows above the lane's state. After a refusal by the server it is called again, with `isolate`."""

    def discard(self, cursor: psycopg.Cursor) -> None:
        """Removes the provider's data from the server, in the transaction that applied it."""


@dataclass(frozen=True)
class ArrowRowProvider:
    """A `RowProvider` in this process."""

    frame: pa.Table

    def provide_rows(
        self, write: Write[RowProvider], before: LaneState, target: PostgresTarget, applied_at: datetime, *, isolate: bool
    ) -> ProvidedRows:
        names = RAW_RECORD_POSITION if target.event_log else RECORD_POSITION
        frame, trimmed = drop_applied(self.frame, write, before.position, names)
        watermark_result = filter_late(frame, write, before)
        frame = watermark_result.rows
        rows = frame if target.event_log else to_rows(frame, write.plan, applied_at)
        good, rejects = conform_to_columns(
            rows, target.conversions, None if target.event_log else write.plan, isolate=isolate
        )
        late = [] if watermark_result.late is None else [watermark_result.late]
        return ProvidedRows(
            to_target_rows(good), [*late, *rejects], trimmed + watermark_result.duplicates, frame.num_rows - rows.num_rows
        )

    def discard(self, cursor: psycopg.Cursor) -> None:
        """Does nothing: the server stores nothing."""


@dataclass(frozen=True)
class ArrowTargetRows:
    """`TargetRows` in this process, numbered by their index."""

    rows: pa.Table

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    bound = count

    def inline(self, conversions: Mapping[str, ColumnConversion]) -> str | None:
        return rows_to_json(self.rows, conversions)

    def copy_to_staging(
        self, cursor: psycopg.Cursor, target: PostgresTarget, names: Sequence[str], *, isolate: bool
    ) -> list[RefusedRow]:
        return copy_with_bisection(
            cursor, target.copy_into_staging(names), self.rows.select(names), target.list_forms(names), isolate=isolate
        )

    def rejects(self, cursor: psycopg.Cursor, target: PostgresTarget, sentences: Mapping[int, str]) -> pa.Table:  # noqa: ARG002
        """See `TargetRows.rejects`: whole rows."""
        numbers = sorted(sentences)
        errors = pa.array([sentences[number] for number in numbers], pa.string())
        return self.rows.take(pa.array(numbers, pa.int64())).drop_columns([STAGED_ROW]).append_column(ERROR, errors)


def to_target_rows(rows: pa.Table) -> ArrowTargetRows:
    """`rows` with `_cdc_row`."""
    return ArrowTargetRows(rows.append_column(STAGED_ROW, pa.array(range(rows.num_rows), pa.int32())))


# A few rows as one JSON parameter of the statement that writes them, without a staging table or another round trip.

INLINE_ROWS = 200
INLINE_BYTES = 256 << 10


def rows_to_json(rows: pa.Table, conversions: Mapping[str, ColumnConversion]) -> str | None:
    """The target's columns of `rows` as a JSON array of objects.

    PostgreSQL's json_populate_record converts each value to the type of the target's column, with the same input
    functions as COPY.

    None when there are too many rows, or when they hold JSON that is invalid, null, or nested too deeply for Python.
    """
    if rows.num_rows > INLINE_ROWS or rows.nbytes > INLINE_BYTES:
        return None
    columns = []
    for name, conversion in conversions.items():
        texts = text_column(rows[name].combine_chunks(), conversion.form).cast(pa.string()).to_pylist()
        label = json.dumps(name)
        try:
            columns.append([f"{label}:{_to_json_value(text, conversion)}" for text in texts])
        except (ValueError, RecursionError):
            return None
    return "[" + ",".join("{" + ",".join(row) + "}" for row in zip(*columns, strict=True)) + "]"


def _to_json_value(text: str | None, conversion: ColumnConversion) -> str:
    """A value as JSON. A JSON value is parsed first: invalid text could end the row and start another."""
    if text is None:
        return "null"
    if conversion.form != JSON_FORM:
        return json.dumps(text)
    if json.loads(text) is None:
        raise ValueError("JSON's null would become NULL")
    return text


# Separates rows that fit the columns of a PostgreSQL table from rows that do not, before the server reads them.


def conform_to_columns(
    rows: pa.Table, conversions: Mapping[str, ColumnConversion], plan: ApplyPlan | None, *, isolate: bool
) -> tuple[pa.Table, list[pa.Table]]:
    """`rows` with the types of `conversions`, and the rows that do not fit, with `_error`.

    `plan`: the plan, unless rows are stored as they are (`apply.conform.conform_changes`). `isolate`: the server refused a
    row, so faults that it does not name are searched, too.
    """
    if plan is None:
        return _split_misfits(rows, conversions, isolate=isolate)
    good, rejects = conform_changes(number_rows(rows), plan, lambda p: _split_misfits(p, conversions, isolate=isolate))
    return good.drop_columns([ROW_NUMBER]), [bad.drop_columns([ROW_NUMBER]) for bad in rejects]


def _split_misfits(
    rows: pa.Table, conversions: Mapping[str, ColumnConversion], *, isolate: bool
) -> tuple[pa.Table, list[pa.Table]]:
    good, bad = cast_rows(rows, pa.schema([pa.field(name, conversion.arrow) for name, conversion in conversions.items()]))
    rejects = [bad]
    for name, conversion in conversions.items():
        if conversion.length is not None:
            # The server would hide it by truncating the value.
            text = good[name] if pa.types.is_string(good[name].type) else good[name].cast(pa.string())
            within = pc.less_equal(pc.utf8_length(text), conversion.length)
            fault = f"is longer than the {conversion.length} characters the target takes"
            good, bad = _split_rows(good, within, f"the value of column {name!r} {fault}")
            rejects.append(bad)
        if isolate and pa.types.is_string(good[name].type):
            without_nul = pc.invert(pc.match_substring(good[name], "\0"))
            fault = "holds a NUL character, which PostgreSQL does not keep"
            good, bad = _split_rows(good, without_nul, f"the value of column {name!r} {fault}")
            rejects.append(bad)
    return good, [rows for rows in rejects if rows.num_rows]


def _split_rows(rows: pa.Table, inside: pa.ChunkedArray, sentence: str) -> tuple[pa.Table, pa.Table]:
    """The rows inside a limit or without a value, and the others as rejects with one reason."""
    mask = pc.fill_null(inside, True)
    bad = rows.filter(pc.invert(mask))
    reason = pa.scalar(str(Reject(RejectCode.OUT_OF_RANGE, sentence)))
    return rows.filter(mask), bad.append_column(ERROR, pa.repeat(reason, bad.num_rows))
