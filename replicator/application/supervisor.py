"""Runs everything, and ends everything in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

import structlog

from replicator.domain.errors import EnvironmentProblem, ExitCode, Fatal, TooManyRejects
from replicator.domain.topics import describe_unmatched
from replicator.ports.dead_letters import DeadLetters, LetterGroup
from replicator.ports.frames import F

from .decoding import UNCONFIGURED
from .flow import Flow
from .pipeline import Pipeline
from .problem import Problem, problem_of
from .shared import Shared
from .workers import Worker

log = structlog.get_logger(__name__)

LOOK = 0.1
"""Seconds between two looks at whether there is still something to do."""


class Supervisor(Generic[F]):
    """One thread per source and per sink. Runs once.

    Ends when `Shared.stop` is set (a signal), when a source, the engine, the register or the dead-letter store fails, when
    another instance took a lane over, when no lane is left, and, with `once`, when everything is caught up. Workers then
    apply what they have, for at most `Options.drain` seconds after a stop; what is left is read again at the next start.
    """

    def __init__(
        self, pipelines: Sequence[Pipeline[F]], workers: Sequence[Worker[F]], dead_letters: DeadLetters, shared: Shared[F]
    ) -> None:
        self._pipelines = pipelines
        self._workers = workers
        self._dead_letters = dead_letters
        self._shared = shared
        self.problem: Problem | None = None
        self._open_before: Mapping[LetterGroup, int] | None = None

    def run(self, *, once: bool, timeout: float | None = None) -> ExitCode:
        """Blocks until the end. The code of what ended it; of the lanes when none is left or with `once`; otherwise OK.
        ENVIRONMENT after `timeout` seconds of `Silence`.
        `problem` then says why in words. An exception that is no `Exception` passes through, with nothing closed."""
        self._shared.silence.limit = timeout
        sources = [threading.Thread(target=self._source, args=(p, once), daemon=True) for p in self._pipelines]
        letters = self._shared.rejects.open
        letters.recount() if once else letters.refresh()
        self._open_before = letters.known
        for worker in self._workers:
            worker.start()
        for thread in sources:
            thread.start()
        while any(thread.is_alive() for thread in sources) and not self._shared.stop.is_set():
            self._end_without_lanes()
            self._shared.stop.wait(LOOK) if len(sources) != 1 else sources[0].join(LOOK)
        deadline = _Deadline(self._shared, self._shared.options.drain)
        for thread in sources:
            thread.join(deadline.left())
        self._drain(deadline)
        self._raise_kill()
        self._close()
        return self._code(once=once)

    @property
    def rejected(self) -> int:
        """The records that this run rejected."""
        return self._shared.rejects.total

    def _source(self, pipeline: Pipeline[F], once: bool) -> None:
        try:
            pipeline.run(once=once)
        except BaseException as error:
            self._shared.fail(error)

    def _end_without_lanes(self) -> None:
        if self._shared.lanes.none_left():
            log.error("no lane is left")
            self._shared.stop.set()

    def _drain(self, deadline: _Deadline[F]) -> None:
        """Let the workers finish; without a stop as long as it takes."""
        for worker in self._workers:
            worker.finish()
        for worker in self._workers:
            while not worker.join(LOOK):
                self._end_without_lanes()
                if self._shared.stop.is_set():
                    worker.hurry()
                if deadline.is_over():
                    log.warning("sink did not finish in time", sink=worker.name)
                    self._shared.abandon.set()
                    worker.join(self._shared.options.drain)
                    break

    def _raise_kill(self) -> None:
        for error in self._shared.failures:
            if not isinstance(error, Exception):
                raise error

    def _close(self) -> None:
        for pipeline in self._pipelines:
            self._closing(pipeline.tell_source, pipeline.place.name)
            self._closing(pipeline.place.source.close, pipeline.place.name)
        for worker in self._workers:
            self._closing(worker.close_sink, worker.name)
        self._shared.rejects.open.recount()
        self._closing(self._dead_letters.close, "dead letters")

    def _closing(self, close: Callable[[], None], name: str) -> None:
        try:
            close()
        except Exception:
            log.exception("cannot close", name=name)

    def _code(self, *, once: bool) -> ExitCode:
        lanes = self._shared.lanes
        if self._shared.failures:
            error = self._shared.failures[0]
            self.problem = problem_of(error)
            log.error("stopped", sentence=self.problem.sentence, next_step=self.problem.next_step, exc_info=error)
            return self.problem.code
        if not once and not lanes.none_left():
            return ExitCode.OK
        code = lanes.exit_code()
        problems = (run.problem for run in lanes.all())
        self.problem = next((p for p in problems if p is not None and p.code is code), None)
        if code is ExitCode.OK and not self._shared.stop.is_set():
            self.problem = next(filter(None, (pipeline.held_back for pipeline in self._pipelines)), None)
            code = self.problem.code if self.problem else code
        return code

    def find_why_nothing_came(self) -> Fatal | None:
        """Why a run that came to its end applied nothing, or not all there is; None where it did, or where there was nothing
        to apply."""
        lanes = self._shared.lanes.all()
        flows = {pipeline.place.name: pipeline.flow for pipeline in self._pipelines}
        if damaged := [file for flow in flows.values() for file in flow.damaged]:
            return EnvironmentProblem(
                f"Not everything was read: {', '.join(damaged)} cannot be read, and nobody writes to it any more.",
                next_step="Write it again, or take it away, and repeat: what else there is was applied.",
            )
        if any(run.counts.total > run.counts.rejected for run in lanes):
            return None
        has_applied_before = any(run.applied for run in lanes)
        # A record that belongs to no lane is read and rejected again in each run: that is no news to a schedule.
        if self.rejected and (not has_applied_before or self._has_new_letters()):
            return TooManyRejects(
                f"Nothing was applied, and {self.rejected:,} records were rejected.",
                next_step="`replicator dlq list` names them, and `replicator dlq explain EVENT` says what lets one in.",
            )
        records = sum(flow.records for flow in flows.values())
        if not records and (lacking := _find_what_is_not_there(flows, all_of_them=has_applied_before)) is not None:
            return lacking
        if any(flow.ignored[UNCONFIGURED] for flow in flows.values()) and not any(run.lane.table for run in lanes):
            return EnvironmentProblem(
                f"Nothing was applied: none of {records:,} records is of a table that an entry of `tables` matches.",
                next_step="Correct `match` of the entries; `replicator inspect` shows the tables of a topic.",
            )
        return None

    def _has_new_letters(self) -> bool:
        """True when more dead letters are open than when the run began, or when nobody knows how many were or are."""
        before, now = self._open_before, self._shared.rejects.open.known
        return before is None or now is None or any(count > before.get(group, 0) for group, count in now.items())


def _find_what_is_not_there(flows: Mapping[str, Flow], *, all_of_them: bool) -> EnvironmentProblem | None:
    """Why nothing can be read of sources: they have no topic, or no file. `all_of_them`: only where that is so of each."""
    topics = {name: flow.unmatched for name, flow in flows.items() if flow.unmatched}
    files = {name: flow.absent for name, flow in flows.items() if flow.absent}
    if all_of_them and len(topics) + len(files) < len(flows):
        return None
    if topics:
        said = (
            f"Source {s} has no topic. {describe_unmatched(*one)}" for s, found in topics.items() for one in found.items()
        )
        return EnvironmentProblem(
            " ".join(said), next_step="Correct `topics` of the source, or see that its connector runs."
        )
    if files:
        said = (f"Source {name} has no file to read: {why}" for name, why in files.items())
        return EnvironmentProblem(" ".join(said), next_step="Put files there, or correct `path` of the source.")
    return None


class _Deadline(Generic[F]):
    """Begins to run when the stop is set."""

    def __init__(self, shared: Shared[F], seconds: float) -> None:
        self._shared = shared
        self._seconds = seconds
        self._began: float | None = None

    def left(self) -> float:
        """Seconds left, all of them before the stop."""
        if self._began is None and self._shared.stop.is_set():
            self._began = self._shared.clock()
        spent = 0.0 if self._began is None else self._shared.clock() - self._began
        return max(0.0, self._seconds - spent)

    def is_over(self) -> bool:
        """True when the time after a stop is spent."""
        return self.left() <= 0.0
