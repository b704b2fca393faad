"""Retries dead letters: opens the pipelines and sinks for `dlq replay`, while no daemon runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicator.application.operations.dead_letters import RetryResult, retry_selected
from replicator.domain.errors import Fenced
from replicator.ports.stores import DeadLetterFilter
from replicator.settings import Loaded

from . import build
from .container import Container
from .daemon import ask_status


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
