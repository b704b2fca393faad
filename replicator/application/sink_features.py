"""Optional features of a sink: those without which an operation cannot run, and the schema history, which it may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import structlog

from replicator.domain.errors import ConfigProblem
from replicator.domain.schema_evolution import SchemaVersion
from replicator.ports.frames import Lane
from replicator.ports.reads import Reader, TargetSnapshot
from replicator.ports.sink import Sink

from .lane_runs import LaneRun
from .problem import Stopped, to_problem

# Features of a sink without which an operation cannot run.

T = TypeVar("T")


def require_feature(feature: T | None, sentence: str, next_step: str = "Use a sink of another kind.") -> T:
    """The feature of a sink. ConfigProblem with `sentence` if the sink does not have it."""
    if feature is None:
        raise ConfigProblem(sentence, next_step=next_step)
    return feature


def get_reader(sink: Sink[Any]) -> Reader:
    """The reader of a sink. ConfigProblem if the sink cannot be queried."""
    return require_feature(sink.features.reader, "the targets of this sink cannot be queried")


def open_comparison(sink: Sink[Any], lane: Lane) -> AbstractContextManager[TargetSnapshot | None]:
    """See `SinkFeatures.open_comparison`. ConfigProblem if the targets of the sink cannot be compared."""
    return require_feature(sink.features.open_comparison, f"the targets of sink {lane.sink!r} cannot be compared")(lane)


# The schema history: schema versions of lanes, stored in their sinks.

log = structlog.get_logger(__name__)


def read_schema_versions(sink: Sink[Any], lane: Lane) -> Sequence[SchemaVersion]:
    """The lane's schema versions in the sink; none if the sink does not store schemas."""
    store = sink.features.schemas
    return () if store is None else store.schemas(lane)


def store_schema_version(workers: Mapping[str, Any], run: LaneRun, version: SchemaVersion) -> None:
    """Store a version in the lane's sink: a schema for which the lane waits, or a drop of its table.

    Does not wait for the outcome: if it fails, the lane finds the same version again.
    """

    def log_outcome(future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, Stopped):
            log.warning("schema version not stored", lane=run.lane.id, sentence=to_problem(error).sentence)

    try:
        done: Future[None] = workers[run.lane.sink].submit(partial(write_schema_version, lane=run.lane, version=version))
    except Stopped:
        return
    done.add_done_callback(log_outcome)


def write_schema_version(sink: Sink[Any], lane: Lane, version: SchemaVersion) -> None:
    """Store a version, if the sink stores schemas."""
    if (store := sink.features.schemas) is not None:
        store.remember(lane, version)
