"""The source schemas a target was made ready for, one file each, oldest first: for people and for later comparison."""

from __future__ import annotations

import json
from pathlib import Path

from replicator.domain.table import TableSpec

from .durable import write_json


def remember_schema(folder: Path, table: TableSpec) -> None:
    """Write `table` as the next numbered file of `folder`, unless it is what the last one says."""
    record = _record(table)
    numbers = sorted(int(p.stem) for p in folder.glob("[0-9]*.json")) if folder.is_dir() else []
    if numbers and json.loads((folder / f"{numbers[-1]}.json").read_text(encoding="utf-8")) == record:
        return
    write_json(folder / f"{numbers[-1] + 1 if numbers else 1}.json", record)


def _record(table: TableSpec) -> dict[str, object]:
    columns = [
        {"name": c.name, "type": str(c.type), "nullable": c.nullable, "source_type": c.source_type} for c in table.columns
    ]
    return {"table": table.name, "keys": list(table.keys), "sequence": table.sequence, "columns": columns}
