"""Differences between two snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.plain_values import format_count

from ...duckdb.table_diff import diff_tables
from ..journal.options import CHANGE, VERSION
from .snapshot_provider import ReadSnapshot

ANEW = (
    "{remedy}. If these columns are correct from now on, remove the folder {state} and load the table "
    "again with `replicator lanes resync LANE`."
)


def refuse_unusable(snapshot: ReadSnapshot, keys: Sequence[str]) -> None:
    """Raise for a snapshot with unusable keys: ConfigProblem for the type of a column, DataLoss for NULL or
    duplicates."""
    rows = snapshot.rows
    for key in keys:
        if key not in rows.schema.names:
            sentence = f"{snapshot.name} has no column {key!r}, which `keys` names."
            raise ConfigProblem(sentence, next_step=f"Correct `keys`. {snapshot.remedy} if the column must exist.")
        kind = rows.schema.field(key).type
        if t.is_floating(kind) or t.is_nested(kind):
            sentence = f"Column {key!r} of {snapshot.name} is {kind}, which cannot identify rows."
            raise ConfigProblem(sentence, next_step="Name other columns in `keys`.")
        if rows[key].null_count:
            raise DataLoss(
                f"{snapshot.name} has a NULL in key column {key!r} of {format_count(rows[key].null_count, 'row')}.",
                next_step=f"{snapshot.remedy}.",
            )
    twice = rows.num_rows - rows.group_by(list(keys)).aggregate([]).num_rows
    if twice:
        raise DataLoss(
            f"{snapshot.name} has {format_count(twice, 'row')} more than keys ({', '.join(keys)}).",
            next_step=f"{snapshot.remedy}, or correct `keys`: it is unknown which of two equal rows counts.",
        )


def align_rows(before: pa.Table, snapshot: ReadSnapshot, state: str) -> pa.Table:
    """The earlier rows with the columns of the later ones; new ones are NULL. Raises DataLoss for missing columns and
    other types."""
    rows, anew = snapshot.rows, ANEW.format(remedy=snapshot.remedy, state=state)
    for field in before.schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            raise DataLoss(f"{snapshot.name} lacks the column {field.name!r}.", next_step=anew)
        if rows.schema.field(at).type != field.type:
            sentence = (
                f"Column {field.name!r} is {rows.schema.field(at).type} in {snapshot.name}, and was {field.type} before."
            )
            raise DataLoss(sentence, next_step=anew)
    columns = [before[f.name] if f.name in before.schema.names else pa.nulls(before.num_rows, f.type) for f in rows.schema]
    return pa.table(columns, schema=rows.schema)


def diff_snapshots(before: pa.Table, rows: pa.Table, keys: Sequence[str], version: int) -> pa.Table:
    """One row per changed key, deletes with the old values. Both tables must have the same columns, and unique keys. NaN
    equals NaN, and 0.0 equals -0.0."""
    found = diff_tables(before, rows, keys)
    gone = before.take(found.filter(pc.equal(found["op"], "d"))["old"])
    come = found.filter(pc.not_equal(found["op"], "d"))
    parts = [
        _to_changes(gone, ["d"] * len(gone), version),
        _to_changes(rows.take(come["new"]), come["op"].to_pylist(), version),
    ]
    # As one chunk: delta-rs may write each chunk to a file of its own.
    return pa.concat_tables(parts).combine_chunks()


def _to_changes(rows: pa.Table, ops: list[str], version: int) -> pa.Table:
    names = [CHANGE, VERSION, *rows.schema.names]
    told = [pa.array(ops, pa.string()), pa.array([version] * len(ops), pa.int64())]
    return pa.table([*told, *rows.columns], names=names)
