"""Runs a pipeline as part of another command: until it has caught up, or for its dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from dependency_injector import providers

from replicator.application.operations.rebuild import SPILL_FOLDER
from replicator.application.operations.retry_dead_letters import RetryResult, retry_selected
from replicator.application.stream.file_register import FileRegister
from replicator.domain.errors import ExitCode, Fatal, Fenced
from replicator.ports.dead_letters import DeadLetterFilter
from replicator.settings import Loaded

from . import adapters, build
from .container import Container
from .daemon import ask_status

ShowProgress = Callable[[Any], AbstractContextManager[Any]]
"""Shows a status to people while a block runs."""


def build_container(loaded: Loaded) -> Container:
    """The container for a batch run. A new target gets one commit if possible, otherwise as few as memory allows."""
    made = Container(loaded=loaded)
    made.options.override(providers.Object(build.build_batch_options(loaded)))
    made.engine.override(providers.Singleton(adapters.build_prefetching_engine, loaded))
    made.spill_folder.override(providers.Object(adapters.get_state_folder(loaded) / SPILL_FOLDER))
    return made


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
            "the daemon runs, and has the configuration of its start",
            next_step="Stop it, replay, and start it again: it goes on where it stopped.",
        )
    container = Container(loaded=loaded)
    lock = container.instance()
    lock.acquire()
    try:
        with _open_pipelines(loaded, container) as pipelines:
            return retry_selected(pipelines, container.runtime(), which)
    finally:
        lock.release()


@contextmanager
def _open_pipelines(loaded: Loaded, container: Any) -> Iterator[build.Pipelines]:
    """Every pipeline, with the stored keys of its tables, and the running workers of the sinks; all closed afterwards."""
    pipelines: build.Pipelines = container.pipelines()
    workers = container.workers()
    register = FileRegister(build.get_register_folder(loaded))
    for name, pipeline in pipelines.items():
        pipeline.registry.keys.update(register.load(name).keys)
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
