"""Stages 2 and 3 of a plan with a sequence for each column: what the server knows of the keys of a batch, and what it is to
keep of them beside the target: one row a key, in the lane's table of tombstones."""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg
import pyarrow as pa

from replicator.domain.plan import ApplyPlan, cdc_sequence_columns
from replicator.domain.sequence import Sequence as SequenceKey

from .beside import BESIDE
from .local_by_column import Decided, Known, decide, first_of_each, key_numbers, with_keys
from .pg_ledger import align, ledger_name
from .pg_literals import text_column
from .pg_names import quoted
from .pg_reader import array_of, form_of
from .pg_target import ROW, Target


def ensure_beside(cursor: psycopg.Cursor, number: int, plan: ApplyPlan, target: str) -> str:
    """Create the table unless it is there; returns its name as SQL."""
    name, keys = ledger_name(number), ", ".join(map(quoted, plan.table.keys))
    (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone() or (False,)
    if not there:
        select = f"SELECT {keys}, NULL::text AS {quoted(BESIDE)} FROM {target} WITH NO DATA"
        cursor.execute(
            f"CREATE TABLE {name} AS {select}; ALTER TABLE {name} ADD PRIMARY KEY ({keys})".encode(), prepare=False
        )
    align(cursor, name, target)
    return name


class ColumnsInServer:
    """One write of a lane with a sequence for each column, in the caller's transaction."""

    def __init__(self, cursor: psycopg.Cursor, target: Target) -> None:
        self._cursor = cursor
        self._target = target
        self._keys = list(target.plan.table.keys)

    def decided(self, rows: pa.Table, floor: SequenceKey | None, *, truncates: bool) -> tuple[pa.Table, Decided]:
        """Stage 3 of a rows frame with every change; first the frame that the decision's numbers are of. `truncates`: some
        change is one, which may concern every key."""
        plan = self._target.plan
        if ROW in rows.column_names:
            rows = rows.drop_columns([ROW])
        rows = with_keys(rows, self._every_key(rows.schema)) if truncates else rows
        numbers = key_numbers(rows, self._keys)
        keys = rows.select(self._keys).take(pa.array(first_of_each(numbers), pa.int64()))
        return rows, decide(plan, rows, numbers, self._known(keys), floor)

    def keep(self, keys: pa.Table, texts: Sequence[str | None]) -> None:
        """Keep a text for each of `keys`; None forgets what was kept."""
        beside, q = self._target.ledger, quoted(BESIDE)
        if not keys.num_rows:
            return
        same = " AND ".join(f"b.{quoted(k)} = k.{quoted(k)}" for k in self._keys)
        names = ", ".join(map(quoted, (*self._keys, BESIDE)))
        objects = self._objects(keys, texts)
        self._run(f"DELETE FROM {beside} AS b USING {self._given()} AS k WHERE {same}", objects)
        self._run(
            f"INSERT INTO {beside} ({names}) SELECT {names} FROM {self._given()} AS k WHERE k.{q} IS NOT NULL", objects
        )

    def _known(self, keys: pa.Table) -> list[Known]:
        """What the target and the table beside it say of each of `keys`."""
        sequence = cdc_sequence_columns(self._target.plan.table.sequence)
        same = {a: " AND ".join(f"{a}.{quoted(k)} = k.{quoted(k)}" for k in self._keys) for a in ("t", "b")}
        columns = ", ".join(f"t.{quoted(n)}" for n in sequence)
        found = self._run(
            f"SELECT k.{quoted(BESIDE)}::int, t.{quoted(self._keys[0])} IS NOT NULL, b.{quoted(BESIDE)}, {columns} "
            f"FROM {self._given()} AS k LEFT JOIN {self._target.relation} AS t ON {same['t']} "
            f"LEFT JOIN {self._target.ledger} AS b ON {same['b']}",
            self._objects(keys, [str(i) for i in range(keys.num_rows)]),
        ).fetchall()
        known = {
            number: Known((() if None in row else tuple(row)) if there else None, text)
            for number, there, text, *row in found
        }
        return [known[i] for i in range(keys.num_rows)]

    def _every_key(self, schema: pa.Schema) -> pa.Table:
        """The keys of which something is kept, with the types of the rows frame."""
        forms = {k: form_of(schema.field(k).type) for k in self._keys}
        columns = ", ".join(how.replace("{0}", quoted(k)) for k, (_, how) in forms.items())
        rows = self._run(f"SELECT {columns} FROM {self._target.ledger}").fetchall()
        values = zip(*rows, strict=True) if rows else ((),) * len(self._keys)
        read = zip(forms.items(), values, strict=True)
        return pa.table({k: array_of(each, kind).cast(schema.field(k).type) for (k, (kind, _)), each in read})

    def _given(self) -> str:
        """The keys and texts of the parameter, as a relation with the columns of the table beside the target."""
        return f"json_populate_recordset(NULL::{self._target.ledger}, \0::json)"

    def _objects(self, keys: pa.Table, texts: Sequence[str | None]) -> str:
        columns = [
            text_column(keys[k].cast(self._target.fits[k].arrow).combine_chunks()).cast(pa.string()).to_pylist()
            for k in self._keys
        ]
        names = [*self._keys, BESIDE]
        return json.dumps([dict(zip(names, row, strict=True)) for row in zip(*columns, texts, strict=True)])

    def _run(self, statement: str, objects: str | None = None) -> psycopg.Cursor:
        if objects is None:
            return self._cursor.execute(statement.encode(), prepare=False)
        return self._cursor.execute(statement.replace("%", "%%").replace("\0", "%s").encode(), (objects,))


def changed_keys(rows: pa.Table, done: Decided, keys: Sequence[str]) -> pa.Table:
    """The keys of which something else is to be kept, in the order of `done.beside`."""
    return rows.select(list(keys)).take(pa.array(list(done.beside), pa.int64()))
