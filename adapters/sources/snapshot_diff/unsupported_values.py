"""Names and values in snapshots that a journal cannot store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.table import Column, TableSpec

from ..delta_table.encoder import OWN
from ..journal.options import CHANGE, VERSION
from .snapshot_provider import ReadSnapshot

DAYS = (-96_465_292, 95_026_236)
"""The first day of the year -262143 and the last of 262142: delta-rs panics on statistics of others."""


def refuse_unsupported(snapshot: ReadSnapshot, table: str) -> None:
    """Raise for a snapshot of `table` that cannot be stored, before any of it is: ConfigProblem for a column's name,
    DataLoss for its values."""
    try:
        _refuse_names(snapshot.rows.schema)
        columns = tuple(Column(field.name, field.type) for field in snapshot.rows.schema)
        refuse_frame_names(TableSpec(table, columns))
    except Fatal as problem:
        raise ConfigProblem(f"{snapshot.name}: {problem.sentence}", next_step=problem.next_step) from None
    for field, column in zip(snapshot.rows.schema, snapshot.rows.columns, strict=True):
        if any(_has_days_beyond(days) for days in _list_days(column)):
            raise DataLoss(
                f"Column {field.name!r} of {snapshot.name} contains infinity, or a day that Delta tables cannot store.",
                next_step=f"{snapshot.remedy}: with NULL or another day in its place, or with the column as text.",
            )


def _refuse_names(schema: pa.Schema) -> None:
    for name in schema.names:
        if not name or "\0" in name:
            what = f"column {name!r} has a NUL character in its name" if name else "it has a column without a name"
            raise Fatal(what, next_step="Give it another name." if name else "Give it one.")
        if name in OWN or name.casefold() in (CHANGE, VERSION):
            raise Fatal(f"it has a column {name!r}, which is reserved", next_step="Give it another name.")
    _refuse_alike(schema.names, "")
    for field in schema:
        _refuse_alike_within(field.type, field.name)


def _refuse_alike(names: Sequence[str], within: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.casefold())
        if other is not None:
            what = f"two columns {name!r}" if other == name else f"columns {other!r} and {name!r}, which differ in case only"
            raise Fatal(f"it has {what}{within}", next_step="Rename one of them: Delta tables ignore case.")
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
        for chunk in column.chunks:
            yield from _list_days(pa.chunked_array([chunk.keys]))
            yield from _list_days(pa.chunked_array([chunk.items]))


def _has_days_beyond(days: pa.ChunkedArray) -> bool:
    found = pc.min_max(days.cast(pa.int32())).as_py()
    return found["min"] is not None and not DAYS[0] <= found["min"] <= found["max"] <= DAYS[1]
