"""What sinks remember of the schemas that lanes have met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog

from replicator.domain.schema_versions import SchemaVersion
from replicator.ports.frames import Lane
from replicator.ports.sink import RemembersSchemas

from .lanes import LaneRun
from .problem import Stopped, problem_of

log = structlog.get_logger(__name__)


def remembered(sink: Any, lane: Lane) -> Sequence[SchemaVersion]:
    """What the sink remembers of the lane's schemas; nothing where it does not remember any."""
    return sink.schemas(lane) if isinstance(sink, RemembersSchemas) else ()


def note(workers: Mapping[str, Any], run: LaneRun, version: SchemaVersion) -> None:
    """Have the lane's sink remember a schema for which the lane waits, or that its table was dropped. Not waited for:
    whatever becomes of it, the lane finds out again."""
    try:
        done: Future[None] = workers[run.lane.sink].ask(partial(_write, lane=run.lane, version=version))
    except Stopped:
        return
    done.add_done_callback(partial(_say, run.lane))


def _write(sink: Any, lane: Lane, version: SchemaVersion) -> None:
    if isinstance(sink, RemembersSchemas):
        sink.remember(lane, version)


def _say(lane: Lane, done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, Stopped):
        log.warning("schema not remembered", lane=lane.id, sentence=problem_of(error).sentence)
