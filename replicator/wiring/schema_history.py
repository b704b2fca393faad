"""The stored schemas of lanes, for people."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from replicator.application.schema_history import read_schema_versions
from replicator.domain.errors import ConfigProblem
from replicator.domain.schema_versions import to_json
from replicator.settings import Loaded

from . import adapters
from .stored_lanes import list_lanes


def read_schema_history(loaded: Loaded, table: str) -> list[dict[str, Any]]:
    """The schemas of each lane with this table, target or id, from its sink. ConfigProblem if there is none."""
    lanes = [lane for lane in list_lanes(loaded) if lane.table]
    names = {lane.id: {lane.id, lane.table, lane.table.rpartition(".")[2], lane.into} for lane in lanes}
    asked = [lane for lane in lanes if table in names[lane.id]]
    if not asked:
        known = ", ".join(sorted({lane.table for lane in lanes})) or "none has been seen yet"
        raise ConfigProblem(f"no lane has a table {table!r}", next_step=f"The tables are: {known}.")
    with ExitStack() as opened:
        sinks: dict[str, Any] = {}
        for name in dict.fromkeys(lane.sink for lane in asked):
            sinks[name] = adapters.build_sink(loaded, name)
            opened.callback(sinks[name].close)
        return [
            {
                "lane": lane.id,
                "table": lane.table,
                "schemas": [to_json(v) for v in read_schema_versions(sinks[lane.sink], lane)],
            }
            for lane in asked
        ]
