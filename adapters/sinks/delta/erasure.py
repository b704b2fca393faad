"""Deletes the rows of one key from tables of a lake.

Conditions and commit texts stay in the table's log, so nothing here may contain a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from replicator.domain.errors import Fatal
from replicator.ports.frames import Lane

from ...arrow.masks import make_text_mask
from ...delta.commits import WRITER, Attempt, Operation
from ...delta.tables import stored_name
from ...sql.dialect import DELTA_RS, text_literal
from .row_lookup import lookup_rows


def to_key_row(lane: Lane, table: str, schema: pa.Schema, key: Mapping[str, str]) -> pa.Table | None:
    """The key as one row with the types of `schema`, as the target of `lane` stores it.

    `key`: the names and texts (`domain.erasures.to_key_texts`) of its columns at the source. None when no row
    of the target can have that key.
    """
    columns = {}
    for name, text in key.items():
        rule = lane.row_transforms.column_transforms.get_rule(name)
        now = lane.row_transforms.column_transforms.get_new_name(name)
        kept = now if now in schema.names else stored_name(now)
        if kept not in schema.names:
            raise Fatal(
                f"table {table} has no column {now!r}, which is needed to find the rows of a key",
                next_step=f"Load it again with `replicator lanes resync {lane.id}`, or remove it with `replicator drop`.",
            )
        value = _to_value(make_text_mask(rule.mask)(text) if rule.mask is not None else text, schema.field(kept).type)
        if value is None:
            return None
        columns[kept] = value
    return pa.table(columns)


def _to_value(text: str, kind: pa.DataType) -> pa.Array | None:
    """The text as a value of that type; None when it is not one."""
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.array([bytes.fromhex(text)], kind)
        values = pa.array([text], pa.string())
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("us"))
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None


def count_key_rows(snapshot: DeltaTable, row: pa.Table) -> int:
    """The number of rows with that key."""
    names = row.column_names
    found = lookup_rows(snapshot, names, {name: pc.unique(row[name]) for name in names})
    return int(found.num_rows)


def blank_records(event_ids: Sequence[str], error: str, columns: Iterable[str]) -> Operation:
    """An `Operation` that empties these columns of the given records of an event log, and sets their `error`."""
    ids = ", ".join(map(text_literal, event_ids))
    values = {DELTA_RS.quote_name(name): "NULL" for name in columns} | {'"error"': text_literal(error)}

    def empty(snapshot: DeltaTable, attempt: Attempt) -> None:
        snapshot.update(
            updates=values,
            predicate=f'"event_id" IN ({ids})',
            writer_properties=WRITER,
            commit_properties=attempt.properties,
        )

    return empty
