"""What tables of records are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOT = "\\u002E"
"""A dot that is part of a name, in the names of objects."""


def read_table_name(said: Mapping[str, Any]) -> tuple[str, str]:
    """The database, and the table with it, as `database.table` or `database.schema.table`; empty where none is named. A
    shard of a logical table says the names of that."""
    tags = said["tags"]
    if "l_db_name" in tags and "l_tb_name" in tags:
        names = [tags["l_db_name"], tags["l_tb_name"]]
    else:
        names = [name.replace(DOT, ".") for name in (said["objectName"] or "").split(".")]
    return names[0], ".".join(names) if len(names) in (2, 3) and all(names) else ""
