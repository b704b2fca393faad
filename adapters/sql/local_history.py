"""Stage 3 of a plan that keeps versions, run in DuckDB for sinks that apply in process.

As in `local_repair` DuckDB sees no value. Where values are compared or handed on it sees numbers instead: equal values of a
column have the same number, and a number leads back to its value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OP, Op
from replicator.domain.plan import (
    CDC_APPLIED_AT,
    CDC_UNSENT,
    END_AT,
    EVENT_ID,
    START_AT,
    ApplyPlan,
    Counts,
    Cut,
    History,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.sequence import Sequence as SequenceKey

from .departures import without_others
from .dialect import DUCKDB
from .duck import session
from .history import events_select, marks_select, versions_select
from .history_events import CHANGE, KIND, PLACE, Known
from .local_numbers import numbers_of, numbers_of_rows
from .local_repair import incomplete_sentences, unsent_names, with_ambiguity, with_error
from .relatable import relatable
from .repair import APPLY, DUPLICATE, INCOMPLETE, VERDICT, from_columns

IMAGE = "_cdc__image"
"""One number for the values that are compared and that every event sent."""


@dataclass(frozen=True, slots=True)
class Versions:
    """`write`: rows for stage 4, `_op` d for versions that are no more. `begins`: which of them begin with a change of the
    batch: where nothing is remembered, no version was there that begins at its sequence. `marks`: what is to be remembered
    beside the target, with its columns and `_op`. `rejects`: rows with `_error`. `counts`: every row of the input, once."""

    write: pa.Table
    begins: pa.Array
    marks: pa.Table
    rejects: pa.Table
    counts: Counts


def versions(
    plan: ApplyPlan,
    history: History,
    rows: pa.Table,
    related: pa.Table,
    marks: pa.Table | None,
    *,
    lowest: SequenceKey,
    cuts: Sequence[Cut],
) -> Versions:
    """Stage 3 over a rows frame.

    `related`: the target's rows of every key and old key in `rows` that are open or end at or above `lowest`, the lowest
    sequence of `rows` (more do no harm), with the target's columns. `marks`: what is remembered of these keys (more do no
    harm), with the target's columns and `_op`; None when nothing of it lies at or above `lowest`. `cuts`: all truncates.
    """
    rows, others, untold = without_others(plan, rows, related)
    pool = _Pool(plan, rows, related, marks)
    numbers, known = _numbered(pool, history, lowest, cuts)
    with session() as connection:
        for name, table in numbers.items():
            connection.register(name, table)
        connection.execute(f"CREATE TEMP TABLE history_events AS {events_select(plan, DUCKDB, known)}")
        try:
            verdicts = connection.sql(
                f"SELECT {PLACE}, {VERDICT} FROM history_events WHERE {KIND} = {CHANGE} ORDER BY {PLACE}"
            ).to_arrow_table()
            found = connection.sql(versions_select(plan, DUCKDB, known, "history_events")).to_arrow_table()
            hidden = connection.sql(marks_select(plan, DUCKDB, known, "history_events")).to_arrow_table()
        finally:
            connection.execute("DROP TABLE history_events")
    rejected = rows.filter(pc.equal(verdicts[VERDICT], INCOMPLETE))
    return Versions(
        pool.written(found, history),
        pc.greater_equal(found[PLACE], 0),
        pool.remembered(hidden),
        pa.concat_tables([_with_reasons(rejected), with_ambiguity(untold)]),
        _counts(verdicts[VERDICT]) + Counts(superseded=others, rejected=untold.num_rows),
    )


def _with_reasons(rejected: pa.Table) -> pa.Table:
    return with_error(rejected, incomplete_sentences(rejected))


def _counts(verdicts: pa.ChunkedArray) -> Counts:
    seen = {entry["values"]: entry["counts"] for entry in pc.value_counts(verdicts).to_pylist()}
    return Counts(applied=seen.get(APPLY, 0), duplicate=seen.get(DUPLICATE, 0), rejected=seen.get(INCOMPLETE, 0))


class _Pool:
    """The rows that events come from: those of the batch have the places 0, 1 ..., those of the target and what is
    remembered -1, -2 ... in one row of numbers. `codes` holds the values of columns that are handed on as numbers."""

    def __init__(self, plan: ApplyPlan, rows: pa.Table, related: pa.Table, marks: pa.Table | None) -> None:
        self.plan = plan
        names = [c.name for c in plan.target]
        self.kinds = pa.schema([rows.schema.field(n) for n in names])
        rows = rows.drop_columns([PLACE]) if PLACE in rows.column_names else rows
        self.rows = rows.append_column(PLACE, pa.array(range(rows.num_rows), pa.int64()))
        self.related = _placed(_cast(related, self.kinds), 0)
        self.marks = None if marks is None else _placed(_cast(marks, self.kinds), related.num_rows)
        self.values = pa.concat_tables([t.select(names) for t in self.tables])
        self.codes: dict[str, pa.Array] = {}

    @property
    def tables(self) -> list[pa.Table]:
        return [self.rows, self.related, *([] if self.marks is None else [self.marks])]

    def coded(self, name: str) -> list[pa.Array]:
        """The numbers of a column's values, per table."""
        codes, self.codes[name] = numbers_of(self.values[name])
        return self._per_table(codes)

    def _per_table(self, codes: pa.Array) -> list[pa.Array]:
        out, start = [], 0
        for table in self.tables:
            out.append(codes.slice(start, table.num_rows))
            start += table.num_rows
        return out

    def image(self, names: Sequence[str]) -> list[pa.Array]:
        """One number per row for the values of several columns."""
        return self._per_table(numbers_of_rows(self.values, names))

    def taken(self, places: pa.Array, names: Collection[str]) -> pa.Table:
        """These values of the rows at these places."""
        there = pc.less(places, 0)
        below = pc.add(pc.subtract(pc.negate(places), 1), self.rows.num_rows)
        return self.values.select([n for n in self.kinds.names if n in names]).take(pc.if_else(there, below, places))

    def written(self, found: pa.Table, history: History) -> pa.Table:
        count = self.plan.table.sequence
        counted = {*end_sequence_columns(count), *last_sequence_columns(count)}
        made = {*counted, *(self.codes.keys() - {START_AT}), CDC_UNSENT, CDC_APPLIED_AT}
        own = self.taken(found[PLACE], {*self.kinds.names} - made - {*history.untracked})
        last = self.taken(found["_cdc__last_place"], history.untracked)
        columns = {OP: found[OP]}
        for field in self.kinds:
            name = field.name
            if name in counted:
                columns[name] = found[name].cast(field.type)
            elif name in self.codes and name != START_AT:
                columns[name] = self._value(name, found[name], field)
            elif name == CDC_UNSENT:
                columns[name] = found[name].cast(field.type)
            elif name == CDC_APPLIED_AT:
                columns[name] = pa.repeat(pa.scalar(datetime.now(UTC), field.type), found.num_rows)
            else:
                columns[name] = (last if name in history.untracked else own)[name]
        return pa.table(columns)

    def remembered(self, hidden: pa.Table) -> pa.Table:
        own, is_delete = self.taken(hidden[PLACE], self.kinds.names), pc.equal(hidden[OP], Op.DELETE.value)
        kept = {*self.plan.table.keys}
        columns = {OP: hidden[OP]}
        for field in self.kinds:
            name = field.name
            if name in cdc_sequence_columns(self.plan.table.sequence):
                columns[name] = hidden[name].cast(field.type)
            elif name in self.codes and name in hidden.column_names:
                columns[name] = self._value(name, hidden[name], field)
            elif name in kept:
                columns[name] = own[name]
            else:
                # A delete that once ended a version is remembered without the row it was read from.
                of_batch = pc.greater_equal(hidden[PLACE], 0) if name == EVENT_ID else pa.scalar(False)
                void = pc.and_(is_delete, pc.invert(of_batch))
                columns[name] = pc.if_else(void, pa.scalar(None, field.type), own[name])
        return pa.table(columns)

    def _value(self, name: str, codes: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        return self.codes[name].take(codes.cast(pa.int64())).cast(field.type)


def _placed(table: pa.Table, before: int) -> pa.Table:
    return table.append_column(PLACE, pa.array(range(-1 - before, -1 - before - table.num_rows, -1), pa.int64()))


def _cast(table: pa.Table, kinds: pa.Schema) -> pa.Table:
    """The columns of `kinds`, and `_op` where there is one; columns that the table does not have yet are null."""
    columns = {
        f.name: table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
        for f in kinds
    }
    return pa.table(columns | ({OP: table[OP]} if OP in table.column_names else {}))


def _numbered(pool: _Pool, history: History, lowest: SequenceKey, cuts: Sequence[Cut]) -> tuple[dict[str, pa.Table], Known]:
    """The relations as DuckDB sees them."""
    plan = pool.plan
    lacking = tuple(sorted({n for t in pool.tables for n in unsent_names(t, CDC_UNSENT)} - {*plan.table.keys}))
    image = pool.image([n for n in history.tracked if n not in lacking])
    coded = {name: pool.coded(name) for name in lacking}
    times, instants = _instants(pool, cuts)
    tables = {}
    for i, (name, table) in enumerate(zip(("changes", "related", "marks"), pool.tables, strict=False)):
        plain = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), CDC_UNSENT, PLACE]
        plain += [OP] if OP in table.column_names else []
        plain += from_columns(plan) if name == "changes" else []
        if name == "related":
            plain += [*end_sequence_columns(plan.table.sequence), *last_sequence_columns(plan.table.sequence)]
        narrow = relatable(table.select(plain))
        for column, codes in {START_AT: times[0], END_AT: times[1], IMAGE: image, **coded}.items():
            narrow = narrow.append_column(column, codes[i])
        tables[name] = narrow
    moves = pool.rows[from_columns(plan)[-1]].null_count < pool.rows.num_rows
    known = Known(
        rows="changes",
        related="related" if pool.related.num_rows else None,
        marks="marks" if pool.marks is not None else None,
        lowest=lowest,
        cuts=[(cut.sequence, at) for cut, at in zip(cuts, instants, strict=True) if cut.sequence >= lowest],
        values=(IMAGE, *lacking),
        compared=(IMAGE, *(n for n in lacking if n in history.tracked)),
        untracked=tuple(n for n in lacking if n in history.untracked),
        lacking=lacking,
        moves=moves,
    )
    return tables, known


def _instants(pool: _Pool, cuts: Sequence[Cut]) -> tuple[tuple[list[pa.Array], list[pa.Array]], list[str]]:
    """The numbers of `__START_AT` and `__END_AT`, which go over into each other, and those of the truncates."""
    kind = pool.kinds.field(START_AT).type
    # A lane that orders changes by a column of its own has no truncates: what is shown is a time, or there are none.
    of_cuts = pa.array([cut.at for cut in cuts], pa.int64()).cast(kind) if cuts else pa.array([], kind)
    size = pool.values.num_rows
    codes, values = numbers_of(pa.chunked_array([*pool.values[START_AT].chunks, *pool.values[END_AT].chunks, of_cuts], kind))
    pool.codes[START_AT] = pool.codes[END_AT] = values
    starts, ends = pool._per_table(codes.slice(0, size)), pool._per_table(codes.slice(size, size))
    return (starts, ends), ["NULL" if code is None else str(code) for code in codes.slice(2 * size).to_pylist()]
