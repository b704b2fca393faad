"""Moves a lane past records that it can never read: checks the move first, then applies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source


@dataclass(frozen=True)
class LanePosition:
    """The position of a lane, or, before its first write, its start position. `covers`: is a partition read by the
    lane?"""

    lane: Lane
    position: Position
    identity: Mapping[str, str]
    covers: Callable[[TopicPartition], bool]

    @classmethod
    def from_state(
        cls, lane: Lane, state: LaneState | None, begun: Position, covers: Callable[[TopicPartition], bool]
    ) -> LanePosition:
        """From the state in its sink and the start position in the register."""
        state = state or LaneState()
        return cls(lane, Position({**begun, **state.position}), dict(state.identity), covers)


@dataclass(frozen=True)
class SkipMove:
    """A move that passed the check. In the partitions `lost` it may go back, because the lane cannot continue there
    anyway."""

    to: Position
    lost: frozenset[TopicPartition]


def check_skip(source: Source[Any], at: LanePosition, until: Position | None) -> SkipMove:
    """The move to `until`. If None, to the source's `start_from`, in the partitions with lost records.

    ConfigProblem if there is nothing to move, or a partition does not belong to the lane. Also if an offset is
    below the lane's own, or not available in the source. Changes nothing.
    """
    lost = source.losses(at.position, at.identity)
    start = source.start()
    if until is None:
        until = start.only(p for p in lost if at.covers(p))
        if not until:
            raise _make_skip_error(
                at.lane, "it has lost no records that could be skipped", "Name a position with `--until`."
            )
    _refuse_unknown_partition(at, {*at.position, *filter(at.covers, start)}, until)
    _refuse_backward(at, until, lost)
    _refuse_beyond(source, at, until)
    return SkipMove(until, frozenset(lost))


def apply_skip(sink: Sink[F], lane: Lane, skip: SkipMove) -> LaneState | None:
    """Set the lane's position; returns its state after that.

    Removes the identity of the moved topics, so the lane accepts the topics as they are now. Removes the event
    times of partitions that are another log now. Changes that the lane applied since the check stay applied.
    """
    state = sink.state(lane) or LaneState()
    back = skip.to.only(skip.lost)
    position = Position({**state.position.advanced_to(skip.to), **back})
    topics = {p.topic for p in skip.to}
    identity = tuple((topic, known) for topic, known in state.identity if topic not in topics)
    reached = {p: newest for p, newest in state.max_event_time.items() if p not in back}
    sink.skip(lane, replace(state, position=position, identity=identity, max_event_time=reached))
    return sink.state(lane)


def _refuse_unknown_partition(at: LanePosition, known: set[TopicPartition], until: Position) -> None:
    """The lane would wait for such a partition forever."""
    for partition in until:
        if partition not in known:
            names = ", ".join(f"{p.topic}:{p.partition}" for p in sorted(known)) or "none yet"
            raise _make_skip_error(at.lane, f"it reads no partition {partition}", f"Its partitions are: {names}.")


def _refuse_backward(at: LanePosition, until: Position, lost: Mapping[TopicPartition, str]) -> None:
    for partition, offset in until.items():
        own = 0 if partition in lost else at.position.get(partition, 0)
        if offset < own:
            step = f"`replicator lanes resync {at.lane.id}` loads it again."
            raise _make_skip_error(at.lane, f"{offset} is below {own}, its position in {partition}", step)


def _refuse_beyond(source: Source[Any], at: LanePosition, until: Position) -> None:
    end, missing = source.end(), source.losses(until, {})
    for partition, offset in until.items():
        if offset > max(end.get(partition, offset), at.position.get(partition, 0)):
            raise _make_skip_error(at.lane, f"{offset} is above the end of {partition}", _describe_end(end, until))
        if partition in missing:
            raise _make_skip_error(
                at.lane, f"it could not continue there. {missing[partition].rstrip('.')}", _describe_end(end, until)
            )


def _describe_end(end: Position, until: Position) -> str:
    ends = end.only(until).to_option()
    return f"The source ends at {ends}." if ends else "The source has no records of these partitions."


def _make_skip_error(lane: Lane, why: str, step: str) -> ConfigProblem:
    return ConfigProblem(f"Lane {lane.id} was not moved: {why}.", next_step=step)
