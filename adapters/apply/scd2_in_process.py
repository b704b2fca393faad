"""Stage 3 of an scd2 plan in DuckDB, for sinks that apply in process.

As in `reconcile_in_process`, DuckDB reads no values. It compares and passes on numbers instead. Equal values of
a column have the same number, and each number leads back to its value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import OP, Op
from replicator.domain.policy.plan import (
    CDC_APPLIED_AT,
    CDC_UNSENT,
    END_AT,
    EVENT_ID,
    START_AT,
    ApplyPlan,
    Counts,
    HistoryPlan,
    Truncate,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.sequence import Sequence as SequenceKey

from ..duckdb.session import open_session, to_duckdb_types
from ..sql.dialect import DUCKDB
from ..sql.reconcile import INCOMPLETE, VERDICT, old_key_columns
from ..sql.scd2 import absorbed_select, events_select, versions_select
from ..sql.scd2_events import CHANGE, KIND, ROW_NUMBER, Scd2Input
from .reconcile_in_process import (
    count_verdicts,
    drop_foreign_deletes,
    list_missing_names,
    to_ambiguous_rejects,
    to_incomplete_rejects,
)

IMAGE = "_cdc__image"
"""One number for the compared values that every event sent."""


@dataclass(frozen=True, slots=True)
class Scd2Result:
    """The result of stage 3.

    - `write`: rows for stage 4, with `_op` d for removed versions.
    - `begins`: true for rows of `write` that start with a change of the batch. Without absorbed changes, the
      target had no version that starts at this sequence.
    - `absorbed`: the absorbed changes to store, with the target's columns and `_op`.
    - `rejects`: rows with `_error`.
    - `counts`: every row of the input, once.
    """

    write: pa.Table
    begins: pa.Array
    absorbed: pa.Table
    rejects: pa.Table
    counts: Counts


def compute_versions(
    plan: ApplyPlan,
    history: HistoryPlan,
    rows: pa.Table,
    related: pa.Table,
    absorbed: pa.Table | None,
    *,
    lowest: SequenceKey,
    truncates: Sequence[Truncate],
) -> Scd2Result:
    """Stage 3 over a rows frame.

    - `related`: the target's rows of every key and old key in `rows` that are open or end at or above `lowest`,
      with the target's columns. Additional rows are harmless.
    - `absorbed`: the absorbed changes of these keys, with the target's columns and `_op`. None when none lies at
      or above `lowest`. Additional rows are harmless.
    - `lowest`: the lowest sequence of `rows`.
    - `truncates`: all truncates.
    """
    rows, others, ambiguous = drop_foreign_deletes(plan, rows, related)
    pool = _RowPool(plan, rows, related, absorbed)
    numbers, scd2_input = _encode_relations(pool, history, lowest, truncates)
    with open_session() as connection:
        for name, table in numbers.items():
            connection.register(name, table)
        connection.execute(f"CREATE TEMP TABLE history_events AS {events_select(plan, DUCKDB, scd2_input)}")
        try:
            verdicts = connection.sql(
                f"SELECT {ROW_NUMBER}, {VERDICT} FROM history_events WHERE {KIND} = {CHANGE} ORDER BY {ROW_NUMBER}"
            ).to_arrow_table()
            versions = connection.sql(versions_select(plan, DUCKDB, scd2_input, "history_events")).to_arrow_table()
            hidden_changes = connection.sql(absorbed_select(plan, DUCKDB, scd2_input, "history_events")).to_arrow_table()
        finally:
            connection.execute("DROP TABLE history_events")
    incomplete = rows.filter(pc.equal(verdicts[VERDICT], INCOMPLETE))
    return Scd2Result(
        pool.to_written_rows(versions, history),
        pc.greater_equal(versions[ROW_NUMBER], 0),
        pool.to_absorbed_rows(hidden_changes),
        pa.concat_tables([to_incomplete_rejects(incomplete), to_ambiguous_rejects(ambiguous)]),
        count_verdicts(verdicts[VERDICT]) + Counts(superseded=others, rejected=ambiguous.num_rows),
    )


class _RowPool:
    """The rows that events are read from, numbered by `_place`.

    Rows of the batch have 0, 1 ...; rows of the target and absorbed changes share -1, -2 .... `codes` holds the
    values of the columns that DuckDB sees as numbers.
    """

    def __init__(self, plan: ApplyPlan, rows: pa.Table, related: pa.Table, absorbed: pa.Table | None) -> None:
        self.plan = plan
        names = [c.name for c in plan.target]
        self.kinds = pa.schema([rows.schema.field(n) for n in names])
        rows = rows.drop_columns([ROW_NUMBER]) if ROW_NUMBER in rows.column_names else rows
        self.rows = rows.append_column(ROW_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        self.related = _number_stored_rows(_cast_columns(related, self.kinds), 0)
        self.absorbed = (
            None if absorbed is None else _number_stored_rows(_cast_columns(absorbed, self.kinds), related.num_rows)
        )
        self.values = pa.concat_tables([t.select(names) for t in self.tables])
        self.codes: dict[str, pa.Array] = {}

    @property
    def tables(self) -> list[pa.Table]:
        return [self.rows, self.related, *([] if self.absorbed is None else [self.absorbed])]

    def encode_column(self, name: str) -> list[pa.Array]:
        """The numbers of a column's values, per table."""
        codes, self.codes[name] = encode_values(self.values[name])
        return self._per_table(codes)

    def _per_table(self, codes: pa.Array) -> list[pa.Array]:
        out, start = [], 0
        for table in self.tables:
            out.append(codes.slice(start, table.num_rows))
            start += table.num_rows
        return out

    def encode_image(self, names: Sequence[str]) -> list[pa.Array]:
        """One number per row for the values of several columns."""
        return self._per_table(encode_rows(self.values, names))

    def take_values(self, positions: pa.Array, names: Collection[str]) -> pa.Table:
        """The values of `names` in the rows with these `_place` numbers."""
        is_stored = pc.less(positions, 0)
        below = pc.add(pc.subtract(pc.negate(positions), 1), self.rows.num_rows)
        return self.values.select([n for n in self.kinds.names if n in names]).take(pc.if_else(is_stored, below, positions))

    def to_written_rows(self, versions: pa.Table, history: HistoryPlan) -> pa.Table:
        count = self.plan.table.sequence
        sequence_names = {*end_sequence_columns(count), *last_sequence_columns(count)}
        computed_names = {*sequence_names, *(self.codes.keys() - {START_AT}), CDC_UNSENT, CDC_APPLIED_AT}
        own = self.take_values(versions[ROW_NUMBER], {*self.kinds.names} - computed_names - {*history.untracked})
        last = self.take_values(versions["_cdc__last_place"], history.untracked)
        columns = {OP: versions[OP]}
        for field in self.kinds:
            name = field.name
            if name in sequence_names:
                columns[name] = versions[name].cast(field.type)
            elif name in self.codes and name != START_AT:
                columns[name] = self._decode_value(name, versions[name], field)
            elif name == CDC_UNSENT:
                columns[name] = versions[name].cast(field.type)
            elif name == CDC_APPLIED_AT:
                columns[name] = pa.repeat(pa.scalar(datetime.now(UTC), field.type), versions.num_rows)
            else:
                columns[name] = (last if name in history.untracked else own)[name]
        return pa.table(columns)

    def to_absorbed_rows(self, changes: pa.Table) -> pa.Table:
        own, is_delete = self.take_values(changes[ROW_NUMBER], self.kinds.names), pc.equal(changes[OP], Op.DELETE.value)
        keys = {*self.plan.table.keys}
        columns = {OP: changes[OP]}
        for field in self.kinds:
            name = field.name
            if name in cdc_sequence_columns(self.plan.table.sequence):
                columns[name] = changes[name].cast(field.type)
            elif name in self.codes and name in changes.column_names:
                columns[name] = self._decode_value(name, changes[name], field)
            elif name in keys:
                columns[name] = own[name]
            else:
                # A delete that ended an earlier version is stored without the values of the row it was read from.
                of_batch = pc.greater_equal(changes[ROW_NUMBER], 0) if name == EVENT_ID else pa.scalar(False)
                void = pc.and_(is_delete, pc.invert(of_batch))
                columns[name] = pc.if_else(void, pa.scalar(None, field.type), own[name])
        return pa.table(columns)

    def _decode_value(self, name: str, codes: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        return self.codes[name].take(codes.cast(pa.int64())).cast(field.type)


def _number_stored_rows(table: pa.Table, before: int) -> pa.Table:
    return table.append_column(ROW_NUMBER, pa.array(range(-1 - before, -1 - before - table.num_rows, -1), pa.int64()))


def _cast_columns(table: pa.Table, kinds: pa.Schema) -> pa.Table:
    """The columns of `kinds`, and `_op` if there is one. Columns that the table does not have yet are null."""
    columns = {
        f.name: table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
        for f in kinds
    }
    return pa.table(columns | ({OP: table[OP]} if OP in table.column_names else {}))


def _encode_relations(
    pool: _RowPool, history: HistoryPlan, lowest: SequenceKey, truncates: Sequence[Truncate]
) -> tuple[dict[str, pa.Table], Scd2Input]:
    """The relations for DuckDB."""
    plan = pool.plan
    unsent = {name for table in pool.tables for name in list_missing_names(table, CDC_UNSENT)}
    missing_names = tuple(sorted(unsent & {c.name for c in plan.table.values}))  # Stored rows may name removed columns.
    image = pool.encode_image([n for n in history.tracked if n not in missing_names])
    coded = {name: pool.encode_column(name) for name in missing_names}
    times, instants = _encode_times(pool, truncates)
    tables = {}
    for i, (name, table) in enumerate(zip(("changes", "related", "absorbed"), pool.tables, strict=False)):
        plain = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), CDC_UNSENT, ROW_NUMBER]
        plain += [OP] if OP in table.column_names else []
        plain += old_key_columns(plan) if name == "changes" else []
        if name == "related":
            plain += [*end_sequence_columns(plan.table.sequence), *last_sequence_columns(plan.table.sequence)]
        narrow = to_duckdb_types(table.select(plain))
        for column, codes in {START_AT: times[0], END_AT: times[1], IMAGE: image, **coded}.items():
            narrow = narrow.append_column(column, codes[i])
        tables[name] = narrow
    moves = pool.rows[old_key_columns(plan)[-1]].null_count < pool.rows.num_rows
    scd2_input = Scd2Input(
        rows="changes",
        related="related" if pool.related.num_rows else None,
        absorbed="absorbed" if pool.absorbed is not None else None,
        lowest=lowest,
        truncates=[
            (truncate.sequence, at) for truncate, at in zip(truncates, instants, strict=True) if truncate.sequence >= lowest
        ],
        values=(IMAGE, *missing_names),
        compared=(IMAGE, *(n for n in missing_names if n in history.tracked)),
        untracked=tuple(n for n in missing_names if n in history.untracked),
        missing=missing_names,
        moves=moves,
    )
    return tables, scd2_input


def _encode_times(pool: _RowPool, truncates: Sequence[Truncate]) -> tuple[tuple[list[pa.Array], list[pa.Array]], list[str]]:
    """The numbers of `__START_AT`, of `__END_AT` and of the truncates. All share one numbering, because an end
    is another version's start."""
    kind = pool.kinds.field(START_AT).type
    # A lane that orders changes by a column of its table has no truncates, so the type is a time whenever there are some.
    of_truncates = (
        pa.array([truncate.at for truncate in truncates], pa.int64()).cast(kind) if truncates else pa.array([], kind)
    )
    size = pool.values.num_rows
    codes, values = encode_values(
        pa.chunked_array([*pool.values[START_AT].chunks, *pool.values[END_AT].chunks, of_truncates], kind)
    )
    pool.codes[START_AT] = pool.codes[END_AT] = values
    starts, ends = pool._per_table(codes.slice(0, size)), pool._per_table(codes.slice(size, size))
    return (starts, ends), ["NULL" if code is None else str(code) for code in codes.slice(2 * size).to_pylist()]


# Numbers for values: equal values have the same number, so that DuckDB compares numbers.


def encode_values(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """A number per value (null for NULL), and the value of each number. Zero equals minus zero, and NaN equals
    NaN."""
    whole = column.combine_chunks()
    if pa.types.is_nested(whole.type):
        numbers: dict[str, int] = {}
        first: list[int] = []
        codes: list[int | None] = []
        for position, value in enumerate(whole.to_pylist()):
            text = repr(value)
            if value is not None and text not in numbers:
                numbers[text] = len(first)
                first.append(position)
            codes.append(None if value is None else numbers[text])
        return pa.array(codes, pa.int64()), whole.take(pa.array(first, pa.int64()))
    if pa.types.is_floating(whole.type):
        whole = pc.add(whole, pa.scalar(0.0, whole.type))
    encoded = whole.dictionary_encode()
    return encoded.indices.cast(pa.int64()), encoded.dictionary


def combine_codes(one: pa.Array, other: pa.Array) -> pa.Array:
    """One number for each pair of numbers; NULL counts as a number."""
    filled = pc.add(pc.fill_null(other, -1), 1)
    spread = (pc.max(filled).as_py() or 0) + 1
    return pc.add(pc.multiply(one, spread), filled).dictionary_encode().indices.cast(pa.int64())


def encode_rows(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """One number per row for the values of several columns. Stops early once every row has its own number."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in names:
        if pc.max(codes).as_py() == rows.num_rows - 1:
            return codes
        codes = combine_codes(codes, encode_values(rows[name])[0])
    return codes
