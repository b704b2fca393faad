"""Runs a pipeline until it has caught up, as part of another command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dependency_injector import providers

from replicator.domain.errors import ExitCode, Fatal

from .container import Container
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
