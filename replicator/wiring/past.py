"""The rows of a target as they were, out of the event log."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.settings import LaneSettings, Loaded
from replicator.settings.sinks import DeadLetterSettings, DeltaSettings

from . import adapters, rebuilding
from .container import Container
from .running import run_once

THEN = "then"
Read = Callable[[Any, str], pa.Table]
"""Reads a table of a reader."""


def rows_then(loaded: Loaded, lane: LaneSettings, at: datetime, read: Read) -> pa.Table:
    """What `read` finds in the target of `lane` as it was at a moment, by the times that the source tells: all records up to
    it are applied to a lake of its own, in this process, under the lane's policy and today's config, and the lake is
    removed. A time without zone is one in UTC. Fatal where the log has nothing that old, ConfigProblem without a log."""
    moment = (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
    with tempfile.TemporaryDirectory(prefix="replicator-then-") as folder:
        beside = _beside(loaded, lane, Path(folder))
        prepared = rebuilding.prepared(beside, rebuilding.Replay(lane, THEN, until=moment))
        run_once(Container(loaded=prepared))
        reader: Any = adapters.sink(prepared, lane.sink)
        try:
            if THEN not in reader.tables():
                raise Fatal(
                    f"the event log of {lane.table} has no changes up to {moment}",
                    next_step="Ask for a later time; `replicator history` tells when a row first came.",
                )
            found = read(reader, THEN)
            return found.replace_schema_metadata(None)
        finally:
            reader.close()


def _beside(loaded: Loaded, lane: LaneSettings, folder: Path) -> Loaded:
    """The configuration with everything that is written below `folder`, in this process."""
    lake = DeltaSettings.model_construct(kind="delta", path=str(folder / "lake"))
    more = {
        "engine": adapters.LOCAL,
        "state": folder / "state",
        "erasures": str(adapters.erasures(loaded).path.parent),
        "sinks": {**loaded.settings.sinks, lane.sink: lake},
        "dead_letters": DeadLetterSettings.model_construct(path=str(folder / "dead_letters")),
        "max_rejects": None,
    }
    return replace(loaded, settings=loaded.settings.model_copy(update=more))


def lane_into(loaded: Loaded, sink: str, into: str, tables: list[str]) -> LaneSettings:
    """The lane of one of `tables` (source names) whose target is `into`; ConfigProblem when the config has none."""
    for table in tables:
        for lane in loaded.settings.lanes_for(table):
            if (lane.sink, lane.into) == (sink, into):
                return lane
    raise ConfigProblem(
        f"no lane of the config has the target {sink}.{into}, so its past cannot be told",
        next_step="Name a target of the config, or a version (`--version`).",
    )
