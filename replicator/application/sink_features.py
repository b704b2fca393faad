"""Features of a sink without which an operation cannot run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Lane
from replicator.ports.reads import Reader, TargetSnapshot
from replicator.ports.sink import Sink

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
