"""Ports of checkpoints: the methods that sinks and event logs need for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from replicator.domain.as_of import LogCut
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position, TopicPartition
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


class OpensStoredLanes(Protocol):
    """A sink in which checkpoints are stored."""

    def open_stored_lane(self, lane: Lane, plan: ApplyPlan) -> StoredLane:
        """The stored lane `lane`, whose plan is `plan`. Fatal where it has no state."""


class RestoresState(Protocol):
    """A sink in which a lane can start from the state of a lane of a checkpoint."""

    def restore_state(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        """Copy the rows, the side tables and the state of `stored` to `lane`, which has no state yet. The target is
        created as by `prepare`; `plan` is the plan of `lane` under the schema that `stored` has reached. Afterwards
        `lane` is as if it had applied everything that `stored` has applied
        (test_it_goes_on_as_if_it_had_applied_everything, test_what_is_remembered_goes_along).

        Rows and state are one commit: after a kill the lane has both or neither, and the call may be repeated
        (test_killed_it_may_be_repeated). CheckpointUnsupported if the target would reject some of the rows; then there
        is no state (test_what_the_target_cannot_keep_is_not_left_out). The call takes over the lane as `Drops.drop`
        does; `prepare` must be called again.
        """


class FindsLogCuts(Protocol):
    """An event log that can find records by their time."""

    def newest(self, since: Position, below: Position) -> datetime | None:
        """The latest source time of the records at or above `since` and below `below`, in the partitions of `below`.
        None if no record has a time."""

    def find_cut(self, topics: Collection[str], at: datetime | Position, covered: Position) -> LogCut | None:
        """The log cut of `at` in the records of these topics. For a time: behind the last record of that source time or
        earlier. For a position: before the records at or above it. None for a time if the records are not in its order:
        a record of that time or earlier follows a later one. `covered`: the position up to which the log's lane has
        read the topics."""


class TruncatesLog(Protocol):
    """An event log whose oldest records can be removed."""

    def truncate_log(self, lane: Lane, below: Position, came_before: datetime) -> Mapping[TopicPartition, int]:
        """Remove the first records of the partitions in `below`, in the topics of `lane`: all below `below` that
        arrived before `came_before`. The last record of a partition always stays. Returns the new first offset of each
        partition that lost records.

        One commit removes the records and stores the new first offsets permanently (`ports.source.LogTruncated`). The
        call takes over the lane; it may be repeated.
        """
