"""The port to what snapshots of a lane's state ask of sinks and of event logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Protocol

from replicator.domain.as_of import LogCut
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position, TopicPartition

from .frames import Lane


class CountsRows(Protocol):
    """A sink that can tell how many rows a target has."""

    def rows(self, lane: Lane) -> int:
        """Those of the lane's table; 0 where there is none."""


class CheckpointUnsupported(Exception):
    """A target cannot keep something that a lake does, so that it would not be what the records make of it; completes a
    sentence about the snapshot."""


class RestoresState(Protocol):
    """A sink in which a lane can begin with what a lane of a plain lake in a folder of this machine has."""

    def restore_state(self, lane: Lane, plan: ApplyPlan, origin: Lane, path: str) -> None:
        """Let `lane`, which has no state, have the rows of the lane `origin` of the lake in the folder `path`, all that is
        kept beside them, and its state. The target is made as by `prepare`, of `plan`: that of the lane under the schema at
        which `origin` stands. From there on the lane is what it would be had it applied all that `origin` has
        (test_it_goes_on_as_if_it_had_applied_everything, test_what_is_remembered_goes_along).

        Rows and state come in one commit, so that killed anywhere the lane has none of it or all, and this may be called
        again (test_killed_it_may_be_repeated). Unfit, and there is no state, where the target would reject some of the rows
        (test_what_the_target_cannot_keep_is_not_left_out). The lane is taken as by `Drops.drop`, and needs another
        `prepare`."""


class FindsLogCuts(Protocol):
    """An event log that can tell the times of its records."""

    def newest(self, since: Position, below: Position) -> datetime | None:
        """The latest time at the source among the records of the partitions in `below` that lie below it, and not below
        `since`; None where none of them tells one."""

    def find_cut(self, topics: Collection[str], at: datetime | Position, covered: Position) -> LogCut | None:
        """Where a moment lies among the records of these topics: behind the last one of that time at the source or earlier,
        or before those at or above a position. None for a time where the records are not in its order, so that some of the
        time or earlier come behind later ones. `covered`: how far the log's lane had read them before."""


class TruncatesLog(Protocol):
    """An event log whose oldest records can be removed."""

    def truncate_log(self, lane: Lane, below: Position, came_before: datetime) -> Mapping[TopicPartition, int]:
        """Remove of these partitions, of the topics of `lane`, the first records, as far as they lie below `below` and came
        before that moment; never the last record of a partition. Where each partition begins now, of those that were
        shortened.

        One commit removes them and says up to where, for as long as the log is there (`ports.source.LogTruncated`). Takes
        the lane; may be called again."""
