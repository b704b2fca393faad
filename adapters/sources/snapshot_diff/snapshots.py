"""Snapshots of a table, and the changes between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from adapters.duckdb.session import diff_tables
from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.table import Column, TableSpec

from ...delta.types import storage_type, to_storage
from ..delta_options import CHANGE, VERSION
from ..delta_table.splits import OWN

# Interfaces between the journal and the origin of snapshots.

ProcessedVersions = Mapping[int, int | None]
"""The processed versions, with their sizes if known."""


@dataclass(frozen=True)
class ReadSnapshot:
    """One complete snapshot. `name`: its name in messages. `remedy`: the next step for an unusable one. `rows`: in types
    of Delta tables. `size`: in bytes, or None."""

    name: str
    version: int
    rows: pa.Table
    size: int | None = None
    remedy: str = "Write the snapshot again"


class SnapshotProvider(Protocol):
    """Snapshots with increasing versions.

    `is_numbered_here`: versions are assigned when a snapshot is read, and a snapshot is never read again. Then a snapshot
    equal to the previous one need not be stored, and only the newest version.
    """

    is_numbered_here: bool

    def has_news(self, versions: ProcessedVersions) -> bool:
        """True if there may be a snapshot that is not in `versions`. Cheap, because it is called often."""

    def read_next(self, versions: ProcessedVersions) -> ReadSnapshot | None:
        """The next complete snapshot, if there is one. Raises the program's errors for an invalid one."""


def to_storable(table: pa.Table) -> pa.Table:
    """The table in types of Delta tables, without metadata of Parquet readers. Raises Fatal for an unsupported type."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    schema = pa.schema([pa.field(f.name, storage_type(kind)) for f, kind in zip(table.schema, kinds, strict=True)])
    columns = [to_storage(table[i], f.type) for i, f in enumerate(schema)]
    return pa.table(columns, names=schema.names).cast(schema)


# Differences between two snapshots.

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
    rows, step = snapshot.rows, ANEW.format(remedy=snapshot.remedy, state=state)
    for field in before.schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            raise DataLoss(f"{snapshot.name} lacks the column {field.name!r}.", next_step=step)
        if rows.schema.field(at).type != field.type:
            sentence = (
                f"Column {field.name!r} is {rows.schema.field(at).type} in {snapshot.name}, and was {field.type} before."
            )
            raise DataLoss(sentence, next_step=step)
    columns = [before[f.name] if f.name in before.schema.names else pa.nulls(before.num_rows, f.type) for f in rows.schema]
    return pa.table(columns, schema=rows.schema)


def diff_snapshots(before: pa.Table, rows: pa.Table, keys: Sequence[str], version: int) -> pa.Table:
    """One row per changed key, deletes with the old values. Both tables must have the same columns, and unique keys. NaN
    equals NaN, and 0.0 equals -0.0."""
    changes = diff_tables(before, rows, keys)
    deleted_rows = before.take(changes.filter(pc.equal(changes["op"], "d"))["old"])
    upserts = changes.filter(pc.not_equal(changes["op"], "d"))
    parts = [
        _to_changes(deleted_rows, ["d"] * len(deleted_rows), version),
        _to_changes(rows.take(upserts["new"]), upserts["op"].to_pylist(), version),
    ]
    # As one chunk: delta-rs may write each chunk to a file of its own.
    return pa.concat_tables(parts).combine_chunks()


def _to_changes(rows: pa.Table, ops: list[str], version: int) -> pa.Table:
    names = [CHANGE, VERSION, *rows.schema.names]
    own = [pa.array(ops, pa.string()), pa.array([version] * len(ops), pa.int64())]
    return pa.table([*own, *rows.columns], names=names)


# Names and values in snapshots that a journal cannot store.

DAYS = (-96_465_292, 95_026_236)
"""The first day of the year -262143 and the last of 262142: delta-rs panics on statistics of others."""


def refuse_unsupported(snapshot: ReadSnapshot, table: str) -> None:
    """Raise for a snapshot of `table` that cannot be stored, before any of it is: ConfigProblem for a column's name,
    DataLoss for its values."""
    schema = snapshot.rows.schema
    try:
        for name in schema.names:
            if not name or "\0" in name:
                sentence = f"column {name!r} has a NUL character in its name" if name else "it has a column without a name"
                raise Fatal(sentence, next_step="Give it another name." if name else "Give it one.")
            if name in OWN or name.casefold() in (CHANGE, VERSION):
                raise Fatal(f"it has a column {name!r}, which is reserved", next_step="Give it another name.")
        _refuse_alike(schema.names, "")
        for field in schema:
            _refuse_alike_within(field.type, field.name)
        columns = tuple(Column(field.name, field.type) for field in schema)
        refuse_frame_names(TableSpec(table, columns))
    except Fatal as problem:
        raise ConfigProblem(f"{snapshot.name}: {problem.sentence}", next_step=problem.next_step) from None
    for field, column in zip(schema, snapshot.rows.columns, strict=True):
        for days in _list_days(column):
            bounds = pc.min_max(days.cast(pa.int32())).as_py()
            if bounds["min"] is not None and not DAYS[0] <= bounds["min"] <= bounds["max"] <= DAYS[1]:
                raise DataLoss(
                    f"Column {field.name!r} of {snapshot.name} contains infinity, or a day that Delta tables cannot store.",
                    next_step=f"{snapshot.remedy}: with NULL or another day in its place, or with the column as text.",
                )


def _refuse_alike(names: Sequence[str], within: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.casefold())
        if other is not None:
            pair = f"two columns {name!r}" if other == name else f"columns {other!r} and {name!r}, which differ in case only"
            raise Fatal(f"it has {pair}{within}", next_step="Rename one of them: Delta tables ignore case.")
        seen[name.casefold()] = name


def _refuse_alike_within(kind: pa.DataType, column: str) -> None:
    """The nested types of `storage_type`: lists, structs and maps."""
    if t.is_struct(kind):
        _refuse_alike([field.name for field in kind], f" within column {column!r}")
    for i in range(kind.num_fields):
        _refuse_alike_within(kind.field(i).type, column)


def _list_days(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """All days in a column, including nested ones."""
    kind = column.type
    if t.is_date(kind):
        yield column
    elif t.is_list(kind):
        yield from _list_days(pc.list_flatten(column))
    elif t.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _list_days(pc.struct_field(column, [i]))
    elif t.is_map(kind):
        for array in column.chunks:
            yield from _list_days(pa.chunked_array([array.keys]))
            yield from _list_days(pa.chunked_array([array.items]))
