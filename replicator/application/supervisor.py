"""The supervisor: starts all sources and sinks of a pipeline, and ends them cleanly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Generic

import structlog

from replicator.domain.errors import EnvironmentProblem, ExitCode, Fatal, TooManyRejects
from replicator.domain.patterns import describe_unmatched
from replicator.domain.plain_values import format_count
from replicator.ports.frames import F
from replicator.ports.stores import DeadLetterGroup, DeadLetters

from .delivery.worker import Worker
from .problem import Problem, to_problem
from .runtime_context import RuntimeContext
from .stream.batch_decoder import UNCONFIGURED
from .stream.pipeline import SourcePipeline
from .stream.source_progress import SourceProgress

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
"""Seconds between two checks for the end of the run."""


class Supervisor(Generic[F]):
    """Runs one thread per source and per sink. Use each instance once.

    The run ends:
    - when `RuntimeContext.stop` is set (by a signal);
    - when a source, the engine, the register or the dead-letter store fails;
    - when another instance has taken a lane over;
    - when no lane is left;
    - with `once`, when everything is caught up.

    Workers then apply their queued writes, for at most `RuntimeOptions.drain` seconds after a stop. The next
    run reads the rest again.
    """

    def __init__(
        self,
        pipelines: Collection[SourcePipeline[F]],
        workers: Collection[Worker[F]],
        dead_letters: DeadLetters,
        runtime: RuntimeContext[F],
    ) -> None:
        self._pipelines = pipelines
        self._workers = workers
        self._dead_letters = dead_letters
        self._runtime = runtime
        self.problem: Problem | None = None
        self._open_before: Mapping[DeadLetterGroup, int] | None = None

    def run(self, *, once: bool, timeout: float | None = None) -> ExitCode:
        """Run until the end, and return the exit code.

        - After a failure: the code of its error.
        - Without any lane left, or with `once`: the gravest code of the lanes.
        - ENVIRONMENT after `timeout` seconds without progress (see `IdleTimeout`).
        - Otherwise OK.

        `problem` then has the reason. An exception that is no `Exception` is raised, and nothing is closed.
        """
        self._runtime.idle_timeout.limit = timeout
        sources = [threading.Thread(target=self._run_source, args=(p, once), daemon=True) for p in self._pipelines]
        letters = self._runtime.rejects.open
        letters.recount() if once else letters.refresh()
        self._open_before = letters.counts
        for worker in self._workers:
            worker.start()
        for thread in sources:
            thread.start()
        while any(thread.is_alive() for thread in sources) and not self._runtime.stop.is_set():
            self._end_without_lanes()
            self._runtime.stop.wait(LOOK_SECONDS) if len(sources) != 1 else sources[0].join(LOOK_SECONDS)
        deadline = _Deadline(self._runtime, self._runtime.options.drain)
        for thread in sources:
            thread.join(deadline.get_seconds_left())
        self._drain_workers(deadline)
        for error in self._runtime.failures:
            if not isinstance(error, Exception):
                raise error  # A kill: nothing is closed.
        self._close_all()
        return self._find_exit_code(once=once)

    @property
    def rejected_count(self) -> int:
        """The number of records that this run rejected."""
        return self._runtime.rejects.total

    def _run_source(self, pipeline: SourcePipeline[F], once: bool) -> None:
        try:
            pipeline.run(once=once)
        except BaseException as error:
            self._runtime.fail(error)

    def _end_without_lanes(self) -> None:
        if self._runtime.lanes.is_all_suspended():
            log.error("no lane is left")
            self._runtime.stop.set()

    def _drain_workers(self, deadline: _Deadline[F]) -> None:
        """Let the workers finish. Without a stop there is no time limit."""
        for worker in self._workers:
            worker.finish()
        for worker in self._workers:
            while not worker.join(LOOK_SECONDS):
                self._end_without_lanes()
                if self._runtime.stop.is_set():
                    worker.hurry()
                if deadline.is_over():
                    log.warning("sink did not finish in time", sink=worker.name)
                    self._runtime.abandon.set()
                    worker.join(self._runtime.options.drain)
                    break

    def _close_all(self) -> None:
        for pipeline in self._pipelines:
            self._close_or_log(pipeline.report_positions, pipeline.context.name)
            self._close_or_log(pipeline.context.source.close, pipeline.context.name)
        for worker in self._workers:
            self._close_or_log(worker.close_sink, worker.name)
        self._runtime.rejects.open.recount()
        self._close_or_log(self._dead_letters.close, "dead letters")

    def _close_or_log(self, close: Callable[[], None], name: str) -> None:
        try:
            close()
        except Exception:
            log.exception("cannot close", name=name)

    def _find_exit_code(self, *, once: bool) -> ExitCode:
        lanes = self._runtime.lanes
        if self._runtime.failures:
            error = self._runtime.failures[0]
            self.problem = to_problem(error)
            log.error("stopped", sentence=self.problem.sentence, next_step=self.problem.next_step, exc_info=error)
            return self.problem.code
        if not once and not lanes.is_all_suspended():
            return ExitCode.OK
        code = lanes.exit_code()
        problems = (run.problem for run in lanes.list_runs())
        self.problem = next((p for p in problems if p is not None and p.code is code), None)
        if code is ExitCode.OK and not self._runtime.stop.is_set():
            self.problem = next(filter(None, (pipeline.held_back_problem for pipeline in self._pipelines)), None)
            code = self.problem.code if self.problem else code
        return code

    def find_why_nothing_came(self) -> Fatal | None:
        """The reason why a run to the end applied nothing, or not everything.

        None if it applied something, or there was nothing to apply.
        """
        lanes = self._runtime.lanes.list_runs()
        flows = {pipeline.context.name: pipeline.progress for pipeline in self._pipelines}
        if damaged := [file for flow in flows.values() for file in flow.damaged]:
            return EnvironmentProblem(
                f"Not everything was read: {', '.join(damaged)} cannot be read, and nothing is writing it any more.",
                next_step="Write the file again, or remove it. Then repeat. Everything else was applied.",
            )
        if any(run.counts.total > run.counts.rejected for run in lanes):
            return None
        has_applied_before = any(run.applied for run in lanes)
        # A record without a lane is read and rejected in every run: that must not fail a schedule.
        if self.rejected_count and (not has_applied_before or self._has_new_dead_letters()):
            return TooManyRejects(
                f"Nothing was applied. Rejected: {format_count(self.rejected_count, 'record')}.",
                next_step="`replicator dlq list` names them, and `replicator dlq explain EVENT` shows how to fix one.",
            )
        records = sum(flow.records for flow in flows.values())
        if not records and (lacking := _find_missing_sources(flows, all_of_them=has_applied_before)) is not None:
            return lacking
        if any(flow.ignored[UNCONFIGURED] for flow in flows.values()) and not any(run.lane.table for run in lanes):
            return EnvironmentProblem(
                f"Nothing was applied: {format_count(records, 'record')} read, "
                "and no entry of `tables` matches their tables.",
                next_step="Correct `match` of the entries; `replicator inspect` shows the tables of a topic.",
            )
        return None

    def _has_new_dead_letters(self) -> bool:
        """True if more dead letters are open than at the start, or if either count is unknown."""
        before, now = self._open_before, self._runtime.rejects.open.counts
        return before is None or now is None or any(count > before.get(group, 0) for group, count in now.items())


def _find_missing_sources(flows: Mapping[str, SourceProgress], *, all_of_them: bool) -> EnvironmentProblem | None:
    """The error for sources without any topic or file. `all_of_them`: only if that applies to every source."""
    topics = {name: flow.unmatched for name, flow in flows.items() if flow.unmatched}
    files = {name: flow.absent for name, flow in flows.items() if flow.absent}
    if all_of_them and len(topics) + len(files) < len(flows):
        return None
    if topics:
        sentences = (
            f"Source {s} has no topic. {describe_unmatched(*one)}" for s, globs in topics.items() for one in globs.items()
        )
        return EnvironmentProblem(
            " ".join(sentences), next_step="Correct `topics` of the source, or check that its connector is running."
        )
    if files:
        sentences = (f"Source {name} has no file to read: {why}" for name, why in files.items())
        return EnvironmentProblem(" ".join(sentences), next_step="Put files there, or correct `path` of the source.")
    return None


class _Deadline(Generic[F]):
    """A deadline that starts when the stop is set."""

    def __init__(self, runtime: RuntimeContext[F], seconds: float) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._began: float | None = None

    def get_seconds_left(self) -> float:
        """The seconds left; all of them before the stop."""
        if self._began is None and self._runtime.stop.is_set():
            self._began = self._runtime.clock()
        spent = 0.0 if self._began is None else self._runtime.clock() - self._began
        return max(0.0, self._seconds - spent)

    def is_over(self) -> bool:
        """True if the time after the stop is over."""
        return self.get_seconds_left() <= 0.0
