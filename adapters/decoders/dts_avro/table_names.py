"""Table names in records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOT = "\\u002E"
"""An escaped dot within a name in `objectName`."""


def read_table_name(said: Mapping[str, Any]) -> tuple[str, str]:
    """The database, and the table as `database.table` or `database.schema.table`; empty if none is named. A shard has the
    names of its logical table."""
    tags = said["tags"]
    if "l_db_name" in tags and "l_tb_name" in tags:
        names = [tags["l_db_name"], tags["l_tb_name"]]
    else:
        names = [name.replace(DOT, ".") for name in (said["objectName"] or "").split(".")]
    return names[0], ".".join(names) if len(names) in (2, 3) and all(names) else ""
