"""Stage 3 of a plan with a sequence for each column. DuckDB compares keys, ranks and flags; Arrow gathers the
values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from adapters.duckdb.session import to_duckdb_types
from replicator.domain.change import OP, UNCHANGED, Op
from replicator.domain.policy.plan import CDC_OP, CDC_TS, CDC_UNSENT, EVENT_ID, ApplyPlan, Counts, cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey

from ..duckdb.session import open_session
from ..sql.dialect import DUCKDB
from ..sql.per_column import NOTHING, keys_select, numbers_select, verdicts_select, winners_select
from ..sql.reconcile import APPLY, DUPLICATE, SUPERSEDED
from .column_versions import COLUMN_VERSIONS, ColumnVersions, parse_column_versions

NO_CHANGE = "n"
"""The operation of a row that only names a key, because a truncate may affect it."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """The stored state of one key.

    `row`: the sequence of the target's row; empty for a row from before replication started, None if there is
    no row. `text`: the key's `ColumnVersions.to_text`.
    """

    row: SequenceKey | None
    text: str | None


@dataclass(frozen=True, slots=True)
class PerColumnDecision:
    """`write`: rows for stage 4, one per key. `counts`: every change, once.

    `side_rows`: the changed column versions, with the key columns; without a text if the key has none left.
    """

    write: pa.Table
    side_rows: pa.Table
    counts: Counts


def add_key_rows(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """`rows`, and one row without a change for each row of `keys`. The columns of `keys` are a subset of the
    columns of `rows`."""
    if not keys.num_rows:
        return rows
    columns = {OP: pa.repeat(pa.scalar(NO_CHANGE), keys.num_rows), **{name: keys[name] for name in keys.column_names}}
    none = pa.nulls(keys.num_rows)
    more = {f.name: columns.get(f.name, none).cast(f.type) for f in rows.schema}
    return pa.concat_tables([rows, pa.table(more, schema=rows.schema)])


def read_key_states(plan: ApplyPlan, keys: pa.Table, related: pa.Table, column_versions: pa.Table) -> list[KeyState]:
    """The state of each of `keys`, from the target and the side table."""
    sequence = cdc_sequence_columns(plan.table.sequence)
    matches = {name: _match_rows(plan, keys, table) for name, table in (("row", related), ("text", column_versions))}
    rows = list(zip(*(related[n].to_pylist() for n in sequence), strict=True)) if related.num_rows else []
    texts = column_versions[COLUMN_VERSIONS].to_pylist()
    states = []
    for key in range(keys.num_rows):
        row, text = matches["row"].get(key), matches["text"].get(key)
        row_sequence = None if row is None else (() if None in rows[row] else rows[row])
        states.append(KeyState(row_sequence, None if text is None else texts[text]))
    return states


def _match_rows(plan: ApplyPlan, keys: pa.Table, table: pa.Table) -> Mapping[int, int]:
    """Maps the number of a row of `keys` to the number of the row of `table` with that key, if there is one."""
    q = DUCKDB.quote_name
    same = " AND ".join(f"k.{q(name)} = t.{q(name)}" for name in plan.table.keys)
    with open_session() as connection:
        for name, rows in (("keys", keys), ("there", table.select(list(plan.table.keys)))):
            numbers = pa.array(range(rows.num_rows), pa.int64())
            connection.register(name, to_duckdb_types(rows).append_column("_row", numbers))
        pairs = connection.sql(f"SELECT k._row, t._row FROM keys AS k JOIN there AS t ON {same}").fetchall()
    return dict(pairs)


def decide_columns(
    plan: ApplyPlan, rows: pa.Table, truncated_at: SequenceKey | None, read_states: Callable[[pa.Table], Sequence[KeyState]]
) -> PerColumnDecision:
    """Stage 3 for all keys of a batch.

    - `rows`: a rows frame with every change, including truncates and rows of `add_key_rows`.
    - `truncated_at`: the last truncate before the batch.
    - `read_states`: returns the state of each of these keys.
    """
    numbers = number_keys(rows, plan.table.keys)
    first = {key: row for row, key in sorted(numbers.items(), reverse=True)}
    keys = _select_keys(rows, plan, [first[key] for key in range(len(first))])
    return _Decision(plan, rows, numbers, read_states(keys), truncated_at).decide()


def number_keys(rows: pa.Table, keys: Sequence[str]) -> dict[int, int]:
    """The number of each row's key, from 0, by row number. Truncates have no key and are left out."""
    with open_session() as connection:
        narrow = to_duckdb_types(rows.select([OP, *keys]))
        connection.register("rows", narrow.append_column("_row", pa.array(range(rows.num_rows), pa.int64())))
        pairs = connection.sql(numbers_select(", ".join(map(DUCKDB.quote_name, keys)))).to_arrow_table()
    return dict(zip(pairs["_row"].to_pylist(), pairs["_key"].to_pylist(), strict=True))


def _select_keys(rows: pa.Table, plan: ApplyPlan, numbers: list[int]) -> pa.Table:
    """The key columns of these rows."""
    return rows.select(list(plan.table.keys)).take(pa.array(numbers, pa.int64()))


class _Decision:
    def __init__(
        self,
        plan: ApplyPlan,
        rows: pa.Table,
        numbers: Mapping[int, int],
        states: Sequence[KeyState],
        truncated_at: SequenceKey | None,
    ) -> None:
        self.plan, self.rows, self.numbers, self.states = plan, rows, numbers, states
        self.names = [c.name for c in plan.table.values]
        self.before = [parse_column_versions(k.text) for k in states]
        columns = [rows[name].to_pylist() for name in cdc_sequence_columns(plan.table.sequence)]
        self.sent = [None if None in each else each for each in zip(*columns, strict=True)]
        self.truncated_at = truncated_at

    @cached_property
    def sequences(self) -> list[SequenceKey]:
        """All sequences to compare, sorted. The rank of a sequence is its index."""
        sequences = {*self.sent, self.truncated_at, *(k.row for k in self.states), *(b.deleted for b in self.before)}
        sequences.update(*(b.older.values() for b in self.before))
        return sorted(s for s in sequences if s is not None)

    def decide(self) -> PerColumnDecision:
        """Runs the queries and derives the result."""
        rank = {sequence: i for i, sequence in enumerate(self.sequences)}
        truncate_rank = NOTHING if self.truncated_at is None else rank[self.truncated_at]
        with open_session() as connection:
            for name, table in self._relations(rank).items():
                connection.register(name, table)
            verdicts = connection.sql(verdicts_select(truncate_rank)).to_arrow_table()["verdict"].to_pylist()
            keys = connection.sql(keys_select(truncate_rank)).to_arrow_table().to_pylist()
            cells = connection.sql(winners_select(truncate_rank)).to_arrow_table()
        width = len(self.names)
        places, ranks = cells["place"].to_pylist(), cells["rank"].to_pylist()
        judged = [
            _Key(key, places[i * width : (i + 1) * width], ranks[i * width : (i + 1) * width]) for i, key in enumerate(keys)
        ]
        after = {key.row: self._column_versions(key).to_text() for key in judged}
        texts = {key.row: after[key.row] for key in judged if after[key.row] != self.states[key.number].text}
        side_rows = _select_keys(self.rows, self.plan, list(texts))
        side_rows = side_rows.append_column(COLUMN_VERSIONS, pa.array(list(texts.values()), pa.string()))
        written_keys = [key for key in judged if self._is_written(key)]
        return PerColumnDecision(self._written_rows(written_keys), side_rows, self._count_verdicts(verdicts, judged, rank))

    def _relations(self, rank: Mapping[SequenceKey, int]) -> dict[str, pa.Table]:
        numbers, rows, unchanged = range(self.rows.num_rows), self.rows, self.rows[UNCHANGED]
        older: list[tuple[int, str, int | None]] = [
            (i, name, rank[s]) for i, b in enumerate(self.before) for name, s in b.older.items()
        ]
        older += [(i, name, None) for i, b in enumerate(self.before) for name in b.unsent]
        integer, text = pa.int64(), pa.string()
        return {
            "changes": pa.table(
                {
                    "_row": pa.array(numbers, integer),
                    "_key": pa.array([self.numbers.get(i) for i in numbers], integer),
                    "_op": rows[OP],
                    "_rank": pa.array([None if s is None else rank[s] for s in self.sent], integer),
                    "_unsent": unchanged,
                }
            ),
            "known": pa.table(
                {
                    "_key": pa.array(range(len(self.states)), integer),
                    "row_rank": pa.array([None if k.row is None else rank[k.row] for k in self.states], integer),
                    "del_rank": pa.array([None if b.deleted is None else rank[b.deleted] for b in self.before], integer),
                }
            ),
            "older": pa.table(
                {
                    "_key": pa.array([key for key, _, _ in older], integer),
                    "name": pa.array([name for _, name, _ in older], text),
                    "rank": pa.array([r for _, _, r in older], integer),
                }
            ),
            "names": pa.table({"idx": pa.array(range(len(self.names)), integer), "name": pa.array(self.names, text)}),
        }

    def _column_versions(self, key: _Key) -> ColumnVersions:
        deleted = self.sequences[key.deleted] if key.deleted > key.cleared else None
        if key.rank is None:
            return ColumnVersions(deleted)
        column_ranks = list(zip(self.names, key.ranks, strict=True))
        older = {name: self.sequences[r] for name, r in column_ranks if r is not None and r != key.rank}
        return ColumnVersions(deleted, older, tuple(sorted(name for name, r in column_ranks if r is None)))

    def _is_written(self, key: _Key) -> bool:
        if key.rank is None:
            return key.was_there
        is_changed = key.is_newer or any(place is not None for place in key.places)
        return is_changed or self._column_versions(key).unsent != tuple(self.before[key.number].unsent)

    def _written_rows(self, keys: list[_Key]) -> pa.Table:
        """The rows to write. `_unsent` names the columns that the batch does not decide."""
        base = self.rows.take(pa.array([key.row if key.top_row is None else key.top_row for key in keys], pa.int64()))
        row = (CDC_OP, CDC_TS, EVENT_ID, *cdc_sequence_columns(self.plan.table.sequence))
        columns: dict[str, Any] = {name: base[name] for name in base.column_names}
        for i, name in enumerate(self.names):
            columns[name] = self.rows[name].take(pa.array([key.places[i] for key in keys], pa.int64()))
        names, unsent = [], []
        for key in keys:
            cells = list(zip(self.names, key.places, key.ranks, strict=True))
            names.append([n for n, place, r in cells if place is None and r is not None] + ([] if key.is_newer else [*row]))
            unsent.append(sorted(n for n, _, r in cells if r is None) or None)
        lists = pa.list_(pa.string())
        columns[UNCHANGED] = pa.array(names, lists).cast(base[UNCHANGED].type)
        columns[CDC_UNSENT] = pa.array(unsent, lists).cast(base[CDC_UNSENT].type)
        operations = [Op.DELETE.value if key.rank is None else Op.UPDATE.value for key in keys]
        columns[OP] = pa.array(operations, base[OP].type)
        return pa.table(columns, schema=base.schema)

    def _count_verdicts(self, verdicts: list[str], keys: list[_Key], rank: Mapping[SequenceKey, int]) -> Counts:
        """A change that applies but that a later change of the batch hides counts as folded."""
        ops = self.rows[OP].to_pylist()
        winners: set[int | None] = {place for key in keys for place in key.places if place is not None}
        winners |= {key.top_row for key in keys if key.is_newer}
        last = max((rank[s] for s, op in zip(self.sent, ops, strict=True) if op == Op.TRUNCATE and s), default=NOTHING)
        for i, (op, sequence) in enumerate(zip(ops, self.sent, strict=True)):
            end = keys[self.numbers[i]].deleted if op == Op.DELETE else last if op == Op.TRUNCATE else None
            if sequence is not None and rank[sequence] == end:
                winners.add(i)
        tally = Counter(verdict for verdict, op in zip(verdicts, ops, strict=True) if op != NO_CHANGE)
        count = sum(verdict == APPLY and i in winners and ops[i] != NO_CHANGE for i, verdict in enumerate(verdicts))
        return Counts(applied=count, folded=tally[APPLY] - count, superseded=tally[SUPERSEDED], duplicate=tally[DUPLICATE])


class _Key:
    """The result for one key: the change that gives each column, and the column's rank."""

    def __init__(self, row: Mapping[str, Any], places: list[int | None], ranks: list[int | None]) -> None:
        self.number, self.row, self.places, self.ranks = row["_key"], row["any_row"], places, ranks
        self.deleted, self.cleared, self.was_there = row["deleted"], row["cleared"], row["row_rank"] is not None
        alive, top = row["alive"], row["top"]
        self.is_newer = top is not None and (alive is None or top > alive)
        self.top_row = row["top_row"] if self.is_newer else None
        self.rank = max((r for r in (alive, top) if r is not None), default=None)
        """The rank of the row; None if there is no row."""
