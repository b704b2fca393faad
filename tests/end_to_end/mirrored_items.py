"""A table `items` and its targets: current rows and a history, in the lake and in PostgreSQL."""

from __future__ import annotations

from typing import Any

from .compare import by_key, differences, lake_table, postgres_table
from .stack import World


def current(world: World) -> list[str]:
    """How the rows of both sinks, and the open versions of both histories, differ from the source."""
    expected = by_key(postgres_table(world.source, "public", "items"), "id")
    found = {
        "lake": lake_table(world.lake / "items"),
        "target": postgres_table(world.target, "public", "items"),
        **{f"{sink}'s history": [r for r in rows if r["_cdc_end_seq_1"] is None] for sink, rows in histories(world).items()},
    }
    return [f"{name}: {line}" for name, rows in found.items() for line in differences(expected, by_key(rows, "id"))]


def histories(world: World) -> dict[str, list[dict[str, Any]]]:
    lake, target = lake_table(world.lake / "versions"), postgres_table(world.target, "public", "versions")
    return {"lake": lake, "target": target}
