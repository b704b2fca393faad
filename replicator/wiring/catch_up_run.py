"""Runs a pipeline until it has caught up, as part of another command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dependency_injector import providers

from replicator.application.operations.rebuild import SPILL_FOLDER
from replicator.domain.errors import ExitCode, Fatal
from replicator.settings import Loaded

from . import adapters, build
from .container import Container

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
