"""A table `items` and its targets: current rows and a history, in the lake and in PostgreSQL."""

from __future__ import annotations

from typing import Any

from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .stack import World


def list_current_differences(world: World) -> list[str]:
    """Differences between the source and the rows of both sinks, and the open versions of both histories."""
    expected = index_by_key(read_postgres_table(world.source, "public", "items"), "id")
    found = {
        "lake": read_lake_table(world.lake / "items"),
        "target": read_postgres_table(world.target, "public", "items"),
        **{
            f"{sink}'s history": [r for r in rows if r["_cdc_end_seq_1"] is None]
            for sink, rows in read_histories(world).items()
        },
    }
    return [
        f"{name}: {line}" for name, rows in found.items() for line in list_differences(expected, index_by_key(rows, "id"))
    ]


def read_histories(world: World) -> dict[str, list[dict[str, Any]]]:
    lake, target = read_lake_table(world.lake / "versions"), read_postgres_table(world.target, "public", "versions")
    return {"lake": lake, "target": target}
