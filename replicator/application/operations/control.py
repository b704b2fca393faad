"""Commands of operators to a lane, with and without a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic

from replicator.application.stream.pipeline import SourcePipeline
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.ports.stores import Register, RegisterEntry

from ..lane_registry import describe_missing, find_target_problem, refuse_missing
from ..lane_runs import LaneRun, LaneRuns, LaneStatus
from ..sink_features import read_schema_versions, write_schema_version
from .rebuild import make_rebuild_lane
from .table_swap import Cutover, refuse_lost_records, swap_in_sink


class Control(Generic[F]):
    """Commands to a running pipeline, from any thread. ConfigProblem for an unknown lane, and for one without a target.

    A future ends when the lane goes on as commanded, or with the reason why it does not.
    """

    def __init__(self, lanes: LaneRuns, pipelines: Mapping[str, SourcePipeline[F]]) -> None:
        self._lanes = lanes
        self._pipelines = pipelines

    def pause(self, lane_id: str) -> None:
        """Stop the lane at once, until `resume` or a restart of the program. Other lanes go on."""
        self._lanes.pause(self._find_lane(lane_id))

    def resume(self, lane_id: str, accept: int | None = None) -> Future[None]:
        """Resume a paused or suspended lane at its own position, without a gap.

        `accept`: the number of the schema for which the lane waits. If it waits for no such schema, the future
        is a ConfigProblem, and the lane stays as it was.
        """
        run = self._find_lane(lane_id)

        def resume(pipeline: SourcePipeline[F]) -> Future[None] | None:
            if accept is not None:
                find_pending_schema(run.lane, accept, run.schema.versions)
            if run.status not in (LaneStatus.PAUSED, LaneStatus.SUSPENDED):
                return None
            question = None if accept is None else partial(accept_pending_schema, run.lane, accept)
            return pipeline.registry.restart_lane(run, question)

        return self._post_command(run, resume, Future())

    def resync(self, lane_id: str, *, accept_missing: bool = False) -> Future[None]:
        """Empty the lane's target, and load it again from the source's `start_from`.

        If rows would be missing afterwards, the future is a DataLoss and the lane stays as it was, unless
        `accept_missing`.
        """
        run = self._find_lane(lane_id)

        def resync(pipeline: SourcePipeline[F]) -> Future[None]:
            context, registry = pipeline.context, pipeline.registry
            if not accept_missing:
                refuse_missing(run.lane, registry.describe_missing(run), has_backfills=context.has_backfills)
            start = context.source.start()
            pipeline.reset_table(run.lane.table)
            begin = Position({p: o for p, o in start.items() if registry.is_covered(run, p)})
            return registry.restart_lane(run, lambda sink: reset_lane(sink, run.lane), begin)

        return self._post_command(run, resync, Future())

    def skip(self, lane_id: str, until: Position | None) -> Future[None]:
        """Move the lane's position without applying anything.

        `until` None: where records are lost, move to the source's `start_from`. If the move makes no sense, the
        future is a ConfigProblem, and the lane stays as it was.
        """
        run = self._find_lane(lane_id)
        answer = self._pipelines[run.lane.source].context.workers[run.lane.sink].ask(lambda sink: sink.state(run.lane))
        done: Future[None] = Future()

        def skip(pipeline: SourcePipeline[F]) -> Future[None]:
            registry = pipeline.registry
            at = LanePosition.from_state(run.lane, answer.result(), run.begin, lambda p: registry.is_covered(run, p))
            move = check_skip(pipeline.context.source, at, until)
            return registry.restart_lane(run, lambda sink: apply_skip(sink, run.lane, move))

        answer.add_done_callback(lambda _: self._post_command(run, skip, done))
        return done

    def swap(self, lane_id: str, into: str) -> Future[None]:
        """Replace the lane's target and state by the rebuild in `into`, and resume there.

        If the lane could not resume without a gap, the future is an error, and the lane stays as it was.
        """
        run = self._find_lane(lane_id)
        rebuilt = make_rebuild_lane(run.lane, into)
        worker = self._pipelines[run.lane.source].context.workers[run.lane.sink]
        answer = worker.ask(lambda sink: (sink.state(run.lane), sink.state(rebuilt)))
        done: Future[None] = Future()

        def swap(pipeline: SourcePipeline[F]) -> Future[None]:
            refuse_lost_records(pipeline.context.source, run.lane, *answer.result())
            judge = Cutover(run.lane, run.begin, pipeline.context.transactions)
            return pipeline.registry.restart_lane(run, lambda sink: swap_in_sink(sink, run.lane, rebuilt, judge))

        answer.add_done_callback(lambda _: self._post_command(run, swap, done))
        return done

    def _find_lane(self, lane_id: str) -> LaneRun:
        run = self._lanes.find(lane_id)
        if run is None:
            names = ", ".join(sorted(other.lane.id for other in self._lanes.list_runs()))
            raise ConfigProblem(f"There is no lane {lane_id!r}.", next_step=f"The lanes are: {names}.")
        if problem := find_target_problem(run.lane, RegisterEntry()):
            raise problem
        return run

    def _post_command(
        self, run: LaneRun, command: Callable[[SourcePipeline[F]], Future[None] | None], outcome: Future[None]
    ) -> Future[None]:
        pipeline = self._pipelines[run.lane.source]

        def obey() -> None:
            try:
                answer = command(pipeline)
                if answer is None:
                    outcome.set_result(None)
                else:
                    answer.add_done_callback(
                        lambda a: outcome.set_exception(a.exception()) if a.exception() else outcome.set_result(None)
                    )
            except BaseException as error:
                outcome.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        pipeline.post(obey)
        return outcome


def accept_pending_schema(lane: Lane, number: int, sink: Sink[Any]) -> LaneState | None:
    """Store that the lane may go on under the pending schema `number`. Returns the lane's state.

    ConfigProblem if the lane does not wait for it.
    """
    version = find_pending_schema(lane, number, {version.number: version for version in read_schema_versions(sink, lane)})
    write_schema_version(sink, lane, replace(version, state="accepted"))
    return sink.state(lane)


def find_pending_schema(lane: Lane, number: int, versions: Mapping[int, SchemaVersion]) -> SchemaVersion:
    """The schema `number`, for which the lane waits. ConfigProblem if it does not."""
    if number not in versions or versions[number].state == "applied":
        waits = next(
            (f"It waits for schema {v.number}" for v in versions.values() if v.state == "pending"), "It waits for none"
        )
        raise ConfigProblem(
            f"Lane {lane.id} does not wait for schema {number}.",
            next_step=f"{waits}; `replicator schema history {lane.id}` lists them.",
        )
    return versions[number]


def reset_lane(sink: Sink[F], lane: Lane) -> LaneState | None:
    """Remove the lane's rows and state. Returns its state afterwards."""
    sink.reset(lane)
    return sink.state(lane)


def describe_missing_when_stopped(source: Source[F], register: Register, lane: Lane, marks: str = "") -> Sequence[str]:
    """`lane_registry.describe_missing` while the daemon does not run. `marks`: the transaction topic, if any."""
    entry = register.load(lane.source)
    topics = entry.topics.get(lane.table, frozenset())
    begun = entry.beginnings.get(lane.id, Position())
    return describe_missing(source, lane, begun, lambda p: p.topic != marks and (not lane.table or p.topic in topics))


def resync_stopped(sink: Sink[F], source: Source[F], register: Register, lane: Lane) -> None:
    """`Control.resync` while the daemon does not run: the lane loads again at the next start."""
    entry = register.load(lane.source)
    topics = entry.topics.get(lane.table, frozenset())
    begin = Position({p: o for p, o in source.start().items() if not lane.table or p.topic in topics})
    register.save(lane.source, replace(entry, beginnings={**entry.beginnings, lane.id: begin}))
    sink.reset(lane)


# Moves a lane past records that it can never read: checks the move first, then applies it.


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
    partitions = {*at.position, *filter(at.covers, start)}
    for partition in until:
        if partition not in partitions:  # The lane would wait for it forever.
            names = ", ".join(f"{p.topic}:{p.partition}" for p in sorted(partitions)) or "none yet"
            raise _make_skip_error(at.lane, f"it reads no partition {partition}", f"Its partitions are: {names}.")
    for partition, offset in until.items():
        own = 0 if partition in lost else at.position.get(partition, 0)
        if offset < own:
            step = f"`replicator lanes resync {at.lane.id}` loads it again."
            raise _make_skip_error(at.lane, f"{offset} is below {own}, its position in {partition}", step)
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
    identity = tuple((topic, topic_id) for topic, topic_id in state.identity if topic not in topics)
    reached = {p: newest for p, newest in state.max_event_time.items() if p not in back}
    sink.skip(lane, replace(state, position=position, identity=identity, max_event_time=reached))
    return sink.state(lane)


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
