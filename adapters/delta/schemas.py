"""The source schemas a target was made ready for, one file each, oldest first: for people and for later comparison."""

from __future__ import annotations

import json

from replicator.domain.table import TableSpec

from .folders import Folder


def remember_schema(folder: Folder, table: TableSpec) -> None:
    """Write `table` as the next numbered file of `folder`, unless it is what the last one says."""
    record = _record(table)
    numbers = [int(name) for name in (file.removesuffix(".json") for file in folder.files()) if name.isdecimal()]
    last = max(numbers, default=0)
    if last and json.loads(folder.load(f"{last}.json")) == record:
        return
    folder.put(f"{last + 1}.json", record)


def _record(table: TableSpec) -> dict[str, object]:
    columns = [
        {"name": c.name, "type": str(c.type), "nullable": c.nullable, "source_type": c.source_type} for c in table.columns
    ]
    return {"table": table.name, "keys": list(table.keys), "sequence": table.sequence, "columns": columns}
