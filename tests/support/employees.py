"""A stream of changes with its own order and operation columns, as a Delta table with appends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

FEED = [
    (1, "Alex", "chef", "FR", "INSERT", 1),
    (2, "Jessica", "owner", "US", "INSERT", 2),
    (3, "Mikhail", "security", "UK", "INSERT", 3),
    (4, "Gary", "cleaner", "UK", "INSERT", 4),
    (5, "Chris", "owner", "NL", "INSERT", 6),
    (5, "Chris", "manager", "NL", "UPDATE", 5),
    (6, "Pat", "mechanic", "NL", "DELETE", 8),
    (6, "Pat", "mechanic", "NL", "INSERT", 7),
]
NAMES = ("id", "name", "role", "country", "operation", "sequenceNum")
STAYS = [
    (1, "Alex", "chef"),
    (2, "Jessica", "owner"),
    (3, "Mikhail", "security"),
    (4, "Gary", "cleaner"),
    (5, "Chris", "owner"),
]
VERSIONS = [
    (1, "Alex", "chef", 1, None),
    (2, "Jessica", "owner", 2, None),
    (3, "Mikhail", "security", 3, None),
    (4, "Gary", "cleaner", 4, None),
    (5, "Chris", "manager", 5, 6),
    (5, "Chris", "owner", 6, None),
    (6, "Pat", "mechanic", 7, 8),
]


def append_employees(folder: Path, rows: list[tuple]) -> None:
    types = {"id": pa.int64(), "sequenceNum": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in NAMES])
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    write_deltalake(str(folder / "feed" / "employees"), pa.table(columns, schema=schema), mode="append")
