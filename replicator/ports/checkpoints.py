"""The port of stored lanes: what a checkpoint has of a lane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from replicator.domain.policy.plan import LaneState
from replicator.domain.schema_versions import SchemaVersion

from .frames import Lane


class CheckpointUnsupported(Exception):
    """The target cannot store something that a lake can, so it would differ from the records. The text completes a
    sentence about the checkpoint."""


class StoredLane(Protocol):
    """A lane of a checkpoint: `lane` of the Delta lake in the folder `path` of this machine, its state, and its schemas."""

    lane: Lane
    path: str
    state: LaneState
    versions: Sequence[SchemaVersion]

    def rows(self) -> Iterable[Any]:
        """Its rows as tables of Arrow, with the columns of the plan's target. CheckpointUnsupported for other columns."""

    def side_rows(self) -> Iterable[Any]:
        """The rows of its side table, as tables of Arrow; of a key there may be several."""
