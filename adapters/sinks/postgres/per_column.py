"""Stages 2 and 3 of a plan with a sequence for each column, with the server's stored state of the batch's keys.

The state is one row per key in the lane's side table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg
import pyarrow as pa

from replicator.domain.policy.plan import cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey

from ...apply.column_versions import COLUMN_VERSIONS
from ...apply.per_column_in_process import KeyState, PerColumnDecision, add_key_rows, decide_columns
from ...postgres.literals import text_column
from ...postgres.names import quote_name
from ...postgres.table_reader import stored_form, to_array
from .target import STAGED_ROW, PostgresTarget


class ServerPerColumn:
    """One write of a lane with a sequence for each column, in the caller's transaction."""

    def __init__(self, cursor: psycopg.Cursor, target: PostgresTarget) -> None:
        self._cursor = cursor
        self._target = target
        self._keys = list(target.plan.table.keys)

    def decide(self, rows: pa.Table, truncated_at: SequenceKey | None, *, truncates: bool) -> PerColumnDecision:
        """Stage 3 of a rows frame with every change. `truncates`: it contains a truncate, which can affect every key."""
        if STAGED_ROW in rows.column_names:
            rows = rows.drop_columns([STAGED_ROW])
        if truncates:
            # All keys with stored state, with the types of the rows frame.
            kinds = {k: rows.schema.field(k).type for k in self._keys}
            forms = {k: stored_form(kind) for k, kind in kinds.items()}
            columns = ", ".join(how.replace("{0}", quote_name(k)) for k, (_, how) in forms.items())
            stored = self._run(f"SELECT {columns} FROM {self._target.side_table}").fetchall()
            values = zip(*stored, strict=True) if stored else ((),) * len(self._keys)
            read = zip(forms.items(), values, strict=True)
            rows = add_key_rows(rows, pa.table({k: to_array(each, kind).cast(kinds[k]) for (k, (kind, _)), each in read}))
        return decide_columns(self._target.plan, rows, truncated_at, self.read_states)

    def read_states(self, keys: pa.Table) -> list[KeyState]:
        """The state of each key, from the target and the side table."""
        same = {a: " AND ".join(f"{a}.{quote_name(k)} = k.{quote_name(k)}" for k in self._keys) for a in ("t", "b")}
        sequence = ", ".join(f"t.{quote_name(n)}" for n in cdc_sequence_columns(self._target.plan.table.sequence))
        state_rows = self._run(
            f"SELECT k.{quote_name(COLUMN_VERSIONS)}::int, t.{quote_name(self._keys[0])} IS NOT NULL, "
            f"b.{quote_name(COLUMN_VERSIONS)}, {sequence} "
            f"FROM {self._parameter_relation()} AS k LEFT JOIN {self._target.relation} AS t ON {same['t']} "
            f"LEFT JOIN {self._target.side_table} AS b ON {same['b']}",
            self._to_parameter(keys, [str(i) for i in range(keys.num_rows)]),
        ).fetchall()
        states = {
            number: KeyState((() if None in row else tuple(row)) if has_row else None, text)
            for number, has_row, text, *row in state_rows
        }
        return [states[i] for i in range(keys.num_rows)]

    def store_versions(self, side_rows: pa.Table) -> None:
        """Stores the text of each key. A row without a text deletes the stored one."""
        column_versions, q = self._target.side_table, quote_name(COLUMN_VERSIONS)
        if not side_rows.num_rows:
            return
        same = " AND ".join(f"b.{quote_name(k)} = k.{quote_name(k)}" for k in self._keys)
        names = ", ".join(map(quote_name, (*self._keys, COLUMN_VERSIONS)))
        objects = self._to_parameter(side_rows, side_rows[COLUMN_VERSIONS].to_pylist())
        self._run(f"DELETE FROM {column_versions} AS b USING {self._parameter_relation()} AS k WHERE {same}", objects)
        self._run(
            f"INSERT INTO {column_versions} ({names}) "
            f"SELECT {names} FROM {self._parameter_relation()} AS k WHERE k.{q} IS NOT NULL",
            objects,
        )

    def _parameter_relation(self) -> str:
        """The keys and texts of the parameter, as a relation with the columns of the side table."""
        return f"json_populate_recordset(NULL::{self._target.side_table}, \0::json)"

    def _to_parameter(self, keys: pa.Table, texts: Sequence[str | None]) -> str:
        columns = [
            text_column(keys[k].cast(self._target.conversions[k].arrow).combine_chunks()).cast(pa.string()).to_pylist()
            for k in self._keys
        ]
        names = [*self._keys, COLUMN_VERSIONS]
        return json.dumps([dict(zip(names, row, strict=True)) for row in zip(*columns, texts, strict=True)])

    def _run(self, statement: str, objects: str | None = None) -> psycopg.Cursor:
        if objects is None:
            return self._cursor.execute(statement.encode(), prepare=False)
        return self._cursor.execute(statement.replace("%", "%%").replace("\0", "%s").encode(), (objects,))
