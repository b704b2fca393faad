"""What operators may ask of a lane: while the daemon runs, and while it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic

from replicator.domain.errors import ConfigProblem
from replicator.domain.plan import LaneState
from replicator.domain.position import Position
from replicator.ports.frames import F, Lane
from replicator.ports.register import Register
from replicator.ports.sink import Sink
from replicator.ports.source import Source

from .lanes import LaneRun, Lanes, LaneStatus
from .pipeline import Pipeline


class Control(Generic[F]):
    """Commands to a running pipeline, from any thread. A future ends when its command was taken up by the lane's source
    thread; what the sink then makes of it shows in the lane's status. ConfigProblem for a lane that there is not."""

    def __init__(self, lanes: Lanes, pipelines: Mapping[str, Pipeline[F]]) -> None:
        self._lanes = lanes
        self._pipelines = pipelines

    def pause(self, lane_id: str) -> None:
        """Stop the lane at once, until `resume` or a restart of the program; the others go on."""
        self._lanes.pause(self._find(lane_id))

    def resume(self, lane_id: str) -> Future[None]:
        """Let a paused or suspended lane go on from its own position, without a gap."""
        run = self._find(lane_id)
        return self._post(run, lambda p: p.roster.restart(run) if _is_halted(run) else None)

    def resync(self, lane_id: str) -> Future[None]:
        """Remove the lane's rows and state, and fill it again from where the source's `start_from` says."""
        run = self._find(lane_id)

        def resync(pipeline: Pipeline[F]) -> None:
            start = pipeline.place.source.start()
            pipeline.forget(run.lane.table)
            begin = Position({p: o for p, o in start.items() if pipeline.roster.covers(run, p)})
            pipeline.roster.restart(run, lambda sink: reset(sink, run.lane), begin)

        return self._post(run, resync)

    def skip(self, lane_id: str, until: Position | None) -> Future[None]:
        """Move the lane's position without applying anything. `until` None: where records are lost, to where the source's
        `start_from` says."""
        run = self._find(lane_id)

        def skip(pipeline: Pipeline[F]) -> None:
            source = pipeline.place.source
            pipeline.roster.restart(run, lambda sink: skipped(sink, source, run.lane, until))

        return self._post(run, skip)

    def _find(self, lane_id: str) -> LaneRun:
        run = self._lanes.find(lane_id)
        if run is None:
            names = ", ".join(sorted(other.lane.id for other in self._lanes.all()))
            raise ConfigProblem(f"There is no lane {lane_id!r}.", next_step=f"The lanes are: {names}.")
        return run

    def _post(self, run: LaneRun, command: Callable[[Pipeline[F]], None]) -> Future[None]:
        pipeline = self._pipelines[run.lane.source]
        done: Future[None] = Future()

        def obey() -> None:
            try:
                command(pipeline)
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                done.set_result(None)

        pipeline.post(obey)
        return done


def _is_halted(run: LaneRun) -> bool:
    return run.status in (LaneStatus.PAUSED, LaneStatus.SUSPENDED)


def reset(sink: Sink[F], lane: Lane) -> LaneState | None:
    """Remove the lane's rows and state; its state after that."""
    sink.reset(lane)
    return sink.state(lane)


def skipped(sink: Sink[F], source: Source[F], lane: Lane, until: Position | None) -> LaneState | None:
    """Set the lane's position to `until` where that names a partition; its state after that. The identity of the topics in
    it is forgotten: the lane takes the topics as they are now. ConfigProblem for a partition that neither the lane nor the
    source knows: the lane would for ever look for it."""
    state = sink.state(lane) or LaneState()
    known = {*state.position, *source.start()}
    for partition in until or ():
        if partition not in known:
            raise ConfigProblem(
                f"Neither lane {lane.id} nor source {lane.source} knows {partition}; nothing was skipped.",
                next_step=f"Name one of {', '.join(sorted(map(str, known)))}, then `replicator lanes resume {lane.id}`.",
            )
    if until is None:
        lost = source.losses(state.position, dict(state.identity))
        until = source.start().only(lost)
    topics = {p.topic for p in until}
    identity = tuple((topic, known) for topic, known in state.identity if topic not in topics)
    position = Position({**state.position, **until})
    sink.skip(lane, replace(state, position=position, identity=identity))
    return sink.state(lane)


def resync_stopped(sink: Sink[F], source: Source[F], register: Register, lane: Lane) -> None:
    """`resync` while the program does not run: it begins anew at the next start."""
    seen = register.load(lane.source)
    topics = seen.topics.get(lane.table, frozenset())
    begin = Position({p: o for p, o in source.start().items() if not lane.table or p.topic in topics})
    register.save(lane.source, replace(seen, beginnings={**seen.beginnings, lane.id: begin}))
    sink.reset(lane)
