"""The schema versions of a lane, as its sink stores them with the target."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from .position import Position
from .schema_evolution import NO_RESHAPE, TargetReshape
from .table import Column, TableSpec

VersionState = Literal["pending", "accepted", "applied"]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One schema of a lane's table.

    - `number`: from 1.
    - `source`: the table as its records were sent. `columns`: the lane's own table under it.
    - `position`: per partition the first offset under it, for the lane. `at`: when the lane read it.
    - `changes`: the differences from the previous version, in words.
    - `dropped`: the schema did not change; the table was dropped there.
    - `emptied`: the columns whose values in the target became NULL, since they were values of a dropped column.
    - `reshaping`: the changes of the target's columns, by the target's names; not stored.
    - `state`: `applied`, `pending` while the lane waits for an operator, `accepted` from then until it has continued.
    """

    number: int
    source: TableSpec
    columns: tuple[Column, ...]
    position: Position
    at: datetime
    changes: tuple[str, ...] = ()
    state: VersionState = "applied"
    dropped: bool = False
    emptied: tuple[str, ...] = ()
    reshaping: TargetReshape = field(default=NO_RESHAPE, compare=False)


def select_new(versions: Sequence[SchemaVersion], known: Sequence[SchemaVersion]) -> tuple[SchemaVersion, ...]:
    """The versions that are not stored in this state."""
    states = {version.number: version.state for version in known}
    return tuple(version for version in versions if states.get(version.number) != version.state)


def to_summary(version: SchemaVersion) -> dict[str, Any]:
    """A short description of a version for people. Reports contain it for every lane, so types are left out."""
    return {
        "number": version.number,
        "state": version.state,
        "at": version.at.isoformat(),
        "position": version.position.to_json(),
        "changes": list(version.changes),
    }


def to_json(version: SchemaVersion) -> dict[str, Any]:
    """The JSON form, for `from_json` and for people: types also by name."""
    source = version.source
    return {
        "table": source.name,
        **to_summary(version),
        "keys": list(source.keys),
        "sequence": source.sequence,
        "columns": [_column_to_json(c) for c in source.columns],
        "target": [_column_to_json(c) for c in version.columns],
        "arrow": {"columns": _types_to_text(source.columns), "target": _types_to_text(version.columns)},
        **({"dropped": True} if version.dropped else {}),
        **({"emptied": list(version.emptied)} if version.emptied else {}),
    }


def from_json(data: Mapping[str, Any]) -> SchemaVersion:
    """The version that `to_json` wrote. KeyError, TypeError or ValueError for anything else."""
    columns, target = (_columns_from_json(data[name], data["arrow"][name]) for name in ("columns", "target"))
    return SchemaVersion(
        int(data["number"]),
        TableSpec(str(data["table"]), columns, tuple(map(str, data["keys"])), int(data["sequence"])),
        target,
        Position.from_json(data["position"]),
        datetime.fromisoformat(data["at"]),
        tuple(map(str, data["changes"])),
        data["state"],
        bool(data.get("dropped", False)),
        tuple(map(str, data.get("emptied", ()))),
    )


def _column_to_json(column: Column) -> dict[str, Any]:
    return {"name": column.name, "type": str(column.type), "nullable": column.nullable, "source_type": column.source_type}


def _types_to_text(columns: tuple[Column, ...]) -> str:
    """Type names do not identify every type; Arrow's serialised schema does."""
    return b64encode(pa.schema([pa.field(c.name, c.type) for c in columns]).serialize().to_pybytes()).decode()


def _columns_from_json(data: list[Mapping[str, Any]], types: str) -> tuple[Column, ...]:
    schema = pa.ipc.read_schema(pa.py_buffer(b64decode(types)))
    return tuple(
        Column(str(c["name"]), field.type, bool(c["nullable"]), str(c["source_type"]))
        for c, field in zip(data, schema, strict=True)
    )
