"""Lanes: their status and schemas, and the commands of operators to them, with and without a running daemon."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Generic

from replicator.application.lane_registry import (
    describe_missing,
    find_target_problem,
    list_lanes,
    make_refused_id,
    make_target_name_error,
    make_target_taken_error,
    refuse_missing,
)
from replicator.application.lane_runs import LaneRun, LaneRuns, LaneStatus
from replicator.application.lane_schema import refuse_changed_rule
from replicator.application.quarantine.rejects import count_for_lane
from replicator.application.sink_features import read_schema_versions, write_schema_version
from replicator.application.state_folder import InstanceLock
from replicator.application.stream.pipeline import SourcePipeline
from replicator.domain.errors import ConfigProblem, ReplicatorError, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion, to_json, to_summary
from replicator.domain.table import get_unqualified_name
from replicator.ports.components import Components
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.ports.stores import DeadLetterGroup, Register, RegisterEntry

from .rebuild import make_rebuild_lane
from .status import LaneReport, describe_tombstones, list_open_dead_letters
from .table_swap import Cutover, refuse_lost_records, swap_in_sink

# Commands to the lanes of a running pipeline, and the steps that they share with the commands without one.


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
            read_state = None if accept is None else partial(accept_pending_schema, run.lane, accept)
            return pipeline.registry.restart_lane(run, read_state)

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
        answer = self._pipelines[run.lane.source].context.workers[run.lane.sink].submit(lambda sink: sink.state(run.lane))
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
        answer = worker.submit(lambda sink: (sink.state(run.lane), sink.state(rebuilt)))
        done: Future[None] = Future()

        def swap(pipeline: SourcePipeline[F]) -> Future[None]:
            refuse_lost_records(pipeline.context.source, run.lane, *answer.result())
            decide_cutover = Cutover(run.lane, run.begin, pipeline.context.transactions)
            return pipeline.registry.restart_lane(run, lambda sink: swap_in_sink(sink, run.lane, rebuilt, decide_cutover))

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
    end, missing = source.end(), source.losses(until, {})
    ends = end.only(until).to_option()
    step = f"The source ends at {ends}." if ends else "The source has no records of these partitions."
    for partition, offset in until.items():
        if offset > max(end.get(partition, offset), at.position.get(partition, 0)):
            raise _make_skip_error(at.lane, f"{offset} is above the end of {partition}", step)
        if partition in missing:
            raise _make_skip_error(at.lane, f"it could not continue there. {missing[partition].rstrip('.')}", step)
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


def _make_skip_error(lane: Lane, why: str, step: str) -> ConfigProblem:
    return ConfigProblem(f"Lane {lane.id} was not moved: {why}.", next_step=step)


# Lanes while the daemon does not run: their status, their schemas, and the commands that change them.


def find_source_table(components: Components, name: str) -> str:
    """The full name of a source table: `name` itself, or the SCHEMA.TABLE whose last part it is.

    Searches tables that were read so far or have an exact entry; `name` if none matches. ConfigProblem for several.
    """
    tables = {table for source in components.sources.values() for table in source.tables}
    for source, rules in components.sources.items():
        tables |= {table for table in components.register.load(source).topics if rules.rules_for(table) is not None}
    matching = sorted(table for table in tables if get_unqualified_name(table) == name)
    if name in tables or not matching:
        return name
    if len(matching) > 1:
        raise ConfigProblem(f"there are several tables {name!r}", next_step=f"Name one: {', '.join(matching)}.")
    return matching[0]


def find_lane(components: Components, lane_id: str) -> Lane:
    """The lane with this id. ConfigProblem with the existing ids."""
    lanes = list_lanes(components)
    for lane in lanes:
        if lane.id == lane_id:
            return lane
    names = ", ".join(lane.id for lane in lanes) or "none yet"
    raise ConfigProblem(f"there is no lane {lane_id!r}", next_step=f"The lanes are: {names}.")


@contextmanager
def _lock_lane(components: Components, lane_id: str) -> Iterator[Lane]:
    """The lane with this id, while no instance of the pipeline runs. ConfigProblem if there is none, or if it has no target
    of its own. Fenced if an instance runs that did not answer: it would go on as if nothing had changed."""
    lane = find_lane(components, lane_id)
    if problem := find_target_problem(lane, components.register.load(lane.source)):
        raise problem
    with InstanceLock(components.folder, components.pipeline):
        yield lane


def require_lane(components: Components, lane_id: str) -> None:
    """ConfigProblem unless the lane exists, in the daemon if one runs."""
    running = components.ask_daemon()
    if running is None or all(lane["id"] != lane_id for lane in running["lanes"]):
        find_lane(components, lane_id)


def read_status(components: Components) -> dict[str, Any]:
    """The status of every lane from its sink, in the form of the daemon's status."""
    all_lanes, counts = list_lanes(components), count_open_dead_letters(components)
    waiting = _group_by_lane(all_lanes, counts)
    with ExitStack() as stack:
        reader = _SinkReader(components, stack)
        lanes = [{**reader.read_lane(lane), "dead_letters": waiting.get(lane.id)} for lane in all_lanes]
    state = {"running": False, "ready": False, "unready": ["the daemon does not run"], "engine_page": None}
    counted = {"dead_letters": list_open_dead_letters(counts)}
    return {"pipeline": components.pipeline, **state, "sources": [], "lanes": lanes, **counted}


def count_by_lane(components: Components, lanes: Sequence[Lane]) -> dict[str, int]:
    """By lane, the open dead letters with changes that it lacks. Empty if their store does not answer."""
    return _group_by_lane(lanes, count_open_dead_letters(components))


def _group_by_lane(lanes: Sequence[Lane], counts: Mapping[DeadLetterGroup, int] | None) -> dict[str, int]:
    return {} if counts is None else {x.id: count_for_lane(counts, x.source, x.table, x.id) for x in lanes}


def count_open_dead_letters(components: Components) -> Mapping[DeadLetterGroup, int] | None:
    """The number of open dead letters; None if their store does not answer."""
    try:
        with closing(components.open_dead_letters()) as store:
            return store.count_open()
    except ReplicatorError:
        return None


class _SinkReader:
    """Reads the state of lanes from sinks. A sink that does not answer is not used again, because each read waits
    for it."""

    def __init__(self, components: Components, stack: ExitStack) -> None:
        self._components, self._opened = components, stack
        self._sinks: dict[str, Any] = {}
        self._away: dict[str, tuple[Lane, Retryable]] = {}

    def read_lane(self, lane: Lane) -> dict[str, Any]:
        """The status of the lane from its sink, or the problem."""
        try:
            if lane.refused:
                raise make_target_name_error(lane)
            if lane.id == make_refused_id(lane):
                raise make_target_taken_error(lane)
            if lane.sink in self._away:
                other, error = self._away[lane.sink]
                sentence = re.sub(rf"{re.escape(other.id)}(?!\w)", lambda _: lane.id, error.sentence)
                return _to_status(lane, None, Retryable(sentence, next_step=error.next_step))
            if lane.sink not in self._sinks:
                self._sinks[lane.sink] = self._components.open_sink(lane.sink)
                self._opened.callback(self._sinks[lane.sink].close)
            sink = self._sinks[lane.sink]
            state, schemas = sink.state(lane), read_schema_versions(sink, lane) if lane.table else ()
            rules = self._components.sources[lane.source].rules_for(lane.table) if lane.table else None
            change: ConfigProblem | None = None  # Why the lane will be suspended at its start.
            try:
                refuse_changed_rule(lane, state.rule if state else "", schemas, rules.keys if rules else ())
            except ConfigProblem as problem:
                change = problem
            return {**_to_status(lane, state, change), "schemas": [to_summary(v) for v in schemas]}
        except Retryable as away:
            self._away[lane.sink] = lane, away
            return _to_status(lane, None, away)
        except ReplicatorError as problem:
            return _to_status(lane, None, problem)


def _to_status(lane: Lane, state: LaneState | None, problem: ReplicatorError | None) -> dict[str, Any]:
    report = LaneReport(
        id=lane.id,
        table=lane.table,
        sink=lane.sink,
        policy=lane.policy,
        status="stopped",
        position=state.position.to_json() if state else {},
        error=problem.sentence if problem else None,
        next_step=problem.next_step if problem else None,
        exit_code=int(problem.exit_code) if problem else None,
        tombstones=describe_tombstones(lane, state.purged_up_to if state else None),
    )
    return asdict(report)


def resync_lane(components: Components, lane_id: str, *, accept_missing: bool = False) -> None:
    """Remove a lane's rows and state; it starts from the beginning at the next run. DataLoss if rows would be
    missing then, unless `accept_missing`."""
    with (
        _lock_lane(components, lane_id) as lane,
        closing(components.open_sink(lane.sink, "write")) as sink,
        closing(components.open_source(lane.source)) as source,
    ):
        rules = components.sources[lane.source]
        if not accept_missing:
            topic = rules.transactions.topic if rules.transactions else ""
            missing = describe_missing_when_stopped(source, components.register, lane, topic)
            refuse_missing(lane, missing, has_backfills=rules.has_backfills)
        resync_stopped(sink, source, components.register, lane)


def accept_schema(components: Components, lane_id: str, number: int) -> None:
    """Let a lane continue with the schema `number` at the next start. ConfigProblem as `accept_pending_schema`."""
    with _lock_lane(components, lane_id) as lane, closing(components.open_sink(lane.sink)) as sink:
        accept_pending_schema(lane, number, sink)


def skip_lane(components: Components, lane_id: str, until: Position | None) -> LaneState | None:
    """Move a lane's position without applying anything; returns its new state. ConfigProblem as `check_skip`."""
    with (
        _lock_lane(components, lane_id) as lane,
        closing(components.open_sink(lane.sink, "write")) as sink,
        closing(components.open_source(lane.source)) as source,
    ):
        entry = components.register.load(lane.source)
        topics = entry.topics.get(lane.table, frozenset())
        begun = entry.beginnings.get(lane.id, Position())
        at = LanePosition.from_state(lane, sink.state(lane), begun, lambda p: not lane.table or p.topic in topics)
        return apply_skip(sink, lane, check_skip(source, at, until))


def read_schema_history(components: Components, table: str) -> list[dict[str, Any]]:
    """The schemas of each lane with this table, target or id, from its sink. ConfigProblem if there is none."""
    lanes = [lane for lane in list_lanes(components) if lane.table]
    names = {lane.id: {lane.id, lane.table, get_unqualified_name(lane.table), lane.into} for lane in lanes}
    matching = [lane for lane in lanes if table in names[lane.id]]
    if not matching:
        tables = ", ".join(sorted({lane.table for lane in lanes})) or "none yet"
        raise ConfigProblem(f"no lane has a table {table!r}", next_step=f"The tables are: {tables}.")
    with ExitStack() as stack:
        names_of_sinks = dict.fromkeys(lane.sink for lane in matching)
        sinks = {name: stack.enter_context(closing(components.open_sink(name))) for name in names_of_sinks}
        return [
            {
                "lane": lane.id,
                "table": lane.table,
                "schemas": [to_json(v) for v in read_schema_versions(sinks[lane.sink], lane)],
            }
            for lane in matching
        ]
