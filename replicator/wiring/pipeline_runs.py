"""Runs a pipeline as part of another command: until it has caught up, or to retry dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from dependency_injector import providers

from replicator.application.operations.dead_letters import RetryResult, retry_selected
from replicator.domain.errors import ExitCode, Fatal, Fenced
from replicator.ports.stores import DeadLetterFilter
from replicator.settings import Loaded

from . import build
from .container import Container
from .daemon import ask_status
from .pipeline_setup import PipelineSetup

ShowProgress = Callable[[Any], AbstractContextManager[Any]]
"""Shows a status to people while a block runs."""


def build_container(setup: PipelineSetup) -> Container:
    """The container of a pipeline that is not the configured one."""
    return Container(loaded=setup.loaded, setup=providers.Object(setup))


def run_until_caught_up(made: Container, telling: ShowProgress = nullcontext) -> Any:
    """Like `run --until-caught-up`; returns the supervisor.

    Fenced while another instance runs. The error of a lane or source that stopped. Fatal if not everything was
    applied.
    """
    made.instance().acquire()
    try:
        supervisor = made.supervisor()
        with telling(made.status()):
            code: ExitCode = supervisor.run(once=True)
    finally:
        made.instance().release()
    if code is not ExitCode.OK:
        problem = supervisor.problem
        raise problem.to_error() if problem is not None else Fatal("Not everything could be applied.")
    return supervisor


def retry_dead_letters(loaded: Loaded, which: DeadLetterFilter) -> RetryResult:
    """Retry the selected dead letters with this configuration. Fenced while the daemon runs."""
    if ask_status(loaded) is not None:
        raise Fenced(
            "the daemon is running, with the configuration of its start",
            next_step="Stop the daemon, repeat the command, and start the daemon again: it resumes.",
        )
    container = Container(loaded=loaded)
    with container.instance(), _open_pipelines(container) as pipelines:
        return retry_selected(pipelines, container.runtime(), which)


@contextmanager
def _open_pipelines(container: Any) -> Iterator[build.Pipelines]:
    """Every pipeline, and the running workers of the sinks; all closed afterwards."""
    pipelines: build.Pipelines = container.pipelines()
    workers = container.workers()
    for worker in workers.values():
        worker.start()
    try:
        yield pipelines
    finally:
        container.runtime().abandon.set()
        for worker in workers.values():
            worker.finish()
            worker.join(None)
            worker.close_sink()
        for pipeline in pipelines.values():
            pipeline.context.source.close()
        container.dead_letters().close()
